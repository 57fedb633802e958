"""Response ids: what is asked of a response by its id goes to the engine that keeps it, known or to be found."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.fakes.engine import Call, FakeEngine, fake_engine
from tests.gateways import Running, run_gateway

Handler = Callable[[Call], Awaitable[None]]
ABSENT = b'{"error": {"message": "no such response",  "code": 404}}'


def keeper(name: str, stored: set[str] | None = None) -> Handler:
    """Return the behaviour of an engine that keeps its own responses under ids with `name` in them."""
    kept = set() if stored is None else stored

    async def serve(call: Call) -> None:
        if call.path == "/v1/responses":
            before = call.json.get("previous_response_id")
            if before is not None and before not in kept:
                call.answer(404, ABSENT)
                return
            made = f"resp_{name}{len(kept)}"
            kept.add(made)
            if call.json.get("stream"):
                call.start_stream()
                call.chunk(b'event: response.created\ndata: {"response": {"id" : "%b"}}\n\n' % made.encode())
                call.end_stream()
            else:
                call.answer(200, {"id": made, "by": name})
        elif call.path.partition("?")[0].split("/")[3] in kept:
            call.answer(200, {"by": name, "method": call.method})
        else:
            call.answer(404, ABSENT)

    return serve


def asked(engine: FakeEngine) -> list[tuple[str, str]]:
    return [(call.method, call.path) for call in engine.calls if call.path != "/v1/responses"]


def leave(gateway: Running, engine: FakeEngine) -> None:
    endpoint = gateway.parts.pool.get(engine.url.removeprefix("http://"))
    assert endpoint is not None
    endpoint.drain()


async def create(gateway: Running, **members: Any) -> str:
    reply = await gateway.client.post("/v1/responses", json={"model": "m", "input": "x", **members})
    assert reply.status_code == 200, reply.text
    if "stream" in members:
        return reply.text.split('"')[5]
    return str(reply.json()["id"])


@pytest.mark.parametrize("stream", [{}, {"stream": True}])
async def test_a_response_is_asked_for_where_it_was_made(stream):
    async with (
        fake_engine(keeper("a")) as a,
        fake_engine(keeper("b")) as b,
        run_gateway([a.url, b.url]) as gateway,
    ):
        for _ in range(6):
            made = await create(gateway, **stream)
            mine, other = (a, b) if "_a" in made else (b, a)
            before = len(asked(other))
            replies = [
                await gateway.client.get(f"/v1/responses/{made}?include=x"),
                await gateway.client.post(f"/v1/responses/{made}/cancel"),
                await gateway.client.delete(f"/v1/responses/{made}"),
            ]
            assert [reply.status_code for reply in replies] == [200] * 3
            assert asked(mine)[-3:] == [
                ("GET", f"/v1/responses/{made}?include=x"),
                ("POST", f"/v1/responses/{made}/cancel"),
                ("DELETE", f"/v1/responses/{made}"),
            ]
            assert len(asked(other)) == before
            assert await create(gateway, previous_response_id=made) in {
                f"resp_{'a' if mine is a else 'b'}{len(mine.calls) - len(asked(mine)) - 1}"
            }
        await gateway.until_idle()
        newest = gateway.parts.receipts.latest(2)[1]
        metrics = await gateway.metrics()
    assert (newest.kind, newest.model, newest.route, newest.reason) == ("response_by_id", "m", "single", "response_id")
    assert newest.endpoint is not None
    assert 'twohop_requests_total{code="200",model="m",route="single"} 30.0' in metrics


async def test_one_that_is_not_known_here_is_looked_for_everywhere():
    async with (
        fake_engine(keeper("a")) as a,
        fake_engine(keeper("b", {"resp_old"})) as b,
        run_gateway([a.url, b.url]) as gateway,
    ):
        reply = await gateway.client.get("/v1/responses/resp_old")
        assert (reply.status_code, reply.json()["by"]) == (200, "b")
        for _ in range(4):
            assert (await create(gateway, previous_response_id="resp_old")).startswith("resp_b")
        for method, path in (("GET", "resp_no"), ("DELETE", "resp_no"), ("POST", "resp_no/cancel")):
            reply = await gateway.client.request(method, f"/v1/responses/{path}")
            assert (reply.status_code, reply.content) == (404, ABSENT)
            assert {(method, f"/v1/responses/{path}")} <= set(asked(a)) & set(asked(b))
        reply = await gateway.client.post("/v1/responses", json={"model": "m", "previous_response_id": "resp_no"})
        assert (reply.status_code, reply.content) == (404, ABSENT)
        await gateway.until_idle()
        metrics = await gateway.metrics()
    assert 'twohop_requests_total{code="404",model="unknown",route="single"} 3.0' in metrics


async def test_when_its_maker_has_left_the_others_are_asked_and_then_it_is_404():
    async with (
        fake_engine(keeper("a")) as a,
        fake_engine(keeper("b"), waiting=100) as b,
        run_gateway([a.url, b.url]) as gateway,
    ):
        await gateway.until(lambda: all(one.load for one in gateway.parts.pool), "scrapes")
        made = await create(gateway)
        assert made == "resp_a0"
        leave(gateway, a)
        reply = await gateway.client.get(f"/v1/responses/{made}")
        assert (reply.status_code, reply.content) == (404, ABSENT)
        assert asked(b) == [("GET", f"/v1/responses/{made}")]
        reply = await gateway.client.post("/v1/responses", json={"model": "m", "previous_response_id": made})
        assert reply.status_code == 404
        leave(gateway, b)
        reply = await gateway.client.get(f"/v1/responses/{made}")
        assert (reply.status_code, reply.json()["error"]["code"]) == (503, "no_endpoint")


async def test_its_maker_failing_is_no_404():
    async def serve(call: Call) -> None:
        if call.path == "/v1/responses":
            call.answer(200, {"id": "resp_a"})
        else:
            call.cut()

    async with (
        fake_engine(serve) as a,
        fake_engine(keeper("b"), waiting=100) as b,
        run_gateway([a.url, b.url]) as gateway,
    ):
        await gateway.until(lambda: all(one.load for one in gateway.parts.pool), "scrapes")
        made = await create(gateway)
        reply = await gateway.client.get(f"/v1/responses/{made}")
        assert (reply.status_code, reply.json()["error"]["code"]) == (502, "upstream_failed")
        assert b.calls == []
        reply = await gateway.client.get("/v1/responses/resp_b")  # nobody has it, but one could not be asked
        assert reply.status_code == 502
        await gateway.until_idle()


async def test_a_full_maker_refuses_what_only_it_could_do_and_is_asked_all_the_same():
    async with (
        fake_engine(keeper("a")) as a,
        run_gateway([a.url], flow_control={"max_in_flight_per_endpoint": 2}) as gateway,
    ):
        made = await create(gateway)
        endpoint = next(iter(gateway.parts.pool))
        leases = [endpoint.lease() for _ in range(2)]
        assert (await gateway.client.post(f"/v1/responses/{made}/cancel")).status_code == 200
        leases.pop().release()
        assert (await create(gateway, previous_response_id=made)) == "resp_a1"


async def test_what_is_no_id_reaches_no_engine():
    async with fake_engine(keeper("a")) as a, run_gateway([a.url]) as gateway:
        for path in ("a%20b", "..%2Fmodels", "a%2Fb"):
            reply = await gateway.client.get(f"/v1/responses/{path}")
            assert (reply.status_code, reply.json()["error"]["code"]) == (404, "not_found")
        assert (await gateway.client.put("/v1/responses/resp_1")).status_code == 405
        assert a.calls == []
