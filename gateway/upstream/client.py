"""One request to one engine: connect, send, first bytes, the rest.

Invariant: whatever happens, a leg ends with its connection back in the pool or closed; `abort` may be called at any
moment, any number of times, and the coroutine that waits on the leg then raises what `abort` was given.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gateway.errors import UpstreamFailed, UpstreamTimeout
from gateway.upstream.pool import Attempt, ConnectionPool
from gateway.upstream.protocol import EngineConnection, Headers
from gateway.upstream.reasons import in_words

HIGH_WATER_BYTES = 262144
IDLE_TICKS = 4


class ConnectFailed(UpstreamFailed):
    """No connection could be opened: the engine has not seen the request."""


class AllInUse(ConnectFailed):
    """Every connection that may be open to it was busy for too long: our own limit, not the engine's fault."""


class AnswerTooLong(UpstreamFailed):
    """The body is over the bytes it may have; what came of it is in the leg's `early`."""


@dataclass(frozen=True, slots=True)
class LegTimeouts:
    """Limits of one leg in seconds: to connect, to the first body byte, between two reads of the body, and in all."""

    connect_s: float
    first_byte_s: float
    idle_s: float
    total_s: float


class Leg:
    """One request on one engine connection, and its answer.

    `elapsed_s` of the total time are over already. `on_over` is called when the engine has nothing more to do for this
    leg, its answer whole, broken or aborted, whatever the client has taken of it by then.

    After `open`: `status`, `headers`, and the body so far in `early`. Then `read` (all of it), `relay`, or `next_chunk`
    again and again. After the body's end: `trailers`, empty where the engine sent none.
    """

    def __init__(
        self,
        name: str,
        pool: ConnectionPool,
        timeouts: LegTimeouts,
        loop: asyncio.AbstractEventLoop,
        elapsed_s: float = 0.0,
    ) -> None:
        self.name = name
        self.status = 0
        self.headers: Headers = []
        self.trailers: Sequence[tuple[bytes, bytes]] = ()
        self.early: list[bytes] = []
        self.complete = False
        self.on_over: Callable[[], None] | None = None
        self._pool, self._timeouts, self._loop = pool, timeouts, loop
        self._connection: EngineConnection | None = None
        self._connecting: asyncio.Task[EngineConnection] | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._sink: Callable[[bytes], None] | None = None
        self._failure: BaseException | None = None
        self._started_s = loop.time() - elapsed_s
        self._quiet_ticks = 0
        self._early_bytes = 0
        self._limit_bytes = 0
        self._paused = False
        self._wants_all = False
        self._lost_unanswered = False
        self._aborted = False

    async def open(self, head: bytes, body: bytes | bytearray) -> None:
        """Send a request and wait for the head and the first bytes of the body, or its end.

        Raises ConnectFailed, UpstreamFailed, UpstreamTimeout, or what `abort` was given.
        """
        if self._failure is not None:
            raise self._failure
        connection = self._pool.take()
        fresh = False
        while True:
            if connection is None:
                connection = await self._connect(fresh)
            reused = connection.kept
            if self._failure is not None:  # aborted in the moment between connecting and this task's turn
                self._pool.give_back(connection)
                raise self._failure
            self._lost_unanswered = False
            self._connection = connection
            self._arm(max(0.0, min(self._timeouts.first_byte_s, self._left_s())), self._on_first_byte_timeout)
            connection.request(head, body, self)
            try:
                await self._wait()
            except UpstreamFailed:
                # A kept-alive connection that the engine closed just as it was used: the request was most likely
                # not processed, so it is sent once more, on a new connection.
                if reused and self._lost_unanswered and not self._aborted:
                    connection, fresh, self._failure = None, True, None
                    continue
                raise
            else:
                return

    async def read(self, limit_bytes: int) -> bytes:
        """Return the whole body. Raises AnswerTooLong if it is longer than `limit_bytes`."""
        self._wants_all = True
        self._limit_bytes = limit_bytes
        if self._early_bytes > limit_bytes:
            too_long = self._too_long()
            self.abort(too_long)
            raise too_long
        if not self.complete:
            if self._paused:
                self.resume()
            self._arm_idle()
            await self._wait()
        return self.early[0] if len(self.early) == 1 else b"".join(self.early)

    async def relay(self, sink: Callable[[bytes], None], frames: Callable[[bytes], None] | None = None) -> None:
        """Give every body chunk to `sink` as it comes, the early ones first; return at the body's end.

        `frames`, if given, gets instead what came as exactly one chunk of HTTP/1.1 framing, framing included.
        """
        if self._paused:  # before the sink can pause for a reason of its own
            self.resume()
        for chunk in self.early:
            sink(chunk)
        self.early.clear()
        if not self.complete:
            self._sink = sink
            if self._connection is not None:
                self._connection.frames = frames
            self._arm_idle()
            await self._wait()

    async def next_chunk(self) -> bytes | None:
        """Return the body bytes that have come since the last call, waiting for some; None at the body's end.

        While nobody asks, at most `HIGH_WATER_BYTES` and one read are kept; then the engine has to wait.
        """
        while not self.early:
            if self.complete:
                return None
            self._arm_idle()
            await self._wait()
        chunk = self.early[0] if len(self.early) == 1 else b"".join(self.early)
        self.early.clear()
        self._early_bytes = 0
        if self._paused:
            self.resume()
        return chunk

    @property
    def failure(self) -> BaseException | None:
        """What ended this leg before its answer was whole; None while it has not."""
        return self._failure

    def pause(self) -> None:
        """Stop reading from the engine: the client does not keep up."""
        if self._connection is not None and self._connection.transport is not None:
            self._paused = True
            self._connection.transport.pause_reading()

    def resume(self) -> None:
        """Read on."""
        self._paused = False
        if self._connection is not None and self._connection.transport is not None:
            self._connection.heard = True  # the idle time begins anew
            self._connection.transport.resume_reading()

    def abort(self, reason: BaseException) -> None:
        """End the leg now: its connection is closed and whoever waits on it gets `reason`."""
        if self.complete or self._aborted:
            return
        self._aborted = True
        if self._failure is not None:  # lost a moment ago, and the task that waits has not had its turn yet
            self._failure = reason
            return
        if self._connecting is not None:
            self._failure = reason
            self._connecting.cancel()
            return
        if self._connection is not None:
            self._connection.abort()
            self._connection = None
        self._fail(reason)

    # Called by the connection.

    def on_head(self, status: int, headers: Headers) -> None:
        """Keep the head; the leg is open once a body byte or the end has come too."""
        self.status, self.headers = status, headers

    def on_chunk(self, chunk: bytes) -> None:
        """Pass a chunk on, or keep it until somebody asks."""
        if self._sink is not None:
            self._sink(chunk)
            return
        self.early.append(chunk)
        self._early_bytes += len(chunk)
        if not self._wants_all:
            if self._early_bytes > HIGH_WATER_BYTES:
                self.pause()
            self._wake()
        elif self._early_bytes > self._limit_bytes:
            self.abort(self._too_long())

    def on_trailers(self, trailers: Headers) -> None:
        """Keep what came behind the body."""
        self.trailers = trailers

    def on_end(self) -> None:
        """Give the connection back and wake whoever waits."""
        if self._paused:  # the next request on this connection wants to be read
            self.resume()
        connection, self._connection = self._connection, None
        self.complete = True
        if connection is not None:
            self._pool.give_back(connection)
        self._over()
        self._wake()

    def on_lost(self, reason: str) -> None:
        """Translate a broken connection."""
        connection, self._connection = self._connection, None
        self._lost_unanswered = connection is not None and not connection.received
        self._fail(UpstreamFailed(f"endpoint {self.name}: {reason}"))

    async def _connect(self, fresh: bool) -> EngineConnection:
        attempt = Attempt(fresh)
        connecting = self._connecting = self._loop.create_task(self._pool.connect(attempt))
        timer = self._loop.call_later(self._timeouts.connect_s, connecting.cancel)
        try:
            # `wait` leaves the inner task alone, so that its end and a cancellation of this one never blend.
            await asyncio.wait((connecting,))
        except asyncio.CancelledError:
            if not connecting.cancel() and not connecting.cancelled() and connecting.exception() is None:
                self._pool.give_back(connecting.result())
            raise
        finally:
            timer.cancel()
            self._connecting = None
        error = None if connecting.cancelled() else connecting.exception()
        if connecting.cancelled():
            reason = self._too_slow(attempt)
        elif error is not None:
            if not isinstance(error, OSError):
                raise error
            reason = in_words(error)
        elif (connection := connecting.result()).transport is not None:
            return connection
        elif connection.kept and self._failure is None:  # it came back to the pool, and was closed in this moment
            return await self._connect(fresh=True)
        else:
            reason = "the connection was closed at once"
        if self._failure is not None:
            raise self._failure
        kind = AllInUse if connecting.cancelled() and attempt.queued else ConnectFailed
        raise kind(f"endpoint {self.name}: {reason}") from error

    def _too_slow(self, attempt: Attempt) -> str:
        if attempt.queued:
            return (
                f"all {self._pool.limit} connections to it are in use, and none came free within"
                f" {self._timeouts.connect_s:g} s (upstream.max_connections)"
            )
        return f"no connection within {self._timeouts.connect_s:g} s"

    async def _wait(self) -> None:
        try:
            if self._failure is not None:
                raise self._failure
            self._waiter = self._loop.create_future()
            await self._waiter
        except UpstreamFailed:
            if self._aborted and self._failure is not None:  # after the loss, before this turn
                raise self._failure from None
            raise
        finally:
            self._waiter = None
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _fail(self, reason: BaseException) -> None:
        self._failure = reason
        if not self._lost_unanswered:  # else it may be sent once more
            self._over()
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(reason)

    def _over(self) -> None:
        if self.on_over is not None:
            self.on_over()

    def _too_long(self) -> AnswerTooLong:
        return AnswerTooLong(f"endpoint {self.name}: the answer is over {self._limit_bytes} bytes")

    def _arm_idle(self) -> None:
        self._quiet_ticks = 0
        if self._connection is not None:
            self._connection.heard = False
        self._arm(self._tick_s(), self._on_idle_tick)

    def _tick_s(self) -> float:
        return max(0.0, min(self._timeouts.idle_s / IDLE_TICKS, self._left_s()))

    def _left_s(self) -> float:
        return self._timeouts.total_s - (self._loop.time() - self._started_s)

    def _arm(self, delay_s: float, callback: Callable[[], None]) -> None:
        self._timer = self._loop.call_later(delay_s, callback)

    def _on_first_byte_timeout(self) -> None:
        if self._left_s() <= 0:
            self._abort_late()
            return
        self.abort(UpstreamTimeout(f"endpoint {self.name}: no answer within {self._timeouts.first_byte_s:g} s"))

    def _abort_late(self) -> None:
        self.abort(UpstreamTimeout(f"endpoint {self.name}: not done within {self._timeouts.total_s:g} s"))

    def _on_idle_tick(self) -> None:
        # No clock is read for a chunk: a tick asks whether anything was heard since the one before, and a quarter of
        # `idle_s` apart they find a silence after `idle_s` to five quarters of it.
        if self._left_s() <= 0:
            self._abort_late()
            return
        heard = self._connection is not None and self._connection.heard
        if heard or self._paused:  # paused: the client is slow, not the engine
            self._quiet_ticks = 0
            if self._connection is not None:
                self._connection.heard = False
        else:
            self._quiet_ticks += 1
        if self._quiet_ticks >= IDLE_TICKS:
            self.abort(UpstreamTimeout(f"endpoint {self.name}: silent for {self._timeouts.idle_s:g} s"))
            return
        self._arm(self._tick_s(), self._on_idle_tick)
