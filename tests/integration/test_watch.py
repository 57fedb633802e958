"""The watch against real servers: readiness, loading, death, hangs, restarts, another engine on the address."""

import asyncio
import logging
from collections.abc import Callable
from contextlib import asynccontextmanager

import pytest

from gateway.clock import monotonic_s
from gateway.config import EndpointConfig, HealthConfig, ScrapeConfig
from gateway.discovery.static import spec_of
from gateway.pool.store import Pool
from gateway.pool.watch import MAX_ANSWER_BYTES, Watch
from gateway.upstream.fetch import Fetcher
from tests.fakes.engine_stub import BROKEN, HANG, EngineStub, models_body
from tests.fakes.exposition import exposition

SCRAPE = ScrapeConfig(interval_s=0.02, timeout_s=3)
HEALTH = HealthConfig(interval_s=0.02, timeout_s=3)
SLOW_HEALTH = HealthConfig(interval_s=600, timeout_s=3)


class Watched:
    """A pool that is watched, and a way to wait for something to be true of it."""

    def __init__(self, pool: Pool, watch: Watch) -> None:
        self.pool = pool
        self.watch = watch
        self.identity_changes: list[str] = []
        self._changed = asyncio.Event()
        pool.on_identity_change.append(lambda one: self.identity_changes.append(one.name))
        for listeners in (pool.on_state, pool.on_room, pool.on_identity_change):
            listeners.append(lambda _: self._changed.set())

    def __getitem__(self, name: str):
        endpoint = self.pool.get(name)
        assert endpoint is not None
        return endpoint

    async def until(self, true: Callable[[], bool], within_s: float = 5.0) -> None:
        async with asyncio.timeout(within_s):
            while not true():
                self._changed.clear()
                await self._changed.wait()

    async def ready(self, name: str = "a", within_s: float = 5.0) -> None:
        await self.until(lambda: self[name].ready, within_s)

    async def down(self, name: str = "a") -> None:
        await self.until(lambda: not self[name].ready)


@asynccontextmanager
async def watching(*stubs: EngineStub, scrape: ScrapeConfig = SCRAPE, health: HealthConfig = HEALTH):
    """Follow `stubs`, named a, b, c in their order."""
    pool = Pool()
    sections = [{"url": stub.url, "name": name} for stub, name in zip(stubs, "abc", strict=False)]
    async with asyncio.TaskGroup() as group:
        watch = Watch(pool, scrape, health, group)
        watched = Watched(pool, watch)
        watch.apply(spec_of(EndpointConfig.model_validate(one)) for one in sections)
        try:
            yield watched
        finally:
            for endpoint in pool:
                watch.stop(endpoint.name)


async def test_an_engine_that_is_up_becomes_ready_and_its_load_is_known():
    async with EngineStub(models=("tiny", "adapter")) as stub, watching(stub, health=SLOW_HEALTH) as watched:
        await watched.ready()
        assert set(watched.pool.served_models()) == {"tiny", "adapter"}
        await stub.asked_more("/metrics")
        view = watched["a"].view(monotonic_s())
        assert (view.waiting, view.running, view.kv_usage, view.stale) == (3, 5, 0.25, False)


async def test_readiness_follows_an_engines_start_at_once_however_long_the_interval():
    async with EngineStub() as stub:
        stub.answers["/health"] = (503, b"")
        async with watching(stub, health=SLOW_HEALTH) as watched:
            await stub.asked_more("/health", times=1)
            await stub.stop()
            stub.answers["/health"] = (200, b"")
            await stub.start()
            started_s = monotonic_s()
            await watched.ready()
            assert monotonic_s() - started_s < 0.3


