"""What is given back and written down when a request is over, on every path."""

from gateway.clock import monotonic_s
from gateway.dataplane.records import Exchange
from gateway.errors import ClientGone, cut
from gateway.observability.metrics import Metrics
from gateway.observability.receipts import Receipts

CLIENT_CLOSED = 499


def settle(exchange: Exchange, metrics: Metrics, receipts: Receipts, known_model: bool) -> None:
    """Abort what still runs, return the leases, count, keep the receipt. Never raises, may be called once.

    The answering leg's lease is back already where its engine was done before the client (`Leg.on_over`).
    """
    if exchange.awaiting is not None:
        exchange.awaiting.abort(ClientGone())  # does nothing to a leg that is complete
    exchange.client.watcher = None
    for lease in exchange.leases:
        lease.release()
    receipt = exchange.receipt
    receipt.total_s = monotonic_s() - exchange.started_s
    model = receipt.model
    if not known_model:  # whatever a client has made up: it may be as long as a body
        model, receipt.model = "unknown", cut(receipt.model)
    if receipt.status == CLIENT_CLOSED:
        metrics.client_disconnected()
    found = exchange.usage
    if found is not None:
        receipt.prompt_tokens, receipt.output_tokens, receipt.cached_tokens = found.prompt, found.output, found.cached
        metrics.tokens(model, found.prompt, found.output, found.cached or 0)
        share = exchange.matched.get(receipt.prefill or receipt.endpoint or "", 0.0)
        metrics.predicted(int(share * found.prompt))
    if exchange.handoff_open:
        metrics.orphaned()
    if exchange.outcome is not None:
        metrics.two_hop(exchange.outcome)
    metrics.request_done(model, receipt.route or "none", receipt.status, receipt.total_s, receipt.ttft_s)
    receipts.keep(receipt)
