"""One inference request from its first byte to its receipt: the table of contents of the data plane."""

import asyncio
from collections.abc import Callable, Collection
from dataclasses import dataclass

from gateway.api.request import ClientRequest
from gateway.clock import monotonic_s, wall_s
from gateway.connectors import Connector, Handoff
from gateway.dataplane.admit import admit
from gateway.dataplane.forward import Forwarder
from gateway.dataplane.ids import engine_id_of, request_id_of
from gateway.dataplane.parse import parse
from gateway.dataplane.records import Exchange, InferenceRequest, Plan, SingleHop, TwoHop
from gateway.dataplane.relay import relay
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

BAD_REQUEST = 400
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
    metrics: Metrics
    receipts: Receipts
    total_s: float
    receipt_headers: bool
    stopping: Callable[[], bool]

    async def handle(self, client: ClientRequest) -> None:
        """Serve one inference request: every GatewayError is answered; anything else is raised once all is settled."""
        exchange = _exchange(client, self.total_s)
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
            request = parse(exchange.client.body, exchange.client.path)
            exchange.receipt.model = request.model
            plan = await self._admit(exchange, request)
            if isinstance(plan, TwoHop):
                leg = await self._two_hops(exchange, request, plan)
            else:
                leg = await self._one_hop(exchange, request, plan)
            await relay(exchange, leg, self._receipt_headers(exchange, request), self.metrics.inter_token)
        except GatewayError as error:
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

    async def _admit(self, exchange: Exchange, request: InferenceRequest) -> Plan:
        started_s = monotonic_s()
        receipt = exchange.receipt

        def plan() -> Plan | None:
            before_s = monotonic_s()
            planned = self.router.plan(exchange, request)
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

    async def _one_hop(self, exchange: Exchange, request: InferenceRequest, plan: SingleHop) -> Leg:
        def another(tried: Collection[str]) -> Lease | None:
            return self.router.another(exchange, request, "single", tried)

        return await self.forwarder.forward(exchange, plan.lease, lambda _: request.body, another)

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

    def _receipt_headers(self, exchange: Exchange, request: InferenceRequest) -> Headers:
        if not self.receipt_headers:
            return []
        receipt = exchange.receipt
        answered = receipt.endpoint or ""
        share = exchange.matched.get(receipt.prefill or answered, 0.0)
        headers = [
            (b"x-twohop-endpoint", answered.encode("latin-1", "replace")),
            (b"x-twohop-route", receipt.route.encode("ascii")),
            (b"x-twohop-reason", receipt.reason.encode("ascii")),
            (b"x-twohop-predicted-cached-tokens", b"%d" % (share * request.prompt_bytes / _BYTES_PER_TOKEN)),
        ]
        if receipt.prefill is not None and receipt.route == "two_hop":
            headers.append((b"x-twohop-prefill", receipt.prefill.encode("latin-1", "replace")))
        return headers


def _exchange(client: ClientRequest, total_s: float) -> Exchange:
    request_id = request_id_of(client.headers)
    started_s = monotonic_s()
    exchange = Exchange(
        client, Receipt(request_id, wall_s()), started_s, engine_id_of(request_id), deadline_s=started_s + total_s
    )
    client.watcher = exchange
    return exchange


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
