"""A stream's bytes and their timing, over real sockets (case A12): as the engine sent them, one by one, bounded."""

import asyncio
import gc
import hashlib
import json
import resource
import socket
import sys
from typing import Any

import pytest

from gateway.api.protocol import ClientConnection
from gateway.upstream.protocol import EngineConnection
from tests.fakes.engine import Call, fake_engine
from tests.gateways import Running, run_gateway

ASKED = {"model": "m", "prompt": "x", "stream": True, "stream_options": {"include_usage": True}}
PLAIN = {"model": "m", "prompt": "x", "stream": True}
MIXED = (
    b": ping\r\n\r\n"
    b'data:{"choices":[{"text":"h\xc3\xa9"}]}\r\n\r\n'
    b': ping\nevent: e\nid: 7\ndata: {"choices":[\ndata: {"text":"\xf0\x9f\x98\x80"}]}\n\n'
    b": ping\n"
    b'data: {"choices":[{"text":"\\n"}],"usage":{"prompt_tokens":3,"completion_tokens":2}}\r\r'
    b"data: [DONE]\n"
)


class Client:
    """One connection to a gateway, whose answer is read piece by piece."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def of(cls, gateway: Running, **options: Any) -> "Client":
        """Connect."""
        return cls(*await asyncio.open_connection(*gateway.address, **options))

    async def ask(self, body: Any) -> None:
        """Send a request and read the head of its answer."""
        data = json.dumps(body).encode()
        self.writer.write(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(data) + data)
        head = await self.reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200")
        assert b"transfer-encoding: chunked" in head.lower()

    async def chunk(self) -> bytes:
        """Read one chunk; empty at the end."""
        size = int(await self.reader.readline(), 16)
        return (await self.reader.readexactly(size + 2))[:-2]

    async def some(self, size: int) -> bytes:
        """Read `size` bytes of the body, in whole chunks."""
        body = b""
        while len(body) < size:
            body += await self.chunk()
        return body


def transports(kind: type[ClientConnection] | type[EngineConnection], port: int) -> list[asyncio.Transport]:
    """Return the gateway's open transports of a kind, to engines or of clients, with this port at the engine's side."""
    side = "peername" if kind is EngineConnection else "sockname"
    found = [one.transport for one in gc.get_objects() if isinstance(one, kind) and one.transport is not None]
    return [one for one in found if not one.is_closing() and one.get_extra_info(side)[1] == port]


async def test_any_two_reads_of_a_stream_give_its_bytes_and_the_first_before_the_second_is_sent():
    seen = asyncio.Event()

    async def in_two(call: Call) -> None:
        cut = call.json["cut"]
        call.start_stream()
        call.chunk(MIXED[:cut])
        await seen.wait()
        call.chunk(MIXED[cut:])
        call.end_stream()

    async with fake_engine(in_two) as engine, run_gateway([engine.url]) as gateway, asyncio.timeout(60):
        client = await Client.of(gateway)
        for cut in range(1, len(MIXED)):
            seen.clear()
            await client.ask({**ASKED, "cut": cut})
            body = await client.some(cut)
            assert body == MIXED[:cut]
            seen.set()
            while chunk := await client.chunk():
                body += chunk
            assert body == MIXED
        client.writer.close()
        await gateway.until_idle()
        tokens = [(one.prompt_tokens, one.output_tokens) for one in gateway.parts.receipts.latest(1000)]
        assert tokens == [(3, 2)] * (len(MIXED) - 1)


@pytest.mark.parametrize("asked", [True, False])
async def test_each_event_arrives_before_the_next_is_sent(asked):
    seen = asyncio.Event()
    events = [b'data: {"choices":[{"index":0,"text":"%d"}]}\n\n' % number for number in range(20)]
    events += [b": ping\n\n", b'data: {"choices":[{"index":0,"text":"","finish_reason":"stop"}]}\n\n']
    usage = b'data: {"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2}}\n\n'

    async def one_by_one(call: Call) -> None:
        call.start_stream()
        for event in events:
            call.chunk(event)
            await seen.wait()
            seen.clear()
        call.chunk(usage)
        call.end_stream()

    async with fake_engine(one_by_one) as engine, run_gateway([engine.url]) as gateway, asyncio.timeout(10):
        client = await Client.of(gateway)
        await client.ask(ASKED if asked else PLAIN)
        for event in events:
            assert await client.chunk() == event
            seen.set()
        assert await client.chunk() == (usage if asked else b"")
        client.writer.close()


async def test_a_token_goes_on_before_the_end_of_its_event():
    seen = asyncio.Event()
    event = b'data: {"choices":[{"index":0,"text":"a long one"}]}\n\n'

    async def halves(call: Call) -> None:
        call.start_stream()
        call.chunk(event[:40])
        await seen.wait()
        call.chunk(event[40:])
        call.end_stream()

    async with fake_engine(halves) as engine, run_gateway([engine.url]) as gateway, asyncio.timeout(10):
        client = await Client.of(gateway)
        await client.ask(PLAIN)
        assert await client.chunk() == event[:40]
        seen.set()
        assert await client.chunk() == event[40:]
        client.writer.close()


async def test_small_writes_do_not_wait_for_each_other_on_either_side():
    async def held(call: Call) -> None:
        call.start_stream()
        call.chunk(b"data: 1\n\n")
        await call.gone()

    async with fake_engine(held) as engine, run_gateway([engine.url]) as gateway, asyncio.timeout(10):
        client = await Client.of(gateway)
        await client.ask(ASKED)
        ours = transports(ClientConnection, gateway.address[1])
        sockets = [one.get_extra_info("socket") for one in ours + transports(EngineConnection, engine.port)]
        assert len(sockets) >= 2
        for sock in sockets:
            assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        client.writer.close()


STREAM_BYTES = 64 << 20
PIECE_BYTES = 65536
# Of one stream whose reader has stopped, the gateway holds what is over its write buffer's mark (64 KiB) when it stops
# reading, by one read (256 KiB), and what had come of it by then.
HELD_BYTES = (64 << 10) + 2 * (256 << 10)
RSS_UNIT = 1 if sys.platform == "darwin" else 1024


async def test_a_reader_that_stops_makes_the_engine_wait_and_no_memory_grow():
    event = b'data: {"choices":[{"index":0,"text":"' + b"x" * 1000 + b'"}]}\n\n'
    piece = event * (PIECE_BYTES // len(event))
    sent = 0

    async def pour(call: Call) -> None:
        nonlocal sent
        call.start_stream()
        while sent < STREAM_BYTES:
            call.chunk(piece)
            await call.writer.drain()
            sent += len(piece)
        call.end_stream()

    async with fake_engine(pour) as engine, run_gateway([engine.url]) as gateway, asyncio.timeout(60):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, gateway.address)
        client = Client(*await asyncio.open_connection(sock=sock, limit=65536))
        reading = transport_of(client)
        reading.pause_reading()
        data = json.dumps(PLAIN).encode()
        client.writer.write(
            b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(data) + data
        )
        await gateway.until(lambda: waits(engine.port), "the engine to be made to wait")
        [ours] = [one for one in transports(ClientConnection, gateway.address[1]) if one.get_write_buffer_size()]
        assert 0 < ours.get_write_buffer_size() <= HELD_BYTES
        assert sent < STREAM_BYTES // 2
        grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * RSS_UNIT
        assert grown < 16 << 20
        reading.resume_reading()
        head = await client.reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200")
        taken, wanted = hashlib.blake2b(), hashlib.blake2b()
        while chunk := await client.chunk():
            taken.update(chunk)
        for _ in range(sent // len(piece)):
            wanted.update(piece)
        assert sent >= STREAM_BYTES
        assert taken.digest() == wanted.digest()
        grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * RSS_UNIT
        assert grown < 16 << 20
        client.writer.close()


def transport_of(client: Client) -> asyncio.Transport:
    """Return the client's transport."""
    transport = client.writer.transport
    assert isinstance(transport, asyncio.Transport)
    return transport


def waits(port: int) -> bool:
    """Whether the gateway has stopped reading from the engine on this port."""
    return any(not one.is_reading() for one in transports(EngineConnection, port))
