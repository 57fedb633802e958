"""One keep-alive connection to an engine, as a callback protocol on a C parser.

Invariant: a connection serves at most one `Reader` at a time and tells it exactly one ending, `on_end` or `on_lost`,
unless the reader was detached by `abort` first.
"""

import asyncio
from collections.abc import Callable
from typing import Protocol, cast

import httptools

from gateway.upstream.reasons import in_words
from gateway.wire.chunked import payload_start

Headers = list[tuple[bytes, bytes]]

MAX_HEAD_BYTES = 65536
JOIN_BELOW_BYTES = 16384
_NO_BODY = frozenset({204, 304})
_TABLED = 2048


def _size_lines() -> list[bytes]:
    """Return by length of a whole chunk, framing included, the size line that engines write for it.

    Lengths that no chunk has get a line longer than any chunk in the table, so that nothing begins with it.
    """
    lines = [bytes(_TABLED)] * _TABLED
    for size in range(1, _TABLED):
        line = b"%x\r\n" % size
        if len(line) + size + 2 < _TABLED:
            lines[len(line) + size + 2] = line
    return lines


# Two comparisons tell a chunk of a token stream from all else; `payload_start` takes four times as long.
_SIZE_LINES = _size_lines()


class Reader(Protocol):
    """What a connection calls while one answer arrives."""

    def on_head(self, status: int, headers: Headers) -> None:
        """Take the status and the headers (names in lower case); called once, before any body."""

    def on_chunk(self, chunk: bytes) -> None:
        """Take body bytes without their transfer framing: all that one read of the socket held."""

    def on_trailers(self, trailers: Headers) -> None:
        """Take the fields that came behind the body; called just before the end, and only where there are some."""

    def on_end(self) -> None:
        """The answer is complete; the connection is no longer this reader's."""

    def on_lost(self, reason: str) -> None:
        """The connection broke, or sent what is no HTTP, before the answer was complete."""


class EngineConnection(asyncio.Protocol):
    """A connection and its parser.

    `frames`, if set by the reader, takes a read that is exactly one chunk of the answer's body as it came, framing
    included: the common case of a token stream, which then costs neither parsing nor copying. `heard` and `stirred` are
    set by every read; the leg that watches for silence resets the one, the endpoint's progress probe the other.

    `reusable`: it can carry another request once it has no reader. `kept`: it has carried one before.
    `received`: bytes of the present answer have come. `idle_since_s`: loop time at which it became idle.
    `on_closed` is called once, when the transport is gone.
    """

    def __init__(self, on_closed: Callable[["EngineConnection"], None]) -> None:
        self.transport: asyncio.Transport | None = None
        self.frames: Callable[[bytes], None] | None = None
        self.heard = False
        self.stirred = False
        self.reusable = False
        self.kept = False
        self.received = False
        self.idle_since_s = 0.0
        self._on_closed = on_closed
        self._reader: Reader | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._headers: Headers = []
        self._head_bytes = 0
        self._bare_bytes = 0
        self._trailers: Headers = []
        self._trailer_bytes = 0
        self._body: list[bytes] = []
        self._finished = False
        self._framed = False
        self._refused = False
        self._long = False
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
        self._head_bytes = self._bare_bytes = 0
        self._long = len(body) >= JOIN_BELOW_BYTES
        if not self._long:
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
        """Pass a whole chunk on; parse anything else, then hand its body bytes over in one piece."""
        self.heard = self.stirred = True
        frames = self.frames
        if frames is not None and self._between_chunks:
            size = len(data)
            if size < _TABLED and data.endswith(b"\r\n") and data.startswith(_SIZE_LINES[size]):
                frames(data)
                return
            if payload_start(data):  # long, or with a size line written in another way
                frames(data)
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
        # A part of a size line that the parser keeps to itself never ends in a line break.
        self._between_chunks = self._between_chunks and data.endswith(b"\r\n")
        if body:
            self._bare_bytes = 0
            reader.on_chunk(body[0] if len(body) == 1 else b"".join(body))
        elif not self._finished and self._is_endless(len(data)):
            return
        if self._finished and self._reader is reader:  # a reader may have left on its last chunk
            self._end(reader)

    def _is_endless(self, size: int) -> bool:
        """Count a read without a body byte, and lose an answer with too many of them.

        The parser keeps a header to itself until its line ends, so `on_header` alone would bound nothing.
        """
        self._bare_bytes += size
        if self._bare_bytes > MAX_HEAD_BYTES:
            self._lose(f"the answer is not HTTP/1.1: its {'head' if self._head_bytes >= 0 else 'framing'} does not end")
        return self._bare_bytes > MAX_HEAD_BYTES

    def eof_received(self) -> None:
        """Let the transport close, and be taken for no request meanwhile; `connection_lost` says what it meant."""
        self.reusable = False

    def connection_lost(self, exc: Exception | None) -> None:
        """End the answer: whole if it was framed by the connection's end, else lost."""
        self.transport = None
        self.reusable = False
        self._on_closed(self)
        reader = self._reader
        if reader is None:
            return
        if self.received and not self._framed and self._head_bytes < 0 and (exc is None or self._refused):
            self._end(reader)
        else:
            closed = "the engine closed the connection before its answer was complete"
            self._lose(closed if exc is None else in_words(exc))

    def _end(self, reader: Reader) -> None:
        # After an early answer the engine may never read the rest of the request. What waits here tells, and where the
        # kernels have taken all of it, a refusal does.
        if self.transport is not None and ((self._long and self._refused) or self.transport.get_write_buffer_size()):
            self.reusable = False
        self._reader = self.frames = None
        if self._trailers:
            trailers, self._trailers = self._trailers, []
            reader.on_trailers(trailers)
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
        """Keep one header, or after the body one trailer."""
        if self._head_bytes < 0:
            self._keep_trailer(name, value)
            return
        self._head_bytes += len(name) + len(value)
        if self._head_bytes > MAX_HEAD_BYTES:
            raise ValueError("response head too large")
        self._headers.append((name.lower(), value))

    def _keep_trailer(self, name: bytes, value: bytes) -> None:
        if self._finished:  # a head that nobody asked for
            return
        self._trailer_bytes += len(name) + len(value)
        if self._trailer_bytes > MAX_HEAD_BYTES:
            raise ValueError("trailers too large")
        self._trailers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """Hand the head over, unless it is an interim (1xx) one."""
        status = self._parser.get_status_code()
        if not 100 <= status <= 599:  # no status line of ours could carry it on
            raise ValueError(f"status {status}")
        if status < 200 or self._reader is None or self._finished:
            return
        self._framed = status in _NO_BODY
        for name, value in self._headers:
            if name == b"transfer-encoding":
                if value.lower() != b"chunked":  # what it would take to read the body, no client of ours is told
                    raise ValueError(f"transfer-encoding {value[:100]!r}")
                self._framed = True
            elif name == b"content-length":
                self._framed = True
        self._refused = status >= 400
        self._head_bytes = -1
        self._trailer_bytes = self._bare_bytes = 0
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
