"""Sessions with a growing history on four engines: what one infinite cache would hit is hit, and the load is even."""

import asyncio

import httpx
import pytest

from tests.engines import sim_engines
from tests.gateways import Running, run_gateway

SESSIONS, TURNS, ENGINES = 40, 5, 4


def words(*seed: int, count: int) -> str:
    """Return text that no other seed gives."""
    name = "-".join(map(str, seed))
    return " ".join(f"{name}.{number}" for number in range(count))


async def session(gateway: Running, number: int, gate: asyncio.Semaphore) -> None:
    """Run one conversation, turn after turn, its history growing by what was asked and answered."""
    messages = [{"role": "system", "content": "You are a helpful assistant. " * 4}]
    for turn in range(TURNS):
        messages.append({"role": "user", "content": words(number, turn, count=60)})
        async with gate:
            reply = await gateway.client.post(
                "/v1/chat/completions", json={"model": "sim", "messages": messages, "max_tokens": 16}
            )
        assert reply.status_code == 200
        messages.append(reply.json()["choices"][0]["message"])
        messages[-1] = {"role": "assistant", "content": messages[-1]["content"]}


async def counters(url: str) -> tuple[float, float, float]:
    """Return an engine's (queried tokens, hit tokens, requests)."""
    found = {
        "vllm:prefix_cache_queries_total": 0.0,
        "vllm:prefix_cache_hits_total": 0.0,
        "vllm:request_success_total": 0.0,
    }
    async with httpx.AsyncClient() as client:
        for line in (await client.get(f"{url}/metrics")).text.splitlines():
            name = line.split("{")[0]
            if name in found:
                found[name] += float(line.split()[-1])
    queried, hit, requests = found.values()
    return queried, hit, requests


async def run_sessions(engine_count: int, concurrency: int) -> list[tuple[float, float, float]]:
    """Return each engine's counters after all sessions."""
    async with sim_engines(engine_count, models=["sim"]) as engines:
        async with run_gateway([engine.url for engine in engines]) as gateway:
            gate = asyncio.Semaphore(concurrency)
            await asyncio.gather(*[session(gateway, number, gate) for number in range(SESSIONS)])
            return [await counters(engine.url) for engine in engines]


@pytest.mark.parametrize("concurrency", [4, SESSIONS])
async def test_sessions_stay_where_their_history_is_and_the_load_is_even(concurrency):
    ((queried_alone, bound, _),) = await run_sessions(1, concurrency)
    figures = await run_sessions(ENGINES, concurrency)
    queried, hit, requests = (sum(column) for column in zip(*figures, strict=True))
    assert requests == SESSIONS * TURNS
    assert queried == queried_alone
    share = hit / bound
    loads = [column[0] - column[1] for column in figures]
    counts = [column[2] for column in figures]
    print(f"{concurrency} at a time: {share:.1%} of {bound:.0f} tokens hit, computed {loads}, requests {counts}")
    assert share >= 0.85
    assert max(counts) <= 1.5 * requests / ENGINES
    assert max(loads) <= 1.5 * sum(loads) / ENGINES
