"""The connection pools of all endpoints, and the bytes of a request's head."""

import asyncio

from gateway.pool.endpoint import Endpoint
from gateway.upstream.client import Leg, LegTimeouts
from gateway.upstream.pool import MAX_OPEN, ConnectionPool
from gateway.upstream.tls import Tls


class Engines:
    """One connection pool for each endpoint, made at its first request and dropped with its identity."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, max_connections: int = MAX_OPEN, tls: Tls | None = None
    ) -> None:
        self._loop, self._max_connections, self._tls = loop, max_connections, tls or Tls()
        self._pools: dict[str, tuple[Endpoint, ConnectionPool]] = {}

    def leg(self, endpoint: Endpoint, timeouts: LegTimeouts, elapsed_s: float = 0.0) -> Leg:
        """Return a new leg to `endpoint`; `elapsed_s` of its total time are over already."""
        if endpoint.gone:  # leased before it left: its connection is closed after use, and kept under no name
            pool = self._pool(endpoint)
            pool.close()
            return Leg(endpoint.name, pool, timeouts, self._loop, elapsed_s)
        entry = self._pools.get(endpoint.name)
        if entry is None or entry[0] is not endpoint:
            self.drop(endpoint)
            entry = (endpoint, self._pool(endpoint))
            self._pools[endpoint.name] = entry
        return Leg(endpoint.name, entry[1], timeouts, self._loop, elapsed_s)

    def configure(self, max_connections: int) -> None:
        """Let each endpoint have `max_connections` from now on; those open beyond it go when they end."""
        self._max_connections = max_connections
        for _, pool in self._pools.values():
            pool.limit = max_connections

    def _pool(self, endpoint: Endpoint) -> ConnectionPool:
        spec = endpoint.spec
        tls = self._tls if spec.tls else None
        return ConnectionPool(spec.host, spec.port, self._loop, self._max_connections, tls)

    def drop(self, endpoint: Endpoint) -> None:
        """Close the idle connections under this name; busy ones close when they end."""
        entry = self._pools.pop(endpoint.name, None)
        if entry is not None:
            entry[1].close()

    def stirred(self, endpoint_name: str) -> bool:
        """Whether any open connection to this endpoint has received bytes since the last call."""
        entry = self._pools.get(endpoint_name)
        return entry is not None and entry[1].stirred()

    def close(self) -> None:
        """Close everything that is idle."""
        for _, pool in self._pools.values():
            pool.close()
        self._pools.clear()

    def counts(self) -> dict[str, tuple[int, int]]:
        """Return (open, idle) connections by endpoint name."""
        return {name: (pool.open_count, pool.idle_count) for name, (_, pool) in self._pools.items()}


def request_head(method: bytes, target: bytes, endpoint: Endpoint, header_lines: bytes, body_bytes: int) -> bytes:
    """Return the head of a request; `header_lines` end with CRLF each and hold neither host nor content-length."""
    return b"%b %b HTTP/1.1\r\nhost: %b\r\n%bcontent-length: %d\r\n\r\n" % (
        method,
        target,
        endpoint.spec.authority,
        header_lines,
        body_bytes,
    )
