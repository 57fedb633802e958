"""A16: engines that close idle connections, at the worst moment, cost no client an error and no request twice."""

import asyncio
import time
from typing import Literal

from benchmarks.field_reports.case import Figures, Scenario, Size, expect
from benchmarks.field_reports.client import Answer, Post, chat, closed_loop, statuses
from benchmarks.field_reports.engine import Call, Engine, engine
from benchmarks.field_reports.gateway import Gateway, serve

BIG = "x" * 1_000_000


def _once_each(one: Engine, answers: list[Answer], what: str) -> None:
    """Check that no client saw an error and that the engine has worked exactly once for each."""
    expect(statuses(answers) == {200: len(answers)}, f"{what}: clients saw {statuses(answers)}")
    expect(len(one.calls) == len(answers), f"{what}: {len(answers)} requests, the engine worked {len(one.calls)} times")


async def _paced(gateway: Gateway, times: int, idle_s: float) -> list[Answer]:
    """Send requests with pauses from a little less to a little more than the engine's limit, as measured."""
    answers = []
    for number in range(times):
        answers.append(await gateway.post(chat()))
        due_s = time.monotonic() + idle_s * (0.95 + 0.15 * number / times)
        await asyncio.sleep(due_s - time.monotonic())
    return answers


async def an_engine_closes_idle_connections(size: Size) -> Figures:
    """Requests spaced around the engine's idle limit, then many at once after a pause."""
    idle_s = size.seconds(0.1, 1.0)
    async with engine() as one, serve([one]) as gateway:
        one.idle_s = idle_s
        answers = await _paced(gateway, size.count(24, 60), idle_s)
        _once_each(one, answers, "one after the other")
        for _ in range(2):
            await asyncio.sleep(idle_s * 1.02)
            answers += await closed_loop(gateway.address, [Post(chat())] * 200, size.count(20, 200))
            _once_each(one, answers, "at once after a pause")
        retried = await gateway.value("twohop_retries_total")
        expect(retried == 0, f"{retried:g} attempts were counted against an engine that did nothing wrong")
        return {"requests": len(answers), "connections": one.accepted}


def _at_first_byte(kind: Literal["end", "reset"]) -> Scenario:
    async def run(size: Size) -> Figures:
        """The engine ends or resets every reused connection at its first byte; small and large bodies."""
        async with engine() as one, serve([one]) as gateway:
            one.reused = kind
            answers = [await gateway.post(chat(content=BIG if number % 4 == 3 else "hi")) for number in range(12)]
            _once_each(one, answers, "one after the other")
            answers += await closed_loop(gateway.address, [Post(chat())] * size.count(100, 1000), 10)
            _once_each(one, answers, "ten at a time")
            expect(await gateway.value("twohop_endpoint_ready") == 1, "the endpoint was ejected")
            ejected = await gateway.value("twohop_endpoint_ejections_total")
            expect(ejected == 0, "the endpoint was ejected on the way")
            return {"requests": len(answers)}

    run.__name__ = f"a_reused_connection_{'ends' if kind == 'end' else 'is_reset'}_at_its_first_byte"
    return run


def _streams(kind: Literal["end", "reset"]) -> Scenario:
    async def run(size: Size) -> Figures:
        """The same for streams."""

        async def stream(call: Call) -> None:
            call.start_stream()
            await call.piece(b"data: 1\n\n")
            call.end_stream()

        async with engine(stream) as one, serve([one]) as gateway:
            one.reused = kind
            posts = [Post(chat(stream=True))] * size.count(20, 200)
            answers = await closed_loop(gateway.address, posts, 2)
            _once_each(one, answers, "streams")
            return {"streams": len(answers)}

    run.__name__ = f"a_stream_on_a_reused_connection_that_{'ends' if kind == 'end' else 'is_reset'}"
    return run


async def closed_right_behind_an_answer(size: Size) -> Figures:
    """The engine closes behind every answer, without having said so."""

    async def close_behind(call: Call) -> None:
        call.answer()
        await call.writer.drain()
        call.writer.close()

    async with engine(close_behind) as one, serve([one]) as gateway:
        answers = await closed_loop(gateway.address, [Post(chat())] * size.count(200, 2000), 4)
        _once_each(one, answers, "closed behind each answer")
        return {"requests": len(answers)}


async def a_request_that_was_taken_is_not_sent_again(size: Size) -> Figures:
    """The engine dies in mid-answer on a reused connection, or before any byte on a new one: it worked once."""

    async def in_mid_answer(call: Call) -> None:
        if call.number == 1 and call.json.get("first"):
            call.answer()
            return
        call.writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 50\r\n\r\n{")
        await call.writer.drain()
        call.reset()

    async def on_a_new_one(call: Call) -> None:
        call.reset()

    async with engine(in_mid_answer) as one, serve([one]) as gateway:
        await gateway.post(chat(first=True))
        answer = await gateway.post(chat())
        expect((answer.status, answer.code) == (502, "upstream_failed"), f"half an answer became {answer.told()}")
        expect(len(one.calls) == 2, f"the engine worked {len(one.calls) - 1} times for one request")
    async with engine(on_a_new_one) as one, serve([one]) as gateway:
        times = size.count(1, 5)
        for _ in range(times):
            answer = await gateway.post(chat())
            expect((answer.status, answer.code) == (502, "upstream_failed"), f"no answer became {answer.told()}")
        expect(len(one.calls) == times, f"the engine got {len(one.calls)} requests for {times}")
    return {}


SCENARIOS: tuple[Scenario, ...] = (
    an_engine_closes_idle_connections,
    _at_first_byte("end"),
    _at_first_byte("reset"),
    _streams("end"),
    _streams("reset"),
    closed_right_behind_an_answer,
    a_request_that_was_taken_is_not_sent_again,
)
