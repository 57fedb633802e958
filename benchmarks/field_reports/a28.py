"""A28: a refusal for want of room says when to come back, and says so truly."""

import asyncio
import time
from typing import Any

from benchmarks.field_reports.case import Figures, Scenario, Size, expect, until
from benchmarks.field_reports.client import Answer, Post, chat, closed_loop, statuses
from benchmarks.field_reports.engine import Call, Engine, Handler, engine, engines
from benchmarks.field_reports.gateway import Gateway, serve


def _takes(seconds: float) -> Handler:
    async def handle(call: Call) -> None:
        await asyncio.sleep(seconds)
        call.answer()

    return handle


def _retry_after(answer: Answer, status: int, code: str) -> int:
    """Check a refusal of ours; return its Retry-After in seconds."""
    expect((answer.status, answer.code) == (status, code), f"instead of {status} {code}: {answer.told()}")
    told = answer.header("retry-after") or ""
    expect(told.isdigit() and 1 <= int(told) <= 60, f"{code} came with Retry-After {told!r}")
    expect(set(answer.json["error"]) >= {"message", "type", "param", "code"}, f"no whole error: {answer.told()}")
    return int(told)


async def _come_back(gateway: Gateway, refusal: Answer, what: str) -> int:
    """Send a request as soon as `refusal` says: it must pass. Return how many seconds that were."""
    wait_s = _retry_after(refusal, 429, "queue_full")
    await asyncio.sleep(wait_s)
    again = await gateway.post(chat())
    expect(again.status == 200, f"{what}: {wait_s} s after the refusal, as it said, came {again.told()}")
    return wait_s


async def _one_of_a_crowd(gateway: Gateway, number: int) -> int:
    """Send a request, and where it is refused, another one when that may be. Return how long that was, 0 for never."""
    answer = await gateway.post(chat(content=str(number)))
    return 0 if answer.status == 200 else await _come_back(gateway, answer, "queue full")


def _full_queue(service_s: float, queue: int) -> Scenario:
    async def run(size: Size) -> Figures:
        """One slot and a short queue: those that find it full are told when there will be room."""
        flow = {"max_in_flight_per_endpoint": 1, "max_queue": queue}
        async with engine(_takes(service_s)) as one, serve([one], flow_control=flow) as gateway:
            await closed_loop(gateway.address, [Post(chat())] * 4, 1)  # so that the rate is known
            waits: list[int] = []
            for _ in range(size.count(1, 5)):
                crowd = (_one_of_a_crowd(gateway, number) for number in range(queue + 1 + min(3, queue)))
                waits += filter(None, await asyncio.gather(*crowd))
            expect(waits, "nobody was refused")
            drained_s = service_s * (queue + 1)
            expect(max(waits) <= 2 * drained_s + 2, f"Retry-After {max(waits)}, the queue drains in {drained_s:.1f} s")
            return {"retry_after_s": max(waits), "drained_s": drained_s, "refused": len(waits)}

    run.__name__ = f"the_queue_is_full_{service_s:g}_s_each"
    return run


async def the_wait_was_too_long(size: Size) -> Figures:
    """One slot, taken by a long request: who waits for `max_queue_wait_s` is told when there will be room."""
    long_s = size.seconds(1.5, 6.0)

    async def by_prompt(call: Call) -> None:
        await asyncio.sleep(long_s if "long" in call.body.decode() else 0.05)
        call.answer()

    flow = {"max_in_flight_per_endpoint": 1, "max_queue_wait_s": 0.5}
    async with engine(by_prompt) as one, serve([one], flow_control=flow) as gateway:
        await closed_loop(gateway.address, [Post(chat(content="long"))], 1)
        blocking = asyncio.get_running_loop().create_task(gateway.post(chat(content="long")))
        await until(lambda: len(one.calls) == 2, "the long request to arrive")
        began_s = time.monotonic()
        answer = await gateway.post(chat())
        waited_s = time.monotonic() - began_s
        expect(0.4 < waited_s < 1.5, f"a wait of at most 0.5 s took {waited_s:.2f} s")
        wait_s = await _come_back(gateway, answer, "wait too long")
        await blocking
        return {"retry_after_s": wait_s, "busy_s": long_s}


def _refuses(headers: str, status: int = 429) -> Handler:
    async def handle(call: Call) -> None:
        call.answer(status, {"error": {"message": "busy", "type": "rate_limit_error", "code": 429}}, headers)

    return handle


