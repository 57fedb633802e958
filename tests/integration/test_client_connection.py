"""What else a client's bytes may do: come early, late, malformed or in another version's manner."""

import asyncio
import json
import logging
import socket
from typing import Any

import pytest

from gateway.api.bounds import Bounds
from gateway.api.request import ClientRequest
from gateway.api.server import Server
from tests.fakes.engine import Call, fake_engine
from tests.gateways import Running, run_gateway

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
STREAM = {**CHAT, "stream": True}
HEADER_S = 0.2
H2C = b"connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABk\r\n"


def post(body: Any = CHAT, headers: bytes = b"", version: bytes = b"1.1") -> bytes:
    """Return a whole request."""
    data = json.dumps(body).encode()
    head = b"POST /v1/chat/completions HTTP/%b\r\nhost: x\r\n%bcontent-length: %d\r\n\r\n"
    return head % (version, headers, len(data)) + data


def chunked(trailers: bytes = b"", size: bytes = b"%x") -> bytes:
    """Return a whole request in one chunk."""
    data = json.dumps(CHAT).encode()
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
    return head + size % len(data) + b"\r\n" + data + b"\r\n0\r\n" + trailers + b"\r\n"


class Client:
    """One connection to a gateway."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def of(cls, gateway: Running) -> "Client":
        """Connect."""
        return cls(*await asyncio.open_connection(*gateway.address))

    async def answer(self) -> tuple[int, bytes]:
        """Read one answer; return its status and its body, without its framing."""
        async with asyncio.timeout(10):
            head = (await self.reader.readuntil(b"\r\n\r\n")).lower()
            status = int(head.split(b" ")[1])
            if b"transfer-encoding: chunked" in head:
                body = b""
                while size := int(await self.reader.readline(), 16):
                    body += (await self.reader.readexactly(size + 2))[:-2]
                await self.reader.readexactly(2)
                return status, body
            length = int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0])
            return status, await self.reader.readexactly(length)

    async def rest(self) -> bytes:
        """Read until the gateway closes the connection."""
        async with asyncio.timeout(10):
            return await self.reader.read()


class Gated:
    """An engine's handler: streams two events, or answers, and waits in between until `go` is set."""

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.heard_leaving = asyncio.Event()

    async def __call__(self, call: Call) -> None:
        """Answer one call."""
        streams = call.json.get("stream")
        if streams:
            call.start_stream()
            call.chunk(b"data: 1\n\n")
        going, leaving = asyncio.ensure_future(self.go.wait()), asyncio.ensure_future(call.gone())
        await asyncio.wait({going, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if leaving.done():
            self.heard_leaving.set()
            going.cancel()
            return
        leaving.cancel()
        await asyncio.wait({leaving})
        if streams:
            call.chunk(b"data: 2\n\n")
            call.end_stream()
        else:
            call.answer(200, {"of": call.json.get("of")})


async def begun(client: Client, gateway: Running, calls: list[Call], count: int = 1) -> None:
    """Wait until the engine has `count` requests."""
    await client.writer.drain()
    await gateway.until(lambda: len(calls) == count, "the request to arrive")


@pytest.mark.parametrize("body", [CHAT, STREAM], ids=["whole", "stream"])
@pytest.mark.parametrize("together", [True, False], ids=["with the request", "later"])
@pytest.mark.parametrize("early", [b"\r\n", b"GET /hea", b"GARBAGE\r\n\r\n", b"CONNECT a:1 HTTP/1.1\r\n\r\n"])
async def test_what_comes_during_an_answer_does_not_disturb_it(early, together, body):
    gated = Gated()
    async with fake_engine(gated) as engine, run_gateway([engine.url], timeouts={"header_s": HEADER_S}) as gateway:
        client = await Client.of(gateway)
        client.writer.write(post(body) + early if together else post(body))
        await begun(client, gateway, engine.calls)
        if not together:
            client.writer.write(early)
        await asyncio.sleep(1.5 * HEADER_S)  # what must not happen would happen in this time
        gated.go.set()
        expected = b"data: 1\n\ndata: 2\n\n" if body is STREAM else b'{"of": null}'
        assert await client.answer() == (200, expected)
        if early == b"\r\n":
            await asyncio.sleep(1.5 * HEADER_S)  # nor is an idle connection told that it is late
            client.writer.write(post(body))
            assert await client.answer() == (200, expected)
        elif early == b"GET /hea":
            assert (await client.answer())[0] == 408
        elif together:
            assert await client.rest() == b""
        else:
            assert (await client.answer())[0] == 400
            assert await client.rest() == b""
        client.writer.close()


@pytest.mark.parametrize("cut", [None, 150, 1], ids=["in one piece", "in pieces", "byte by byte"])
async def test_requests_sent_ahead_are_answered_in_turn(cut):
    async def echo(call: Call) -> None:
        call.answer(200, {"of": call.json["of"]})

    async with fake_engine(echo) as engine, run_gateway([engine.url]) as gateway:
        client = await Client.of(gateway)
        sent = b"".join(post({**CHAT, "of": number}, H2C if number == 1 else b"") for number in range(4))
        for start in range(0, len(sent), cut or len(sent)):
            client.writer.write(sent[start : start + (cut or len(sent))])
            await asyncio.sleep(0)
        assert [await client.answer() for _ in range(4)] == [(200, b'{"of": %d}' % number) for number in range(4)]
        client.writer.close()


async def test_more_than_the_limit_sent_ahead_costs_the_connection_and_not_the_answer():
    gated = Gated()
    async with fake_engine(gated) as engine, run_gateway([engine.url], limits={"header_bytes": 8000}) as gateway:
        client = await Client.of(gateway)
        client.writer.write(post(STREAM))
        await begun(client, gateway, engine.calls)
        client.writer.write(post({**CHAT, "of": "x" * 9000}))
        await client.writer.drain()
        gated.go.set()
        assert await client.answer() == (200, b"data: 1\n\ndata: 2\n\n")
        assert await client.rest() == b""
        assert len(engine.calls) == 1
        client.writer.close()


@pytest.mark.parametrize("together", [True, False], ids=["with the request", "later"])
@pytest.mark.parametrize("ahead", [post(), post({**CHAT, "of": "x" * 200_000})[:150_000]], ids=["whole", "large, cut"])
async def test_leaving_with_a_request_sent_ahead_is_noticed(ahead, together):
    gated = Gated()
    async with fake_engine(gated) as engine, run_gateway([engine.url]) as gateway:
        client = await Client.of(gateway)
        client.writer.write(post() + ahead if together else post())
        await begun(client, gateway, engine.calls)
        if not together:
            client.writer.write(ahead)
            await client.writer.drain()
        client.writer.close()
        async with asyncio.timeout(2):
            await gated.heard_leaving.wait()
        await gateway.until_idle()
        assert len(engine.calls) == 1


@pytest.mark.parametrize("body", [CHAT, STREAM], ids=["whole", "stream"])
async def test_a_client_that_closes_its_half_has_left(body, caplog):
    gated = Gated()
    async with fake_engine(gated) as engine, run_gateway([engine.url]) as gateway:
        client = await Client.of(gateway)
        client.writer.write(post(body))
        await begun(client, gateway, engine.calls)
        client.writer.write_eof()
        async with asyncio.timeout(2):
            await gated.heard_leaving.wait()
        assert b"data: 2" not in await client.rest()
        await gateway.until_idle()
        assert "twohop_client_disconnects_total 1.0" in await gateway.metrics()
        client.writer.close()
    assert [one.getMessage() for one in caplog.records if one.levelno >= logging.WARNING] == []


@pytest.mark.parametrize("upgrade", [H2C, b"connection: upgrade\r\nupgrade: websocket\r\n"], ids=["h2c", "websocket"])
@pytest.mark.parametrize("cut", [0, 30, -5], ids=["whole", "in the head", "in the body"])
async def test_a_wish_for_another_protocol_is_ignored(cut, upgrade):
    async with fake_engine() as engine, run_gateway([engine.url]) as gateway:
        client = await Client.of(gateway)
        for _ in range(2):  # the connection stays in use
            request = post(CHAT, upgrade)
            client.writer.write(request[:cut])
            await client.writer.drain()
            await asyncio.sleep(0.02)
            client.writer.write(request[cut:])
            assert (await client.answer())[0] == 200
        client.writer.close()
        assert [json.loads(call.body) for call in engine.calls] == [CHAT, CHAT]
        assert all(call.header(name) is None for call in engine.calls for name in ("upgrade", "http2-settings"))


async def test_trailers_are_no_headers():
    async with fake_engine() as engine, run_gateway([engine.url]) as gateway:
        client = await Client.of(gateway)
        client.writer.write(chunked(b"authorization: Bearer evil\r\nx-session-id: t\r\n"))
        assert (await client.answer())[0] == 200
        client.writer.write(post())
        assert (await client.answer())[0] == 200
        client.writer.close()
        for call in engine.calls:
            assert json.loads(call.body) == CHAT
            assert (call.header("authorization"), call.header("x-session-id")) == (None, None)


LINES = [b"x-%d: %b\r\n" % (number, b"y" * 80) for number in range(110)]
LONG, BELOW = b"".join(LINES), b"".join(LINES[:50])


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (chunked(LONG), 431),
        (chunked(b"x: " + b"y" * 9000 + b"\r\n"), 431),
        (chunked(BELOW), 200),
        (post(headers=LONG), 431),
        (post({**CHAT, "of": "x" * 20_000}, headers=BELOW), 200),
    ],
    ids=["lines", "a line", "trailers below", "head", "head below"],
)
@pytest.mark.parametrize("piece", [1 << 20, 1000], ids=["in one piece", "in pieces"])
async def test_heads_and_trailers_count_against_the_limit(data, status, piece):
    async with fake_engine() as engine, run_gateway([engine.url], limits={"header_bytes": 8000}) as gateway:
        client = await Client.of(gateway)
        answer = asyncio.ensure_future(client.answer())
        for start in range(0, len(data), piece):
            if not answer.done():
                client.writer.write(data[start : start + piece])
                await asyncio.wait({answer}, timeout=0.01)
        assert (await answer)[0] == status
        assert len(engine.calls) == (status == 200)
        client.writer.close()
        await gateway.until_idle()


