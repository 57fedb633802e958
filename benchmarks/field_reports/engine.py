"""A fake engine on loopback whose every answer is a case's own, down to the moment of accepting and the kind of close.

GET /health, /v1/models and /metrics answer as an idle engine would, unless `gets` says otherwise.
"""

import asyncio
import contextlib
import json
import socket
import struct
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Literal

_NO_LINGER = struct.pack("ii", 1, 0)
_METRICS = (
    "# TYPE vllm:num_requests_running gauge\n"
    'vllm:num_requests_running{{engine="0",model_name="m"}} 0\n'
    'vllm:num_requests_waiting{{engine="0",model_name="m"}} 0\n'
    'vllm:kv_cache_usage_perc{{engine="0",model_name="m"}} 0.0\n'
    "process_start_time_seconds {started_s}\n"
)
HANDOFF = {
    "do_remote_prefill": True,
    "do_remote_decode": False,
    "remote_engine_id": "e1",
    "remote_block_ids": [1, 2, 3],
    "remote_host": "127.0.0.1",
    "remote_port": 5600,
}


@dataclass
class Call:
    """One request that came in, and the socket to answer on; `at_s` is monotonic, `number` its place on it, from 1."""

    method: str
    path: str
    headers: list[tuple[str, str]]
    body: bytes
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    at_s: float
    number: int

    @property
    def json(self) -> Any:
        """The body as JSON."""
        return json.loads(self.body)

    def header(self, wanted: str) -> str | None:
        """Return the first value of a header (name in lower case)."""
        return next((value for name, value in self.headers if name == wanted), None)

    def answer(self, status: int = 200, body: object = None, headers: str = "") -> None:
        """Write a whole answer: bytes as they are, anything else as JSON, None as a chat completion."""
        data = body if isinstance(body, bytes) else json.dumps(completion() if body is None else body).encode()
        fixed = f"content-type: application/json\r\ncontent-length: {len(data)}\r\n"
        self.writer.write(f"HTTP/1.1 {status} X\r\n{fixed}{headers}\r\n".encode() + data)

    def start_stream(self, chunked: bool = True) -> None:
        """Write the head of an event stream; not `chunked`: it ends with the connection."""
        framing = "transfer-encoding: chunked" if chunked else "connection: close"
        self.writer.write(f"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n{framing}\r\n\r\n".encode())

    async def piece(self, data: bytes, chunked: bool = True) -> None:
        """Write one piece of a stream, in a packet of its own as far as the kernel will have it."""
        self.writer.write(b"%x\r\n%b\r\n" % (len(data), data) if chunked else data)
        await self.writer.drain()
        await asyncio.sleep(0.002)

    def end_stream(self, chunked: bool = True) -> None:
        """End a stream."""
        if chunked:
            self.writer.write(b"0\r\n\r\n")
        else:
            self.writer.close()

    async def gone(self) -> None:
        """Return when the other side has closed the connection."""
        with contextlib.suppress(ConnectionError):
            while await self.reader.read(65536):
                pass

    def reset(self) -> None:
        """Close by a reset."""
        _reset(self.writer)


Handler = Callable[[Call], Awaitable[None]]


def completion(**members: Any) -> dict[str, Any]:
    """Return the body of a chat completion."""
    usage = {"prompt_tokens": 5, "completion_tokens": 1, "total_tokens": 6}
    choice = {"index": 0, "message": {"role": "assistant", "content": "ok"}, "finish_reason": "stop"}
    return {"id": "c1", "object": "chat.completion", "model": "m", "choices": [choice], "usage": usage, **members}


def model_list(*models: str) -> bytes:
    """Return the body of `/v1/models`."""
    entries = [{"id": name, "object": "model", "owned_by": "vllm", "root": name, "parent": None} for name in models]
    return json.dumps({"object": "list", "data": entries}).encode()


async def ok(call: Call) -> None:
    """Answer with a chat completion."""
    call.answer()


async def prefill(call: Call) -> None:
    """Answer as a prefill engine does."""
    call.answer(200, completion(kv_transfer_params=HANDOFF))