@pytest.mark.parametrize(
    ("path", "answer", "why"),
    [
        ("/health", (503, b""), "GET /health answered 503"),
        ("/health", HANG, "GET /health gave no whole answer in 0.2 s"),
        ("/v1/models", (503, b""), "loading: GET /v1/models answered 503"),
        ("/v1/models", (200, models_body()), "loading: GET /v1/models lists no model yet"),
        ("/v1/models", (401, b""), "GET /v1/models answered 401, so its models are not known"),
        ("/v1/models", (500, b""), "GET /v1/models answered 500"),
        ("/v1/models", (200, b"<html>"), "GET /v1/models answered no model list"),
        ("/v1/models", (200, b'{"data": [{"id": 1}]}'), "GET /v1/models answered no model list"),
        ("/v1/models", (200, b'{"data": {}}'), "GET /v1/models answered no model list"),
        ("/v1/models", (200, b'{"data": [1]}'), "GET /v1/models answered no model list"),
        ("/v1/models", (200, b"[]"), "GET /v1/models answered no model list"),
        ("/v1/models", (200, b"[" * 100_000), "GET /v1/models answered no model list"),
        ("/v1/models", HANG, "GET /v1/models gave no whole answer in 0.2 s"),
    ],
)
async def test_an_engine_that_cannot_serve_yet_is_not_ready_and_says_why(path, answer, why):
    async with EngineStub() as stub:
        good, stub.answers[path] = stub.answers[path], answer
        health = HealthConfig(interval_s=0.02, timeout_s=0.2 if answer == HANG else 3)
        async with watching(stub, health=health) as watched:
            await stub.asked_more(path)
            assert (watched["a"].ready, watched["a"].why_not_ready) == (False, why)
            assert stub.asked["/metrics"] == 0
            stub.answers[path] = good
            await watched.ready()


async def test_a_health_path_that_is_missing_leaves_the_word_to_the_models():
    async with EngineStub() as stub:
        del stub.answers["/health"]
        async with watching(stub) as watched:
            await watched.ready()


async def test_a_4xx_never_takes_a_ready_engine_out():
    async with EngineStub() as stub, watching(stub) as watched:
        await watched.ready()
        stub.answers["/v1/models"] = (429, b"")
        await stub.asked_more("/v1/models", times=6)
        assert watched["a"].ready


async def test_a_ready_engine_that_unloads_its_model_is_out_at_once():
    async with EngineStub() as stub, watching(stub) as watched:
        await watched.ready()
        stub.answers["/v1/models"] = (200, models_body())
        await watched.down()
        assert watched["a"].health.fails == 0


async def test_a_dead_engine_leaves_after_one_refused_request_and_comes_back():
    async with EngineStub() as stub, watching(stub, health=SLOW_HEALTH) as watched:
        await watched.ready()
        await stub.stop()
        watched["a"].connect_failed("cannot connect")
        await watched.down()
        assert watched["a"].why_not_ready.startswith("cannot connect")
        await stub.start()
        await watched.ready()


async def test_a_hanging_metrics_page_delays_nobody_and_turns_stale():
    never_again = ScrapeConfig(interval_s=0.02, timeout_s=5, stale_after_s=0.05)
    async with EngineStub() as one, EngineStub() as two, watching(one, two, scrape=never_again) as watched:
        await watched.ready("a")
        await watched.ready("b")
        one.answers["/metrics"] = HANG
        await one.asked_more("/metrics", times=1)
        await two.asked_more("/metrics", times=5)
        await one.asked_more("/health", times=5)
        now_s = monotonic_s()
        assert (watched["a"].view(now_s).stale, watched["a"].ready) == (True, True)
        assert watched["b"].scrape_age_s(now_s) < watched["a"].scrape_age_s(now_s)


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ((500, b""), "GET /metrics answered 500"),
        ((200, exposition()[:-5]), "the text ends in the middle of a line"),
        ((200, exposition(waiting=float("nan"))), "vllm:num_requests_waiting is nan"),
        (HANG, "GET /metrics gave no whole answer in 0.2 s"),
    ],
)
async def test_a_bad_scrape_is_refused_and_a_good_one_recovers(answer, why, caplog):
    caplog.set_level(logging.INFO, logger="gateway")
    scrape = ScrapeConfig(interval_s=0.02, timeout_s=0.2 if answer == HANG else 3)
    async with EngineStub() as stub, watching(stub, scrape=scrape) as watched:
        await watched.ready()
        await stub.asked_more("/metrics")
        stub.answers["/metrics"] = answer
        await stub.asked_more("/metrics", times=4)
        assert (watched["a"].scrape_error, watched["a"].view(0.0).waiting) == (why, 3)
        stub.answers["/metrics"] = (200, exposition(waiting=8))
        await stub.asked_more("/metrics", times=3)
        assert (watched["a"].scrape_error, watched["a"].view(0.0).waiting) == (None, 8)
    assert [record.getMessage() for record in caplog.records if record.name == "gateway.pool.watch"] == [
        "endpoint a is ready, role both, models tiny",
        f"endpoint a tells no load: {why}",
        "endpoint a tells its load again",
    ]


