"""The client: closed loops of plain requests and paced streams, every answer compared whole with what it must be.

A proxy that answers wrongly ends the phase with `WrongAnswer`, so that a broken one cannot look fast.
CPU is read through a callback at the borders of the measured window, nowhere else.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import cast

import httptools

from benchmarks.overhead.payloads import stream_body, stream_events

CpuClock = Callable[[], float]  # CPU seconds of the measured group so far
_AFTERWORK_S = 0.05  # what a proxy does after its last answer belongs to the window too


class WrongAnswer(Exception):
    """The proxy answered with another status or other bytes, closed the connection, or did not answer in time."""


@dataclass(frozen=True, slots=True)
class Cost:
    """What a measured window held: units of work done, CPU seconds of the proxy, seconds on the wall."""

    units: int
    cpu_s: float
    elapsed_s: float


@dataclass(frozen=True, slots=True)
class StreamCost(Cost):
    """The same for streams: units are events, `due` is how many the pace asks for, `frames` counts body pieces."""

    due: float
    frames: int


class Exchange(asyncio.Protocol):
    """One keep-alive connection; it calls `finished` when an answer is complete and `failed` when none will be."""

    def __init__(self, finished: Callable[["Exchange"], None], failed: Callable[[Exception], None]) -> None:
        self.finished, self.failed = finished, failed
        self.pieces = list[bytes]()
        self.body_bytes = self.frames = self.status = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport to write to."""
        self.transport = cast("asyncio.Transport", transport)
        self.parser = httptools.HttpResponseParser(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Report it: whoever is done ignores it."""
        self.failed(WrongAnswer(f"the proxy closed a connection ({exc})"))

    def data_received(self, data: bytes) -> None:
        """Feed the parser."""
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserError as error:
            self.failed(error)

    def send(self, request: bytes) -> None:
        """Send one request and forget the answer before."""
        self.pieces, self.status = [], 0
        self.transport.write(request)

    def on_headers_complete(self) -> None:
        """Note the status."""
        self.status = self.parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        """Collect a piece of the body."""
        self.pieces.append(body)
        self.frames += 1
        self.body_bytes += len(body)

    def on_message_complete(self) -> None:
        """Hand the answer over."""
        self.finished(self)


def check(exchange: Exchange, expected: bytes) -> None:
    """Raise `WrongAnswer` unless the answer is a 200 with exactly the `expected` body."""
    body = b"".join(exchange.pieces)
    if exchange.status != 200 or body != expected:
        head = body[:200].decode(errors="replace")
        raise WrongAnswer(f"status {exchange.status}, {len(body)} bytes where {len(expected)} must be: {head}")


class _Phase:
    """Connections that share one end: the last answer, the first failure, or the time limit."""

    def __init__(self, port: int) -> None:
        self.loop = asyncio.get_running_loop()
        self.over: asyncio.Future[None] = self.loop.create_future()
        self.port = port
        self.exchanges = list[Exchange]()

    def finish(self) -> None:
        if not self.over.done():
            self.over.set_result(None)

    def fail(self, error: Exception) -> None:
        if not self.over.done():
            self.over.set_exception(error)

    async def connect(self, count: int, finished: Callable[[Exchange], None]) -> None:
        for _ in range(count):
            _, exchange = await self.loop.create_connection(
                lambda: Exchange(finished, self.fail), "127.0.0.1", self.port
            )
            self.exchanges.append(exchange)

    async def wait(self, limit_s: float, what: str) -> None:
        try:
            async with asyncio.timeout(limit_s):
                await asyncio.shield(self.over)
        except TimeoutError:
            raise WrongAnswer(f"{what} took over {limit_s:.0f} s") from None

    def close(self) -> None:
        if self.over.done():
            self.over.exception()  # seen: a failure after the first is of no use
        self.over.cancel()
        for exchange in self.exchanges:
            exchange.transport.abort()


class _ClosedLoop(_Phase):
    """Every connection sends its next request as soon as it has its answer, until the requests or the time run out."""

    def __init__(self, port: int, requests: Sequence[bytes], expected: bytes, limit_s: float) -> None:
        super().__init__(port)
        self.requests: Iterator[bytes] = iter(requests)
        self.expected, self.limit_s = expected, limit_s
        self.sent = self.answered = 0

    def begin(self) -> None:
        self.begun_s = self.loop.time()
        for exchange in self.exchanges:
            self.send_next(exchange)

    def send_next(self, exchange: Exchange) -> None:
        late = self.loop.time() - self.begun_s > self.limit_s
        request = None if late else next(self.requests, None)
        if request is not None:
            self.sent += 1
            exchange.send(request)
        elif self.answered == self.sent:
            self.finish()

    def answer(self, exchange: Exchange) -> None:
        try:
            check(exchange, self.expected)
        except WrongAnswer as error:
            self.fail(error)
            return
        self.answered += 1
        self.send_next(exchange)


async def closed_loop(
    port: int, requests: Sequence[bytes], expected: bytes, *, connections: int, limit_s: float, cpu: CpuClock
) -> Cost:
    """Send `requests` over `connections` keep-alive connections; start none after `limit_s` seconds."""
    phase = _ClosedLoop(port, requests, expected, limit_s)
    try:
        await phase.connect(min(connections, len(requests)), phase.answer)
        cpu_before, begun_s = cpu(), phase.loop.time()
        phase.begin()
        await phase.wait(limit_s + 30.0, "a closed loop")
        await asyncio.sleep(_AFTERWORK_S)
        return Cost(phase.answered, cpu() - cpu_before, phase.loop.time() - begun_s)
    finally:
        phase.close()


class _Streams(_Phase):
    """Streams that run side by side; each is compared whole at its end."""

    def __init__(self, port: int, expected: bytes) -> None:
        super().__init__(port)
        self.expected, self.left = expected, 0

    def answer(self, exchange: Exchange) -> None:
        self.left -= 1
        if exchange.status != 200:
            self.fail(WrongAnswer(f"a stream answered with status {exchange.status}: {exchange.pieces[:1]!r}"))
        elif self.left == 0:
            self.finish()

    def totals(self) -> tuple[int, int]:
        """Return body bytes and body pieces of all streams so far."""
        return sum(e.body_bytes for e in self.exchanges), sum(e.frames for e in self.exchanges)

    async def all_begun(self, limit_s: float) -> None:
        until_s = self.loop.time() + limit_s
        while not all(exchange.frames for exchange in self.exchanges):
            if self.over.done():
                self.over.result()
            if self.loop.time() > until_s:
                raise WrongAnswer(f"not every stream had begun after {limit_s:.0f} s")
            await asyncio.sleep(0.01)


async def paced_streams(
    port: int, requests: Sequence[bytes], *, events: int, interval_s: float, window_s: float, cpu: CpuClock
) -> StreamCost:
    """Open one stream per request, spread over one interval, and measure `window_s` seconds while all of them run.

    `events` at `interval_s` must outlast the opening and the window. All streams are read to their end and compared.
    """
    phase = _Streams(port, stream_body(events))
    event_bytes = len(stream_events(events)[0])
    try:
        await phase.connect(len(requests), phase.answer)
        phase.left = len(requests)
        for exchange, request in zip(phase.exchanges, requests, strict=True):
            exchange.send(request)
            await asyncio.sleep(interval_s / len(requests))
        await phase.all_begun(limit_s=15.0)
        (bytes_before, frames_before), cpu_before, begun_s = phase.totals(), cpu(), phase.loop.time()
        await asyncio.sleep(window_s)
        (bytes_after, frames_after), cpu_after, ended_s = phase.totals(), cpu(), phase.loop.time()
        await phase.wait(events * interval_s * 4 + 30.0, "the streams")
        for exchange in phase.exchanges:
            check(exchange, phase.expected)
    finally:
        phase.close()
    elapsed_s = ended_s - begun_s
    return StreamCost(
        units=round((bytes_after - bytes_before) / event_bytes),
        cpu_s=cpu_after - cpu_before,
        elapsed_s=elapsed_s,
        due=len(requests) * elapsed_s / interval_s,
        frames=frames_after - frames_before,
    )
