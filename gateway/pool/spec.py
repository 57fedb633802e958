"""What others tell of an engine: where discovery says that it is, and what it says that it serves."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from scorers.model import NO_LABELS, Role


@dataclass(frozen=True, slots=True)
class EndpointSpec:
    """What discovery tells of an endpoint; `url` has no trailing slash, `host` no brackets, `port` is a number.

    `loadable_adapters` are globs of the adapters that it loads by itself when a request names one.
    `tls`: it speaks https. `authority` is what a request's `host` header says.
    """

    name: str
    url: str
    host: str
    port: int
    role: Role = "both"
    labels: Mapping[str, str] = field(default_factory=lambda: NO_LABELS)
    loadable_adapters: tuple[str, ...] = ()
    tls: bool = False
    authority: bytes = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Make what every request to it says once."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        object.__setattr__(self, "authority", f"{host}:{self.port}".encode("ascii"))


@dataclass(frozen=True, slots=True)
class Model:
    """One entry of an engine's `/v1/models`: its id, and the whole JSON object as told."""

    id: str
    entry: Mapping[str, Any]
