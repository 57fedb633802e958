"""An engine that calls itself healthy and sends no tokens is asked for one; a slow one that gives it is left alone."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from gateway.clock import monotonic_s
from gateway.config import EndpointConfig, HealthConfig, ScrapeConfig
from gateway.discovery.static import spec_of
from gateway.pool import ejection
from gateway.pool.ejection import Event, State
from gateway.pool.endpoint import Endpoint
from gateway.pool.store import Pool
from gateway.pool.watch import Watch
from tests.fakes.engine import Call, fake_engine
from tests.gateways import run_gateway

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
QUICK = ejection.Limits(first_s=0.05, longest_s=0.1)


class Answers:
    """An engine's answers to questions for a token: one that may change, and how often it was asked."""

    def __init__(self, **by_path: int) -> None:
        self.text, self.chat = by_path.get("text", 200), by_path.get("chat", 200)
        self.hangs = False
        self.asked: list[Any] = []

    async def __call__(self, call: Call) -> None:
        self.asked.append(call.json)
        if self.hangs:
            await call.gone()
        else:
            call.answer(self.text if call.path == "/v1/completions" else self.chat)


async def until(true: Any) -> None:
    async with asyncio.timeout(10):
        while not true():
            await asyncio.sleep(0.005)


@asynccontextmanager
async def under_requests(
    answers: Answers, progress_s: float = 0.08, stirred: Any = lambda _: False
) -> AsyncIterator[tuple[Endpoint, Watch]]:
    """Watch an engine that holds a request and sends no byte, beside another of its model."""
    async with fake_engine(answers) as engine, fake_engine() as other, asyncio.TaskGroup() as group:
        pool = Pool(ejection_limits=QUICK)
        health = HealthConfig(interval_s=0.05, timeout_s=3, progress_s=progress_s)
        watch = Watch(pool, ScrapeConfig(), health, group, stirred=stirred)
        listed = [{"url": engine.url, "name": "a"}, {"url": other.url, "name": "b"}]
        watch.apply(spec_of(EndpointConfig.model_validate(one)) for one in listed)
        try:
            await until(lambda: all(one.ready for one in pool))
            endpoint = pool.get("a")
            assert endpoint is not None
            endpoint.lease()
            yield endpoint, watch
        finally:
            for one in pool:
                watch.stop(one.name)


async def test_an_engine_that_gives_no_token_is_out_until_it_does(caplog):
    caplog.set_level("INFO", logger="gateway")
    answers = Answers()
    answers.hangs = True
    async with under_requests(answers) as (endpoint, _):
        await until(lambda: endpoint.standing.state is State.OUT)
        assert endpoint.why_not_ready == "ejected, no_progress: silent for 0.12 s, and asked for one token in vain"
        assert answers.asked[0] == {"model": "m", "max_tokens": 1, "stream": False, "prompt": "1"}
        await until(lambda: len(answers.asked) >= 4)  # asked again and again, and no client's request is tried
        assert not endpoint.ready
        answers.hangs = False
        await until(lambda: endpoint.standing.state is State.TRIAL)
        endpoint.outcome(Event.SUCCESS, monotonic_s())
        assert endpoint.free
    told = [record.getMessage() for record in caplog.records if record.name == "gateway.pool.standing"]
    assert told[0].startswith("endpoint a is out for 0.")
    assert told[-2:] == ["endpoint a is tried again", "endpoint a is back"]


@pytest.mark.parametrize(
    ("answers", "asks"),
    [
        (Answers(), 1),  # slow, and alive
        (Answers(text=404), 2),  # knows chat alone
        (Answers(text=404, chat=400), 2),  # makes no tokens at all: nothing can be asked
        (Answers(text=429, chat=429), 2),
    ],
)
async def test_an_engine_that_answers_is_left_alone(answers, asks):
    async with under_requests(answers) as (endpoint, _):
        await until(lambda: len(answers.asked) >= 3 * asks)
        assert endpoint.free


