"""Looks at the gateway from outside once a second, and says at the end whether anything was left behind."""

import asyncio
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from benchmarks.served import GatewayProcess, Line, Reading

LAG = "twohop_loop_lag_seconds"
LAG_LIMIT_S = 0.02
DESCRIPTORS = 10
LEFT_S = 20.0  # engines close idle connections after 5 s; the rest is for a busy machine
RIGHT_SHARE = 0.8
_LAG_TICKS = 200  # of which one per cent is two: of fewer, nothing can be said
_GROWTH, _GROWTH_MB = 1.05, 2.0
_GROWTH_SAMPLES = 120
_TROUBLE = re.compile(r"Traceback|was never retrieved|was never awaited|Exception in callback|Task was destroyed")


@dataclass(frozen=True, slots=True)
class Sample:
    """One look: memory, file descriptors, clients' connections, leases, requests in line."""

    at_s: float
    rss_mb: float
    descriptors: int
    client_sockets: int
    in_flight: int
    queued: int
    reading: Reading


class Gone(Exception):
    """The gateway has ended, or does not answer."""


def look(process: GatewayProcess, at_s: float) -> Sample:
    """Look once. Raises Gone."""
    try:
        reading = process.read()
        return Sample(
            at_s,
            process.rss_mb(),
            process.descriptors(),
            process.client_sockets(),
            int(reading.total("twohop_in_flight")),
            int(reading.total("twohop_queue_depth")),
            reading,
        )
    except OSError as error:
        raise Gone(f"{error}; the gateway last said: {process.group.last_words()}") from error


async def watch(process: GatewayProcess, until_s: float, samples: list[Sample]) -> None:
    """Add a sample a second until `until_s` (loop time), and print one a minute."""
    loop = asyncio.get_running_loop()
    begun_s = loop.time()
    while loop.time() < until_s:
        samples.append(await asyncio.to_thread(look, process, loop.time() - begun_s))
        if len(samples) % 60 == 0:
            print(row(samples[-1]), flush=True)
        await asyncio.sleep(max(0.0, min(1.0, until_s - loop.time())))


async def settled(process: GatewayProcess, start: Sample) -> Sample:
    """Return the first sample in which nothing is left of the load, or the last one taken after `LEFT_S`."""
    loop = asyncio.get_running_loop()
    begun_s = loop.time()
    while True:
        sample = await asyncio.to_thread(look, process, loop.time() - begun_s)
        over = not (sample.in_flight or sample.queued or sample.client_sockets)
        if (over and sample.descriptors <= start.descriptors + DESCRIPTORS) or sample.at_s > LEFT_S:
            return sample
        await asyncio.sleep(0.2)


HEAD = f"{'s':>6}{'RSS MB':>9}{'fds':>6}{'clients':>9}{'leases':>8}{'queued':>8}"


def row(sample: Sample) -> str:
    """Return one line of the table."""
    return (
        f"{sample.at_s:>6.0f}{sample.rss_mb:>9.1f}{sample.descriptors:>6}{sample.client_sockets:>9}"
        f"{sample.in_flight:>8}{sample.queued:>8}"
    )


def judge(start: Sample, during: Sequence[Sample], end: Sample) -> list[Line]:
    """Return the lines on what was seen before the load, each second of it, and once it had stopped."""
    return [
        Line(
            "no lease is left when the load has stopped", f"{end.in_flight} after {end.at_s:.1f} s", not end.in_flight
        ),
        Line("nobody waits for a turn", f"{end.queued}", not end.queued),
        Line("no client's connection is left", f"{end.client_sockets}", not end.client_sockets),
        Line(
            f"file descriptors are back to the start ± {DESCRIPTORS}",
            f"{start.descriptors} before, up to {max((one.descriptors for one in during), default=0)}, "
            f"{end.descriptors} in the end",
            abs(end.descriptors - start.descriptors) <= DESCRIPTORS,
        ),
        _growth(during),
        lag(start.reading, end.reading),
    ]


def _growth(during: Sequence[Sample]) -> Line:
    asked = "RSS does not grow after the first quarter (5 % and 2 MB are noise)"
    quarter = len(during) // 4
    if len(during) < _GROWTH_SAMPLES:
        return Line(asked, f"{len(during)} samples are too few", None)
    second = median(one.rss_mb for one in during[quarter : 2 * quarter])
    last = median(one.rss_mb for one in during[3 * quarter :])
    return Line(
        asked, f"{second:.1f} MB in the second, {last:.1f} MB in the last", last <= second * _GROWTH + _GROWTH_MB
    )


def lag(before: Reading, after: Reading) -> Line:
    """Return the line on how late the event loop was since `before`."""
    ticks = after.total(f"{LAG}_count") - before.total(f"{LAG}_count")
    late = ticks - (after.total(f"{LAG}_bucket", le="0.02") - before.total(f"{LAG}_bucket", le="0.02"))
    return Line(
        f"the event loop's lag stays under {LAG_LIMIT_S * 1e3:.0f} ms in 99 % of the looks at it",
        f"over in {late:.0f} of {ticks:.0f}",
        late < 0.01 * ticks if ticks >= _LAG_TICKS else None,
    )


def judge_log(log: Path) -> Line:
    """Return the line on the gateway's log."""
    text = log.read_text(errors="replace")
    found = _TROUBLE.search(text)
    shown = "none" if found is None else text[max(0, found.start() - 300) : found.start() + 2000]
    return Line("no traceback in the gateway's log", shown, found is None)
