"""Engines that fail are taken out and come back; those that refuse or are the last stay; those that are new warm in."""

import asyncio
from typing import Any

import pytest

from gateway.clock import monotonic_s
from gateway.errors import UpstreamFailed
from gateway.pool.ejection import Event, State
from gateway.upstream.client import LegTimeouts
from tests.fakes.engine import Call, fake_engine, ok
from tests.gateways import Running, run_gateway

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
OVER_LONG = {"error": {"message": "too long", "type": "BadRequestError", "code": 400}}
QUICK = {"first_s": 0.05, "longest_s": 0.2}


async def send(gateway: Running, **more: Any) -> int:
    return (await gateway.client.post("/v1/chat/completions", json={**CHAT, **more})).status_code


def named(**engines: Any) -> list[dict[str, str]]:
    return [{"url": engine.url, "name": name} for name, engine in engines.items()]


def state(gateway: Running, name: str) -> State:
    endpoint = gateway.parts.pool.get(name)
    assert endpoint is not None
    return endpoint.standing.state


async def until_state(gateway: Running, name: str, wanted: State) -> None:
    """Send requests until `name` is in that state."""
    async with asyncio.timeout(10):
        while state(gateway, name) is not wanted:
            await send(gateway)


async def test_a02_refusals_of_every_kind_eject_nobody():
    refusal = 0

    async def refuse(call: Call) -> None:
        call.answer(refusal, OVER_LONG) if refusal else call.answer()

    async with fake_engine(refuse) as one, fake_engine(refuse) as two, run_gateway([one.url, two.url]) as gateway:
        for refusal in (400, 404, 422, 429):
            assert [await send(gateway) for _ in range(20)] == [refusal] * 20
            assert all(endpoint.free for endpoint in gateway.parts.pool)
        refusal = 0
        assert await send(gateway) == 200
        assert "twohop_endpoint_ejections_total{" not in await gateway.metrics()


async def test_a02_failures_mixed_with_refusals_eject_and_recovery_is_seen_in_bounded_time():
    broken = True

    async def mixed(call: Call) -> None:
        if call.json.get("bad"):
            call.answer(400, OVER_LONG)
        else:
            call.answer(500 if broken else 200, {})

    async with fake_engine(mixed) as bad, fake_engine(mixed_ok) as good:
        async with run_gateway(named(bad=bad, good=good), ejection=QUICK) as gateway:
            for _ in range(200):
                await send(gateway, bad=1)
                assert await send(gateway) == 200
                if state(gateway, "bad") is State.OUT:
                    break
            assert state(gateway, "bad") is State.OUT
            assert 'ejections_total{endpoint="bad",reason="failures_in_a_row"} 1.0' in await gateway.metrics()
            why = gateway.parts.pool.describe(0.0)[0]["why_not_ready"]
            assert why.startswith("ejected, failures_in_a_row: endpoint bad answered 500")
            broken = False
            await until_state(gateway, "bad", State.IN)
            before = len(bad.calls)
            await asyncio.gather(*(send(gateway) for _ in range(20)))
            assert len(bad.calls) > before


async def mixed_ok(call: Call) -> None:
    call.answer(400, OVER_LONG) if call.json.get("bad") else call.answer()


async def test_the_last_endpoint_of_a_model_stays_whatever_it_does():
    failing = True

    async def fail(call: Call) -> None:
        call.answer(500 if failing else 200, {})

    async with fake_engine(fail) as engine, run_gateway([engine.url]) as gateway:
        assert [await send(gateway) for _ in range(20)] == [502] * 20
        failing = False
        assert await send(gateway) == 200
        assert len(engine.calls) == 21


async def break_off(call: Call) -> None:
    call.start_stream()
    call.chunk(b"data: one\n\n")
    await call.writer.drain()
    call.cut()


async def error_event(call: Call) -> None:
    call.start_stream()
    call.chunk(b'data: {"error": {"message": "engine died", "code": 500}}\n\n')
    call.end_stream()


async def no_answer(call: Call) -> None:
    await call.gone()


async def close_at_once(call: Call) -> None:
    call.cut()


