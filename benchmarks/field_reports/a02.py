"""A02: errors that clients have earned trip no endpoint; real failures do, and a tripped endpoint comes back."""

import asyncio
import time
from collections.abc import Sequence

from benchmarks.field_reports.case import Figures, Scenario, Size, expect, until
from benchmarks.field_reports.client import Post, chat, closed_loop, statuses
from benchmarks.field_reports.engine import Call, Engine, engine, engines
from benchmarks.field_reports.gateway import Gateway, serve

REFUSED = (400, 404, 422)  # of the report
ALIKE = (401, 403, 405, 409, 410, 413, 415, 418, 431, 451)
RETURN_S = 30.0


async def _as_asked(call: Call) -> None:
    """Answer with the status that the body asks for; the body of an error is the engine's own."""
    status = call.json.get("want", 200)
    call.answer(status, None if status == 200 else {"detail": f"no: {status}"})


def _bad(status: int) -> Post:
    return Post(chat(want=status))


async def _ejections(gateway: Gateway) -> float:
    return await gateway.value("twohop_endpoint_ejections_total")


async def client_errors_eject_nobody(size: Size) -> Figures:
    """Every endpoint answers hundreds of requests with 4xx; then a valid one gets 200."""
    times = size.count(20, 100)
    async with engines(2, _as_asked) as both, serve(both) as gateway:
        for status in (*REFUSED, *ALIKE):
            answers = await closed_loop(gateway.address, [_bad(status)] * times, 4)
            expect(statuses(answers) == {status: times}, f"{status} became {statuses(answers)}")
            passed = all(answer.json == {"detail": f"no: {status}"} for answer in answers)
            expect(passed, f"the engine's own body of {status} did not pass unchanged")
            valid = await gateway.post(chat())
            expect(valid.status == 200, f"after {times} times {status} a valid request got {valid.told()}")
        expect(await _ejections(gateway) == 0, "an endpoint was ejected for answering 4xx")
        expect(await gateway.value("twohop_endpoint_ready") == 2, "an endpoint is not ready after 4xx")
        sent = len((*REFUSED, *ALIKE)) * (times + 1)
        reached = sum(len(one.calls) for one in both)
        expect(reached == sent, f"{sent} requests reached engines {reached} times")
        return {"refused": sent}


def _failing(kind: str) -> Scenario:
    async def failures_between_client_errors_eject(size: Size) -> Figures:
        """One endpoint fails every valid request, with 400s in between; it is ejected, and no client sees a failure."""

        async def broken(call: Call) -> None:
            if call.json.get("want"):
                await _as_asked(call)
            elif kind == "reset":
                call.reset()
            else:
                call.answer(int(kind), {"error": {"message": "out of memory"}})

        rounds = size.count(60, 200)
        async with engine(broken) as bad, engine(_as_asked) as good, serve([bad, good]) as gateway:
            mixed = [_bad(400), Post(chat())] * rounds
            answers = await closed_loop(gateway.address, mixed, 2)
            expect(statuses(answers) == {400: rounds, 200: rounds}, f"clients saw {statuses(answers)}")
            ejected = await _ejections(gateway)
            expect(ejected >= 1, f"{_failed(bad)} failures in {rounds} rounds, and the endpoint was not ejected")
            before = _failed(bad)
            answers = await closed_loop(gateway.address, [Post(chat())] * 40, 2)
            expect(statuses(answers) == {200: 40}, f"after the ejection clients saw {statuses(answers)}")
            more = _failed(bad) - before
            expect(more <= 6, f"{more} of 40 requests were tried on the endpoint that had been ejected")
            return {"failures_until_ejected": before, "tried_after": more}

    failures_between_client_errors_eject.__name__ = f"failures_between_client_errors_eject_{kind}"
    return failures_between_client_errors_eject


def _failed(broken: Engine) -> int:
    return sum("want" not in call.json for call in broken.calls)


def _returning(kind: str) -> Scenario:
    async def an_ejected_endpoint_comes_back(size: Size) -> Figures:
        """An endpoint fails for some seconds and recovers; it gets requests again without a restart."""
        failing = True

        async def at_times(call: Call) -> None:
            if failing and kind == "503":
                call.answer(503, {"error": {"message": "loading"}})
            elif failing:
                call.reset()
            else:
                call.answer()

        async with engine(at_times) as sick, engine() as well, serve([sick, well]) as gateway:
            ends_s = time.monotonic() + size.seconds(1.0, 3.0)
            while time.monotonic() < ends_s:
                answers = await closed_loop(gateway.address, [Post(chat())] * 4, 2)
                expect(statuses(answers) == {200: 4}, f"while one endpoint failed, clients saw {statuses(answers)}")
                await asyncio.sleep(0.02)
            expect(await _ejections(gateway) >= 1, f"{len(sick.calls)} failures, and the endpoint was not ejected")
            failing = False
            before, began_s = len(sick.calls), time.monotonic()

            async def tried_again() -> bool:
                answers = await closed_loop(gateway.address, [Post(chat())] * 4, 2)
                expect(statuses(answers) == {200: 4}, f"while it came back, clients saw {statuses(answers)}")
                return len(sick.calls) > before

            await until(tried_again, "the recovered endpoint to be tried again", RETURN_S)
            back_s = time.monotonic() - began_s
            await gateway.until_ready(2)
            served = len(sick.calls)
            await closed_loop(gateway.address, [Post(chat())] * 40, 8)
            expect(len(sick.calls) > served, "a recovered endpoint gets no share of the requests")
            return {"back_s": back_s}

    an_ejected_endpoint_comes_back.__name__ = f"an_ejected_endpoint_comes_back_{kind}"
    return an_ejected_endpoint_comes_back


async def the_last_endpoint_is_never_ejected(size: Size) -> Figures:
    """The only endpoint fails every second request; each request still reaches it."""
    number = 0

    async def every_second(call: Call) -> None:
        nonlocal number
        number += 1
        call.answer(500 if number % 2 else 200, {"error": {"message": "no"}} if number % 2 else None)

    times = size.count(60, 300)
    async with engine(every_second) as only, serve([only]) as gateway:
        answers = await closed_loop(gateway.address, [Post(chat())] * times, 1)
        seen: Sequence[int] = sorted(statuses(answers))
        expect(set(seen) <= {200, 502}, f"clients saw {statuses(answers)}")
        expect(len(only.calls) >= times, f"{times} requests, {len(only.calls)} reached the only endpoint")
        expect(await gateway.value("twohop_endpoint_ready") == 1, "the only endpoint was ejected")
        return {"served": statuses(answers).get(200, 0)}


SCENARIOS: tuple[Scenario, ...] = (
    client_errors_eject_nobody,
    *(_failing(kind) for kind in ("500", "503", "reset")),
    *(_returning(kind) for kind in ("503", "reset")),
    the_last_endpoint_is_never_ejected,
)
