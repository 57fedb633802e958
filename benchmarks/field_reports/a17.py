"""A17: an address behind which another process has come up gets only what is meant for that one."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

from benchmarks.field_reports.case import Figures, Scenario, Size, expect, until
from benchmarks.field_reports.client import Answer, Post, chat, closed_loop, statuses
from benchmarks.field_reports.engine import Call, Engine, Handler, engine, prefill
from benchmarks.field_reports.gateway import Gateway, serve

_PROBE_S = 1.0  # a probe, and some


def _interval_s(size: Size) -> float:
    return size.seconds(0.3, 2.0)  # 2 s is `health.interval_s` by default


def _sections(size: Size) -> dict[str, Any]:
    return {
        "routing": {"receipt_headers": True},
        "health": {"interval_s": _interval_s(size)},
        "scrape": {"interval_s": size.seconds(0.2, 1.0)},
    }


PROMPT = "the same long prompt " * 200


async def _a(call: Call) -> None:
    call.answer() if call.json["model"] == "a" else call.answer(404, {"error": {"message": "no such model"}})


async def _b(call: Call) -> None:
    call.answer() if call.json["model"] == "b" else call.answer(404, {"error": {"message": "no such model"}})


@contextlib.asynccontextmanager
async def _replaced(old: Engine, handler: Handler, model: str, keep: bool) -> AsyncIterator[Engine]:
    """Put another engine at the address of `old`; `keep`: connections that carried requests stay with the old one."""
    old.stop_listening()
    old.break_connections("GET" if keep else None)
    await asyncio.sleep(0.05)
    async with engine(handler, (model,), old.port) as new:
        yield new


async def _ask(gateway: Gateway, times: int, model: str) -> list[Answer]:
    posts = [Post(chat(model=model, content=str(number))) for number in range(times)]
    return await closed_loop(gateway.address, posts, 4)


def _another_model(name: str, keep: bool) -> Scenario:
    async def run(size: Size) -> Figures:
        times = size.count(40, 400)
        within_s = _interval_s(size) + _PROBE_S
        async with (
            engine(_a, ("a",)) as moved,
            engine(_a, ("a",)) as stays,
            serve([moved, stays], **_sections(size)) as gateway,
        ):
            where = f"127.0.0.1:{moved.port}"
            await _ask(gateway, times, "a")
            expect(moved.calls, "the endpoint got no request before it moved")
            async with _replaced(moved, _b, "b", keep) as new:
                await asyncio.sleep(within_s)
                told = await gateway.endpoint(where)
                expect(told["models"] == ["b"], f"after {within_s} s the endpoint still counts as {told['models']}")
                expect(told["identity_changes"] >= 1, "the change went unnoticed")
                expect(told["in_flight"] == 0, f"in flight on the new process: {told['in_flight']}")
                strays, before = len(new.calls), len(moved.calls)
                answers = await _ask(gateway, times, "a")
                expect(statuses(answers) == {200: times}, f"requests for a got {statuses(answers)}")
                expect(len(new.calls) == strays, "a request for a went to the process of b")
                answers = await _ask(gateway, times, "b")
                expect(statuses(answers) == {200: times}, f"requests for b got {statuses(answers)}")
                expect(len(new.calls) == strays + times, "requests for b went elsewhere")
                expect(len(moved.calls) == before, "a pooled connection to the old process was used again")
                listed = {one["id"] for one in (await gateway.get("/v1/models")).json["data"]}
                expect(listed == {"a", "b"}, f"/v1/models lists {listed}")
            return {"strays_meanwhile": strays}

    run.__name__ = name
    return run


async def the_same_model_restarts(size: Size) -> Figures:
    """A new process of the same model has an empty cache: no credit for prompts that the old one had."""
    within_s = _interval_s(size) + _PROBE_S
    async with engine(_a, ("a",)) as moved, serve([moved], **_sections(size)) as gateway:
        answers = [await gateway.post(chat(model="a", content=PROMPT)) for _ in range(2)]
        credit = int(answers[-1].header("x-twohop-predicted-cached-tokens") or 0)
        expect(credit > 0, "a repeated prompt got no credit")
        await asyncio.sleep(within_s)  # for a scrape, so that the old process's start is known
        async with _replaced(moved, _a, "a", keep=False) as new:
            await asyncio.sleep(within_s)
            answer = await gateway.post(chat(model="a", content=PROMPT))
            expect(answer.status == 200 and len(new.calls) == 1, f"the new process got no request: {answer.told()}")
            left = int(answer.header("x-twohop-predicted-cached-tokens") or 0)
            expect(left == 0, f"the new process got credit for {left} tokens that the old one had")
        return {"credit_before": credit}


async def prefill_turns_decode(size: Size) -> Figures:
    """The roles of two addresses are swapped by a reload; nothing is done under the old role any more."""

    async def either(call: Call) -> None:
        """Do what the request asks for, whatever role the engine has."""
        params = call.json.get("kv_transfer_params") or {}
        await prefill(call) if params.get("do_remote_decode") else call.answer()

    def legs(one: Engine, since: int) -> set[str]:
        params = [call.json.get("kv_transfer_params") or {} for call in one.calls[since:]]
        return {"prefill" if each.get("do_remote_decode") else "decode" for each in params}

    times = size.count(20, 200)
    async with engine(either) as one, engine(either) as two:

        def listed(first: str, second: str) -> list[dict[str, str]]:
            return [
                {"url": one.url, "name": "one", "role": first},
                {"url": two.url, "name": "two", "role": second},
            ]

        async with serve(listed("prefill", "decode"), **_sections(size)) as gateway:
            answers = await _ask(gateway, times, "m")
            expect(statuses(answers) == {200: times}, f"before the swap: {statuses(answers)}")
            expect((legs(one, 0), legs(two, 0)) == ({"prefill"}, {"decode"}), "the roles were not kept to begin with")
            gateway.reload(listed("decode", "prefill"))

            async def swapped() -> bool:
                expect(gateway.running, "SIGHUP ended the gateway")
                told = await gateway.endpoint("one")
                return bool(told["role"] == "decode" and told["ready"] and (await gateway.endpoint("two"))["ready"])

            taken_s = await until(swapped, "the new roles to be taken", _interval_s(size) + _PROBE_S)
            since = len(one.calls), len(two.calls)
            answers = await _ask(gateway, times, "m")
            expect(statuses(answers) == {200: times}, f"after the swap: {statuses(answers)}")
            seen = legs(one, since[0]), legs(two, since[1])
            expect(seen == ({"decode"}, {"prefill"}), f"after the swap the first did {seen[0]}, the second {seen[1]}")
            return {"taken_s": taken_s}


async def said_not_ready_while_healthy(size: Size) -> Figures:
    """An endpoint is drained, then taken out of the configuration, while its /health goes on saying 200."""
    times = size.count(20, 200)
    async with engine() as out, engine() as stays:
        listed = [{"url": out.url, "name": "out"}, {"url": stays.url, "name": "stays"}]
        async with serve(listed, **_sections(size)) as gateway:
            answer = await gateway.from_admin("POST", "/admin/endpoints/out/drain")
            expect(answer.status in (200, 202, 204), f"POST /admin/endpoints/out/drain answered {answer.told()}")
            before = len(out.calls)
            answers = await _ask(gateway, times, "m")
            expect(statuses(answers) == {200: times}, f"while drained: {statuses(answers)}")
            expect(len(out.calls) == before, "a drained endpoint got a request")
            gateway.reload(listed[1:])

            async def left() -> bool:
                expect(gateway.running, "SIGHUP ended the gateway")
                return "out" not in (await gateway.metrics()).labels("twohop_endpoint_ready", "endpoint")

            await until(left, "the endpoint to leave", _interval_s(size) + _PROBE_S)
            answers = await _ask(gateway, times, "m")
            expect(statuses(answers) == {200: times}, f"after it left: {statuses(answers)}")
            expect(len(out.calls) == before, "an endpoint that discovery has taken out got a request")
            await until(lambda: not out.connections, "connections to the endpoint that left to close")
        return {}


SCENARIOS: tuple[Scenario, ...] = (
    _another_model("another_model", keep=False),
    _another_model("another_model_while_old_connections_live", keep=True),
    the_same_model_restarts,
    prefill_turns_decode,
    said_not_ready_while_healthy,
)
