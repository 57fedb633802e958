"""What is asked for elsewhere when an engine fails or refuses, and what is not."""

import pytest

from tests.fakes.engine import Call, fake_engine
from tests.gateways import run_gateway

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
EVENTS = [b"data: one\n\n", b"data: [DONE]\n\n"]


async def stream_events(call: Call) -> None:
    call.start_stream()
    for event in EVENTS:
        call.chunk(event)
        await call.writer.drain()
    call.end_stream()


async def test_engine_4xx_passes_unchanged_and_is_not_repeated():
    async def refuse(call: Call) -> None:
        call.answer(422, b'{"detail":"no"}')

    async with fake_engine(refuse) as one, fake_engine(refuse) as two, run_gateway([one.url, two.url]) as gateway:
        reply = await gateway.client.post("/v1/chat/completions", json=CHAT)
        assert (reply.status_code, reply.content) == (422, b'{"detail":"no"}')
        assert len(one.calls) + len(two.calls) == 1
        assert all(endpoint.ready for endpoint in gateway.parts.pool)


@pytest.mark.parametrize("status", [429, 500, 502, 503, 504])
async def test_a_refusing_engine_is_left_for_another(status):
    async def refuse(call: Call) -> None:
        call.answer(status, {"error": {"message": "busy"}}, "retry-after: 7\r\n")

    async with fake_engine(refuse) as bad, fake_engine() as good, run_gateway([bad.url, good.url]) as gateway:
        for _ in range(8):
            assert (await gateway.client.post("/v1/chat/completions", json=CHAT)).status_code == 200
        metrics = await gateway.metrics()
        assert f'twohop_retries_total{{reason="{status}"}} {len(bad.calls)}.0' in metrics or not bad.calls
        await gateway.until_idle()


async def test_if_all_refuse_the_last_429_passes_with_its_retry_after():
    async def refuse(call: Call) -> None:
        call.answer(429, {"error": {"message": "busy"}}, "retry-after: 7\r\n")

    async with fake_engine(refuse) as one, fake_engine(refuse) as two, run_gateway([one.url, two.url]) as gateway:
        reply = await gateway.client.post("/v1/chat/completions", json=CHAT)
        assert (reply.status_code, reply.headers["retry-after"]) == (429, "7")
        assert (len(one.calls), len(two.calls)) == (1, 1)


async def test_when_nothing_helps_502_carries_the_engines_message():
    async def fail(call: Call) -> None:
        call.answer(503, {"error": {"message": "out of memory"}})

    async with fake_engine(fail) as engine, run_gateway([engine.url]) as gateway:
        reply = await gateway.client.post("/v1/chat/completions", json=CHAT)
        assert reply.status_code == 502
        assert reply.json()["error"]["code"] == "upstream_failed"
        assert "out of memory" in reply.json()["error"]["message"]


@pytest.mark.parametrize("size", [70_000, 1_000_000])
async def test_a_long_refusal_keeps_its_status_and_retry_after(size):
    async def refuse(call: Call) -> None:
        call.answer(429, b"x" * size, "retry-after: 7\r\n")

    async with fake_engine(refuse) as engine, run_gateway([engine.url]) as gateway:
        reply = await gateway.client.post("/v1/chat/completions", json=CHAT)
        assert (reply.status_code, reply.headers["retry-after"], len(reply.content)) == (429, "7", size)
        await gateway.until_idle()


@pytest.mark.parametrize(("status", "size"), [(429, 2_000_000), (503, 70_000), (503, 2_000_000)])
async def test_a_refusal_that_cannot_pass_is_told_by_its_status_and_beginning(status, size):
    async def refuse(call: Call) -> None:
        call.answer(status, b"out of memory " + b"x" * size)

    async with fake_engine(refuse) as bad, run_gateway([bad.url]) as gateway:
        reply = await gateway.client.post("/v1/chat/completions", json=CHAT)
        assert reply.status_code == 502
        assert f"answered {status}: out of memory" in reply.json()["error"]["message"]
        await gateway.until_idle()


