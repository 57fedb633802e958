"""The command: the same paced streams direct and through the gateway, in turns; medians, spread, and the line to hold.

Exit status: 0 the line holds, 1 it fails or an answer was wrong, 2 it could not be measured here.
"""

import argparse
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles

import uvloop

from benchmarks.latency.streams import gaps_ms
from benchmarks.overhead.load import WrongAnswer
from benchmarks.overhead.payloads import chat_body, chat_request
from benchmarks.overhead.report import DISTURBED_FROM
from benchmarks.served import (
    Line,
    NotServed,
    exit_status,
    fake_engine,
    gateway,
    raise_descriptor_limit,
    two_cores,
    urls,
)

LIMIT_MS = 2.0
_ENDPOINTS = 4
_PROMPT_BYTES = 1024


@dataclass(frozen=True, slots=True)
class Plan:
    """How much is done in each run, once direct and once through the gateway."""

    streams: int = 200
    events: int = 160
    interval_s: float = 0.05
    skip: int = 20
    runs: int = 5


FULL = Plan()
QUICK = Plan(streams=20, events=40, interval_s=0.02, skip=5, runs=2)


@dataclass(frozen=True, slots=True)
class Gaps:
    """The times between two events of one run one way, in ms."""

    p50: float
    p99: float
    most: float
    count: int


@dataclass(frozen=True, slots=True)
class Run:
    """One run both ways; `foreign` is the share of the gateway's core that others used meanwhile."""

    direct: Gaps
    through: Gaps
    foreign: float

    @property
    def added_ms(self) -> float:
        """What the gateway adds to the 99th percentile."""
        return self.through.p99 - self.direct.p99


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print, and return the exit status."""
    parser = argparse.ArgumentParser(prog="scripts/bench latency", description="What streams wait longer for.")
    parser.add_argument("--quick", action="store_true", help="a few seconds, few streams; the figures mean nothing")
    parser.add_argument("--runs", type=int, help="runs (default 5, quick 2)")
    args = parser.parse_args(argv)
    plan = QUICK if args.quick else FULL
    if len(os.sched_getaffinity(0)) < 2 and not args.quick:
        print("not measured: this needs two cores, one for the gateway and one for the rest")
        return 2
    try:
        raise_descriptor_limit(2 * plan.streams + 200)
        runs = measure(plan, args.runs or plan.runs)
    except NotServed as reason:
        print(f"not measured: {reason}")
        return 2
    except WrongAnswer as error:
        print(f"FAIL        wrong answer: {error}")
        return 1
    lines = judge(runs, plan)
    print("", *lines, sep="\n")
    return exit_status(lines)


def measure(plan: Plan, count: int) -> list[Run]:
    """Do `count` runs, each both ways, the first way in turns; print each. Raises WrongAnswer, NotServed."""
    print(f"{plan.streams} streams, one event per {plan.interval_s * 1e3:.0f} ms each; times between two events in ms")
    print(f"{'run':>4}{'direct p50':>12}{'p99':>8}{'most':>8}{'gateway p50':>13}{'p99':>8}{'most':>8}{'p99 added':>11}")
    runs: list[Run] = []
    with (
        two_cores() as core,
        tempfile.TemporaryDirectory(prefix="latency-") as folder,
        fake_engine(_ENDPOINTS, plan.events, plan.interval_s) as ports,
        gateway(urls(ports), core, Path(folder)) as process,
    ):
        for run in range(count):
            foreign_s = process.group.foreign_s()
            ways = {"direct": ports, "through": [process.port]}
            found = {}
            for way in sorted(ways, reverse=run % 2 == 1):
                found[way] = gaps(plan, run, ways[way])
            foreign_s = process.group.foreign_s() - foreign_s
            length_s = 2 * plan.events * plan.interval_s
            runs.append(Run(found["direct"], found["through"], max(0.0, foreign_s) / length_s))
            print(_row(run, runs[-1]), flush=True)
    return runs


def gaps(plan: Plan, run: int, ports: Sequence[int]) -> Gaps:
    """Run all streams once to these ports."""
    numbers = range(run * plan.streams, (run + 1) * plan.streams)
    requests = [chat_request(chat_body(number, 4 * _ENDPOINTS, _PROMPT_BYTES, stream=True)) for number in numbers]
    found = uvloop.run(gaps_ms(ports, requests, events=plan.events, interval_s=plan.interval_s, skip=plan.skip))
    return Gaps(median(found), quantiles(found, n=100)[98], max(found), len(found))


def judge(runs: Sequence[Run], plan: Plan) -> list[Line]:
    """Return the line that must hold: the median over the runs of what is added to the 99th percentile."""
    added = sorted(run.added_ms for run in runs)
    middle = median(added)
    foreign = max(run.foreign for run in runs)
    return [
        Line(
            f"the gateway adds at most {LIMIT_MS:g} ms to the p99 of {plan.streams} streams (median of {len(runs)})",
            f"{middle:+.2f} ms ({added[0]:+.2f} to {added[-1]:+.2f}); others used {foreign:.0%} of its core at most"
            f"{': DISTURBED, measure again' if foreign > DISTURBED_FROM else ''}",
            middle <= LIMIT_MS if plan.streams >= FULL.streams else None,
        )
    ]


def _row(run: int, found: Run) -> str:
    ways = "".join(
        f"{one.p50:>{width}.2f}{one.p99:>8.2f}{one.most:>8.2f}"
        for one, width in ((found.direct, 12), (found.through, 13))
    )
    return f"{run + 1:>4}{ways}{found.added_ms:>+11.2f}"
