"""One inference request from its first byte to its receipt: the table of contents of the data plane."""

import asyncio
import secrets
from collections.abc import Callable, Collection
from dataclasses import dataclass

from gateway.api.routes import RESPONSE_BY_ID, RESPONSES, Route, response_id
from gateway.clock import monotonic_s, wall_s
from gateway.connectors import Connector, Handoff
from gateway.dataplane.admit import admit
from gateway.dataplane.forward import Forwarder
from gateway.dataplane.parse import parse, read_body
from gateway.dataplane.records import (
    Connection,
    Exchange,
    InferenceRequest,
    Plan,
    Receive,
    Scope,
    Send,
    TwoHop,
)
from gateway.dataplane.relay import relay
from gateway.dataplane.responses import Made, Responses, first_found
from gateway.dataplane.route import Router
from gateway.dataplane.settle import CLIENT_CLOSED, settle
from gateway.dataplane.two_hop import PrefillLeg
from gateway.errors import ClientGone, GatewayError, ShuttingDown, UpstreamFailed
from gateway.flowcontrol.controller import BAND, Admission
from gateway.observability.metrics import Metrics
from gateway.observability.receipts import Receipt, Receipts
from gateway.pool.endpoint import Lease
from gateway.pool.store import Pool
from gateway.upstream.client import ConnectFailed, Leg
from gateway.upstream.protocol import Headers
from gateway.wire import json_object

BAD_REQUEST = 400
_REQUEST_ID_CHARS = 128
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
    body_bytes: int
    total_s: float
    receipt_headers: bool
    stopping: Callable[[], bool]

    async def handle(
        self, scope: Scope, receive: Receive, send: Send, connection: Connection | None, route: Route
    ) -> None:
        """Serve one inference request: every GatewayError is answered; anything else is raised once all is settled."""
        exchange = _exchange(scope, receive, send, connection, self.total_s)
        exchange.route, exchange.receipt.kind = route, route.kind
        try:
            await self._serve(exchange)
        except ClientGone:
            exchange.receipt.status = CLIENT_CLOSED
            exchange.outcome = exchange.outcome and "client_left"
        except asyncio.CancelledError:
            # The server's grace is over. It ends here: uvicorn would log a traceback for each request that lets it
            # through, and answer in plain text. Nothing follows in this task that a cancellation could be meant for.
            await _cut_short(exchange)
        finally:
            settle(exchange, self.metrics, self.receipts, self.pool.remembers(exchange.receipt.model))

    async def _serve(self, exchange: Exchange) -> None:
        try:
            self._check_running()
            body = await read_body(exchange, self.body_bytes)
            if exchange.route is RESPONSE_BY_ID:
                prompt_bytes, leg = 0, await self._by_id(exchange, body)
            else:
                request = parse(body, exchange.route, exchange.header(b"content-type"))
                prompt_bytes, leg = request.prompt_bytes, await self._infer(exchange, request)
            await relay(exchange, leg, self._receipt_headers(exchange, prompt_bytes), self.metrics.inter_token)
        except GatewayError as error:
            exchange.outcome = exchange.outcome and error.code
            if not exchange.receipt.route:
                exchange.receipt.route, exchange.receipt.reason = "none", error.code
            await _refuse(exchange, error)
        except ClientGone:
            raise
        except Exception:  # a fault of ours: the client gets an answer of the usual shape, the log gets the traceback
            exchange.outcome = exchange.outcome and GatewayError.code
            if not exchange.receipt.status:
                await _refuse(exchange, GatewayError("internal error"))
            raise

    def _check_running(self) -> None:
        if self.stopping():
            raise _stopping()

    async def _infer(self, exchange: Exchange, request: InferenceRequest) -> Leg:
        exchange.listen()
        exchange.receipt.model = request.model
        if exchange.route is RESPONSES:
            return await self._respond(exchange, request)
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

    async def _by_id(self, exchange: Exchange, body: bytes) -> Leg:
        exchange.listen()
        wanted = response_id(exchange.scope["path"])
        return await self.responses.ask(exchange, wanted, lambda lease: self._send(exchange, lease, body))

    async def _send(self, exchange: Exchange, lease: Lease, body: bytes) -> Leg:
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

        def body_after(failure: UpstreamFailed | None) -> bytes:
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


def _exchange(scope: Scope, receive: Receive, send: Send, connection: Connection | None, total_s: float) -> Exchange:
    request_id = secrets.token_hex(16)
    for name, value in scope["headers"]:
        if name == b"x-request-id" and 0 < len(value) <= _REQUEST_ID_CHARS and value.isascii():
            text = value.decode("ascii")
            if text.isprintable():
                request_id = text
            break
    started_s = monotonic_s()
    exchange = Exchange(
        scope=scope,
        receive=receive,
        send=send,
        receipt=Receipt(request_id, wall_s()),
        started_s=started_s,
        deadline_s=started_s + total_s,
        # Unique, so that two requests of one id never meet in an engine; the same on both legs.
        engine_request_id=f"{request_id}-{secrets.token_hex(4)}".encode("ascii"),
        connection=connection,
    )
    if connection is not None:
        connection.watcher = exchange
    return exchange


def _stopping() -> ShuttingDown:
    return ShuttingDown("this gateway is stopping; another may serve", retry_after_s=1.0)


async def _cut_short(exchange: Exchange) -> None:
    """End a request for which there is no time left; a stream that had begun was ended by `relay`."""
    error = _stopping()
    if not exchange.receipt.status and exchange.keeps_up:
        await _refuse(exchange, error)
    elif not exchange.finished:
        exchange.drop()
        await asyncio.sleep(0)  # the server hears of it before this request ends
    exchange.receipt.status = error.status
    exchange.outcome = exchange.outcome and error.code


async def _refuse(exchange: Exchange, error: GatewayError) -> None:
    """Answer with an error of ours."""
    body = error.body(exchange.route.style)
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", b"%d" % len(body)),
        (b"x-request-id", exchange.request_id),
    ]
    if error.retry_after is not None:
        headers.append((b"retry-after", error.retry_after.encode("ascii")))
    await exchange.start(error.status, headers)
    await exchange.finish(body)