@pytest.mark.parametrize(
    ("start", "more"),
    [
        (chunked()[:-2], LINES[0]),
        (chunked()[:-2] + b"x: ", b"y" * 90),
        (chunked(size=b"%x;e=").partition(b"\r\n{")[0], b"e" * 90),
    ],
    ids=["lines", "a line", "a chunk size"],
)
async def test_what_never_ends_behind_a_body_is_refused(start, more):
    async with fake_engine() as engine, run_gateway([engine.url], limits={"header_bytes": 8000}) as gateway:
        client = await Client.of(gateway)
        answer = asyncio.ensure_future(client.answer())
        client.writer.write(start)
        for _ in range(200):
            if not answer.done():
                client.writer.write(more)
                await asyncio.wait({answer}, timeout=0.002)
        assert (await answer)[0] == 431
        assert not engine.calls
        client.writer.close()
        await gateway.until_idle()


@pytest.mark.parametrize("body", [CHAT, STREAM], ids=["whole", "stream"])
async def test_http_1_0_gets_no_chunks(body):
    gated = Gated()
    gated.go.set()
    async with fake_engine(gated) as engine, run_gateway([engine.url]) as gateway:
        client = await Client.of(gateway)
        client.writer.write(post(body, b"connection: keep-alive\r\n", version=b"1.0"))
        head, _, rest = (await client.rest()).partition(b"\r\n\r\n")
        assert b" 200 " in head
        assert b"transfer-encoding" not in head.lower()
        assert b"connection: close" in head.lower()
        assert rest == (b"data: 1\n\ndata: 2\n\n" if body is STREAM else b'{"of": null}')
        client.writer.close()


