"""One inference request from its first byte to its receipt: the table of contents of the data plane."""

import asyncio
from collections.abc import Callable, Collection
from dataclasses import dataclass

from gateway.api.request import ClientRequest
from gateway.api.routes import RESPONSE_BY_ID, RESPONSES, Route, response_id
from gateway.clock import monotonic_s, wall_s
from gateway.connectors import Connector, Handoff
from gateway.dataplane.admit import admit
from gateway.dataplane.continuation import Continuation
from gateway.dataplane.forward import Forwarder
from gateway.dataplane.ids import engine_id_of, request_id_of
from gateway.dataplane.parse import parse, parse_form
from gateway.dataplane.records import Exchange, InferenceRequest, Plan, TwoHop
from gateway.dataplane.relay import relay
from gateway.dataplane.responses import Made, Responses, first_found
from gateway.dataplane.route import Router
from gateway.dataplane.settle import CLIENT_CLOSED, settle
from gateway.dataplane.two_hop import PrefillLeg
from gateway.errors import ClientGone, GatewayError, NoEndpoint, ShuttingDown, UpstreamFailed
from gateway.flowcontrol.controller import BAND, Admission
from gateway.observability.metrics import Metrics
from gateway.observability.receipts import Receipt, Receipts
from gateway.pool.endpoint import Lease
from gateway.pool.store import Pool
from gateway.upstream.client import ConnectFailed, Leg
from gateway.upstream.protocol import Headers
from gateway.wire import ask_usage, json_object
from gateway.wire.continuation import may_continue

BAD_REQUEST = 400
LONE_SURROGATES = "lone_surrogates"
_BYTES_PER_TOKEN = 4  # of English text; only for the predicted figure shown in a receipt header


