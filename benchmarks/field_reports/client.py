"""A client of raw sockets: what it sends is a case's own bytes, what comes back is read strictly."""

import asyncio
import json
import socket
import struct
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.field_reports.case import CaseFailed

Address = tuple[str, int]
Headers = Sequence[tuple[str, str]]

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
ANSWER_S = 60.0
_NO_LINGER = struct.pack("ii", 1, 0)


class BadAnswer(CaseFailed):
    """What came back is no HTTP answer, or nothing did; the message says how it went wrong."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer: header names in lower case, the body without its framing, and how long it took."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes
    seconds: float = 0.0

    @property
    def json(self) -> Any:
        """The body as JSON. Raises ValueError."""
        return json.loads(self.body)

    @property
    def code(self) -> str | None:
        """The code of an error in OpenAI's shape, None where the body is no such error."""
        try:
            told = self.json["error"]["code"]
        except (ValueError, KeyError, TypeError):
            return None
        return told if isinstance(told, str) else None

    def header(self, name: str) -> str | None:
        """Return the first value of a header (name in lower case), or None."""
        return next((value for one, value in self.headers if one == name), None)

    def told(self) -> str:
        """Return status and the body's beginning, for a message."""
        return f"{self.status} {self.body[:300].decode('utf-8', 'replace')}"


def chat(model: str = "m", content: str = "hello", **members: Any) -> bytes:
    """Return the body of a chat request."""
    return json.dumps({"model": model, "messages": [{"role": "user", "content": content}], **members}).encode()


def head(method: str, target: str, headers: Iterable[tuple[str, str]], length: int | None) -> bytes:
    """Return a request's head; `length` None: the framing is in `headers`, or there is no body."""
    lines = [f"{method} {target} HTTP/1.1", "host: gateway"]
    lines += [f"{name}: {value}" for name, value in headers]
    if length is not None:
        lines += ["content-type: application/json", f"content-length: {length}"]
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


class Connection:
    """One connection to a gateway."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def to(cls, address: Address) -> "Connection":
        """Connect. Raises BadAnswer."""
        try:
            return cls(*await asyncio.open_connection(*address, limit=1 << 26))
        except OSError as error:
            raise BadAnswer(f"no connection to {address}: {error}") from error

    def send(self, data: bytes) -> None:
        """Write raw bytes."""
        self.writer.write(data)

    async def ask(self, method: str, target: str, body: bytes | None = None, headers: Headers = ()) -> Answer:
        """Send a request and return its answer."""
        began_s = time.monotonic()
        self.send(head(method, target, headers, None if body is None else len(body)) + (body or b""))
        answer = await self.answer()
        return Answer(answer.status, answer.headers, answer.body, time.monotonic() - began_s)

    async def answer(self) -> Answer:
        """Read one answer, interim ones left out. Raises BadAnswer."""
        try:
            async with asyncio.timeout(ANSWER_S):
                status, headers = await self.answer_head()
                while status < 200:
                    status, headers = await self.answer_head()
                return Answer(status, headers, await self._body(dict(headers)))
        except asyncio.IncompleteReadError as error:
            raise BadAnswer(f"the connection ended early, after {error.partial[-200:]!r}") from error
        except (ConnectionError, TimeoutError) as error:
            raise BadAnswer(f"no answer: {error!r}") from error

    async def answer_head(self) -> tuple[int, list[tuple[str, str]]]:
        """Read one head; return its status and headers, names in lower case."""
        lines = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")[:-2]
        version, _, rest = lines[0].partition(" ")
        if version not in ("HTTP/1.1", "HTTP/1.0") or not rest[:3].isdigit():
            raise BadAnswer(f"no status line: {lines[0]!r}")
        split = [line.partition(":") for line in lines[1:]]
        return int(rest[:3]), [(name.lower(), value.strip()) for name, _, value in split]

    async def _body(self, headers: dict[str, str]) -> bytes:
        if headers.get("transfer-encoding") == "chunked":
            body = bytearray()
            while size := int(await self.reader.readuntil(b"\r\n"), 16):
                body += (await self.reader.readexactly(size + 2))[:-2]
            await self.reader.readexactly(2)
            return bytes(body)
        if "content-length" in headers:
            return await self.reader.readexactly(int(headers["content-length"]))
        return await self.reader.read()

    def close(self) -> None:
        """Close in the ordinary way."""
        self.writer.close()

    def reset(self) -> None:
        """Close by a reset (RST) instead of an end (FIN)."""
        raw = self.writer.get_extra_info("socket")
        if raw is not None and raw.fileno() >= 0:
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
        self.writer.transport.abort()


async def ask(address: Address, method: str, target: str, body: bytes | None = None, headers: Headers = ()) -> Answer:
    """Send one request on a connection of its own and return the answer."""
    connection = await Connection.to(address)
    try:
        return await connection.ask(method, target, body, headers)
    finally:
        connection.close()


async def post(address: Address, body: bytes, headers: Headers = (), path: str = CHAT) -> Answer:
    """POST `body` on a connection of its own and return the answer."""
    return await ask(address, "POST", path, body, headers)


@dataclass(frozen=True, slots=True)
class Post:
    """A request to be sent by `closed_loop`."""

    body: bytes
    headers: Headers = ()
    path: str = CHAT


async def closed_loop(address: Address, posts: Iterable[Post], connections: int) -> list[Answer]:
    """Send all `posts`, one after the other on each of `connections` kept-alive connections; answers as they came."""
    ahead = iter(posts)
    answers: list[Answer] = []

    async def one_connection() -> None:
        connection = await Connection.to(address)
        try:
            for one in ahead:
                answer = await connection.ask("POST", one.path, one.body, one.headers)
                answers.append(answer)
                if answer.header("connection") == "close":
                    connection.close()
                    connection = await Connection.to(address)
        finally:
            connection.close()

    await asyncio.gather(*(one_connection() for _ in range(connections)))
    return answers


def statuses(answers: Iterable[Answer]) -> dict[int, int]:
    """Return how many answers had each status."""
    counts: dict[int, int] = {}
    for answer in answers:
        counts[answer.status] = counts.get(answer.status, 0) + 1
    return counts
