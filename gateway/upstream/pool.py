"""The idle connections to one engine.

Invariant: a connection is either idle in exactly one pool, or busy with exactly one leg, or closed.
"""

import asyncio
from collections import deque

from gateway.upstream.protocol import EngineConnection

MAX_IDLE = 256
# Engines on uvicorn close idle connections after 5 s; one that is about to be closed is not worth the race.
MAX_IDLE_S = 4.0


class ConnectionPool:
    """Connections to `host:port`: the most recently used is taken first, and surplus ones that have aged are closed."""

    def __init__(self, host: str, port: int, loop: asyncio.AbstractEventLoop) -> None:
        self._host, self._port, self._loop = host, port, loop
        self._idle: deque[EngineConnection] = deque()
        self._open: set[EngineConnection] = set()
        self._closed = False

    @property
    def open_count(self) -> int:
        """Connections open now, busy ones included."""
        return len(self._open)

    @property
    def idle_count(self) -> int:
        """Connections open and idle now."""
        return len(self._idle)

    def take(self) -> EngineConnection | None:
        """Return an idle connection that is fresh enough to use, or None."""
        self._close_aged(self._loop.time())
        while self._idle:
            connection = self._idle.pop()
            if connection.reusable:
                return connection
            connection.abort()
        return None

    async def connect(self) -> EngineConnection:
        """Open a new connection. Raises OSError."""
        _, connection = await self._loop.create_connection(
            lambda: EngineConnection(self._forget), self._host, self._port
        )
        if connection.transport is not None:  # else lost between the handshake and this task's turn
            self._open.add(connection)
        return connection

    def give_back(self, connection: EngineConnection) -> None:
        """Take a connection back after its answer is complete."""
        if not connection.reusable or self._closed or len(self._idle) >= MAX_IDLE:
            connection.abort()
            return
        connection.idle_since_s = now_s = self._loop.time()
        self._idle.append(connection)
        self._close_aged(now_s)

    def close(self) -> None:
        """Close the idle connections now and the busy ones when they come back."""
        self._closed = True
        while self._idle:
            self._idle.pop().abort()

    def _close_aged(self, now_s: float) -> None:
        idle, oldest_s = self._idle, now_s - MAX_IDLE_S  # in the order in which they became idle
        while idle and idle[0].idle_since_s < oldest_s:
            idle.popleft().abort()

    def _forget(self, connection: EngineConnection) -> None:
        self._open.discard(connection)
        # The engine closed it while idle: rare, so a scan of a bounded deque is fine.
        if connection in self._idle:
            self._idle.remove(connection)