@pytest.mark.parametrize("failure", [break_off, error_event, no_answer, close_at_once])
async def test_every_kind_of_failure_ejects(failure):
    async with fake_engine(failure) as bad, fake_engine() as good:
        sections: dict[str, Any] = {"ejection": {"first_s": 5}, "timeouts": {"first_byte_s": 0.05}}
        async with run_gateway(named(bad=bad, good=good), **sections) as gateway:
            await until_state(gateway, "bad", State.OUT)
            calls = len(bad.calls)
            assert calls == 5
            assert [await send(gateway) for _ in range(10)] == [200] * 10
            assert len(bad.calls) == calls
            await gateway.until_idle()


async def test_an_error_event_that_blames_the_caller_ejects_nobody():
    async def blame(call: Call) -> None:
        call.start_stream()
        call.chunk(b'data: {"error": {"message": "bad grammar", "code": 400}}\n\n')
        call.end_stream()

    async with fake_engine(blame) as one, fake_engine() as two, run_gateway(named(one=one, two=two)) as gateway:
        while len(one.calls) < 12:
            await send(gateway)
        assert state(gateway, "one") is State.IN


async def test_a_client_that_leaves_is_held_against_nobody():
    async with fake_engine(no_answer) as slow, fake_engine(no_answer) as other:
        async with run_gateway(named(slow=slow, other=other)) as gateway:
            for _ in range(12):
                task = asyncio.create_task(send(gateway))
                calls = len(slow.calls) + len(other.calls)
                await gateway.until(lambda: len(slow.calls) + len(other.calls) > calls, "the call")  # noqa: B023
                task.cancel()
                await gateway.until_idle()
            assert all(one.standing.calm for one in gateway.parts.pool)


async def test_our_own_bound_on_connections_is_held_against_nobody():
    sections: dict[str, Any] = {
        "upstream": {"max_connections": 1},
        "flow_control": {"max_in_flight_per_endpoint": 1},
        "timeouts": {"connect_s": 0.02},
    }
    async with fake_engine(no_answer) as engine, run_gateway([engine.url], **sections) as gateway:
        (endpoint,) = gateway.parts.pool
        leg = gateway.parts.engines.leg(endpoint, LegTimeouts(5, 5, 5, 5))  # holds the only connection, and no lease
        holds = asyncio.create_task(leg.open(b"POST / HTTP/1.1\r\ncontent-length: 0\r\n\r\n", b""))
        await gateway.until(lambda: engine.calls, "the connection to be in use")
        assert [await send(gateway) for _ in range(6)] == [502] * 6
        assert (endpoint.ready, endpoint.health.fails, endpoint.standing.calm) == (True, 0, True)
        leg.abort(UpstreamFailed("enough"))
        with pytest.raises(UpstreamFailed):
            await holds


async def test_a_trial_is_one_request_at_a_time():
    hold = asyncio.Event()
    failing = True

    async def engine(call: Call) -> None:
        if not failing:
            await hold.wait()
        call.answer(500 if failing else 200, {})

    async with fake_engine(engine) as bad, fake_engine() as good:
        async with run_gateway(named(bad=bad, good=good), ejection=QUICK) as gateway:
            await until_state(gateway, "bad", State.OUT)
            failing = False
            calls = len(bad.calls)
            await gateway.until(lambda: state(gateway, "bad") is State.TRIAL, "the trial")
            waiting = [asyncio.create_task(send(gateway)) for _ in range(20)]
            await gateway.until(lambda: sum(task.done() for task in waiting) == 19, "all but the trial")
            assert len(bad.calls) == calls + 1
            hold.set()
            assert await asyncio.gather(*waiting) == [200] * 20
            assert state(gateway, "bad") is State.IN


async def test_what_waits_on_an_engine_found_stuck_goes_elsewhere():
    async with fake_engine(no_answer) as stuck, fake_engine() as good:
        async with run_gateway(named(stuck=stuck, good=good), retries={"budget_ratio": 0}) as gateway:
            endpoint = gateway.parts.pool.get("stuck")
            assert endpoint is not None
            tasks = [asyncio.create_task(send(gateway)) for _ in range(40)]
            await gateway.until(lambda: len(endpoint.waiting) > 10, "requests to wait")
            moved = len(endpoint.waiting)
            endpoint.outcome(Event.STUCK, 0.0, "gave no token")
            assert await asyncio.gather(*tasks) == [200] * 40
            metrics = await gateway.metrics()
            assert f'twohop_retries_total{{reason="no_progress"}} {moved}.0' in metrics
            assert 'ejections_total{endpoint="stuck",reason="no_progress"} 1.0' in metrics
            assert not endpoint.waiting