class Engine:
    """The server; `calls` are its POSTs in order of arrival.

    `idle_s`: it closes a connection that is idle for so long. `reused`: what it does at the first byte of a second
    request on a connection: answer, end or reset it. `gets`: status and body by path; status 0 never answers.
    `faults`: what handlers have raised, raised again at the end.
    """

    def __init__(self, handler: Handler = ok, models: tuple[str, ...] = ("m",), port: int = 0) -> None:
        self.handler = handler
        self.calls: list[Call] = []
        self.accepted = 0
        self.idle_s: float | None = None
        self.reused: Literal["answer", "end", "reset"] = "answer"
        self.gets: dict[str, tuple[int, bytes]] = {
            "/health": (200, b""),
            "/v1/models": (200, model_list(*models)),
            "/metrics": (200, _METRICS.format(started_s=time.time()).encode()),
        }
        self.listener = socket.socket()
        self.listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.listener.setblocking(False)
        self.listener.bind(("127.0.0.1", port))  # bound, so that the port is its own; refuses until `listen`
        self.port: int = self.listener.getsockname()[1]
        self.connections: dict[asyncio.StreamWriter, str] = {}
        self.faults: list[Exception] = []
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        """Where it is."""
        return f"http://127.0.0.1:{self.port}"

    def listen(self, backlog: int = 1024) -> None:
        """Take connections from now on, of which `backlog` may wait in the kernel's queue."""
        self.listener.listen(backlog)
        asyncio.get_running_loop().add_reader(self.listener, self._accept)

    def leave_in_queue(self, backlog: int = 1024) -> None:
        """Accept nothing until `listen` is called again: the kernel's queue fills up, and then takes none."""
        asyncio.get_running_loop().remove_reader(self.listener)
        self.listener.listen(backlog)

    def stop_listening(self) -> None:
        """Refuse connections from now on and free the port; those that are open go on."""
        if self.listener.fileno() >= 0:
            asyncio.get_running_loop().remove_reader(self.listener)
            self.listener.close()

    def break_connections(self, last_method: str | None = None) -> None:
        """Reset the open connections, all or those whose last request had this method."""
        for writer, method in list(self.connections.items()):
            if last_method in (None, method):
                _reset(writer)

    async def stop(self) -> None:
        """Free the port and break everything off."""
        self.stop_listening()
        self.break_connections()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _accept(self) -> None:
        try:
            raw, _ = self.listener.accept()
        except (BlockingIOError, ConnectionError):
            return
        raw.setblocking(False)
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.accepted += 1
        task = asyncio.get_running_loop().create_task(self._open(raw))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _open(self, raw: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(limit=1 << 26)
        protocol = asyncio.StreamReaderProtocol(reader)
        transport, _ = await loop.connect_accepted_socket(lambda: protocol, raw)
        await self._serve(reader, asyncio.StreamWriter(transport, protocol, reader, loop))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections[writer] = ""
        try:
            number = 0
            while not writer.is_closing() and (head := await self._head(reader, writer, number)):
                number += 1
                call = await _call(head, reader, writer, number)
                self.connections[writer] = call.method
                if call.method == "POST":
                    self.calls.append(call)
                    await self.handler(call)
                else:
                    await self._get(call)
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        except Exception as fault:  # noqa: BLE001 - the case's own mistake, or a request that is none: told at the end
            self.faults.append(fault)
        finally:
            del self.connections[writer]
            writer.close()

    async def _head(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int) -> bytes:
        """Return the next head; empty where the connection is over."""
        try:
            async with asyncio.timeout(self.idle_s if number else None):
                first = await reader.read(1)
        except TimeoutError:
            return b""
        if not first or (number and self.reused == "end"):
            return b""
        if number and self.reused == "reset":
            _reset(writer)
            return b""
        return first + await reader.readuntil(b"\r\n\r\n")

    async def _get(self, call: Call) -> None:
        status, body = self.gets.get(call.path, (404, b""))
        if status == 0:
            await call.gone()
            return
        call.answer(status, body)


async def _call(head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int) -> Call:
    first, *lines = head.decode("latin-1").split("\r\n")
    method, path, _ = first.split(" ")
    split = [line.partition(":") for line in lines if line]
    headers = [(name.lower(), value.strip()) for name, _, value in split]
    length = int(dict(headers).get("content-length", "0"))
    body = await reader.readexactly(length)
    return Call(method, path, headers, body, reader, writer, time.monotonic(), number)


def _reset(writer: asyncio.StreamWriter) -> None:
    raw = writer.get_extra_info("socket")
    if raw is not None and raw.fileno() >= 0:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
    writer.transport.abort()


@contextlib.asynccontextmanager
async def engine(handler: Handler = ok, models: tuple[str, ...] = ("m",), port: int = 0) -> AsyncIterator[Engine]:
    """Run an engine that listens."""
    made = Engine(handler, models, port)
    made.listen()
    try:
        yield made
        for fault in made.faults:
            raise fault
    finally:
        await made.stop()


@contextlib.asynccontextmanager
async def engines(count: int, handler: Handler = ok, models: tuple[str, ...] = ("m",)) -> AsyncIterator[list[Engine]]:
    """Run `count` engines that listen."""
    async with contextlib.AsyncExitStack() as stack:
        yield [await stack.enter_async_context(engine(handler, models)) for _ in range(count)]
