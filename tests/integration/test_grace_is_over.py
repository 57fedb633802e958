"""A gateway whose grace is over: every request in flight gets an end that its client understands."""

import asyncio
import json
import socket
from typing import Any

import httpx
import pytest

from tests.fakes.engine import Call, fake_engine
from tests.gateways import Running, run_gateway

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
SIZE = 3_000_000


async def hang(call: Call) -> None:
    """Begin what was asked for, and never end it."""
    kind = call.json.get("user")
    if kind == "stream":
        call.start_stream()
        call.chunk(b"data: 1\n\n")
    elif kind == "endless":
        call.start_stream()
        while not call.writer.is_closing():
            call.chunk(b"data: " + b"x" * 50_000 + b"\n\n")
            await call.writer.drain()
    elif kind == "sized":
        call.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % SIZE + b"x" * 10)
    await call.gone()


async def until_stopped(gateway: Running) -> None:
    gateway.gateway.stop()
    await gateway.until(lambda: gateway.parts.receipts.latest(1), "the receipt")


async def test_what_is_not_answered_gets_503(caplog):
    async with fake_engine(hang) as engine, run_gateway([engine.url]) as gateway:
        plain = asyncio.ensure_future(gateway.client.post("/v1/chat/completions", json=CHAT))
        await gateway.until(lambda: engine.calls, "the request to arrive")
        await until_stopped(gateway)
        reply = await plain
        assert (reply.status_code, reply.json()["error"]["code"]) == (503, "shutting_down")
        assert int(reply.headers["retry-after"]) >= 1
        assert gateway.parts.receipts.latest(1)[0].status == 503
        await gateway.until_idle()
    assert "Traceback" not in caplog.text


async def test_a_body_that_is_still_coming_gets_503(caplog):
    async with fake_engine(hang) as engine, run_gateway([engine.url]) as gateway:
        reader, writer = await asyncio.open_connection(*gateway.address)
        writer.write(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{")
        await gateway.client.get("/healthz")
        await until_stopped(gateway)
        assert (await reader.read()).startswith(b"HTTP/1.1 503 ")
        writer.close()
    assert "Traceback" not in caplog.text


async def test_a_stream_ends_with_an_error_event(caplog):
    async with fake_engine(hang) as engine, run_gateway([engine.url]) as gateway:
        body: dict[str, Any] = {**CHAT, "stream": True, "user": "stream"}
        async with gateway.client.stream("POST", "/v1/chat/completions", json=body) as reply:
            chunks = reply.aiter_raw()
            assert await anext(chunks) == b"data: 1\n\n"
            await until_stopped(gateway)
            event = b"".join([chunk async for chunk in chunks])
        assert event.startswith(b"data: {")
        assert event.endswith(b"}\n\n")
        assert json.loads(event[6:])["error"]["code"] == "shutting_down"
        assert gateway.parts.receipts.latest(1)[0].status == 503
        await gateway.until_idle()
    assert "Traceback" not in caplog.text


async def test_a_sized_answer_breaks_off(caplog):
    async with fake_engine(hang) as engine, run_gateway([engine.url]) as gateway:
        async with gateway.client.stream("POST", "/v1/chat/completions", json={**CHAT, "user": "sized"}) as reply:
            chunks = reply.aiter_raw()
            assert await anext(chunks) == b"x" * 10
            await until_stopped(gateway)
            with pytest.raises(httpx.TransportError):
                await anext(chunks)
        assert gateway.parts.receipts.latest(1)[0].status == 503
        await gateway.until_idle()
    assert "Traceback" not in caplog.text


async def test_a_client_that_does_not_read_holds_nothing_up(caplog):
    async with fake_engine(hang) as engine, run_gateway([engine.url]) as gateway:
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.connect(gateway.address)
            data = json.dumps({**CHAT, "stream": True, "user": "endless"}).encode()
            client.sendall(b"POST /v1/chat/completions HTTP/1.1\r\ncontent-length: %d\r\n\r\n%b" % (len(data), data))
            await gateway.until(lambda: engine.calls and engine.calls[0].writer.transport.get_write_buffer_size(), "it")
            await until_stopped(gateway)
        assert gateway.parts.receipts.latest(1)[0].status == 503
        await gateway.until_idle()
    assert "Traceback" not in caplog.text


async def test_two_hops_are_counted_as_cut_short():
    async with fake_engine(hang) as prefill, fake_engine(hang) as decode:
        endpoints = [{"url": prefill.url, "role": "prefill"}, {"url": decode.url, "role": "decode"}]
        async with run_gateway(endpoints) as gateway:
            plain = asyncio.ensure_future(gateway.client.post("/v1/chat/completions", json=CHAT))
            await gateway.until(lambda: prefill.calls, "the prefill leg to arrive")
            await until_stopped(gateway)
            assert (await plain).status_code == 503
            counted = gateway.parts.metrics.render().decode()
    assert 'twohop_two_hop_total{outcome="shutting_down"} 1.0' in counted