NEVER_OUT = {"failures_in_a_row": 100_000}


async def test_retries_end_when_their_budget_is_used_up_and_the_engines_failure_passes():
    async def fail(call: Call) -> None:
        call.answer(503, {"error": {"message": "overloaded"}})

    async with fake_engine(fail) as bad, fake_engine() as good:
        sections: dict[str, Any] = {"ejection": NEVER_OUT, "retries": {"budget_ratio": 0.0}}
        async with run_gateway(named(bad=bad, good=good), **sections) as gateway:
            statuses: list[int] = []
            while statuses.count(502) < 3:
                statuses.append(await send(gateway))
            assert 10 <= len(bad.calls) - 3 <= 15  # ten at first, one a second
            metrics = await gateway.metrics()
            assert f'twohop_retries_total{{reason="503"}} {len(bad.calls) - 3}.0' in metrics
            assert 'twohop_retries_refused_total{reason="503"} 3.0' in metrics


async def test_refused_connections_and_429_are_tried_elsewhere_whatever_the_budget():
    async def refuse(call: Call) -> None:
        call.answer(429, {}, "retry-after: 7\r\n")

    async with fake_engine(refuse) as busy, fake_engine() as good:
        async with run_gateway(named(busy=busy, good=good), retries={"budget_ratio": 0.0}) as gateway:
            while len(busy.calls) < 30:
                assert await send(gateway) == 200


async def test_a_newcomer_takes_part_in_a_burst_but_not_the_whole_of_it():
    release = asyncio.Event()

    async def hold(call: Call) -> None:
        await release.wait()
        call.answer()

    async with fake_engine(hold) as old, fake_engine(hold, models=[]) as new:
        async with run_gateway(named(old=old, new=new), ready=1, health={"warm_in_s": 2.0}) as gateway:
            endpoint = gateway.parts.pool.get("old")
            assert endpoint is not None
            await gateway.until(lambda: endpoint.view(monotonic_s()).warmth == 1.0, "the old one to be warm")
            new.models.append("m")
            await gateway.until_ready(2)
            tasks = [asyncio.create_task(send(gateway)) for _ in range(24)]
            await gateway.until(lambda: len(old.calls) + len(new.calls) == 24, "all to be sent")
            assert 1 <= len(new.calls) <= 8  # 12 would be half
            release.set()
            assert await asyncio.gather(*tasks) == [200] * 24
            receipts = gateway.parts.receipts.latest(100)
            rejected = [decision.rejected for receipt in receipts for _, decision in receipt.decisions]
            assert {"new": "healthy"} in rejected


async def test_a17_another_model_on_the_address_gets_no_request_for_the_old_one():
    """Probes are ten minutes apart here: the first refusal of the model is what shows it."""

    async def by_model(call: Call) -> None:
        known = call.json["model"] in changed.models
        call.answer(200 if known else 404, {} if known else {"error": {"message": "The model `m` does not exist."}})

    async with fake_engine(by_model) as changed, fake_engine(ok) as other:
        async with run_gateway(named(changed=changed, other=other), health={"interval_s": 600.0}) as gateway:
            for number in range(20):  # twenty conversations
                assert await send(gateway, messages=[{"role": "user", "content": f"{number} " * 500}]) == 200
            parts, endpoint = gateway.parts, gateway.parts.pool.get("changed")
            assert endpoint is not None
            assert parts.index.held_blocks().get("changed")
            changed.models[:] = ["b"]
            statuses: list[int] = []
            async with asyncio.timeout(10):
                while endpoint.model_ids != {"b"}:
                    statuses += await asyncio.gather(*(send(gateway) for _ in range(4)))
            assert 404 in statuses
            assert set(statuses) <= {200, 404}
            calls = len(changed.calls)
            assert [await send(gateway) for _ in range(20)] == [200] * 20
            assert len(changed.calls) == calls
            assert not parts.index.held_blocks().get("changed")
            assert "changed" not in parts.engines.counts()
            assert await send(gateway, model="b") == 200
            assert len(changed.calls) == calls + 1
