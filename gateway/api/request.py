"""One request of a client, whole, and the answer to it: heads and framing as bytes, written straight to the transport.

Invariant: of one answer the head is written once and first, and `finished` is set with its last byte.
"""

import asyncio
import re
from collections.abc import Iterable
from http import HTTPStatus
from typing import Protocol
from urllib.parse import unquote

import httptools

from gateway.errors import GatewayError

Header = tuple[bytes, bytes]

_STATUS_LINES = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus}
NO_BODY = frozenset({204, 304})
_CHUNKED = b"transfer-encoding: chunked\r\n"
_CLOSE = b"connection: close\r\n"


_READ = frozenset({b"content-length", b"expect", b"host", b"transfer-encoding"})
# A registered name or IPv4 address, or an IPv6 address in brackets, and perhaps a port (RFC 3986, section 3.2.2).
_HOST = re.compile(rb"(?:[A-Za-z0-9._~!$&'()*+,;=%-]*|\[[0-9A-Fa-f:.]+\])(?::[0-9]*)?")
_good_hosts: set[bytes] = set()
_GOOD_HOSTS_KEPT = 1000


class Unreadable(Exception):
    """A request whose head cannot be believed; its body's end is unknown, so the connection has to go."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Watcher(Protocol):
    """What a connection tells whoever serves its present request."""

    def client_gone(self) -> None:
        """The client closed its connection."""

    def client_slow(self) -> None:
        """The client does not keep up: the write buffer is above its high-water mark."""

    def client_ready(self) -> None:
        """The write buffer has drained."""


class Carrier(Protocol):
    """The connection that a request came on."""

    transport: asyncio.Transport
    writing_paused: bool


class ClientRequest:
    """A request, and the way to answer it.

    `path` is percent-decoded, `raw_path` and `query` are not; `headers` have names in lower case. `refusal` is why it
    is dispatched without its body. `watcher`, where set, hears of the client. `gone`: the client has left. `status` is
    0 until the head of the answer is written. Raises Unreadable.
    """

    __slots__ = (
        "body",
        "carrier",
        "chunked",
        "discarded_bytes",
        "expects_continue",
        "finished",
        "gone",
        "headers",
        "keep_alive",
        "method",
        "modern",
        "path",
        "query",
        "raw_path",
        "refusal",
        "stated_length",
        "status",
        "transport",
        "watcher",
    )

    def __init__(
        self, carrier: Carrier, method: str, url: bytes, headers: list[Header], modern: bool, keep_alive: bool
    ) -> None:
        self.carrier, self.transport = carrier, carrier.transport
        self.method, self.headers, self.modern = method, headers, modern
        self.keep_alive = keep_alive and modern
        self.raw_path, self.query, self.path = _split(url)
        self.body: bytes | bytearray = b""
        self.refusal: GatewayError | None = None
        self.discarded_bytes = 0
        self.watcher: Watcher | None = None
        self.gone = self.finished = self.chunked = False
        self.status = 0
        self.stated_length: int | None = None
        self.expects_continue = False
        hosts = 0
        for name, value in headers:
            if name not in _READ:
                continue
            if name == b"content-length":
                self.stated_length = int(value)  # digits alone: the parser has seen to it
            elif name == b"host":
                hosts += 1
                if hosts > 1 or not _is_host(value):
                    raise Unreadable(400, "the request has two Host headers, or one that names no host")
            elif name == b"transfer-encoding":
                if value.lower() != b"chunked":
                    raise Unreadable(501, "the only transfer-encoding that is understood is chunked")
            elif value.lower() == b"100-continue":
                self.expects_continue = modern

    @property
    def target(self) -> bytes:
        """The request target in origin form, its query included."""
        return self.raw_path + b"?" + self.query if self.query else self.raw_path

    def header(self, wanted: bytes) -> bytes | None:
        """Return the first value of a header (name in lower case), or None."""
        for name, value in self.headers:
            if name == wanted:
                return value
        return None

    def add(self, piece: bytes) -> None:
        """Add a piece of the body; one that comes whole is never copied."""
        if not self.body:
            self.body = piece
        elif isinstance(self.body, bytearray):
            self.body += piece
        else:
            self.body = bytearray(self.body)
            self.body += piece

    # The answer.

    def respond(self, status: int, lines: bytes, body: bytes) -> None:
        """Write a whole answer; `lines` are header lines, each with its CRLF, none of them about framing."""
        self.status = status
        if self.gone:
            self.finished = True
            return
        close = b"" if self.keep_alive else _CLOSE
        if status in NO_BODY:
            self.transport.write(b"%b%b%b\r\n" % (status_line(status), lines, close))
        else:
            head = b"%b%bcontent-length: %d\r\n%b\r\n" % (status_line(status), lines, len(body), close)
            self.transport.write(head if self.method == "HEAD" else head + body)
        self.finished = True

    def start(self, status: int, lines: bytes, length: int | None = None) -> None:
        """Write the head of an answer whose body follows: `length` bytes, or in chunks; till the end for HTTP/1.0."""
        self.status = status
        if length is not None:
            framing = b"content-length: %d\r\n" % length
        elif self.modern:
            self.chunked, framing = True, _CHUNKED
        else:
            self.keep_alive, framing = False, b""
        close = b"" if self.keep_alive else _CLOSE
        if self.gone:
            return
        self.transport.write(b"%b%b%b%b\r\n" % (status_line(status), lines, framing, close))

    def write(self, piece: bytes) -> None:
        """Write a piece of the body, not empty."""
        if self.gone:
            return
        self.transport.write(b"%x\r\n%b\r\n" % (len(piece), piece) if self.chunked else piece)

    def finish(self, last: bytes = b"", trailers: Iterable[Header] = ()) -> None:
        """Write the last piece of the body, and the trailers where the framing has a place for them."""
        if last:
            self.write(last)
        if self.chunked and not self.gone:
            lines = b"".join([b"%b: %b\r\n" % trailer for trailer in trailers]) if trailers else b""
            self.transport.write(b"0\r\n%b\r\n" % lines)
        self.finished = True

    def drop(self) -> None:
        """Break the connection off; the watcher hears of it a moment later."""
        self.keep_alive = False
        self.transport.abort()

    @property
    def behind(self) -> bool:
        """Whether the client does not keep up with what was written."""
        return self.carrier.writing_paused


def status_line(status: int) -> bytes:
    """Return the status line, with its CRLF."""
    return _STATUS_LINES.get(status) or b"HTTP/1.1 %d \r\n" % status


def _is_host(value: bytes) -> bool:
    if value in _good_hosts:
        return True
    if not _HOST.fullmatch(value):
        return False
    if len(_good_hosts) < _GOOD_HOSTS_KEPT:
        _good_hosts.add(value)
    return True


def _split(url: bytes) -> tuple[bytes, bytes, str]:
    """Return raw path, query and decoded path of a request target; one in absolute form loses scheme and host."""
    if url[:1] != b"/" and url != b"*":
        try:
            parts = httptools.parse_url(url)
        except httptools.HttpParserInvalidURLError:
            return b"/", b"", ""  # no route is there
        raw_path, query = parts.path or b"/", parts.query or b""
    else:
        raw_path, _, query = url.partition(b"?")
    path = raw_path.decode("latin-1")
    return raw_path, query, unquote(path) if "%" in path else path