@dataclass(frozen=True, slots=True)
class DataPlane:
    """The steps and what they share; `handle` is the whole way of one request."""

    pool: Pool
    admission: Admission
    router: Router
    prefill_leg: PrefillLeg
    forwarder: Forwarder
    connector: Connector
    responses: Responses
    metrics: Metrics
    receipts: Receipts
    total_s: float
    receipt_headers: bool
    stopping: Callable[[], bool]
    continues: bool = False

    async def handle(self, client: ClientRequest, route: Route) -> None:
        """Serve one inference request: every GatewayError is answered; anything else is raised once all is settled."""
        exchange = _exchange(client, route, self.total_s)
        try:
            await self._serve(exchange)
        except ClientGone:
            exchange.receipt.status = CLIENT_CLOSED
            exchange.outcome = exchange.outcome and "client_left"
        except asyncio.CancelledError:
            # The gateway's grace is over. It ends here: nothing follows in this task that this could be meant for.
            _cut_short(exchange)
        finally:
            settle(exchange, self.metrics, self.receipts, self.pool.remembers(exchange.receipt.model))

    async def _serve(self, exchange: Exchange) -> None:
        try:
            self._check_taken(exchange.client)
            self.forwarder.earn()
            client, route = exchange.client, exchange.route
            request: InferenceRequest | None = None
            if route is RESPONSE_BY_ID:
                leg = await self._by_id(exchange, client.body)
            else:
                request = parse(client.body, route) if not route.may_be_form else await _parse_form(client, route)
                leg = await self._infer(exchange, request)
            continuation = self._continuation(exchange, request) if self.continues and request is not None else None
            extra = self._receipt_headers(exchange, 0 if request is None else request.prompt_bytes)
            await relay(exchange, leg, extra, self.metrics.inter_token, continuation)
        except GatewayError as error:
            if exchange.client.gone:  # it left in the very moment in which this failed
                raise ClientGone from error
            exchange.outcome = exchange.outcome and error.code
            if not exchange.receipt.route:
                exchange.receipt.route, exchange.receipt.reason = "none", error.code
            exchange.refuse(error)
            await exchange.taken()
        except ClientGone:
            raise
        except Exception:  # a fault of ours: the client gets an answer of the usual shape, the log gets the traceback
            exchange.outcome = exchange.outcome and GatewayError.code
            if not exchange.receipt.status:
                exchange.refuse(GatewayError("internal error"))
            raise

    def _check_taken(self, client: ClientRequest) -> None:
        if client.gone:
            raise ClientGone
        if client.refusal is not None:
            raise client.refusal
        if self.stopping():
            raise stopping_error()

    async def _infer(self, exchange: Exchange, request: InferenceRequest) -> Leg:
        exchange.receipt.model = request.model
        if exchange.route is RESPONSES:
            return await self._respond(exchange, request)
        _ask_for_usage(exchange, request)
        plan = await self._admit(exchange, request)
        if isinstance(plan, TwoHop):
            return await self._two_hops(exchange, request, plan)
        return await self._one_hop(exchange, request, plan.lease)

    async def _respond(self, exchange: Exchange, request: InferenceRequest) -> Leg:
        """Make a response where the one before it is kept, which may have to be found; note who made this one."""
        before = json_object.text(request.members.get("previous_response_id"))
        made = None if before is None else self.responses.maker(before)
        plan = await self._admit(exchange, request, made)
        lease = plan.decode if isinstance(plan, TwoHop) else plan.lease
        if plan.reason == "response_id":  # no other endpoint could do it
            leg = await self._send(exchange, lease, request.body)
        else:
            leg = await self._one_hop(exchange, request, lease)
            if before is not None:
                leg = await first_found(leg, lambda: self._send_elsewhere(exchange, request))
        self.responses.note(leg, request.model)
        return leg

    async def _send_elsewhere(self, exchange: Exchange, request: InferenceRequest) -> Leg | None:
        """Send to one more endpoint; None where each has been asked."""
        lease = self.router.another(exchange, request, "single", {name for name, _ in exchange.receipt.attempts})
        return None if lease is None else await self._send(exchange, lease, request.body)

    async def _by_id(self, exchange: Exchange, body: bytes | bytearray) -> Leg:
        wanted = response_id(exchange.client.path)
        return await self.responses.ask(exchange, wanted, lambda lease: self._send(exchange, lease, body))

    async def _send(self, exchange: Exchange, lease: Lease, body: bytes | bytearray) -> Leg:
        """Send to this one endpoint and no other."""
        return await self.forwarder.forward(exchange, lease, lambda _: body, lambda _: None)

    async def _admit(self, exchange: Exchange, request: InferenceRequest, made: Made | None = None) -> Plan:
        started_s = monotonic_s()
        receipt = exchange.receipt

        def plan() -> Plan | None:
            before_s = monotonic_s()
            planned = None if made is None else self.router.plan_on(exchange, request, made.endpoint)
            planned = planned or self.router.plan(exchange, request)
            self.metrics.decision(monotonic_s() - before_s)
            return planned

        try:
            planned = await admit(exchange, request.model, self.admission, plan)
        finally:
            receipt.queue_s = monotonic_s() - started_s
            self.metrics.queued(BAND, receipt.queue_s)
        receipt.route = "two_hop" if isinstance(planned, TwoHop) else "single"
        receipt.reason = planned.reason
        return planned

    async def _one_hop(self, exchange: Exchange, request: InferenceRequest, lease: Lease) -> Leg:
        def another(tried: Collection[str]) -> Lease | None:
            return self.router.another(exchange, request, "single", tried)

        return await self.forwarder.forward(exchange, lease, lambda _: request.body, another)

    async def _two_hops(self, exchange: Exchange, request: InferenceRequest, plan: TwoHop) -> Leg:
        """Prefill, then decode with what was handed over; without a handoff decode does the whole work."""
        exchange.outcome = "unfinished"
        handoff = await self.prefill_leg.prefill(exchange, request, plan.prefill)
        handed_over_s = monotonic_s()
        exchange.outcome = handoff if isinstance(handoff, str) else "ok"
        exchange.handoff_open = isinstance(handoff, Handoff)

        def body_after(failure: UpstreamFailed | None) -> bytes | bytearray:
            if not isinstance(handoff, Handoff) or exchange.outcome != "ok":
                return request.body
            if failure is None or isinstance(failure, ConnectFailed):
                exchange.cached_tokens = handoff.cached_tokens
                return self.connector.decode_body(request.members, handoff)
            # A decode engine that failed may have failed at the handoff, or have used it up: do without.
            exchange.cached_tokens, exchange.outcome = None, "decode_failed"
            return request.body

        def another(tried: Collection[str]) -> Lease | None:
            lease = self.router.another(exchange, request, "decode", tried)
            if lease is None and (lease := self.router.another(exchange, request, "single", tried)) is not None:
                # No decode engine is left, so another kind does the whole work. It must not pull from itself.
                exchange.cached_tokens, exchange.outcome = None, "decode_failed"
            return lease

        leg = await self.forwarder.forward(exchange, plan.decode, body_after, another)
        if exchange.outcome != "ok":
            exchange.receipt.route, exchange.receipt.reason = "single", exchange.outcome
        elif leg.status >= BAD_REQUEST:
            exchange.outcome = f"decode_{leg.status}"
        else:
            exchange.handoff_open = False
            self.metrics.handoff(monotonic_s() - handed_over_s)
        return leg

    def _continuation(self, exchange: Exchange, request: InferenceRequest) -> Continuation | None:
        """Return what can go on with this answer on another endpoint, or None where the request does not allow it."""
        path = exchange.client.path
        if request.one_hop_reason == LONE_SURROGATES or not may_continue(path, request.members):
            return None
        receipt = exchange.receipt

        def another(tried: Collection[str]) -> Lease | None:
            tried = {*tried, *(name for name, _ in receipt.attempts)}
            lease = self.router.another(exchange, request, "decode", tried) if exchange.outcome is not None else None
            return lease or self.router.another(exchange, request, "single", tried)

        async def elsewhere(body: bytes) -> Leg:
            ttft_s = receipt.ttft_s
            if not self.forwarder.may_go_on("continued"):
                raise NoEndpoint("too many answers are being gone on with already (retries.budget_ratio)")
            lease = another(())
            if lease is None:
                raise NoEndpoint("no other endpoint can go on with this answer")
            self.metrics.retry("continued")
            leg = await self.forwarder.forward(exchange, lease, lambda _: body, another)
            receipt.ttft_s = ttft_s
            return leg

        return Continuation(path, request.members, elsewhere)

    def _receipt_headers(self, exchange: Exchange, prompt_bytes: int) -> Headers:
        if not self.receipt_headers:
            return []
        receipt = exchange.receipt
        answered = receipt.endpoint or ""
        share = exchange.matched.get(receipt.prefill or answered, 0.0)
        headers = [
            (b"x-twohop-endpoint", answered.encode("latin-1", "replace")),
            (b"x-twohop-route", receipt.route.encode("ascii")),
            (b"x-twohop-reason", receipt.reason.encode("ascii")),
            (b"x-twohop-predicted-cached-tokens", b"%d" % (share * prompt_bytes / _BYTES_PER_TOKEN)),
        ]
        if receipt.prefill is not None and receipt.route == "two_hop":
            headers.append((b"x-twohop-prefill", receipt.prefill.encode("latin-1", "replace")))
        return headers