async def test_an_answer_that_is_no_http_or_has_no_end_is_told_in_words():
    async with EngineStub() as stub:
        spec = spec_of(EndpointConfig.model_validate({"url": stub.url}))
        fetcher = Fetcher(spec, asyncio.get_running_loop())
        stub.answers["/metrics"] = BROKEN
        assert (await fetcher.get("/metrics", 5, MAX_ANSWER_BYTES)).problem.startswith("GET /metrics failed: ")
        stub.answers["/metrics"] = (200, bytes(MAX_ANSWER_BYTES + 1))
        assert (await fetcher.get("/metrics", 5, MAX_ANSWER_BYTES)).problem == "GET /metrics answered more than 16 MiB"


async def test_many_scrapes_that_time_out_leave_no_connection_stuck():
    impatient = ScrapeConfig(interval_s=0.01, timeout_s=0.01)
    async with EngineStub() as stub:
        stub.answers["/metrics"] = HANG
        async with watching(stub, scrape=impatient) as watched:
            await stub.asked_more("/metrics", times=20)
            stub.answers["/metrics"] = (200, exposition())
            patient = watched["a"]
            async with asyncio.timeout(5):
                while patient.load is None:
                    await stub.asked_more("/metrics", times=1)


async def test_a_restart_and_another_model_on_the_address_are_seen():
    async with EngineStub() as stub, watching(stub) as watched:
        await watched.ready()
        await stub.asked_more("/metrics")
        stub.answers["/metrics"] = (200, exposition(started_s=1.8e9))
        await watched.until(lambda: watched.identity_changes == ["a"])
        stub.answers["/v1/models"] = (200, models_body("other"))
        await watched.until(lambda: watched.identity_changes == ["a", "a"])
        assert set(watched.pool.served_models()) == {"other"}
        assert watched.pool.remembers("tiny")


async def test_state_changes_are_logged_once(caplog):
    caplog.set_level(logging.INFO, logger="gateway")
    async with EngineStub() as stub:
        stub.answers["/health"] = (500, b"")
        async with watching(stub) as watched:
            await stub.asked_more("/health", times=4)
            stub.answers["/health"] = (200, b"")
            await watched.ready()
            await stub.asked_more("/health", times=4)
            stub.answers["/health"] = (500, b"")
            await watched.down()
            await stub.asked_more("/health", times=4)
    assert [record.getMessage() for record in caplog.records if record.name == "gateway.pool.watch"] == [
        "endpoint a is not ready: GET /health answered 500",
        "endpoint a is ready, role both, models tiny",
        "endpoint a is not ready: GET /health answered 500",
    ]


async def test_another_set_adds_and_drops_endpoints():
    async with EngineStub() as one, EngineStub() as two, watching(one, two) as watched:
        await watched.ready("a")
        await watched.ready("b")
        watched.watch.apply([spec_of(EndpointConfig.model_validate({"url": one.url, "name": "a"}))])
        assert watched.pool.get("b") is None
        assert watched.identity_changes == ["b"]
        before = two.asked.total()
        await one.asked_more("/health", times=4)
        assert two.asked.total() <= before + 2
