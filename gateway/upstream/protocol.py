"""One keep-alive connection to an engine, as a callback protocol on a C parser.

Invariant: a connection serves at most one `Reader` at a time and tells it exactly one ending, `on_end` or `on_lost`,
unless the reader was detached by `abort` first.
"""

import asyncio
from collections.abc import Callable
from typing import Protocol, cast

import httptools

from gateway.wire.chunked import payload_start

Headers = list[tuple[bytes, bytes]]

MAX_HEAD_BYTES = 65536
JOIN_BELOW_BYTES = 16384
_NO_BODY = frozenset({204, 304})


class Reader(Protocol):
    """What a connection calls while one answer arrives."""

    def on_head(self, status: int, headers: Headers) -> None:
        """Take the status and the headers (names in lower case); called once, before any body."""

    def on_chunk(self, chunk: bytes) -> None:
        """Take body bytes without their transfer framing: all that one read of the socket held."""

    def on_end(self) -> None:
        """The answer is complete; the connection is no longer this reader's."""

    def on_lost(self, reason: str) -> None:
        """The connection broke, or sent what is no HTTP, before the answer was complete."""


class EngineConnection(asyncio.Protocol):
    """A connection and its parser.

    `frames`, if set by the reader, takes a read that is exactly one chunk of the answer's body as it came, framing
    included: the common case of a token stream, which then costs neither parsing nor copying. `heard` is set by every
    read; whoever watches for silence resets it.

    `reusable`: it can carry another request once it has no reader. `received`: bytes of the present answer have come.
    `idle_since_s`: loop time at which it became idle. `on_closed` is called once, when the transport is gone.
    """

    def __init__(self, on_closed: Callable[["EngineConnection"], None]) -> None:
        self.transport: asyncio.Transport | None = None
        self.frames: Callable[[bytes], None] | None = None
        self.heard = False
        self.reusable = False
        self.received = False
        self.idle_since_s = 0.0
        self._on_closed = on_closed
        self._reader: Reader | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._headers: Headers = []
        self._head_bytes = 0
        self._unparsed_bytes = 0
        self._body: list[bytes] = []
        self._finished = False
        self._framed = False
        self._between_chunks = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport. The event loop has switched Nagle's algorithm off already."""
        self.transport = cast("asyncio.Transport", transport)
        self.reusable = True

    def request(self, head: bytes, body: bytes | bytearray, reader: Reader) -> None:
        """Write one whole request; its answer goes to `reader`."""
        if self.transport is None or self._reader is not None:
            raise RuntimeError("a connection takes one request at a time, while it is open")
        self._reader = reader
        self.received = self._finished = self._framed = self._between_chunks = False
        self.frames = None
        self._head_bytes = self._unparsed_bytes = 0
        if len(body) < JOIN_BELOW_BYTES:
            self.transport.write(head + body)
        else:  # two writes, which the event loop sends as one without copying a long prompt
            self.transport.write(head)
            self.transport.write(body)

    def abort(self) -> None:
        """Drop the reader and the connection at once: the engine sees a closed socket."""
        self._reader = self.frames = None
        self.reusable = False
        if self.transport is not None:
            self.transport.abort()

    def data_received(self, data: bytes) -> None:
        """Parse one read, then hand its body bytes over in one piece."""
        self.heard = True
        if self.frames is not None and self._between_chunks and payload_start(data):
            self.frames(data)
            return
        reader = self._reader
        if reader is None:  # bytes that nobody asked for: an answer after a timeout, or a broken engine
            self.abort()
            return
        self.received = True
        body = self._body = []
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            if not self._finished:
                # What a callback of ours has raised stands behind the parser's own word for it.
                self._lose(f"the answer is not HTTP/1.1: {error.__context__ or error}")
                return
            self.reusable = False  # the answer is whole, what follows it is not ours
        if self._head_bytes >= 0:
            # The parser keeps a header to itself until its line ends, so `on_header` alone would bound nothing.
            self._unparsed_bytes += len(data)
            if self._unparsed_bytes > MAX_HEAD_BYTES:
                self._lose("the answer is not HTTP/1.1: its head does not end")
                return
        # A part of a size line that the parser keeps to itself never ends in a line break.
        self._between_chunks = self._between_chunks and data.endswith(b"\r\n")
        if body:
            reader.on_chunk(body[0] if len(body) == 1 else b"".join(body))
        if self._finished and self._reader is reader:  # a reader may have left on its last chunk
            self._end(reader)

    def eof_received(self) -> None:
        """Let the transport close; `connection_lost` says what that meant."""

    def connection_lost(self, exc: Exception | None) -> None:
        """End the answer: whole if it was framed by the connection's end, else lost."""
        self.transport = None
        self.reusable = False
        self._on_closed(self)
        reader = self._reader
        if reader is None:
            return
        if exc is None and self.received and not self._framed and self._head_bytes < 0:
            self._end(reader)
        else:
            self._lose((str(exc) if exc else "") or "the engine closed the connection before its answer was complete")

    def _end(self, reader: Reader) -> None:
        self._reader = self.frames = None
        reader.on_end()

    def _lose(self, reason: str) -> None:
        reader, self._reader = self._reader, None
        self.abort()
        if reader is not None:
            reader.on_lost(reason)

    # Called by the parser, inside feed_data.

    def on_message_begin(self) -> None:
        """Start a head; one that nobody asked for ends the connection's reuse."""
        self._headers = []
        if self._finished:
            self.reusable = False

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep one header; trailers (after the head) are dropped."""
        if self._head_bytes < 0:
            return
        self._head_bytes += len(name) + len(value)
        if self._head_bytes > MAX_HEAD_BYTES:
            raise ValueError("response head too large")
        self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """Hand the head over, unless it is an interim (1xx) one."""
        status = self._parser.get_status_code()
        if not 100 <= status <= 599:  # no status line of ours could carry it on
            raise ValueError(f"status {status}")
        if status < 200 or self._reader is None or self._finished:
            return
        self._framed = status in _NO_BODY or any(
            name == b"content-length" or name == b"transfer-encoding" for name, _ in self._headers
        )
        self._head_bytes = -1
        self._reader.on_head(status, self._headers)

    def on_chunk_header(self) -> None:
        """Note that a chunk has begun."""
        self._between_chunks = False

    def on_chunk_complete(self) -> None:
        """Note that a chunk is whole."""
        self._between_chunks = True

    def on_body(self, body: bytes) -> None:
        """Collect the pieces of one read."""
        if not self._finished:
            self._body.append(body)

    def on_message_complete(self) -> None:
        """Note the end; it is told after the read's bytes have been handed over."""
        if self._head_bytes < 0:
            self._finished = True
            self.reusable = self.reusable and self._parser.should_keep_alive()
