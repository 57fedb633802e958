"""An engine that reads requests by RFC 9112 and nothing else, and keeps all that it was sent."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from tests.fakes.engine import METRICS

PROBES = ("/health", "/v1/models", "/metrics")
MODELS = b'{"object":"list","data":[{"id":"m","object":"model"}]}'
_FIRST = re.compile(rb"([!#$%&'*+\-.^_`|~0-9A-Za-z]+) (/[\x21-\x7e]*) HTTP/1\.1")
_LINE = re.compile(rb"([!#$%&'*+\-.^_`|~0-9A-Za-z]+):[ \t]*([^\x00\r\n]*)")


@dataclass(frozen=True)
class Seen:
    """One request as an engine sees it; header names in lower case."""

    method: bytes
    target: bytes
    headers: list[tuple[bytes, bytes]]
    body: bytes

    def values(self, name: bytes) -> list[bytes]:
        """Return every value of a header."""
        return [value for one, value in self.headers if one == name]


@dataclass
class Recorder:
    """The server: `seen` are the requests but for health probes, `wrong` what was no request by the book."""

    seen: list[Seen] = field(default_factory=list)
    wrong: list[bytes] = field(default_factory=list)
    url: str = ""
    open: set[asyncio.StreamWriter] = field(default_factory=set)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection."""
        self.open.add(writer)
        try:
            while await self._one(reader, writer):
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            self.open.discard(writer)
            writer.close()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError as error:
            if error.partial:
                self.wrong.append(error.partial)
            return False
        request = _strictly(head)
        if request is None:
            self.wrong.append(head)
            return False
        method, target, headers = request
        length = int(next((value for name, value in headers if name == b"content-length"), b"0"))
        body = await reader.readexactly(length)
        if method == b"GET" and target.decode() in PROBES:
            answer = {b"/v1/models": MODELS, b"/metrics": METRICS.format(running=0, waiting=0).encode()}.get(
                target, b""
            )
        else:
            self.seen.append(Seen(method, target, headers, body))
            answer = b'{"ok":true}'
        kind = b"content-type: application/json\r\n"
        writer.write(b"HTTP/1.1 200 OK\r\n%bcontent-length: %d\r\n\r\n%b" % (kind, len(answer), answer))
        return True


def _strictly(head: bytes) -> tuple[bytes, bytes, list[tuple[bytes, bytes]]] | None:
    """Return method, target and headers; None where any line is not by the book, or the framing is not one length."""
    first, *lines = head[:-4].split(b"\r\n")
    start = _FIRST.fullmatch(first)
    matched = [_LINE.fullmatch(line) for line in lines]
    if start is None or not all(matched):
        return None
    headers = [(one[1].lower(), one[2]) for one in matched if one is not None]
    names = [name for name, _ in headers]
    lengths = [value for name, value in headers if name == b"content-length"]
    framed = names.count(b"host") == 1 and b"transfer-encoding" not in names and len(lengths) <= 1
    if not framed or not all(re.fullmatch(rb"\d+", value) for value in lengths):
        return None
    return start[1], start[2], headers


@asynccontextmanager
async def recorder() -> AsyncIterator[Recorder]:
    """Run one on a free port."""
    one = Recorder()
    server = await asyncio.start_server(one.serve, "127.0.0.1", 0, limit=1 << 22)
    one.url = "http://{}:{}".format(*server.sockets[0].getsockname())
    try:
        yield one
    finally:
        server.close()
        for writer in list(one.open):
            writer.transport.abort()
        await server.wait_closed()
