"""The inference routes under a server that gives no transport: the same bytes through ASGI `send`."""

import asyncio
from collections.abc import MutableMapping
from dataclasses import replace
from typing import Any

from gateway.api.inference import InferenceRoutes
from tests.fakes.engine import Call, fake_engine
from tests.gateways import Running, run_gateway

Message = MutableMapping[str, Any]

EVENTS = [b"data: %d\n\n" % number for number in range(5)]


def scope_of(path: str, body: bytes) -> Message:
    """Return an ASGI scope without extensions."""
    return {
        "type": "http",
        "method": "POST",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "headers": [(b"content-length", b"%d" % len(body))],
    }


class Client:
    """A client as ASGI gives it: sends a body, then leaves when told to."""

    def __init__(self, body: bytes) -> None:
        self.body: bytes | None = body
        self.leaves = asyncio.Event()
        self.got: list[Message] = []

    async def receive(self) -> Message:
        if self.body is not None:
            body, self.body = self.body, None
            return {"type": "http.request", "body": body, "more_body": False}
        await self.leaves.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        self.got.append(dict(message))


async def post(gateway: Running, client: Client, body: bytes, stopping: bool = False) -> None:
    app = InferenceRoutes(replace(gateway.parts.data_plane, stopping=lambda: stopping), no_edges)
    await app(scope_of("/v1/completions", body), client.receive, client.send)


async def no_edges(*_: Any) -> None:
    raise AssertionError("an inference request went to the edges")


async def test_a_stopping_gateway_says_so():
    body = b'{"model": "m", "prompt": "x"}'
    async with fake_engine() as engine, run_gateway([engine.url]) as gateway:
        client = Client(body)
        await post(gateway, client, body, stopping=True)
        assert client.got[0]["status"] == 503
        assert (b"retry-after", b"1") in client.got[0]["headers"]
        assert b'"code":"shutting_down"' in client.got[1]["body"]
        assert engine.calls == []


async def test_a_stream_passes_byte_for_byte():
    async def stream(call: Call) -> None:
        call.start_stream()
        for event in EVENTS:
            call.chunk(event)
            await call.writer.drain()
        call.end_stream()

    body = b'{"model": "m", "prompt": "x", "stream": true}'
    async with fake_engine(stream) as engine, run_gateway([engine.url]) as gateway:
        client = Client(body)
        await post(gateway, client, body)
        assert client.got[0]["status"] == 200
        assert b"".join(message["body"] for message in client.got[1:]) == b"".join(EVENTS)
        assert client.got[-1]["more_body"] is False
        await gateway.until_idle()


class StuckClient(Client):
    """A client that takes the head and a first chunk, and no more until told to."""

    def __init__(self, body: bytes) -> None:
        super().__init__(body)
        self.takes = asyncio.Event()

    async def send(self, message: Message) -> None:
        await super().send(message)
        if len(self.got) == 2:
            await self.takes.wait()


async def test_a_lease_is_back_when_the_engine_is_done_though_the_client_is_not():
    async def stream(call: Call) -> None:
        call.start_stream()
        for event in EVENTS:
            call.chunk(event)
            await call.writer.drain()
        call.end_stream()

    body = b'{"model": "m", "prompt": "x", "stream": true}'
    async with fake_engine(stream) as engine, run_gateway([engine.url]) as gateway:
        client = StuckClient(body)
        task = asyncio.ensure_future(post(gateway, client, body))
        await gateway.until(lambda: len(client.got) == 2, "the first chunk")
        await gateway.until_idle()
        assert (task.done(), len(gateway.parts.receipts)) == (False, 0)
        client.takes.set()
        await task
        assert b"".join(message["body"] for message in client.got[1:]) == b"".join(EVENTS)
        assert gateway.parts.receipts.latest(1)[0].status == 200


async def test_an_engine_does_not_wait_for_ever_for_a_client_that_takes_nothing():
    async def endless(call: Call) -> None:
        call.start_stream()
        while not call.writer.is_closing():
            call.chunk(b"data: " + b"x" * 10_000 + b"\n\n")
            await call.writer.drain()

    body = b'{"model": "m", "prompt": "x", "stream": true}'
    async with fake_engine(endless) as engine, run_gateway([engine.url], timeouts={"total_s": 0.3}) as gateway:
        client = StuckClient(body)
        task = asyncio.ensure_future(post(gateway, client, body))
        await gateway.until(lambda: len(client.got) == 2, "the first chunk")
        await gateway.until_idle()
        client.takes.set()
        await task
        assert gateway.parts.receipts.latest(1)[0].status == 499


async def test_a_client_that_leaves_ends_the_engines_work():
    heard = asyncio.Event()

    async def watch(call: Call) -> None:
        call.start_stream()
        call.chunk(b"data: 1\n\n")
        await call.gone()
        heard.set()

    body = b'{"model": "m", "prompt": "x", "stream": true}'
    async with fake_engine(watch) as engine, run_gateway([engine.url]) as gateway:
        client = Client(body)
        task = asyncio.ensure_future(post(gateway, client, body))
        await gateway.until(lambda: len(client.got) == 2, "the first chunk")
        client.leaves.set()
        await task
        async with asyncio.timeout(5):
            await heard.wait()
        await gateway.until_idle()
        assert gateway.parts.receipts.latest(1)[0].status == 499
