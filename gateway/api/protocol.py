"""uvicorn's HTTP protocol with what a gateway adds: bounds on heads, trailers and what is sent ahead, a timer for slow
heads, the transport in reach.

The connection puts itself into the scope's extensions under `EXTENSION`; a raw ASGI endpoint may then watch the client
(gone, slow, ready again) without a task and write body bytes, in chunks, without a coroutine. HTTP/1.0 knows no chunks,
so its requests come without the extension, and their answers end with the connection.

Invariant: while the answer to a whole request is under way, nothing else is written, no head is timed, and reading goes
on, since a pause would hide that the client leaves. What comes meanwhile waits unparsed, up to `head_limit_bytes`.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, ClassVar, Protocol

import httptools
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from gateway.errors import InvalidRequest

EXTENSION = "twohop.connection"
# What of a request comes next.
_BETWEEN, _HEAD, _BODY = range(3)


class Watcher(Protocol):
    """What a connection tells whoever serves its present request."""

    def client_gone(self) -> None:
        """The client closed its connection."""

    def client_slow(self) -> None:
        """The client does not keep up: the write buffer is above its high-water mark."""

    def client_ready(self) -> None:
        """The write buffer has drained."""


class _TooLong(Exception):
    """Raised inside the parser: the head or the trailers are over the limit."""


class ClientConnection(HttpToolsProtocol):
    """One client connection. `watcher` is set by the endpoint that serves the present request, and reset by it.

    `head_limit_bytes` and `head_timeout_s` bound a request head; `with_limits` makes a class with others.
    """

    head_limit_bytes: ClassVar[int] = 65536
    head_timeout_s: ClassVar[float] = 10.0

    @classmethod
    def with_limits(cls, head_limit_bytes: int, head_timeout_s: float) -> type["ClientConnection"]:
        """Return this class with other limits: uvicorn takes a class, and makes the connections itself."""
        return type(cls.__name__, (cls,), {"head_limit_bytes": head_limit_bytes, "head_timeout_s": head_timeout_s})

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self.watcher: Watcher | None = None
        self._extensions: Any = {EXTENSION: self}
        self._part = _BETWEEN
        self._loose_bytes = 0  # come since the head began or the last piece of body
        self._head_timer: asyncio.TimerHandle | None = None
        self._present: RequestResponseCycle | None = None  # begun last; `cycle` may already be one behind it
        self._ahead = bytearray()
        self._last_answer = False

    def read_on(self) -> None:
        """Read from the client although a large body has filled uvicorn's buffer: its leaving must be noticed."""
        self.flow.resume_reading()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Give the client `head_timeout_s` for its first request head."""
        super().connection_made(transport)
        self._head_timer = self.loop.call_later(self.head_timeout_s, self._head_late)

    def eof_received(self) -> None:
        """Take a client that sends no more for one that left: the two cannot be told apart. The transport closes."""
        self._tell_gone()

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the watcher, after uvicorn's own bookkeeping."""
        self._stop_head_timer()
        super().connection_lost(exc)
        self._tell_gone()

    def data_received(self, data: bytes) -> None:
        """Parse what came, or keep it while an answer is under way."""
        if self._answering():
            self._keep(data)
            return
        if self._part == _BETWEEN and data[0] in b"\r\n" and not data.strip(b"\r\n"):
            return  # empty lines between requests are nobody's request (RFC 9112, section 2.2)
        self._unset_keepalive_if_required()
        self._loose_bytes += len(data)
        self._feed(data)
        if self._part != _BETWEEN:
            self._bound()
        if self.pipeline:
            self.flow.resume_reading()

    def on_message_begin(self) -> None:
        """Note that a head has begun."""
        self._part = _HEAD
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """Start the request, and offer this connection to the endpoint."""
        if self.parser.should_upgrade():
            return  # `_without_upgrade` brings the same head again
        if self._loose_bytes > self.head_limit_bytes:  # of which some may be body
            self._check_length(len(self.url))
        self._stop_head_timer()
        self._part = _BODY
        self._loose_bytes = 0
        super().on_headers_complete()
        self.headers = []  # takes the trailers, which are no headers of the request
        if self.scope["http_version"] < "1.1":
            self.cycle.send = _unframed(self.cycle)  # type: ignore[method-assign,assignment]
        else:
            self.scope["extensions"] = self._extensions

    def on_body(self, body: bytes) -> None:
        """Count anew what is neither head nor body."""
        self._loose_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Wait for the next head."""
        if self._part == _HEAD:
            return
        if self.headers:
            self._check_length(0)
        self._part = _BETWEEN
        self._loose_bytes = 0
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """Go on with what the client sent ahead."""
        super().on_response_complete()
        if self._ahead or self._part or self._last_answer:
            self._go_on()

    def pause_writing(self) -> None:
        """Pass the transport's word on."""
        super().pause_writing()
        if self.watcher is not None:
            self.watcher.client_slow()

    def resume_writing(self) -> None:
        """Pass the transport's word on."""
        super().resume_writing()
        if self.watcher is not None:
            self.watcher.client_ready()

    def send_400_response(self, msg: str) -> None:
        """Answer what is no HTTP, in the shape of every other error."""
        self._refuse(b"400 Bad Request", InvalidRequest(msg))

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._present = cycle
        super()._start_asgi_task(cycle, app)

    def _tell_gone(self) -> None:
        """Tell the present request, and only that: uvicorn marks the newest one, which may wait behind it."""
        if self._present is not None and not self._present.response_complete:
            self._present.disconnected = True
            self._present.message_event.set()
        watcher, self.watcher = self.watcher, None
        if watcher is not None:
            watcher.client_gone()

    def _answering(self) -> bool:
        """Tell whether a request is whole and its answer is not."""
        present = self._present
        return present is not None and not (present.more_body or present.response_complete)

    # What comes in.

    def _feed(self, data: bytes) -> None:
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._without_upgrade(data[upgrade.args[0] :])
        except httptools.HttpParserError as error:
            if isinstance(error.__context__, _TooLong):
                self._refuse_head()
            else:
                self.send_400_response("Invalid HTTP request received.")

    def _without_upgrade(self, rest: bytes) -> None:
        """Parse a head again without its wish for another protocol: the parser skips the body behind such a wish."""
        method = self.parser.get_method()
        if method == b"CONNECT":
            self.send_400_response("CONNECT is not served.")
            return
        lines = [b"%b %b HTTP/%b" % (method, self.url, self.parser.get_http_version().encode("ascii"))]
        lines += [b"%b: %b" % header for header in self.headers if header[0] != b"upgrade"]
        self._feed(b"\r\n".join([*lines, b"", b""]))
        if rest:
            self.data_received(rest)

    def _keep(self, data: bytes) -> None:
        if not self._last_answer:
            self._ahead += data
            if len(self._ahead) > self.head_limit_bytes:
                self._end_after_answer()

    def _go_on(self) -> None:
        """Parse what came during the answer that has just ended, unless the next one is under way already."""
        if self.transport.is_closing() or self._answering():
            return
        if self._last_answer:
            self.transport.close()
        elif self._ahead:
            ahead, self._ahead = bytes(self._ahead), bytearray()
            self.data_received(ahead)
        elif self._part == _HEAD:
            self._unset_keepalive_if_required()
            self._bound()

    def _bound(self) -> None:
        """Bound the head or the trailers of which a part has come."""
        if self._loose_bytes > self.head_limit_bytes:
            self._refuse_head()
        elif self._part == _HEAD and self._head_timer is None and not self._answering():
            self._head_timer = self.loop.call_later(self.head_timeout_s, self._head_late)

    def _check_length(self, length: int) -> None:
        if length + sum(len(name) + len(value) + 4 for name, value in self.headers) > self.head_limit_bytes:
            raise _TooLong

    # What is refused.

    def _refuse_head(self) -> None:
        error = InvalidRequest(f"the request head is over {self.head_limit_bytes} bytes (limits.header_bytes)")
        self._refuse(b"431 Request Header Fields Too Large", error)

    def _refuse(self, status: bytes, error: InvalidRequest) -> None:
        """Answer with `error` and close; the answer to an earlier, whole request goes out first, and then alone."""
        if self._answering():
            self._end_after_answer()
            return
        if self.transport.is_closing():
            return
        present = self._present
        if present is None or present.response_complete or not present.response_started:
            body = error.body()
            self.transport.write(
                b"HTTP/1.1 %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%b"
                % (status, len(body), body)
            )
        self.transport.close()
        self._tell_gone()

    def _end_after_answer(self) -> None:
        """Read no request any more, and close once the whole ones are answered."""
        self._last_answer = True
        self._ahead = bytearray()
        if self.pipeline and self.cycle.more_body:
            self.pipeline.popleft()  # the newest: its body will not come

    def _head_late(self) -> None:
        self._head_timer = None
        if self._part == _HEAD:
            limit = f"the request head did not come within {self.head_timeout_s:g} s (timeouts.header_s)"
            self._refuse(b"408 Request Timeout", InvalidRequest(limit))
        else:
            self.transport.close()

    def _stop_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None


def _unframed(cycle: RequestResponseCycle) -> Callable[[Any], Awaitable[None]]:
    """Return `cycle.send` for a client that knows no chunks: a body of no stated length ends with the connection."""
    framed, unframed = cycle.send, False

    async def send(message: Any) -> None:
        nonlocal unframed
        if message["type"] == "http.response.start":
            unframed = all(name.lower() != b"content-length" for name, _ in message.get("headers", ()))
            if unframed:
                cycle.chunked_encoding = cycle.keep_alive = False
        elif unframed:
            cycle.expected_content_length += len(message.get("body", b""))  # uvicorn checks what it sends against it
        await framed(message)

    return send
