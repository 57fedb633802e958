"""Sessions with a growing history on four engines: what one infinite cache would hit is hit, and the load is even."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import httpx
import pytest

from tests.engines import sim_engine, sim_engines
from tests.gateways import run_gateway

SESSIONS, TURNS, ENGINES = 40, 5, 4
Post = Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]


class Load(NamedTuple):
    """How the sessions come: conversations at a time, bytes of the system prompt they share, words in a turn."""

    at_a_time: int
    system_bytes: int
    words: int

    def __str__(self) -> str:
        return f"{self.at_a_time} at a time, {self.system_bytes} bytes shared, {self.words} words a turn"


LOADS = (
    Load(4, 100, 60),
    Load(40, 100, 60),
    pytest.param(Load(1, 2100, 20), marks=pytest.mark.slow),
    pytest.param(Load(16, 1000, 20), marks=pytest.mark.slow),
    pytest.param(Load(40, 2100, 20), marks=pytest.mark.slow),
    pytest.param(Load(4, 4000, 60), marks=pytest.mark.slow),
)


def poster(client: httpx.AsyncClient) -> Post:
    """Return a function that sends a chat request and returns the answer's message."""

    async def post(body: dict[str, Any]) -> dict[str, Any]:
        reply = await client.post("/v1/chat/completions", json=body)
        assert reply.status_code == 200
        message: dict[str, Any] = reply.json()["choices"][0]["message"]
        return message

    return post


def words(*seed: int, count: int) -> str:
    """Return text that no other seed gives."""
    name = "-".join(map(str, seed))
    return " ".join(f"{name}.{number}" for number in range(count))


async def session(post: Post, number: int, gate: asyncio.Semaphore, load: Load) -> None:
    """Run one conversation, turn after turn, its history growing by what was asked and answered."""
    messages = [{"role": "system", "content": ("You are a helpful assistant. " * 200)[: load.system_bytes]}]
    for turn in range(TURNS):
        messages.append({"role": "user", "content": words(number, turn, count=load.words)})
        async with gate:
            message = await post({"model": "sim", "messages": messages, "max_tokens": 16})
        messages.append({"role": "assistant", "content": message["content"]})


async def counters(client: httpx.AsyncClient, url: str) -> tuple[float, float, float]:
    """Return an engine's (queried tokens, hit tokens, requests)."""
    names = ("vllm:prefix_cache_queries_total", "vllm:prefix_cache_hits_total", "vllm:request_success_total")
    found = dict.fromkeys(names, 0.0)
    for line in (await client.get(f"{url}/metrics")).text.splitlines():
        name = line.split("{")[0]
        if name in found:
            found[name] += float(line.split()[-1])
    queried, hit, requests = found.values()
    return queried, hit, requests


async def infinite_cache(load: Load) -> tuple[float, float]:
    """Return (queried, hit) tokens of one engine that has all there is to have, asked for one thing at a time."""
    async with sim_engine(models=["sim"], speed=50) as engine, httpx.AsyncClient(base_url=engine.url) as client:
        gate = asyncio.Semaphore(1)
        for number in range(SESSIONS):
            await session(poster(client), number, gate, load)
        return (await counters(client, engine.url))[:2]


@pytest.mark.parametrize("load", LOADS, ids=str)
async def test_sessions_stay_where_their_history_is_and_the_load_is_even(load):
    queried_alone, bound = await infinite_cache(load)
    async with sim_engines(ENGINES, models=["sim"]) as engines:
        async with run_gateway([engine.url for engine in engines]) as gateway:
            gate = asyncio.Semaphore(load.at_a_time)
            post = poster(gateway.client)
            await asyncio.gather(*[session(post, number, gate, load) for number in range(SESSIONS)])
            figures = [await counters(gateway.client, engine.url) for engine in engines]
    queried, hit, requests = (sum(column) for column in zip(*figures, strict=True))
    assert requests == SESSIONS * TURNS
    assert queried == queried_alone
    share, counts = hit / bound, [column[2] for column in figures]
    busiest = max(counts) * ENGINES / requests
    print(f"{load}: {share:.1%} of {bound:.0f} tokens hit, busiest engine {busiest:.2f} times the mean: {counts}")
    assert share >= 0.85
    assert busiest <= 1.5
