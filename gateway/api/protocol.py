"""uvicorn's HTTP protocol with what a gateway adds: a bound on heads, a timer for slow ones, the transport in reach.

The connection puts itself into the scope's extensions under `EXTENSION`; a raw ASGI endpoint may then watch the client
(gone, slow, ready again) without a task and write body bytes without a coroutine.
"""

import asyncio
from typing import Any, ClassVar, Protocol

from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from gateway.errors import InvalidRequest

EXTENSION = "twohop.connection"


class Watcher(Protocol):
    """What a connection tells whoever serves its present request."""

    def client_gone(self) -> None:
        """The client closed its connection."""

    def client_slow(self) -> None:
        """The client does not keep up: the write buffer is above its high-water mark."""

    def client_ready(self) -> None:
        """The write buffer has drained."""


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
        self._head_bytes = 0
        self._head_timer: asyncio.TimerHandle | None = None

    def read_on(self) -> None:
        """Read from the client although a large body has filled uvicorn's buffer: its leaving must be noticed."""
        self.flow.resume_reading()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Give the client `head_timeout_s` for its first request head."""
        super().connection_made(transport)
        self._head_timer = self.loop.call_later(self.head_timeout_s, self._head_late)

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the watcher, after uvicorn's own bookkeeping."""
        self._stop_head_timer()
        super().connection_lost(exc)
        watcher, self.watcher = self.watcher, None
        if watcher is not None:
            watcher.client_gone()

    def data_received(self, data: bytes) -> None:
        """Count head bytes between requests, so that an endless head cannot fill the memory."""
        if self._head_bytes >= 0:
            if self._head_bytes == 0 and self._head_timer is None:
                self._head_timer = self.loop.call_later(self.head_timeout_s, self._head_late)
            self._head_bytes += len(data)
        super().data_received(data)
        if self._head_bytes > self.head_limit_bytes and not self.transport.is_closing():
            self._refuse_head()

    def on_message_begin(self) -> None:
        """Offer this connection to the endpoint."""
        super().on_message_begin()
        self.scope["extensions"] = self._extensions

    def on_headers_complete(self) -> None:
        """Stop counting: the head is whole."""
        self._stop_head_timer()
        self._head_bytes = -1
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """Count again for the next head."""
        self._head_bytes = 0
        super().on_message_complete()

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

    def _refuse_head(self) -> None:
        error = InvalidRequest(f"the request head is over {self.head_limit_bytes} bytes (limits.header_bytes)")
        self._refuse(b"431 Request Header Fields Too Large", error)

    def _refuse(self, status: bytes, error: InvalidRequest) -> None:
        body = error.body()
        self.transport.write(
            b"HTTP/1.1 %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%b"
            % (status, len(body), body)
        )
        self.transport.close()

    def _head_late(self) -> None:
        self._head_timer = None
        if self._head_bytes:
            limit = f"the request head did not come within {self.head_timeout_s:g} s (timeouts.header_s)"
            self._refuse(b"408 Request Timeout", InvalidRequest(limit))
        else:
            self.transport.close()

    def _stop_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None
