"""A13: an engine that is up but still loading gets no request before its model is listed, and then warms in."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable

from benchmarks.field_reports.case import Figures, Scenario, Size, expect, until
from benchmarks.field_reports.client import Answer, chat
from benchmarks.field_reports.engine import Call, Engine, engine, model_list
from benchmarks.field_reports.gateway import Gateway, serve

READY_WITHIN_S = 3.5  # `health.interval_s`, which is 2 s by default, a probe, and some
Stage = tuple[str, Callable[[Engine], None]]


def _hangs(one: Engine) -> None:
    one.listen()
    one.gets["/health"] = (0, b"")


def _loading(one: Engine) -> None:
    one.gets["/health"] = (200, b"")
    one.gets["/v1/models"] = (503, b"{}")
    one.break_connections()  # what hangs on them never gets an answer


def _nothing_listed(one: Engine) -> None:
    one.gets["/v1/models"] = (200, model_list())


def _other_listed(one: Engine) -> None:
    one.gets["/v1/models"] = (200, model_list("another"))


def _not_found(one: Engine) -> None:
    one.gets["/v1/models"] = (404, b"{}")


STAGES: tuple[Stage, ...] = (
    ("refuses", lambda _: None),
    ("accepts and hangs", _hangs),
    ("healthy, models 503", _loading),
    ("healthy, models empty", _nothing_listed),
    ("healthy, models 404", _not_found),
    ("healthy, another model", _other_listed),
)


def _health(size: Size) -> dict[str, float]:
    return {"interval_s": size.seconds(0.4, 2.0)}


@contextlib.asynccontextmanager
async def _starting() -> AsyncIterator[Engine]:
    one = Engine(_slow)
    try:
        yield one
        for fault in one.faults:
            raise fault
    finally:
        await one.stop()


async def _slow(call: Call) -> None:
    await asyncio.sleep(0.05)
    call.answer()


async def _paced(gateway: Gateway, seconds: float, per_s: float, answers: list[Answer]) -> None:
    """Send requests at a steady rate for so long, each when it is due."""
    ends_s = time.monotonic() + seconds
    async with asyncio.TaskGroup() as group:

        async def one() -> None:
            answers.append(await gateway.post(chat()))

        while time.monotonic() < ends_s:
            group.create_task(one())
            await asyncio.sleep(1 / per_s)


async def a_loading_engine_gets_nothing(size: Size) -> Figures:
    """Beside a ready engine another one comes up step by step under steady load; then a burst."""
    stage_s, answers = size.seconds(0.4, 1.5), list[Answer]()
    async with _starting() as new, engine(_slow) as old, serve([old, new], ready=1, health=_health(size)) as gateway:
        for name, begin in STAGES:
            begin(new)
            await _paced(gateway, stage_s, 10, answers)
            expect(not new.calls, f"an engine that {name} got a request")
            expect(all(answer.status == 200 for answer in answers), f"a request failed while an engine {name}")
        slowest_s = max(answer.seconds for answer in answers)
        expect(slowest_s < 1.0, f"a request took {slowest_s:.1f} s while an engine came up")
        new.gets["/v1/models"] = (200, model_list("m"))
        ready_s = await _until_listed(gateway, new)
        share = await _burst(gateway, new)
        more_s = await until(lambda: _asks(gateway, new), "the new engine to get requests", READY_WITHIN_S)
        return {"ready_s": ready_s, "share_of_burst": share, "first_request_s": more_s, "slowest_s": slowest_s}


async def _until_listed(gateway: Gateway, new: Engine) -> float:
    async def ready() -> bool:
        told = await gateway.endpoint(f"127.0.0.1:{new.port}")
        return bool(told["ready"] and told["models"] == ["m"])

    return await until(ready, "the engine that lists its model to be ready", READY_WITHIN_S)


async def _burst(gateway: Gateway, new: Engine) -> float:
    """Send many requests at once, as soon as the new engine is ready; return its share of them."""
    before = len(new.calls)
    answers = await asyncio.gather(*(gateway.post(chat(content=str(number))) for number in range(40)))
    expect(all(answer.status == 200 for answer in answers), "a request of the burst failed")
    share = (len(new.calls) - before) / 40
    expect(share <= 0.5, f"an engine that has just come up got {share:.0%} of a burst")
    return share


async def _asks(gateway: Gateway, new: Engine) -> bool:
    before = len(new.calls)
    await asyncio.gather(*(gateway.post(chat(content=str(number))) for number in range(4)))
    return len(new.calls) > before


async def the_gateway_is_ready_when_an_engine_can_serve(size: Size) -> Figures:
    """With the loading engine alone /readyz says 503 through all stages, requests wait, and then it says 200."""
    stage_s = size.seconds(0.3, 1.5)
    flow = {"max_queue_wait_s": 30}
    async with _starting() as new, serve([new], ready=0, flow_control=flow, health=_health(size)) as gateway:
        waiting = asyncio.get_running_loop().create_task(gateway.post(chat()))
        for name, begin in STAGES[:-1]:
            begin(new)
            ends_s = time.monotonic() + stage_s
            while time.monotonic() < ends_s:
                for path in ("/readyz", "/health"):
                    told = (await gateway.get(path)).status
                    expect(told == 503, f"{path} says {told} while the only engine {name}")
                expect((await gateway.get("/healthz")).status == 200, "/healthz is not 200")
                expect(not waiting.done(), f"a request did not wait while the only engine {name}")
                await asyncio.sleep(0.05)
            expect(not new.calls, f"an engine that {name} got a request")
        new.gets["/v1/models"] = (200, model_list("m"))

        async def is_ready() -> bool:
            return (await gateway.get("/readyz")).status == 200

        ready_s = await until(is_ready, "/readyz to say 200", READY_WITHIN_S)
        answer = await asyncio.wait_for(waiting, 5)
        expect(answer.status == 200, f"the request that waited got {answer.told()}")
        return {"ready_s": ready_s}


async def ready_in_the_middle_is_no_promise(size: Size) -> Figures:
    """A ready engine goes back to loading: within a refresh interval nothing is sent there any more."""
    async with engine(_slow) as old, engine(_slow) as new, serve([old, new], health=_health(size)) as gateway:
        _nothing_listed(new)

        async def told() -> bool:
            return await gateway.value("twohop_endpoint_ready") == 1

        noticed_s = await until(told, "the engine that lists nothing to be not ready", READY_WITHIN_S)
        before = len(new.calls)
        answers = await asyncio.gather(*(gateway.post(chat()) for _ in range(size.count(20, 100))))
        expect(all(answer.status == 200 for answer in answers), "a request failed")
        expect(len(new.calls) == before, "an engine that lists no model any more got a request")
        return {"noticed_s": noticed_s}


SCENARIOS: tuple[Scenario, ...] = (
    a_loading_engine_gets_nothing,
    the_gateway_is_ready_when_an_engine_can_serve,
    ready_in_the_middle_is_no_promise,
)
