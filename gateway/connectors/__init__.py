"""How a prompt's KV cache goes from a prefill engine to a decode engine: one file for each transfer method.

A connector is a module with three pure functions, found by its file name (`disaggregation.connector`):

* `prefill_body(members) -> bytes`: the request for the prefill leg;
* `read_handoff(answer) -> Handoff | str`: what the prefill engine handed over, or one token that says why nothing;
* `decode_body(members, handoff) -> bytes`: the request for the decode leg.

`members` are the client's body as `gateway.wire.json_object.Members`. To add one, add a file; nothing else changes.
"""

import importlib
import pkgutil
from dataclasses import dataclass
from typing import Protocol, cast

from gateway.wire.json_object import Members


@dataclass(frozen=True, slots=True)
class Handoff:
    """What a prefill answer hands over: `params` as raw JSON, opaque; `cached_tokens` of the prefill leg, if told."""

    params: bytes
    cached_tokens: int | None


class Connector(Protocol):
    """The three functions of a connector module."""

    def prefill_body(self, members: Members) -> bytes:
        """Return the body of the prefill leg."""

    def read_handoff(self, answer: bytes) -> Handoff | str:
        """Return what `answer`, the body of a 200 of the prefill leg, hands over, or why it hands over nothing."""

    def decode_body(self, members: Members, handoff: Handoff) -> bytes:
        """Return the body of the decode leg."""


def names() -> list[str]:
    """Return the names that `disaggregation.connector` may have."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__))


def load(name: str) -> Connector:
    """Return the connector called `name`. Raises ValueError for an unknown name."""
    if name not in names():
        raise ValueError(f"unknown connector {name!r}; there are: {', '.join(names())}")
    return cast("Connector", importlib.import_module(f"{__name__}.{name}"))
