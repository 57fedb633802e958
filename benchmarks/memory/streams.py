"""Streams that have begun and wait for their next event: what each costs, and that it is given back."""

import asyncio
from pathlib import Path

import uvloop

from benchmarks.memory.distinct import request
from benchmarks.overhead.load import Exchange, WrongAnswer
from benchmarks.overhead.payloads import stream_events
from benchmarks.served import GatewayProcess, Line, fake_engine, gateway, urls

LIMIT_MB = 250.0  # for 2,000 streams
PER_ENDPOINT = 200  # under flow_control.max_in_flight_per_endpoint, at its default
PROMPT_BYTES = 4096
_AT_ONCE = 50
_WAIT_S = 30.0
_NEVER_S = 100_000.0  # the second event of a stream comes after the end of the measurement


def measure(count: int, core: int, folder: Path) -> list[Line]:
    """Open `count` streams through a new gateway, print what they cost, and return the lines. Raises WrongAnswer."""
    endpoints = -(-count // PER_ENDPOINT)
    with fake_engine(endpoints, events=2, interval_s=_NEVER_S) as ports, gateway(urls(ports), core, folder) as process:
        return uvloop.run(_measure(process, count))


async def _measure(process: GatewayProcess, count: int) -> list[Line]:
    start_mb = process.rss_mb()
    streams: list[Exchange] = []
    try:
        await _open(process.port, count, streams)
        open_mb, leases = process.rss_mb(), process.read().total("twohop_in_flight")
    finally:
        for stream in streams:
            stream.transport.abort()
    left = await _left(process)
    each_kb = (open_mb - start_mb) / count * 1e3
    print(
        f"{count} open streams, prompts of {PROMPT_BYTES} bytes: RSS {start_mb:.0f} MB before, {open_mb:.0f} MB with "
        f"them ({each_kb:.1f} KB each), {process.rss_mb():.0f} MB after",
        flush=True,
    )
    return [
        Line(f"{count} open idle streams take at most {LIMIT_MB:.0f} MB", f"{open_mb:.0f} MB", open_mb <= LIMIT_MB),
        Line("each of them is counted as in flight", f"{leases:.0f}", leases == count),
        Line("none is in flight once its client has gone", f"{left:.0f}", left == 0),
    ]


async def _open(port: int, count: int, streams: list[Exchange]) -> None:
    """Fill `streams` with `count` streams, each of which has had its first event. Raises WrongAnswer."""
    loop = asyncio.get_running_loop()
    failures: list[Exception] = []
    first = stream_events(2)[0]
    for number in range(count):
        # A stream that ends is as wrong as one that fails.
        _, exchange = await loop.create_connection(
            lambda: Exchange(lambda _: failures.append(WrongAnswer("a stream ended")), failures.append),
            "127.0.0.1",
            port,
        )
        streams.append(exchange)
        exchange.send(request(number, PROMPT_BYTES, stream=True))
        if (number + 1) % _AT_ONCE == 0 or number + 1 == count:
            until_s = loop.time() + _WAIT_S
            while not all(one.frames for one in streams[-_AT_ONCE:]):
                if failures or loop.time() > until_s:
                    raise WrongAnswer(f"streams did not begin: {failures[:1] or 'too slow'}")
                await asyncio.sleep(0.005)
    if failures or any(b"".join(one.pieces) != first or one.status != 200 for one in streams):
        raise WrongAnswer(f"a stream began with something else than its first event: {failures[:1]}")


async def _left(process: GatewayProcess) -> float:
    """Return how many leases are left when the streams' clients have gone, which is waited for."""
    loop = asyncio.get_running_loop()
    until_s = loop.time() + 10.0
    while True:
        left = process.read().total("twohop_in_flight")
        if not left or loop.time() > until_s:
            return left
        await asyncio.sleep(0.05)
