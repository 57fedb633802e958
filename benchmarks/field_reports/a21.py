"""A21: memory does not grow with the number of distinct prompts and sessions."""

import random
from collections.abc import Iterator

from benchmarks.field_reports.case import Figures, Scenario, Size, expect
from benchmarks.field_reports.client import Post, chat, closed_loop, statuses
from benchmarks.field_reports.engine import engines
from benchmarks.field_reports.gateway import Gateway, serve

PROMPT_BYTES = 4096
CONNECTIONS = 8
GROWN_MB = 60.0
CAP_MB = 64.0


def _text(seed: int, length: int) -> str:
    return random.Random(seed).randbytes(length // 2).hex()  # noqa: S311 - a prompt, no secret


def unique(count: int, first: int) -> Iterator[Post]:
    """Yield requests of which each has a prompt and a session of its own."""
    for number in range(first, first + count):
        yield Post(chat(content=_text(number, PROMPT_BYTES)), [("x-session-id", f"session-{number}")])


def branching(count: int, first: int) -> Iterator[Post]:
    """Yield requests with one long common base, each leaving it at a depth of its own."""
    shared = _text(-1, 4 * PROMPT_BYTES)
    for number in range(first, first + count):
        depth = number * 997 % len(shared)
        content = shared[:depth] + _text(number, PROMPT_BYTES)
        yield Post(chat(content=content), [("x-session-id", f"session-{number}")])


async def _send(gateway: Gateway, posts: Iterator[Post], count: int) -> None:
    answers = await closed_loop(gateway.address, posts, CONNECTIONS)
    expect(statuses(answers) == {200: count}, f"clients got {statuses(answers)}")


async def _decision_us(gateway: Gateway, before: tuple[float, float]) -> tuple[float, tuple[float, float]]:
    """Return the mean decision time since `before` in µs, and where the counts stand."""
    told = await gateway.metrics()
    now = told.value("twohop_decision_seconds_sum"), told.value("twohop_decision_seconds_count")
    return (now[0] - before[0]) / (now[1] - before[1]) * 1e6, now


async def distinct_prompts_and_sessions(size: Size) -> Figures:
    """Thousands of unique prompts, then thousands that branch off a common base; RSS and index size on the way."""
    eighth = size.count(250, 5000)
    figures: Figures = {}
    async with engines(4) as four, serve(four) as gateway:
        await _send(gateway, unique(200, 10_000_000), 200)
        figures["start_mb"] = gateway.rss_mb()
        _, mark = await _decision_us(gateway, (0.0, 0.0))
        await _send(gateway, unique(eighth, 0), eighth)
        figures["eighth_mb"] = first_mb = gateway.rss_mb()
        first_us, mark = await _decision_us(gateway, mark)
        await _send(gateway, unique(3 * eighth, eighth), 3 * eighth)
        figures["half_mb"] = gateway.rss_mb()
        _, mark = await _decision_us(gateway, mark)
        await _send(gateway, branching(3 * eighth, 20_000_000), 3 * eighth)
        _, mark = await _decision_us(gateway, mark)
        await _send(gateway, unique(eighth, 30_000_000), eighth)
        last_us, _ = await _decision_us(gateway, mark)
        await gateway.until_idle()
        figures |= {"end_mb": gateway.rss_mb(), "first_us": first_us, "last_us": last_us}
        told = await gateway.metrics()
        figures["blocks"] = blocks = told.value("twohop_index_blocks")
        last_mb = gateway.rss_mb()
        expect(blocks > 0, "twohop_index_blocks tells nothing of the index")
        expect(last_mb - first_mb < GROWN_MB, f"RSS grew from {first_mb:.0f} to {last_mb:.0f} MB")
        expect(last_us < 2 * first_us + 20, f"a decision took {first_us:.0f} µs at first and {last_us:.0f} at the end")
        expect(last_mb - float(figures["start_mb"]) < CAP_MB * 1.5, "the index is over its cap of 64 MB")
        decisions = (await gateway.from_admin("GET", "/admin/decisions?limit=1000")).json
        kept = decisions["decisions"] if isinstance(decisions, dict) else decisions
        expect(len(kept) <= 1000, f"{len(kept)} receipts are kept")
        return figures


SCENARIOS: tuple[Scenario, ...] = (distinct_prompts_and_sessions,)
