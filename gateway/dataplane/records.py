"""What travels through the steps of one request: the client's side, the parsed request, and what became of it."""

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from gateway.errors import ClientGone
from gateway.observability.receipts import Receipt
from gateway.pool.endpoint import Lease
from gateway.upstream.client import Leg
from gateway.upstream.protocol import Headers
from gateway.wire.json_object import Members

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
    `tail` is the end of the answer's body, some KB, for its usage.
    """

    scope: Scope
    receive: Receive
    send: Send
    receipt: Receipt
    started_s: float
    engine_request_id: bytes
    connection: Connection | None = None
    gone: bool = False
    awaiting: Abortable | None = None
    streaming: Leg | None = None
    leases: list[Lease] = field(default_factory=list)
    matched: dict[str, float] = field(default_factory=dict)
    cached_tokens: int | None = None
    outcome: str | None = None
    handoff_open: bool = False
    tail: bytes = b""
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

    async def start(self, status: int, headers: Headers) -> None:
        """Send the head."""
        self.receipt.status = status
        await self.send({"type": "http.response.start", "status": status, "headers": headers})

    async def finish(self, body: bytes = b"") -> None:
        """Send the last of the body."""
        await self.send({"type": "http.response.body", "body": body, "more_body": False})
