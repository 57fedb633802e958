"""One engine that runs on this machine, of either kind, and how to tell that it answers."""

from dataclasses import dataclass

import httpx

from gateway.up.processes import Child

ROLES = ("prefill", "decode", "both")


@dataclass(frozen=True, slots=True)
class RunningEngine:
    """A started engine: `url` is where it answers, `block_size` tokens of KV cache per block (None: not known)."""

    name: str
    role: str
    url: str
    model: str
    child: Child
    block_size: int | None = None

    @property
    def pid(self) -> int:
        """Id of the engine's process and of its process group."""
        return self.child.pid

    def endpoint_flag(self) -> str:
        """Return the value of `twohop serve --endpoint` for this engine."""
        return f"{self.url},role={self.role},name={self.name}"


def answers(url: str) -> bool | None:
    """Return True where GET `url` answers 200 now, else None."""
    try:
        return httpx.get(url, timeout=2.0, trust_env=False).status_code == httpx.codes.OK or None
    except httpx.HTTPError:
        return None