async def test_http_1_0_that_leaves_is_noticed():
    gated = Gated()
    async with fake_engine(gated) as engine, run_gateway([engine.url]) as gateway:
        client = await Client.of(gateway)
        client.writer.write(post(STREAM, version=b"1.0"))
        await client.reader.readuntil(b"data: 1\n\n")
        client.writer.close()
        async with asyncio.timeout(2):
            await gated.heard_leaving.wait()
        await gateway.until_idle()


async def test_strangers_leave_no_line_in_the_log(caplog):
    async with fake_engine() as engine, run_gateway([engine.url], timeouts={"header_s": HEADER_S}) as gateway:
        for data, status in (
            (b"\x16\x03\x01\x00\xa5\x01\x00", 400),
            (b"GET /healthz HTTP/1.1\r\nx y\r\n\r\n", 400),
            (b"CONNECT a:1 HTTP/1.1\r\n\r\n", 400),
            (b"GET /hea", 408),
            (b"GET /healthz HTTP/1.1\r\n" + H2C + b"\r\n", 200),
        ):
            client = await Client.of(gateway)
            client.writer.write(data)
            assert (await client.answer())[0] == status
            client.writer.close()
    assert [one.getMessage() for one in caplog.records if one.levelno >= logging.WARNING] == []


async def test_a_connection_that_is_to_be_closed_does_not_wait_for_ever_for_its_client():
    answered = asyncio.Event()

    async def serve(request: ClientRequest) -> None:
        request.respond(200, b"", b"x" * 8_000_000)
        answered.set()

    server = Server(serve, Bounds(idle_s=0.2))
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.socket() as client:
        await server.listen(listener)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(listener.getsockname())
        client.sendall(post(headers=b"connection: close\r\n"))
        async with asyncio.timeout(10):
            await answered.wait()
            while server.connections:
                await asyncio.sleep(0.01)
        await server.close()
