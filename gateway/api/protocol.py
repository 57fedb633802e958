"""The HTTP/1.1 server's side of one client connection, on a C parser: bytes to `ClientRequest`, answers to bytes.

A request is dispatched when its head and its whole body are there, so that who serves it never waits for its client;
the answer goes straight to the transport. What a client may cost is bounded: its head, its trailers, its body, what it
sends ahead, and the time that it takes for each. Source: RFC 9112.

Invariant: at most one request of a connection is being answered. While it is, nothing else is written, the client is
not timed, and reading goes on, since a pause would hide that the client leaves; what comes meanwhile waits unparsed,
bounded by `Bounds.head_bytes`.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, Protocol, cast

import httptools

from gateway.api.bounds import BODY_BYTES_PER_S, Bounds
from gateway.api.request import ClientRequest, Unreadable, status_line
from gateway.errors import GatewayError, InvalidRequest

logger = logging.getLogger(__name__)

NEVER_S = float("inf")
_DISCARDED_BODIES = 4  # of a body that is too long as much is read and dropped as this many could hold
# What of a request comes next.
_BETWEEN, _HEAD, _BODY = range(3)
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class Owner(Protocol):
    """The server that a connection belongs to."""

    bounds: Bounds
    draining: bool
    serve: Callable[[ClientRequest], Coroutine[Any, Any, None]]

    def joined(self, connection: "ClientConnection") -> None:
        """A connection is there."""

    def left(self, connection: "ClientConnection") -> None:
        """A connection is gone, and its last request is over."""

    def answered(self) -> None:
        """A request is over."""


class ClientConnection(asyncio.Protocol):
    """One client connection. `late_at_s` is the loop's time at which `late` is to be called, endless in an answer."""

    __slots__ = (
        "__weakref__",
        "_ahead",
        "_body_seen",
        "_current",
        "_headers",
        "_last_answer",
        "_loop",
        "_loose_bytes",
        "_owner",
        "_parser",
        "_part",
        "_request",
        "_url",
        "_waiting",
        "late_at_s",
        "task",
        "transport",
        "writing_paused",
    )

    def __init__(self, owner: Owner, loop: asyncio.AbstractEventLoop) -> None:
        self._owner, self._loop = owner, loop
        self.transport: asyncio.Transport  # there from connection_made on
        self._parser = httptools.HttpRequestParser(self)
        self.task: asyncio.Task[None] | None = None
        self.writing_paused = False
        self.late_at_s = NEVER_S
        self._part = _BETWEEN
        self._url = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._loose_bytes = 0  # come since the head began or the last piece of body
        self._body_seen = 0
        self._request: ClientRequest | None = None  # of which a part has come
        self._waiting: deque[ClientRequest] | None = None  # whole ones that came ahead in one read
        self._current: ClientRequest | None = None  # the one that is being answered
        self._ahead = b""
        self._last_answer = False

    @property
    def busy(self) -> bool:
        """Whether a request is being answered, or its body is on its way."""
        return self._current is not None or self._part == _BODY

    # The transport's side.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Give the client its time for a first head."""
        self.transport = cast("asyncio.Transport", transport)
        self.late_at_s = self._loop.time() + self._owner.bounds.head_s
        self._owner.joined(self)

    def eof_received(self) -> None:
        """Take a client that sends no more for one that left: the two cannot be told apart. The transport closes."""
        self._tell_gone()

    def connection_lost(self, _: Exception | None) -> None:
        """Tell whoever serves the present request."""
        self.late_at_s = NEVER_S
        request, self._request = self._request, None
        self._tell_gone()
        if self._current is not None:
            return
        if request is not None and request.refusal is None:  # it left in the middle of its body
            request.gone = True
            self._start(request)
        else:
            self._owner.left(self)

    def pause_writing(self) -> None:
        """The write buffer is above its high-water mark: the client does not keep up."""
        self.writing_paused = True
        if self._current is not None and self._current.watcher is not None:
            self._current.watcher.client_slow()

    def resume_writing(self) -> None:
        """The write buffer has drained."""
        self.writing_paused = False
        if self._current is not None and self._current.watcher is not None:
            self._current.watcher.client_ready()

    def data_received(self, data: bytes) -> None:
        """Parse what came, or keep it while an answer is under way."""
        if self._current is not None and self._current is not self._request:
            self._keep(data)
            return
        if self._part == _BETWEEN and data[0] in b"\r\n" and not data.strip(b"\r\n"):
            return  # empty lines between requests are nobody's request (RFC 9112, section 2.2)
        self._loose_bytes += len(data)
        self._feed(data)
        if self._part != _BETWEEN:
            self._bound()

    def late(self, now_s: float) -> None:
        """Drop a client that takes too long: for a head, for a body, or until its next request."""
        self.late_at_s = NEVER_S
        bounds = self._owner.bounds
        if self.transport.is_closing():
            self.transport.abort()  # it does not take its last answer
        elif self._part == _HEAD:
            self._refuse(408, bounds.head_late())
        elif self._part == _BODY:
            if self._body_seen >= bounds.body_s * BODY_BYTES_PER_S:
                self._body_seen = 0
                self.late_at_s = now_s + bounds.body_s
                return
            self._refuse(408, bounds.body_late())
        elif self.transport.get_write_buffer_size():
            self.transport.abort()  # it has not even taken its last answer
        else:
            self.transport.close()

    def close_if_idle(self) -> None:
        """Close a connection on which no request is."""
        if not self.busy and not self._waiting:
            self.transport.close()

    def cut(self, error: GatewayError) -> None:
        """End the present request at once: it is cancelled, or answered with `error` where its body is still coming."""
        if self.task is not None:
            self._loop.call_soon(self.task.cancel)  # behind its first step, without which it could give nothing back
        elif self._request is not None and self._part == _BODY:
            self._dispatch_refused(self._request, error)
        else:
            self.transport.close()

    # The parser's side, inside feed_data.

    def on_message_begin(self) -> None:
        """Note that a head has begun."""
        self._part = _HEAD
        self._url = b""
        self._headers = []

    def on_url(self, url: bytes) -> None:
        """Take the target, which may come in pieces."""
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header; behind the head, where trailers come, it goes with them."""
        self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """Make the request, and refuse it at once where its body will be too long."""
        parser = self._parser
        if parser.should_upgrade():
            return  # `_without_upgrade` brings the same head again
        bounds = self._owner.bounds
        if self._loose_bytes > bounds.head_bytes:  # of which some may be body
            self._check_length(len(self._url))
        self._part = _BODY
        self._loose_bytes = self._body_seen = 0
        headers, self._headers = self._headers, []  # what follows are trailers, which are no headers of the request
        version = parser.get_http_version()
        modern = version == "1.1"
        if not modern and version != "1.0":
            raise Unreadable(505, "this server speaks HTTP/1.1 and HTTP/1.0")
        request = self._request = ClientRequest(
            self, parser.get_method().decode("latin-1"), self._url, headers, modern, parser.should_keep_alive()
        )
        if self._current is None:
            self.late_at_s = NEVER_S  # `_bound` sets it anew where the body has not come with the head
        if (request.stated_length or 0) > bounds.body_bytes:
            if request.expects_continue:
                request.keep_alive = False  # whether its body follows all the same cannot be known
            self._dispatch_refused(request, bounds.too_large())
        elif request.expects_continue and self._current is None and not self._waiting:
            self.transport.write(_CONTINUE)

    def on_body(self, body: bytes) -> None:
        """Keep a piece of the body, unless its request is refused already."""
        self._loose_bytes = 0
        self._body_seen += len(body)
        request = self._request
        if request is None:
            return
        limit = self._owner.bounds.body_bytes
        if request.refusal is not None:
            request.discarded_bytes += len(body)
            if request.discarded_bytes > limit * _DISCARDED_BODIES:
                request.keep_alive = False
                if self._current is None:
                    self._close()
            return
        if len(request.body) + len(body) > limit:
            request.body = b""
            self._dispatch_refused(request, self._owner.bounds.too_large())
            return
        request.add(body)

    def on_message_complete(self) -> None:
        """Serve the request, or let it wait for its turn."""
        if self._part == _HEAD:
            return  # a wish for another protocol: see `_without_upgrade`
        if self._headers:
            self._check_length(0)
        self._part = _BETWEEN
        self._loose_bytes = 0
        request, self._request = self._request, None
        if request is None:
            return
        if request.refusal is not None:
            if self._current is None:
                self.late_at_s = self._loop.time() + self._owner.bounds.idle_s
        elif self._current is None and not self._waiting:
            self._start(request)
        elif self._waiting is None:
            self._waiting = deque((request,))
        else:
            self._waiting.append(request)

    # What is served.

    def _start(self, request: ClientRequest) -> None:
        self.late_at_s = NEVER_S
        if self._owner.draining:
            request.keep_alive = False
        self._current = request
        self.task = self._loop.create_task(self._serve(request))

    async def _serve(self, request: ClientRequest) -> None:
        """Have one request served, and go on with the next whatever became of it."""
        try:
            await self._owner.serve(request)
        except Exception:
            logger.exception("a fault in %s %s", request.method, request.path)
        finally:
            if not request.finished:  # nobody can tell what of it has gone out
                self.transport.abort()
            self.task = self._current = None
            self._owner.answered()
            self._go_on(request)

    def _dispatch_refused(self, request: ClientRequest, error: GatewayError) -> None:
        """Serve a request whose body nobody wants: what comes of it is dropped."""
        request.refusal = error
        if self._current is not None or self._waiting:  # it stands behind another's answer: that one is the last
            self._last_answer = True
            return
        self._start(request)

    def _go_on(self, request: ClientRequest) -> None:
        """Go on behind an answer: with what the client sent ahead, or wait."""
        transport = self.transport
        if transport.is_closing():
            if self._waiting:
                self._waiting.clear()
            self._owner.left(self)
            return
        if not request.keep_alive or (self._last_answer and not self._waiting):
            self._close()
        elif self._waiting:
            self._start(self._waiting.popleft())
        elif self._ahead:
            ahead, self._ahead = self._ahead, b""
            self.data_received(ahead)
        elif self._owner.draining and self._part == _BETWEEN:
            transport.close()
        else:
            bounds = self._owner.bounds
            wait_s = (bounds.idle_s, bounds.head_s, bounds.body_s)[self._part]
            self.late_at_s = self._loop.time() + wait_s
            if self._part == _HEAD:
                self._bound()

    def _tell_gone(self) -> None:
        if self._current is not None:
            watcher, self._current.watcher = self._current.watcher, None
            self._current.gone = True
            if watcher is not None:
                watcher.client_gone()

    # What comes in.

    def _feed(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._without_upgrade(data[upgrade.args[0] :])
        except httptools.HttpParserError as error:
            reason = error.__context__
            if isinstance(reason, Unreadable):
                self._refuse(reason.status, InvalidRequest(str(reason)))
            else:
                self._refuse(400, InvalidRequest("this is no HTTP/1.1 request"))

    def _without_upgrade(self, rest: bytes) -> None:
        """Parse a head again without its wish for another protocol: the parser skips the body behind such a wish."""
        method = self._parser.get_method()
        if method == b"CONNECT":
            self._refuse(400, InvalidRequest("CONNECT is not served"))
            return
        lines = [b"%b %b HTTP/%b" % (method, self._url, self._parser.get_http_version().encode("ascii"))]
        lines += [b"%b: %b" % header for header in self._headers if header[0] != b"upgrade"]
        self._feed(b"\r\n".join([*lines, b"", b""]))
        if rest:
            self.data_received(rest)

    def _keep(self, data: bytes) -> None:
        if not self._last_answer:
            self._ahead += data
            if len(self._ahead) > self._owner.bounds.head_bytes:
                self._end_after_answer()

    def _bound(self) -> None:
        """Bound the head or the trailers of which a part has come."""
        bounds = self._owner.bounds
        if self._loose_bytes > bounds.head_bytes:
            self._refuse(431, bounds.head_too_large())
        elif self._current is None and self._part == _HEAD and self._loop.time() + bounds.head_s < self.late_at_s:
            self.late_at_s = self._loop.time() + bounds.head_s
        elif self._current is None and self._part == _BODY and self.late_at_s == NEVER_S:
            self.late_at_s = self._loop.time() + bounds.body_s

    def _check_length(self, length: int) -> None:
        if length + sum(len(name) + len(value) + 4 for name, value in self._headers) > self._owner.bounds.head_bytes:
            raise Unreadable(431, str(self._owner.bounds.head_too_large()))

    # What is refused.

    def _refuse(self, status: int, error: InvalidRequest) -> None:
        """Answer with `error` and close; the answers to earlier, whole requests go out first, and then alone."""
        if self._current is not None or self._waiting:
            self._end_after_answer()
            return
        if self.transport.is_closing():
            return
        body = error.body()
        self.transport.write(
            b"%bcontent-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%b"
            % (status_line(status), len(body), body)
        )
        self._request = None
        self._close()

    def _close(self) -> None:
        """Close once the client has taken what was written; `late` drops one that does not."""
        self.late_at_s = self._loop.time() + self._owner.bounds.idle_s
        self.transport.close()

    def _end_after_answer(self) -> None:
        """Read no request any more, and close once the whole ones are answered."""
        self._last_answer = True
        self._ahead = b""
        self._request = None
