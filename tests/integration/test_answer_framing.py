"""How an answer ends on the client's connection: as the engine ended it, so that the next answer is found behind it."""

import asyncio
import json

import pytest

from tests.fakes.engine import Call, fake_engine
from tests.gateways import Running, run_gateway

STREAM = {"model": "m", "prompt": "x", "stream": True, "stream_options": {"include_usage": True}}
EVENT = b'data: {"choices":[{"index":0,"text":"a"}]}\n\n'


async def exchange(
    gateway: Running, body: dict[str, object], method: str = "POST", path: str = "/v1/completions"
) -> bytes:
    """Return all bytes that come back until the gateway closes: a second request on the connection asks it to."""
    reader, writer = await asyncio.open_connection(*gateway.address)
    data = json.dumps(body).encode()
    head = f"{method} {path} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(data)}\r\n\r\n"
    last = b"GET /healthz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
    try:
        async with asyncio.timeout(10):
            writer.write(head.encode() + data + last)
            return await reader.read(-1)
    finally:
        writer.close()


@pytest.mark.parametrize("at_once", [True, False])
@pytest.mark.parametrize("asked", [True, False])
async def test_the_trailers_of_a_stream_reach_the_client(at_once, asked):
    async def trailing(call: Call) -> None:
        call.start_stream("trailer: x-checksum\r\n")
        call.chunk(EVENT)
        if not at_once:
            await call.writer.drain()
            await asyncio.sleep(0.05)  # the head and the end come in two reads
        call.write(b"0\r\nx-checksum: abc\r\ncontent-type: evil\r\n\r\n")

    body = STREAM if asked else {name: value for name, value in STREAM.items() if name != "stream_options"}
    async with fake_engine(trailing) as engine, run_gateway([engine.url]) as gateway:
        told = await exchange(gateway, body)
    answer = told.partition(b"\r\n\r\n")[2]
    assert answer.startswith(b"%x\r\n%b\r\n0\r\nx-checksum: abc\r\n\r\nHTTP/1.1 200" % (len(EVENT), EVENT))


@pytest.mark.parametrize("status", [204, 304])
async def test_an_answer_that_has_no_body_has_no_framing_of_one(status):
    async def bare(call: Call) -> None:
        call.write(f"HTTP/1.1 {status} X\r\n\r\n".encode())

    async with fake_engine(bare) as engine, run_gateway([engine.url]) as gateway:
        told = await exchange(gateway, {}, "DELETE", "/v1/responses/resp_1")
    head, _, rest = told.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 %d" % status)
    assert b"transfer-encoding" not in head.lower()
    assert rest.startswith(b"HTTP/1.1 200 OK\r\n")


async def test_a_stream_of_a_stated_length_that_breaks_ends_with_its_connection():
    """An error event would stand in the place of the missing bytes, and the next answer in that of what follows."""
    length = 2 << 20

    async def short(call: Call) -> None:
        call.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: %d\r\n\r\n" % length)
        call.write(EVENT)
        await call.writer.drain()
        await asyncio.sleep(0.05)  # the gateway has begun its answer
        call.cut()

    async with fake_engine(short) as engine, run_gateway([engine.url]) as gateway:
        told = await exchange(gateway, STREAM)
    assert told.partition(b"\r\n\r\n")[2] == EVENT