@pytest.mark.parametrize("status", [500, 503])
async def test_an_engine_that_fails_at_one_token_is_out(status):
    async with under_requests(Answers(text=status)) as (endpoint, _):
        await until(lambda: endpoint.standing.state is State.OUT)


async def test_whoever_sends_bytes_or_has_no_request_is_not_asked():
    ticks = 0

    def busy(name: str) -> bool:
        nonlocal ticks
        ticks += name == "a"
        return True

    answers = Answers()
    async with under_requests(answers, progress_s=0.02, stirred=busy) as (endpoint, _):
        await until(lambda: ticks > 30)
        assert endpoint.free
    assert answers.asked == []


async def test_a_byte_for_anybody_while_it_is_asked_shows_that_it_is_slow_and_not_stuck():
    answers = Answers()
    answers.hangs = True
    async with under_requests(answers, progress_s=0.08, stirred=lambda _: bool(len(answers.asked) % 2)) as (
        endpoint,
        _,
    ):
        await until(lambda: answers.asked)
        asked_s = monotonic_s()
        await until(lambda: monotonic_s() > asked_s + 0.1)
        assert endpoint.free


async def test_progress_0_asks_nobody_and_an_ejection_for_silence_still_ends_with_a_token():
    answers = Answers()
    async with under_requests(answers, progress_s=0.0) as (endpoint, _):
        for _ in range(5):
            endpoint.outcome(Event.SILENT, monotonic_s(), "no answer within 120 s")
        assert not endpoint.ready
        await until(lambda: endpoint.ready)
        assert len(answers.asked) == 1


async def test_requests_on_an_engine_that_hangs_are_served_elsewhere_and_it_comes_back():
    answers = Answers()
    answers.hangs = True
    async with fake_engine(answers) as hung, fake_engine() as good:
        listed = [{"url": hung.url, "name": "hung"}, {"url": good.url, "name": "good"}]
        sections: dict[str, Any] = {"health": {"progress_s": 0.2}, "ejection": {"first_s": 0.05, "longest_s": 0.1}}
        async with run_gateway(listed, **sections) as gateway:
            endpoint = gateway.parts.pool.get("hung")
            assert endpoint is not None
            posts = [gateway.client.post("/v1/chat/completions", json=CHAT) for _ in range(12)]
            assert {reply.status_code for reply in await asyncio.gather(*posts)} == {200}
            assert endpoint.standing.reason == "no_progress"
            metrics = await gateway.metrics()
            assert 'twohop_endpoint_ejections_total{endpoint="hung",reason="no_progress"}' in metrics
            assert 'twohop_retries_total{reason="no_progress"}' in metrics
            answers.hangs = False
            async with asyncio.timeout(10):
                while not endpoint.free:
                    assert (await gateway.client.post("/v1/chat/completions", json=CHAT)).status_code == 200
            await gateway.until_idle()


async def test_an_engine_that_streams_slowly_but_streams_is_not_asked():
    async def drip(call: Call) -> None:
        call.start_stream()
        for _ in range(40):
            call.chunk(b"data: token\n\n")
            await call.writer.drain()
            await asyncio.sleep(0.02)
        call.end_stream()

    async with fake_engine(drip) as slow, run_gateway([slow.url], health={"progress_s": 0.4}) as gateway:
        reply = await gateway.client.post("/v1/chat/completions", json={**CHAT, "stream": True})
        assert reply.content == b"data: token\n\n" * 40
        assert len(slow.calls) == 1


async def test_other_patience_holds_at_once():
    answers = Answers()
    answers.hangs = True
    async with under_requests(answers, progress_s=0.0) as (endpoint, watch):
        assert endpoint.ready
        endpoint.lease()
        watch.configure(ScrapeConfig(), HealthConfig(progress_s=0.04))
        await until(lambda: endpoint.standing.state is State.OUT)