async def every_engine_refuses(size: Size) -> Figures:
    """All answer 429 with Retry-After: the client gets 429 and that very header, and each engine one request."""
    for told in ("7", "0", "Wed, 21 Oct 2065 07:28:00 GMT"):
        async with engines(2, _refuses(f"Retry-After: {told}\r\n")) as both, serve(both) as gateway:
            for number in range(1, size.count(3, 50)):
                answer = await gateway.post(chat())
                seen = answer.status, answer.header("retry-after")
                expect(seen == (429, told), f"429 with {told} became {seen}: {answer.told()}")
                expect(answer.json["error"]["message"] == "busy", "the engine's own error did not pass")
                sent = [len(one.calls) for one in both]
                expect(sent == [number, number], f"{number} requests reached the two engines {sent} times")
            expect(await gateway.value("twohop_endpoint_ready") == 2, "an engine was ejected for saying 429")
    return {}


async def one_of_two_engines_refuses(size: Size) -> Figures:
    """Each request is served by the other one."""
    times = size.count(20, 200)
    async with engine(_refuses("Retry-After: 7\r\n")) as busy, engine() as free, serve([busy, free]) as gateway:
        answers = await closed_loop(gateway.address, [Post(chat(content=str(one))) for one in range(times)], 2)
        expect(statuses(answers) == {200: times}, f"clients saw {statuses(answers)}")
        expect(len(free.calls) == times, f"the free engine worked {len(free.calls)} times for {times} requests")
        streams = await closed_loop(gateway.address, [Post(chat(stream=True))] * 4, 1)
        expect(statuses(streams) == {200: 4}, f"streams got {statuses(streams)}")
        return {"tried_on_the_busy_one": len(busy.calls)}


def _no_engine(name: str, models_status: int | None) -> Scenario:
    async def run(size: Size) -> Figures:
        """503 with Retry-After after `max_queue_wait_s`, and no sooner, while no engine listens or serves a model."""
        one = Engine()
        if models_status is not None:
            one.gets["/v1/models"] = (models_status, b"{}")
            one.listen()
        try:
            async with serve([one], ready=0, flow_control={"max_queue_wait_s": 1}) as gateway:
                began_s = time.monotonic()
                answers = await asyncio.gather(*(gateway.post(chat()) for _ in range(size.count(3, 30))))
                took_s = time.monotonic() - began_s
                for answer in answers:
                    _retry_after(answer, 503, "no_endpoint")
                expect(0.9 < took_s < 3, f"503 came after {took_s:.2f} s with max_queue_wait_s: 1")
                return {"took_s": took_s}
        finally:
            await one.stop()

    run.__name__ = name
    return run


async def an_engine_that_went_away_comes_back(size: Size) -> Figures:
    """503 with Retry-After while the only engine is gone; it is back by then, and the request passes."""
    sections: dict[str, Any] = {
        "flow_control": {"max_queue_wait_s": 1},
        "health": {"interval_s": size.seconds(0.3, 2.0)},
    }
    async with engine() as one, serve([one], **sections) as gateway:
        expect((await gateway.post(chat())).status == 200, "a request failed before the engine went away")
        one.stop_listening()
        one.break_connections()

        async def gone() -> bool:
            return await gateway.value("twohop_endpoint_ready") == 0

        await until(gone, "the engine to be not ready")
        answer = await gateway.post(chat())
        wait_s = _retry_after(answer, 503, "no_endpoint")
        again = await _returned(gateway, one, wait_s)
        expect(again.status == 200, f"{wait_s} s later, with the engine back, came {again.told()}")
        return {"retry_after_s": wait_s}


async def _returned(gateway: Gateway, gone: Engine, wait_s: float) -> Answer:
    async with engine(port=gone.port):
        await asyncio.sleep(wait_s)
        return await gateway.post(chat())


SCENARIOS: tuple[Scenario, ...] = (
    _full_queue(0.2, 4),
    _full_queue(0.05, 30),
    _full_queue(1.0, 1),
    the_wait_was_too_long,
    every_engine_refuses,
    one_of_two_engines_refuses,
    _no_engine("no_engine_listens", None),
    _no_engine("no_engine_has_loaded", 503),
    an_engine_that_went_away_comes_back,
)
