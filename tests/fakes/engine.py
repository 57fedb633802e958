"""A real HTTP server on a free port whose answers to POSTs are a test's own coroutine, byte by byte.

So are those to any request for a response by its id. GET /health, /v1/models and /metrics are answered as an idle
engine would.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

METRICS = (
    "# TYPE vllm:num_requests_running gauge\n"
    'vllm:num_requests_running{{engine="0",model_name="m"}} {running}\n'
    'vllm:num_requests_waiting{{engine="0",model_name="m"}} {waiting}\n'
    'vllm:kv_cache_usage_perc{{engine="0",model_name="m"}} 0.0\n'
)
ADAPTERS = (
    'vllm:lora_requests_info{{max_lora="2",running_lora_adapters="old",waiting_lora_adapters=""}} 1.7e9\n'
    'vllm:lora_requests_info{{max_lora="2",running_lora_adapters="{active}",waiting_lora_adapters=""}} 1.8e9\n'
)


@dataclass
class Call:
    """One POST that came in, and the socket to answer on."""

    path: str
    headers: list[tuple[str, str]]
    body: bytes
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    method: str = "POST"

    @property
    def json(self) -> Any:
        """The body as JSON."""
        return json.loads(self.body)

    def header(self, wanted: str) -> str | None:
        """Return the first value of a header."""
        return next((value for name, value in self.headers if name.lower() == wanted), None)

    def write(self, data: bytes) -> None:
        """Write raw bytes."""
        self.writer.write(data)

    def answer(self, status: int = 200, body: object = None, headers: str = "") -> None:
        """Write a whole JSON answer."""
        data = body if isinstance(body, bytes) else json.dumps(body if body is not None else {"ok": True}).encode()
        kind = "content-type: application/json\r\n"
        head = f"HTTP/1.1 {status} X\r\n{kind}content-length: {len(data)}\r\n{headers}\r\n"
        self.writer.write(head.encode() + data)

    def start_stream(self, headers: str = "") -> None:
        """Write the head of an event stream."""
        kind = "content-type: text/event-stream\r\ntransfer-encoding: chunked\r\n"
        self.writer.write(f"HTTP/1.1 200 OK\r\n{kind}{headers}\r\n".encode())

    def chunk(self, data: bytes) -> None:
        """Write one chunk."""
        self.writer.write(b"%x\r\n%b\r\n" % (len(data), data))

    def end_stream(self) -> None:
        """Write the last chunk."""
        self.writer.write(b"0\r\n\r\n")

    async def gone(self) -> None:
        """Return when the other side has closed the connection."""
        while await self.reader.read(65536):
            pass

    def cut(self) -> None:
        """Reset the connection."""
        self.writer.transport.abort()


Handler = Callable[[Call], Awaitable[None]]


@dataclass
class FakeEngine:
    """The server: `calls` in order of arrival; `adapters` maps a name to its base model, `active` lists some."""

    handler: Handler
    models: list[str] = field(default_factory=lambda: ["m"])
    running: int = 0
    waiting: int = 0
    adapters: dict[str, str] = field(default_factory=dict)
    active: str | None = None
    calls: list[Call] = field(default_factory=list)
    connections: set[asyncio.StreamWriter] = field(default_factory=set)
    port: int = 0
    server: asyncio.Server | None = None

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.port}"

    def stop_listening(self) -> None:
        """Refuse connections from now on, and close those that are open."""
        assert self.server is not None
        self.server.close()
        for writer in list(self.connections):
            writer.transport.abort()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection."""
        self.connections.add(writer)
        try:
            while (request := await _read_request(reader)) is not None:
                method, path, headers, body = request
                call = Call(path, headers, body, reader, writer, method)
                if method == "POST" or path.startswith("/v1/responses/"):
                    self.calls.append(call)
                    await self.handler(call)
                else:
                    self._get(call)
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # cancelled: the test is over, and a stream callback would log it as an error
        finally:
            self.connections.discard(writer)
            writer.close()

    def _get(self, call: Call) -> None:
        if call.path == "/v1/models":
            own = [{"id": name, "object": "model"} for name in self.models]
            adapters = [{"id": name, "object": "model", "parent": base} for name, base in self.adapters.items()]
            call.answer(200, {"object": "list", "data": own + adapters})
        elif call.path == "/metrics":
            told = METRICS.format(running=self.running, waiting=self.waiting)
            if self.active is not None:
                told += ADAPTERS.format(active=self.active)
            call.answer(200, told.encode())
        elif call.path == "/health":
            call.answer(200, b"")
        else:
            call.answer(404, {})


async def _read_request(reader: asyncio.StreamReader) -> tuple[str, str, list[tuple[str, str]], bytes] | None:
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    except asyncio.IncompleteReadError:
        return None
    first, *lines = head.split("\r\n")
    method, path, _ = first.split(" ")
    headers = [(name, value.strip()) for name, _, value in (line.partition(":") for line in lines if line)]
    length = next((int(value) for name, value in headers if name.lower() == "content-length"), 0)
    return method, path, headers, await reader.readexactly(length)


async def ok(call: Call) -> None:
    """Answer with a small JSON object."""
    call.answer()


@asynccontextmanager
async def fake_engine(handler: Handler = ok, **options: Any) -> AsyncIterator[FakeEngine]:
    """Run a fake engine on a free port."""
    engine = FakeEngine(handler, **options)
    server = await asyncio.start_server(engine.serve, "127.0.0.1", 0, limit=1 << 26)
    engine.port = server.sockets[0].getsockname()[1]
    engine.server = server
    try:
        yield engine
    finally:
        engine.stop_listening()
        await server.wait_closed()
