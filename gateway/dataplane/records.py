"""What travels through the steps of one request: the client's side, the parsed request, and what became of it."""

import asyncio
from dataclasses import dataclass, field
from typing import Protocol

from gateway.api.request import ClientRequest
from gateway.api.routes import OTHER, Route
from gateway.clock import monotonic_s
from gateway.errors import ClientGone, GatewayError, UpstreamFailed
from gateway.observability.receipts import Receipt
from gateway.pool.endpoint import Lease
from gateway.upstream.client import Leg
from gateway.wire.continuation import Seam
from gateway.wire.json_object import Members
from gateway.wire.usage import Usage


class Abortable(Protocol):
    """Something that a request waits for and that can be told to stop."""

    def abort(self, reason: BaseException) -> None:
        """Stop; whoever waits gets `reason`."""


class GoesOn(Protocol):
    """What keeps a stream's past, and finds another engine to go on with it."""

    def keep(self, chunk: bytes) -> None:
        """Remember what the engine said."""

    async def go_on(self, failure: UpstreamFailed) -> tuple[Leg, Seam]:
        """Return an opened leg for the rest and what makes it fit. Raises `failure` where there is none, ClientGone."""


@dataclass(slots=True)
class InferenceRequest:
    """What routing needs of a request; `body` is what a single hop sends: the client's own bytes, unless they held
    `kv_transfer_params`, which is taken out.

    `members` are its top-level members. `prompt_bytes` is the length of the prompt's raw JSON and `keys` its chained
    block keys. `one_hop_reason` is one token: why two hops cannot serve it, or None.
    """

    body: bytes | bytearray
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
    `usage` is what the answer told of its tokens; `usage_asked`: the gateway asked the engine for it, not the client,
    who must not see it. `deadline_s` is the monotonic time until which the client may take the answer.
    """

    client: ClientRequest
    receipt: Receipt
    started_s: float
    engine_request_id: bytes
    route: Route = OTHER
    deadline_s: float = float("inf")
    awaiting: Abortable | None = None
    streaming: Leg | None = None
    leases: list[Lease] = field(default_factory=list)
    matched: dict[str, float] = field(default_factory=dict)
    cached_tokens: int | None = None
    outcome: str | None = None
    handoff_open: bool = False
    usage: Usage | None = None
    usage_asked: bool = False
    caught_up: asyncio.Future[None] | None = None

    @property
    def request_id(self) -> bytes:
        """The id that the client sees."""
        return self.receipt.request_id.encode("ascii")

    # The watcher's side of the client's connection.

    def client_gone(self) -> None:
        """Abort whatever this request waits for."""
        if self.awaiting is not None:
            self.awaiting.abort(ClientGone())
        self._let_go()

    def client_slow(self) -> None:
        """Stop reading from the engine."""
        if self.streaming is not None:
            self.streaming.pause()

    def client_ready(self) -> None:
        """Read from the engine again."""
        if self.streaming is not None:
            self.streaming.resume()
        self._let_go()

    def wait_for(self, what: Abortable) -> None:
        """Make `what` the thing that a leaving client aborts. Raises ClientGone if it has left already."""
        if self.client.gone:
            raise ClientGone
        self.awaiting = what

    async def taken(self) -> None:
        """Wait until the client has taken what was written, or so much that the rest makes nobody wait.

        Raises ClientGone where it leaves first, or has not done so by `deadline_s` and is dropped.
        """
        if not self.client.behind:
            return
        loop = asyncio.get_running_loop()
        self.caught_up = loop.create_future()
        timer = loop.call_later(max(0.0, self.deadline_s - monotonic_s()), self.client.drop)
        try:
            await self.caught_up
        finally:
            self.caught_up = None
            timer.cancel()
        if self.client.gone:
            raise ClientGone

    def _let_go(self) -> None:
        if self.caught_up is not None and not self.caught_up.done():
            self.caught_up.set_result(None)

    def refuse(self, error: GatewayError) -> None:
        """Answer with an error of ours."""
        retry = b"" if error.retry_after is None else b"retry-after: %b\r\n" % error.retry_after.encode("ascii")
        lines = b"content-type: application/json\r\nx-request-id: %b\r\n%b" % (self.request_id, retry)
        self.receipt.status = error.status
        self.client.respond(error.status, lines, error.body(self.route.style))