def _exchange(client: ClientRequest, route: Route, total_s: float) -> Exchange:
    request_id = request_id_of(client.headers)
    started_s = monotonic_s()
    exchange = Exchange(
        client,
        Receipt(request_id, wall_s(), kind=route.kind),
        started_s,
        engine_id_of(request_id),
        route,
        deadline_s=started_s + total_s,
    )
    client.watcher = exchange
    return exchange


def _ask_for_usage(exchange: Exchange, request: InferenceRequest) -> None:
    """Make a stream tell its usage where the client did not ask; `relay` takes it out again."""
    client = exchange.client
    if client.path not in ask_usage.PATHS:
        return
    body = ask_usage.ask(request.body, request.members, whole=request.one_hop_reason != LONE_SURROGATES)
    if body is None:
        return
    request.body, exchange.usage_asked = body, True
    # What is packed cannot be taken out of.
    client.headers = [header for header in client.headers if header[0] != b"accept-encoding"]


async def _parse_form(client: ClientRequest, route: Route) -> InferenceRequest:
    return await parse_form(client.body, route, client.header(b"content-type"))


def stopping_error() -> ShuttingDown:
    """Return the error of a request that comes, or is still here, when the gateway stops."""
    return ShuttingDown("this gateway is stopping; another may serve", retry_after_s=1.0)


def _cut_short(exchange: Exchange) -> None:
    """End a request for which there is no time left; a stream that had begun was ended by `relay`."""
    error = stopping_error()
    if not exchange.client.status and not exchange.client.behind:
        exchange.refuse(error)
    elif not exchange.client.finished:
        exchange.client.drop()
    exchange.receipt.status = error.status
    exchange.outcome = exchange.outcome and error.code