@pytest.mark.parametrize("status", [600, 999])
async def test_a_status_that_is_none_is_a_broken_answer(status, caplog):
    async def answer(call: Call) -> None:
        call.answer(status, b"{}")

    async with fake_engine(answer) as bad, fake_engine() as good, run_gateway([bad.url, good.url]) as gateway:
        while not bad.calls:
            assert (await gateway.client.post("/v1/chat/completions", json=CHAT)).status_code == 200
        good.stop_listening()
        reply = await gateway.client.post("/v1/chat/completions", json=CHAT)
        assert (reply.status_code, reply.json()["error"]["code"]) == (502, "upstream_failed")
    assert "Traceback" not in caplog.text


@pytest.mark.parametrize("when", ["at once", "after head", "in the body", "garbage"])
async def test_an_engine_that_breaks_off_before_a_byte_is_left_for_another(when):
    async def break_off(call: Call) -> None:
        if when == "after head":
            call.start_stream()
        elif when == "in the body":
            call.write(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhalf")
        elif when == "garbage":
            call.write(b"hello\r\n\r\n")
        await call.writer.drain()
        call.cut() if when == "garbage" else call.writer.close()

    async with fake_engine(break_off) as bad, fake_engine() as good, run_gateway([bad.url, good.url]) as gateway:
        while not bad.calls:
            reply = await gateway.client.post("/v1/chat/completions", json=CHAT)
            assert (reply.status_code, reply.json()) == (200, {"ok": True})
        await gateway.until_idle()


async def test_a_stream_whose_first_event_is_an_error_is_asked_for_elsewhere():
    async def fail(call: Call) -> None:
        call.start_stream()
        call.chunk(b'data: {"error": {"message": "kv load failed"}}\n\n')
        call.chunk(b"data: [DONE]\n\n")
        call.end_stream()

    async with (
        fake_engine(fail) as bad,
        fake_engine(stream_events) as good,
        run_gateway([bad.url, good.url]) as gateway,
    ):
        while not bad.calls:
            reply = await gateway.client.post("/v1/chat/completions", json={**CHAT, "stream": True})
            assert reply.content == b"".join(EVENTS)


async def test_keep_alive_race_is_mended_by_one_new_connection():
    served = 0

    async def answer_once(call: Call) -> None:
        nonlocal served
        served += 1
        call.answer(200, {"n": served})
        await call.writer.drain()
        # The next request on this connection meets a reset, as from an engine that closes idle sockets.
        while await call.reader.read(65536):
            call.cut()

    async with fake_engine(answer_once) as engine, run_gateway([engine.url]) as gateway:
        for number in range(1, 6):
            reply = await gateway.client.post("/v1/chat/completions", json=CHAT)
            assert reply.json() == {"n": number}
        assert "twohop_retries_total{" not in await gateway.metrics()


async def test_an_endpoint_that_refuses_connections_leaves_the_pool_and_comes_back():
    async with fake_engine() as dying, fake_engine() as staying:
        endpoints = [{"url": dying.url, "name": "dying"}, {"url": staying.url, "name": "staying"}]
        async with run_gateway(endpoints, health={"interval_s": 0.1, "unhealthy_after": 1}) as gateway:
            pool = gateway.parts.pool
            port = dying.port
            for writer in list(dying.connections):
                writer.transport.abort()
            dying_endpoint = pool.get("dying")
            assert dying_endpoint is not None
            dying_endpoint.connect_failed("refused")
            assert not dying_endpoint.ready
            assert port == dying_endpoint.spec.port
            assert (await gateway.client.post("/v1/chat/completions", json=CHAT)).status_code == 200
            await gateway.until_ready(2)


async def test_a_429_passes_whatever_else_failed_beside_it():
    async def refuse(call: Call) -> None:
        call.answer(429, {"error": {"message": "busy"}}, "retry-after: 7\r\n")

    async with fake_engine(refuse) as busy, fake_engine() as dead, run_gateway([busy.url, dead.url]) as gateway:
        dead.stop_listening()
        for _ in range(6):
            reply = await gateway.client.post("/v1/chat/completions", json=CHAT)
            assert (reply.status_code, reply.headers["retry-after"]) == (429, "7")
