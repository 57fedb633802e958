"""What travels through the steps of one request: the client's side, the parsed request, and what became of it."""

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from gateway.api.routes import OTHER, Route
from gateway.clock import monotonic_s
from gateway.errors import ClientGone
from gateway.observability.receipts import Receipt
from gateway.pool.endpoint import Lease
from gateway.upstream.client import Leg
from gateway.upstream.protocol import Headers
from gateway.wire.json_object import Members
from gateway.wire.usage import Usage

# Under the low-water mark of every event loop (16 KiB): with so little in its buffer a transport makes nobody wait.
_KEPT_UP_BYTES: Final = 8192

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class Abortable(Protocol):
    """Something that a request waits for and that can be told to stop."""

    def abort(self, reason: BaseException) -> None:
        """Stop; whoever waits gets `reason`."""


class Connection(Protocol):
    """The client's connection, where the server gives its transport; see `gateway.api.protocol`."""

    transport: asyncio.Transport
    watcher: Any

    def read_on(self) -> None:
        """Let the transport read, so that a closed connection is noticed."""


@dataclass(slots=True)
class InferenceRequest:
    """What routing needs of a request; `body` is what a single hop sends: the client's own bytes, unless they held
    `kv_transfer_params`, which is taken out.

    `members` are its top-level members. `prompt_bytes` is the length of the prompt's raw JSON and `keys` its chained
    block keys. `one_hop_reason` is one token: why two hops cannot serve it, or None.
    """

    body: bytes
    members: Members
    model: str
    prompt_bytes: int
    keys: list[int]
    one_hop_reason: str | None


@dataclass(frozen=True, slots=True)
class SingleHop:
    """One endpoint does it all."""

    lease: Lease
    reason: str


@dataclass(frozen=True, slots=True)
class TwoHop:
    """One endpoint reads the prompt, another writes the answer; both are reserved."""

    prefill: Lease
    decode: Lease
    reason: str


Plan = SingleHop | TwoHop


@dataclass(slots=True)
class Exchange:
    """One request of a client and everything that is held for it.

    Invariant: `leases` and `awaiting` hold all that must be given back; `settle` does so, on every path.

    `engine_request_id` is what engines get as x-request-id, on both legs. `matched` is the share of the prompt, 0 to 1,
    that each endpoint name should have cached. `cached_tokens` is the prefill leg's number, put into the answer; None
    where the answer's own stands. `outcome` is the label of twohop_two_hop_total, None where no prefill leg ended.
    `usage` is what the answer told of its tokens. `deadline_s` is the monotonic time until which the client may take
    the answer; `finished`: its last byte was sent.
    """

    scope: Scope
    receive: Receive
    send: Send
    receipt: Receipt
    started_s: float
    engine_request_id: bytes
    route: Route = OTHER
    connection: Connection | None = None
    deadline_s: float = float("inf")
    gone: bool = False
    awaiting: Abortable | None = None
    streaming: Leg | None = None
    leases: list[Lease] = field(default_factory=list)
    matched: dict[str, float] = field(default_factory=dict)
    cached_tokens: int | None = None
    outcome: str | None = None
    handoff_open: bool = False
    usage: Usage | None = None
    finished: bool = False
    listener: asyncio.Task[None] | None = None

    @property
    def request_id(self) -> bytes:
        """The id that the client sees."""
        return self.receipt.request_id.encode("ascii")

    def header(self, wanted: bytes) -> bytes | None:
        """Return the first value of a request header (name in lower case), or None."""
        for name, value in self.scope["headers"]:
            if name == wanted:
                return value  # type: ignore[no-any-return]
        return None

    @property
    def method(self) -> bytes:
        """The request's method."""
        method: str = self.scope["method"]
        return method.encode("ascii")

    @property
    def target(self) -> bytes:
        """The request target as the client sent it, its query included."""
        path: bytes = self.scope["raw_path"]
        query: bytes = self.scope["query_string"]
        return path + b"?" + query if query else path

    # The watcher's side of the client's connection.

    def client_gone(self) -> None:
        """Abort whatever this request waits for."""
        self.gone = True
        if self.awaiting is not None:
            self.awaiting.abort(ClientGone())

    def client_slow(self) -> None:
        """Stop reading from the engine."""
        if self.streaming is not None:
            self.streaming.pause()

    def client_ready(self) -> None:
        """Read from the engine again."""
        if self.streaming is not None:
            self.streaming.resume()

    def wait_for(self, what: Abortable) -> None:
        """Make `what` the thing that a leaving client aborts. Raises ClientGone if it has left already."""
        if self.gone:
            raise ClientGone
        self.awaiting = what

    def listen(self) -> None:
        """Notice a leaving client where the server gives no transport; call it once the body has been read."""
        if self.connection is None:
            # `settle` cancels it; a TaskGroup would make every request pay for a rare server.
            self.listener = asyncio.get_running_loop().create_task(self._wait_for_disconnect())

    async def _wait_for_disconnect(self) -> None:
        while (await self.receive())["type"] != "http.disconnect":
            pass
        self.client_gone()

    @property
    def keeps_up(self) -> bool:
        """Whether the client has taken what was sent, so that sending more does not wait; unknown counts as yes."""
        return self.connection is None or self.connection.transport.get_write_buffer_size() <= _KEPT_UP_BYTES

    def drop(self) -> None:
        """Break the client's connection off, as far as the server lets us; `client_gone` follows."""
        if self.connection is not None:
            self.connection.transport.abort()
        else:
            self.client_gone()

    async def start(self, status: int, headers: Headers) -> None:
        """Send the head."""
        self.receipt.status = status
        await self._send({"type": "http.response.start", "status": status, "headers": headers})

    async def go_on(self, body: bytes) -> None:
        """Send some of the body. Raises ClientGone."""
        await self._send({"type": "http.response.body", "body": body, "more_body": True})
        if self.gone:
            raise ClientGone

    async def finish(self, body: bytes = b"") -> None:
        """Send the last of the body. Raises ClientGone where the client does not take what was sent before it."""
        await self._send({"type": "http.response.body", "body": body, "more_body": False})
        self.finished = True

    async def _send(self, message: MutableMapping[str, Any]) -> None:
        """Send; a server waits here for a client that does not read, and we wait no longer than `deadline_s`."""
        if self.connection is not None and self.keeps_up:
            await self.send(message)
            return
        left_s = max(0.0, self.deadline_s - monotonic_s())
        timer = asyncio.get_running_loop().call_later(left_s, self.drop)
        try:
            await self.send(message)
        finally:
            timer.cancel()
        if self.gone:
            raise ClientGone
