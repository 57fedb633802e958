"""Requests of which no two have the same prompt or session: RSS must be flat once the prefix index is full.

The second half has one long text in front that each prompt leaves at another depth, which is what splits a tree.
"""

import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import uvloop

from benchmarks.overhead.load import closed_loop
from benchmarks.overhead.payloads import PLAIN_ANSWER
from benchmarks.served import GatewayProcess, Line, Reading, fake_engine, gateway, urls
from gateway.prefix.index import BLOCK_BYTES

_FLAT = 1.10
_SLOWER = 2.0  # a decision among grown tables; machines vary more than a dict does
_ENOUGH = 1000  # decisions, for a mean of which a moment's trouble is a small part
_FULL_FROM = 0.97  # of the size that the index has in the end: a full endpoint forgets a sixteenth at once
_CONNECTIONS = 16
_PROMPT_BYTES = 4096
_TAIL_BYTES = 512


@dataclass(frozen=True, slots=True)
class Plan:
    """How many requests of each kind, after how many a sample is taken, and the bound of the index in MB."""

    unique: int = 80_000  # 20 endpoints fill the index with half of them
    branching: int = 20_000
    step: int = 5_000
    index_mb: int = 64


@dataclass(frozen=True, slots=True)
class Sample:
    """What was seen after `sent` requests; `decision_us` is the mean of one decision since the sample before."""

    sent: int
    rss_mb: float
    blocks: int
    decision_us: float


def measure(plan: Plan, endpoints: int, core: int, folder: Path) -> list[Line]:
    """Send the plan through a new gateway before `endpoints`, print samples, return lines. Raises WrongAnswer."""
    bound = {"routing": {"index_mb": plan.index_mb}}
    with (
        fake_engine(endpoints, events=1, interval_s=1.0) as ports,
        gateway(urls(ports), core, folder, **bound) as process,
    ):
        samples = [Sample(0, process.rss_mb(), 0, 0.0)]
        print(f"\n{endpoints} endpoints, prompts of {_PROMPT_BYTES} bytes, no two alike\n{_HEAD}", flush=True)
        for make, count in ((request, plan.unique), (branching, plan.branching)):
            for _ in range(0, count, plan.step):
                samples.append(_step(process, make, samples[-1].sent, plan.step))
                print(_row(samples[-1]), flush=True)
        time.sleep(1.0)
        left = process.read().total("twohop_in_flight")
        return [
            *judge(samples, endpoints, plan),
            Line(f"{endpoints} endpoints: nothing is in flight at the end", f"{left:.0f}", left == 0),
        ]


def judge(samples: list[Sample], endpoints: int, plan: Plan) -> list[Line]:
    """Return the lines that the samples, one before the first request and one after each step, must hold."""
    most = max(sample.blocks for sample in samples)
    full = next(sample for sample in samples if sample.blocks >= _FULL_FROM * most)
    after = [sample for sample in samples if sample.sent >= full.sent]
    growth = max(sample.rss_mb for sample in after) / full.rss_mb
    first, last = samples[1], samples[-1]
    slower = last.decision_us / first.decision_us if first.decision_us else 1.0
    bound = plan.index_mb * 1_000_000 // BLOCK_BYTES
    where = f"{endpoints} endpoints"
    return [
        Line(f"{where}: the index holds at most {bound} blocks ({plan.index_mb} MB)", f"{most}", 0 < most <= bound),
        Line(f"{where}: the index is full before half of the requests", f"{full.sent}", full.sent <= last.sent / 2),
        Line(
            f"{where}: from then on RSS grows by at most 10 %",
            f"{growth - 1:+.1%}, {full.rss_mb:.0f} MB at {full.sent}, {last.rss_mb:.0f} MB at {last.sent}",
            growth <= _FLAT,
        ),
        Line(
            f"{where}: a decision does not take over {_SLOWER:g} times what it took at first",
            f"{first.decision_us:.0f} µs, then {last.decision_us:.0f} µs",
            slower <= _SLOWER if plan.step >= _ENOUGH else None,
        ),
    ]


_HEAD = f"{'requests':>10}{'RSS MB':>9}{'index blocks':>14}{'µs / decision':>15}"


def _row(sample: Sample) -> str:
    return f"{sample.sent:>10}{sample.rss_mb:>9.1f}{sample.blocks:>14}{sample.decision_us:>15.1f}"


def _step(process: GatewayProcess, make: Callable[[int], bytes], sent: int, count: int) -> Sample:
    before = process.read()
    requests = [make(number) for number in range(sent, sent + count)]
    cost = uvloop.run(
        closed_loop(
            process.port, requests, PLAIN_ANSWER, connections=_CONNECTIONS, limit_s=600.0, cpu=process.group.cpu_s
        )
    )
    after = process.read()
    return Sample(sent + cost.units, process.rss_mb(), _blocks(after), _decision_us(before, after))


def _blocks(reading: Reading) -> int:
    return int(reading.total("twohop_index_blocks"))


def _decision_us(before: Reading, after: Reading) -> float:
    return after.mean_since(before, "twohop_decision_seconds") * 1e6


def request(number: int, prompt_bytes: int = _PROMPT_BYTES, *, stream: bool = False) -> bytes:
    """Return a whole chat request whose prompt and session no other number has."""
    return _request(number, text(b"unique %d" % number, prompt_bytes), stream=stream)


def branching(number: int) -> bytes:
    """Return a whole chat request whose prompt begins as many others do, and goes on by itself from some depth on."""
    front = _front()
    depth = number * 7_919 % (len(front) // 128) * 128
    return _request(number, front[:depth] + text(b"tail %d" % number, _TAIL_BYTES))


@cache
def _front() -> bytes:
    return text(b"front", 4 * _PROMPT_BYTES)


def text(seed: bytes, size: int) -> bytes:
    """Return `size` letters (an even number) made from `seed`."""
    return hashlib.shake_256(seed).hexdigest(size // 2).encode()


def _request(number: int, prompt: bytes, *, stream: bool = False) -> bytes:
    body = b'{"model":"bench-model","messages":[{"role":"user","content":"%b"}],"max_tokens":64%b}' % (
        prompt,
        b',"stream":true' if stream else b"",
    )
    return (
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\nx-session-id: session-%d\r\n"
        b"content-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (number, len(body), body)
    )
