"""Paced streams side by side, and the time between two events of each as the client sees them come."""

import asyncio
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise

from benchmarks.overhead.load import Exchange, WrongAnswer, check
from benchmarks.overhead.payloads import stream_body

_SLACK_S = 30.0


class Clocked(Exchange):
    """A stream that notes when each piece of its body comes (seconds on the performance counter)."""

    def __init__(self, finished: Callable[[Exchange], None], failed: Callable[[Exception], None]) -> None:
        super().__init__(finished, failed)
        self.times_s: list[float] = []

    def on_body(self, body: bytes) -> None:
        """Note the time, before anything else."""
        self.times_s.append(time.perf_counter())
        super().on_body(body)


async def gaps_ms(
    ports: Sequence[int], requests: Sequence[bytes], *, events: int, interval_s: float, skip: int
) -> list[float]:
    """Run one stream per request, spread over `ports` and one interval; return all gaps between events in ms.

    Of each stream the first and last `skip` events do not count: then others are being opened, or have ended. Every
    stream is compared whole. Raises WrongAnswer.
    """
    loop = asyncio.get_running_loop()
    over: asyncio.Future[None] = loop.create_future()
    streams: list[Clocked] = []
    ended: set[Exchange] = set()

    def finished(exchange: Exchange) -> None:
        ended.add(exchange)
        if len(ended) == len(requests) and not over.done():
            over.set_result(None)

    def failed(error: Exception) -> None:
        if not over.done():
            over.set_exception(error)

    try:
        for number in range(len(requests)):
            port = ports[number % len(ports)]
            _, stream = await loop.create_connection(partial(Clocked, finished, failed), "127.0.0.1", port)
            streams.append(stream)
        begun_s = loop.time()
        for number, (stream, request) in enumerate(zip(streams, requests, strict=True)):
            await asyncio.sleep(begun_s + number * interval_s / len(requests) - loop.time())
            stream.send(request)
        async with asyncio.timeout(events * interval_s * 2 + _SLACK_S):
            await asyncio.shield(over)
    except TimeoutError:
        raise WrongAnswer("the streams did not end in time") from None
    finally:
        over.cancel()
        for stream in streams:
            stream.transport.abort()
    for stream in streams:
        check(stream, stream_body(events))
    # The last piece of a body is [DONE], which comes with the last event.
    return [(b - a) * 1e3 for one in streams for a, b in pairwise(one.times_s[skip : events - skip])]
