"""GETs of an engine's small pages, health, models and metrics, and POSTs that ask for a token, beside the data plane.

Invariant: neither raises but for cancellation, and keeps to its limits of time and size whatever the engine does.
"""

import asyncio
from typing import NamedTuple

from gateway.errors import EngineError, UpstreamFailed, UpstreamTimeout
from gateway.pool.spec import EndpointSpec
from gateway.upstream.client import AnswerTooLong, ConnectFailed, Leg, LegTimeouts
from gateway.upstream.pool import ConnectionPool
from gateway.upstream.tls import Tls

MAX_CONNECTIONS = 4

_POSTED_ANSWER_BYTES = 1 << 20


class Answer(NamedTuple):
    """Status and body of a GET; status 0 where there was none, and then `problem` says why in words."""

    status: int
    body: bytes = b""
    problem: str = ""


class Fetcher:
    """Asks one endpoint over a few connections of its own, so that it waits for no request and no request for it."""

    def __init__(self, spec: EndpointSpec, loop: asyncio.AbstractEventLoop, tls: Tls | None = None) -> None:
        self._loop = loop
        self._pool = ConnectionPool(spec.host, spec.port, loop, MAX_CONNECTIONS, (tls or Tls()) if spec.tls else None)
        self._lines = b"host: %b\r\nuser-agent: twohop\r\naccept-encoding: identity\r\n\r\n" % spec.authority

    async def get(self, path: str, timeout_s: float, limit_bytes: int) -> Answer:
        """GET `path`; the whole answer has `timeout_s` and `limit_bytes`. Never raises but for cancellation."""
        leg = Leg("", self._pool, LegTimeouts(timeout_s, timeout_s, timeout_s, timeout_s), self._loop)
        try:
            await leg.open(b"GET %b HTTP/1.1\r\n%b" % (path.encode("ascii"), self._lines), b"")
            return Answer(leg.status, await leg.read(limit_bytes))
        except UpstreamTimeout:
            return Answer(0, problem=f"GET {path} gave no whole answer in {timeout_s:g} s")
        except AnswerTooLong:
            return Answer(0, problem=f"GET {path} answered more than {limit_bytes >> 20} MiB")
        except ConnectFailed as error:
            return Answer(0, problem=f"cannot connect: {_reason(error)}")
        except UpstreamFailed as error:
            return Answer(0, problem=f"GET {path} failed: {_reason(error)}")
        finally:
            leg.abort(asyncio.CancelledError())  # does nothing to a leg that is over

    async def post(self, path: str, body: bytes, timeout_s: float) -> int:
        """POST a JSON body; return the status once the answer is whole, 0 where none came. Never raises likewise."""
        leg = Leg("", self._pool, LegTimeouts(timeout_s, timeout_s, timeout_s, timeout_s), self._loop)
        more = b"content-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body)
        lines = self._lines.removesuffix(b"\r\n") + more
        try:
            await leg.open(b"POST %b HTTP/1.1\r\n%b" % (path.encode("ascii"), lines), body)
            await leg.read(_POSTED_ANSWER_BYTES)
        except EngineError:
            return 0
        else:
            return leg.status
        finally:
            leg.abort(asyncio.CancelledError())

    def close(self) -> None:
        """Close the connections that are idle."""
        self._pool.close()


def _reason(error: UpstreamFailed) -> str:
    return error.message.removeprefix("endpoint : ")
