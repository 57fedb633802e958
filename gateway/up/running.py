"""One engine that runs on this machine, of either kind, and how to tell that it answers."""

from dataclasses import dataclass
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException
from urllib.parse import urlsplit

from gateway.up.processes import Child

ROLES = ("prefill", "decode", "both")
ANSWER_S = 2.0


@dataclass(frozen=True, slots=True)
class RunningEngine:
    """A started engine: `url` is where it answers, `block_size` tokens of KV cache per block (0: not known)."""

    name: str
    role: str
    url: str
    model: str
    child: Child
    block_size: int = 0

    @property
    def pid(self) -> int:
        """Id of the engine's process and of its process group."""
        return self.child.pid

    def endpoint_flag(self) -> str:
        """Return the value of `twohop serve --endpoint` for this engine."""
        return f"{self.url},role={self.role},name={self.name}"


def answers(url: str) -> bool | None:
    """Return True where GET `url` answers 200 now, else None."""
    parts = urlsplit(url)
    connection = HTTPConnection(parts.hostname or "", parts.port, timeout=ANSWER_S)
    try:
        connection.request("GET", parts.path)
        return connection.getresponse().status == HTTPStatus.OK or None
    except (OSError, HTTPException):
        return None
    finally:
        connection.close()
