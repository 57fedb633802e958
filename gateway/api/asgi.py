"""An ASGI application behind our own server, for everything that is not hot. Source: ASGI's HTTP specification 2.3."""

import asyncio
from collections.abc import MutableMapping
from typing import Any

from starlette.types import ASGIApp

from gateway.api.request import ClientRequest
from gateway.dataplane.ids import request_id_of

Message = MutableMapping[str, Any]
_CONNECTION = frozenset({b"connection", b"transfer-encoding", b"keep-alive", b"date", b"server"})


class Bridge:
    """Serves one request with `app`; the answer carries the request's id."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, request: ClientRequest) -> None:
        """Serve `request`, whose body is there."""
        call = _Call(request)
        request.watcher = call
        if request.refusal is not None:
            body = request.refusal.body()
            request.respond(request.refusal.status, b"content-type: application/json\r\n" + call.id_line, body)
            return
        await self._app(call.scope(), call.receive, call.send)


class _Call:
    """One request as ASGI sees it."""

    def __init__(self, request: ClientRequest) -> None:
        self._request = request
        self._gone = asyncio.Event()
        self._ready = asyncio.Event()
        self._body_told = False
        self._start: Message | None = None
        self.id_line = b"x-request-id: %b\r\n" % request_id_of(request.headers).encode("ascii")

    def scope(self) -> Message:
        request = self._request
        return {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1" if request.modern else "1.0",
            "method": request.method,
            "scheme": "http",
            "path": request.path,
            "raw_path": request.raw_path,
            "query_string": request.query,
            "root_path": "",
            "headers": request.headers,
            "client": _address(request, "peername"),
            "server": _address(request, "sockname"),
        }

    async def receive(self) -> Message:
        if not self._body_told:
            self._body_told = True
            return {"type": "http.request", "body": bytes(self._request.body), "more_body": False}
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        request = self._request
        if request.gone:
            return
        if message["type"] == "http.response.start":
            self._start = message
            return
        body, more = message.get("body", b""), message.get("more_body", False)
        if self._start is not None:
            started, self._start = self._start, None
            length, lines = self._lines(started["headers"])
            if not more:
                request.respond(started["status"], lines, body)
                return
            request.start(started["status"], lines, length)
        if body and request.method != "HEAD":
            request.write(body)
        if not more:
            request.finish()
        elif request.behind:
            self._ready.clear()
            await self._ready.wait()

    def _lines(self, headers: list[tuple[bytes, bytes]]) -> tuple[int | None, bytes]:
        """Return the stated length, if any, and the other header lines."""
        length, lines = None, [self.id_line]
        for name, value in headers:
            name = name.lower()
            if name == b"content-length":
                length = int(value)
            elif name not in _CONNECTION and name != b"x-request-id":
                lines.append(b"%b: %b\r\n" % (name, value))
        return length, b"".join(lines)

    # The watcher's side.

    def client_gone(self) -> None:
        self._gone.set()
        self._ready.set()

    def client_slow(self) -> None:
        """Nothing: `send` asks."""

    def client_ready(self) -> None:
        self._ready.set()


def _address(request: ClientRequest, side: str) -> tuple[str, int] | None:
    """Return host and port: an address of IPv6 has two figures more, which ASGI does not know."""
    address = request.transport.get_extra_info(side)
    return address[:2] if address else None
