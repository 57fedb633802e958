"""The connections to one engine: those idle, how many are open, and the line of those who wait for one.

Invariant: a connection is either idle in exactly one pool, or busy with exactly one leg, or closed. Those open and
those being made are never more than `limit`; who waits gets a connection or a place in the order of coming.
"""

import asyncio
from collections import deque

from gateway.upstream.protocol import EngineConnection
from gateway.upstream.tls import Tls

MAX_IDLE = 256
# Engines on uvicorn close idle connections after 5 s; one that is about to be closed is not worth the race.
MAX_IDLE_S = 4.0
MAX_OPEN = 512


class Attempt:
    """One wish for a connection; `fresh`: a new one. `queued`: it waits while all are busy, or ended so."""

    __slots__ = ("fresh", "queued", "turn")

    def __init__(self, fresh: bool = False) -> None:
        self.fresh = fresh
        self.queued = False
        self.turn: asyncio.Future[EngineConnection | None] | None = None

    def end_wait(self, connection: EngineConnection | None) -> None:
        """Give it a connection that came back, or a place (None)."""
        if self.turn is not None:
            self.turn.set_result(connection)


class ConnectionPool:
    """Connections to `host:port`: the most recently used is taken first, and surplus ones that have aged are closed."""

    def __init__(
        self,
        host: str,
        port: int,
        loop: asyncio.AbstractEventLoop,
        limit: int = MAX_OPEN,
        tls: Tls | None = None,
    ) -> None:
        self.limit = limit
        self._host, self._port, self._loop, self._tls = host, port, loop, tls
        self._idle: deque[EngineConnection] = deque()
        self._open: set[EngineConnection] = set()
        self._line: deque[Attempt] = deque()
        self._places = 0  # taken: by those open and those being made
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
        if not self._idle:
            return None
        self._close_aged(self._loop.time())
        while self._idle:
            connection = self._idle.pop()
            if connection.reusable:
                return connection
            connection.abort()
        return None

    async def connect(self, attempt: Attempt | None = None) -> EngineConnection:
        """Open a new connection; while `limit` are open, wait for one to close or, unless `fresh`, to come back.

        What came back has `kept` set, and may have been closed since. Raises OSError.
        """
        if self._places < self.limit:
            self._places += 1
        else:
            attempt = attempt or Attempt()
            # One may have come back since this was asked for.
            kept = (None if attempt.fresh else self.take()) or await self._turn(attempt)
            if kept is not None:
                return kept
        try:
            connection = await self._connect()
        except BaseException:
            self._free_place()
            raise
        if connection.transport is None:  # lost between the handshake and this task's turn
            self._free_place()
        else:
            self._open.add(connection)
        return connection

    async def _connect(self) -> EngineConnection:
        context, name = (None, None) if self._tls is None else await self._tls.context_for(self._host)
        _, connection = await self._loop.create_connection(
            lambda: EngineConnection(self._forget), self._host, self._port, ssl=context, server_hostname=name
        )
        return connection

    async def _turn(self, attempt: Attempt) -> EngineConnection | None:
        """Wait for a connection that comes back, or for a place (None), which is then the caller's."""
        turn: asyncio.Future[EngineConnection | None] = self._loop.create_future()
        attempt.turn = turn
        attempt.queued = True
        self._line.append(attempt)
        if attempt.fresh and self._idle:
            self._idle.popleft().abort()  # its place comes free when it is closed
        try:
            kept = await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                if attempt in self._line:
                    self._line.remove(attempt)
            elif (given := turn.result()) is not None:
                self.give_back(given)
            else:
                self._free_place()
            raise
        attempt.queued = False
        return kept

    def give_back(self, connection: EngineConnection) -> None:
        """Take a connection back after its answer is complete; who waits longest gets it."""
        if not connection.reusable or self._closed or len(self._idle) >= MAX_IDLE:
            connection.abort()
            return
        connection.kept = True
        if self._line and self._hand_on(connection):
            return
        connection.idle_since_s = now_s = self._loop.time()
        self._idle.append(connection)
        self._close_aged(now_s)

    def close(self) -> None:
        """Close the idle connections now and the busy ones when they come back."""
        self._closed = True
        while self._idle:
            self._idle.pop().abort()

    def stirred(self) -> bool:
        """Whether any open connection has received bytes since the last call."""
        stirred = False
        for connection in self._open:
            if connection.stirred:
                stirred, connection.stirred = True, False
        return stirred

    def _first_in_line(self) -> Attempt | None:
        while self._line and (turn := self._line[0].turn) is not None and turn.done():
            self._line.popleft()  # cancelled just now
        return self._line[0] if self._line else None

    def _hand_on(self, connection: EngineConnection) -> bool:
        """Give what came back to the first in line, or make room for it; False where nobody waits."""
        first = self._first_in_line()
        if first is None:
            return False
        if first.fresh:
            connection.abort()
        else:
            self._line.popleft()
            first.end_wait(connection)
        return True

    def _free_place(self) -> None:
        first = self._first_in_line()
        if first is None:
            self._places -= 1
        else:
            self._line.popleft()
            first.end_wait(None)

    def _close_aged(self, now_s: float) -> None:
        idle, oldest_s = self._idle, now_s - MAX_IDLE_S  # in the order in which they became idle
        while idle and idle[0].idle_since_s < oldest_s:
            idle.popleft().abort()

    def _forget(self, connection: EngineConnection) -> None:
        if connection in self._open:
            self._open.discard(connection)
            self._free_place()
        # The engine closed it while idle: rare, so a scan of a bounded deque is fine.
        if connection in self._idle:
            self._idle.remove(connection)
