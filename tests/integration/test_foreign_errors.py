"""Whatever an engine does, a request ends in one of our errors or in the engine's own answer: none is missed."""

import random

import httpx
import pytest

from tests.fakes.engine import Call, fake_engine
from tests.gateways import run_gateway

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
HEAD = b"HTTP/1.1 200 OK\r\n"
CHUNKED = HEAD + b"content-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
LIMITS = {"first_byte_s": 0.2, "idle_s": 0.2}
STAYS = {"failures_in_a_row": 100_000}

BEFORE_A_BYTE = {
    "nothing": b"",
    "no HTTP": b"SSH-2.0-OpenSSH_9.6\r\n",
    "TLS": b"\x15\x03\x01\x00\x02\x02\x46",
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "half a head": HEAD + b"content-le",
    "a status that is none": b"HTTP/1.1 999 X\r\ncontent-length: 0\r\n\r\n",
    "two lengths": HEAD + b"content-length: 3\r\ncontent-length: 4\r\n\r\nabcd",
    "length and chunks": HEAD + b"content-length: 3\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    "a negative length": HEAD + b"content-length: -1\r\n\r\n",
    "a chunk size that is none": CHUNKED + b"zz\r\nabc\r\n",
    "a chunk size without end": CHUNKED + b"f" * 40 + b"\r\nabc",
    "a header without a name": HEAD + b": x\r\n\r\n",
    "a head without end": HEAD + b"x: " + b"y" * 2_000_000,
    "a short body": HEAD + b"content-length: 100\r\n\r\nabc",
}


@pytest.mark.parametrize("then", ["close", "reset", "hang"])
@pytest.mark.parametrize("data", BEFORE_A_BYTE.values(), ids=BEFORE_A_BYTE.keys())
async def test_what_an_engine_says_before_a_byte_has_gone_out_becomes_our_error(data, then, caplog):
    async def speak(call: Call) -> None:
        call.write(data)
        if then == "hang":
            await call.gone()
        call.cut() if then == "reset" else call.writer.close()

    async with fake_engine(speak) as engine:
        async with run_gateway([engine.url], timeouts=LIMITS, ejection=STAYS) as gateway:
            reply = await gateway.client.post("/v1/chat/completions", json=CHAT)
            codes = {502: "upstream_failed", 504: "upstream_timeout"}
            assert reply.json()["error"]["code"] == codes[reply.status_code]
            await gateway.until_idle()
    assert "Traceback" not in caplog.text


@pytest.mark.parametrize("seed", range(24))
async def test_bytes_at_random_behind_a_good_beginning_never_become_a_fault_of_ours(seed, caplog):
    chance = random.Random(seed)
    parts = [
        HEAD,
        b"\r\n",
        b"content-length: 5\r\n",
        b"transfer-encoding: chunked\r\n",
        b"5\r\nhello\r\n",
        b"0\r\n\r\n",
    ]
    data = HEAD[: chance.randrange(len(HEAD) + 1)] + b"".join(
        chance.choice([*parts, chance.randbytes(chance.randrange(12))]) for _ in range(chance.randrange(1, 9))
    )

    async def speak(call: Call) -> None:
        call.write(data)
        await call.writer.drain()
        call.writer.close()

    async with fake_engine(speak) as engine:
        async with run_gateway([engine.url], timeouts=LIMITS, ejection=STAYS) as gateway:
            try:
                reply = await gateway.client.post("/v1/chat/completions", json=CHAT)
                assert reply.status_code in {200, 502, 504}, data
            except httpx.RemoteProtocolError:
                pass  # it broke off behind bytes that had gone out: the client must not take a part for the whole
            await gateway.until_idle()
            assert 'code="500"' not in await gateway.metrics()
    assert "Traceback" not in caplog.text


async def test_an_address_where_nobody_listens_becomes_our_error():
    async with fake_engine() as engine, run_gateway([engine.url], ejection=STAYS) as gateway:
        engine.stop_listening()
        reply = await gateway.client.post("/v1/chat/completions", json=CHAT)
        assert (reply.status_code, reply.json()["error"]["code"]) == (502, "upstream_failed")
