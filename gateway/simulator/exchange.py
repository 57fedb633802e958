"""One HTTP request to a simulated engine and the answer to it, over plain ASGI."""

from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from gateway.simulator.refusal import malformed

Message = MutableMapping[str, Any]
JSON = ((b"content-type", b"application/json"),)
EVENTS = ((b"content-type", b"text/event-stream; charset=utf-8"),)
TEXT = ((b"content-type", b"text/plain; version=0.0.4; charset=utf-8"),)


class ConnectionCut(Exception):
    """The connection is gone, or a fault wants it cut now."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """A request's scope, and the two callables that carry its body and its answer."""

    scope: Message
    receive: Callable[[], Awaitable[Message]]
    send: Callable[[Message], Awaitable[None]]

    async def json(self) -> Mapping[str, Any]:
        """Return the request's body, a JSON object. Raises Refusal, or ConnectionCut if the client leaves."""
        parts = []
        while True:
            message = await self.receive()
            if message["type"] == "http.disconnect":
                raise ConnectionCut
            parts.append(message.get("body", b""))
            if not message.get("more_body"):
                break
        try:
            body = msgspec.json.decode(b"".join(parts))
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise malformed(f"the body is not JSON: {error}", "body") from error
        if not isinstance(body, dict):
            raise malformed("the body must be a JSON object", "body")
        return body

    def header(self, name: bytes) -> str | None:
        """Return the last value of the request header `name` (lower case)."""
        values = [value for key, value in self.scope["headers"] if key == name]
        return values[-1].decode("latin-1") if values else None

    async def reply(self, status: int, body: object, headers: Sequence[tuple[bytes, bytes]] = JSON) -> None:
        """Send one whole answer; a `body` that is no bytes goes as JSON."""
        data = body if isinstance(body, bytes) else msgspec.json.encode(body)
        await self.begin(status, [*headers, (b"content-length", str(len(data)).encode())])
        await self.chunk(data, more=False)

    async def begin(self, status: int, headers: Sequence[tuple[bytes, bytes]]) -> None:
        """Send the status and the headers."""
        await self.send({"type": "http.response.start", "status": status, "headers": list(headers)})

    async def chunk(self, data: bytes, *, more: bool = True) -> None:
        """Send one part of the body; not `more` ends it."""
        await self.send({"type": "http.response.body", "body": data, "more_body": more})

    async def until_disconnect(self) -> None:
        """Return when the client has closed the connection."""
        while (await self.receive())["type"] != "http.disconnect":
            pass

    def cut(self) -> None:
        """Cut the connection at once: with uvicorn, `send` is a method of the cycle that holds the transport."""
        cycle = getattr(self.send, "__self__", None)
        if cycle is not None:
            cycle.transport.abort()
