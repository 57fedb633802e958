"""The server on one listening socket: its connections, their time limits, and how it stops.

Invariant: every connection is in `connections` from its first moment until it is closed and its last request is over.
"""

import asyncio
import socket
import ssl
from collections.abc import Callable, Coroutine
from typing import Any

from gateway.api.bounds import Bounds
from gateway.api.protocol import ClientConnection
from gateway.api.request import ClientRequest
from gateway.errors import GatewayError
from gateway.listening import BACKLOG

_LAST_BYTES = 8192  # so few the kernel takes at once from a client that keeps up
_LOOK_S = 1.0  # between two looks for clients that take too long


class Server:
    """Serves requests with `serve`; `bounds` holds what a client may take, and may be replaced at any time."""

    def __init__(
        self,
        serve: Callable[[ClientRequest], Coroutine[Any, Any, None]],
        bounds: Bounds,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.serve, self.bounds = serve, bounds
        self.draining = False
        self.connections: set[ClientConnection] = set()
        self._tls = tls
        self._listener: asyncio.Server | None = None
        self._idle: asyncio.Event = asyncio.Event()
        self._look: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()

    async def listen(self, sock: socket.socket) -> None:
        """Listen on `sock`, which is bound, and perhaps listened on already, and take its connections."""
        self._listener = await self._loop.create_server(
            lambda: ClientConnection(self, self._loop),
            sock=sock,
            backlog=BACKLOG,
            ssl=self._tls,
            ssl_handshake_timeout=None if self._tls is None else self.bounds.head_s,
        )
        self._look_at_clients()

    @property
    def in_flight(self) -> int:
        """Requests that are being answered, or whose body is on its way."""
        return sum(connection.busy for connection in self.connections)

    def stop_accepting(self) -> None:
        """Take no new connections; a second call does nothing."""
        if self._listener is not None:
            self._listener.close()

    def drain(self) -> None:
        """Let each connection end with the answer that is under way, and the idle ones now."""
        self.draining = True
        self.close_idle()

    def close_idle(self) -> None:
        """Close the connections on which no request is."""
        for connection in tuple(self.connections):
            connection.close_if_idle()

    async def wait_idle(self) -> None:
        """Return when no request is in flight."""
        while self.in_flight:
            self._idle.clear()
            await self._idle.wait()

    def cut(self, error: GatewayError) -> None:
        """End every request now: those whose answer has not begun with `error`."""
        for connection in tuple(self.connections):
            connection.cut(error)

    async def close(self) -> None:
        """Take no new connections, and close those that are left; call `cut` before."""
        self.stop_accepting()
        if self._look is not None:
            self._look.cancel()
        tasks = [connection.task for connection in self.connections if connection.task is not None]
        if tasks:
            await asyncio.wait(tasks)
        for connection in tuple(self.connections):
            if connection.transport.get_write_buffer_size() > _LAST_BYTES:
                connection.transport.abort()  # it would wait for a client that does not read
            else:
                connection.transport.close()
        await asyncio.sleep(0)

    def joined(self, connection: ClientConnection) -> None:
        """A connection is there."""
        self.connections.add(connection)

    def left(self, connection: ClientConnection) -> None:
        """A connection is gone, and its last request is over."""
        self.connections.discard(connection)
        self._idle.set()

    def answered(self) -> None:
        """A request is over."""
        if self.draining:
            self._idle.set()

    def _look_at_clients(self) -> None:
        """Drop clients that take too long: one look at all of them costs less than a timer for each request."""
        now_s = self._loop.time()
        for connection in [one for one in self.connections if one.late_at_s < now_s]:
            connection.late(now_s)
        shortest_s = min(self.bounds.head_s, self.bounds.body_s, self.bounds.idle_s)
        self._look = self._loop.call_later(min(_LOOK_S, shortest_s / 4), self._look_at_clients)
