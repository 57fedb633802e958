"""One request to one endpoint, and elsewhere again while no byte has gone to the client."""

import contextlib
from collections.abc import Callable, Collection

from gateway.clock import monotonic_s
from gateway.dataplane.records import Exchange
from gateway.errors import UpstreamFailed, UpstreamTimeout
from gateway.observability.metrics import Metrics
from gateway.pool.endpoint import Lease
from gateway.upstream.client import AnswerTooLong, ConnectFailed, Leg, LegTimeouts
from gateway.upstream.engines import Engines, request_head
from gateway.upstream.hop_headers import to_engine

# A whole answer of this size is read before its head goes out, so that an engine's death in it can be mended.
WHOLE_ANSWER_BYTES = 1 << 20
TOO_MANY_REQUESTS = 429
_RETRIED = frozenset({429, 500, 502, 503, 504})
_STREAM_ERROR = b'data: {"error"'


class AnswerRefused(UpstreamFailed):
    """An engine answered, and another may do better: `leg` is the answer, whole (`leg.complete`) or its beginning."""

    def __init__(self, leg: Leg) -> None:
        excerpt = b"".join(leg.early)[:500].decode("utf-8", "replace")
        super().__init__(f"endpoint {leg.name} answered {leg.status}: {excerpt}")
        self.leg = leg


class Forwarder:
    """Sends requests to endpoints; at most `max_attempts` for one request."""

    def __init__(self, engines: Engines, timeouts: LegTimeouts, max_attempts: int, metrics: Metrics) -> None:
        self._engines, self._timeouts = engines, timeouts
        self._max_attempts, self._metrics = max_attempts, metrics

    async def forward(
        self,
        exchange: Exchange,
        lease: Lease,
        body_after: Callable[[UpstreamFailed | None], bytes | bytearray],
        another: Callable[[Collection[str]], Lease | None],
    ) -> Leg:
        """Return an opened leg whose answer can go to the client.

        `body_after(failure)` gives the body for the next attempt, None for the first. `another(tried)` gives a lease
        elsewhere, or None. Raises UpstreamFailed, UpstreamTimeout, ClientGone.
        """
        failure: UpstreamFailed | None = None
        refusal: Leg | None = None
        tried: set[str] = set()
        server_errors = 0
        for attempt in range(self._max_attempts):
            if attempt:
                next_lease = another(tried)
                if next_lease is None:
                    break
                self._metrics.retry(_reason(failure))
                lease.release()
                lease = next_lease
            tried.add(lease.endpoint.name)
            try:
                leg = await self._attempt(exchange, lease, body_after(failure))
            except UpstreamTimeout as error:
                # The engine may be at work on it still: doing it elsewhere too would double the load it suffers from.
                exchange.receipt.attempts.append((lease.endpoint.name, error.code))
                raise
            except UpstreamFailed as error:
                exchange.receipt.attempts.append((lease.endpoint.name, _reason(error)))
                failure = error
                if isinstance(error, AnswerRefused) and _may_pass(error.leg):
                    refusal = error.leg
                server_errors += _reason(error) == "500"
                if server_errors > 1:
                    break
            else:
                exchange.receipt.attempts.append((lease.endpoint.name, str(leg.status)))
                exchange.receipt.endpoint = lease.endpoint.name
                return leg
        if refusal is not None:
            # Nobody did better than the last 429: it passes with its Retry-After, since the engine knows its queue.
            exchange.receipt.endpoint = refusal.name
            return refusal
        raise failure or UpstreamFailed("no attempt was made (retries.max_attempts)")

    async def _attempt(self, exchange: Exchange, lease: Lease, body: bytes | bytearray) -> Leg:
        endpoint = lease.endpoint
        leg = self._engines.leg(endpoint, self._timeouts, monotonic_s() - exchange.started_s)
        leg.on_over = lease.release  # not when the client has taken the answer: it may never do so
        exchange.wait_for(leg)
        lines = to_engine(exchange.client.headers, exchange.engine_request_id)
        try:
            await leg.open(request_head(b"POST", exchange.client.target, endpoint, lines, len(body)), body)
            if leg.status in _RETRIED:
                raise await _refused(leg)
            if not leg.complete and _whole_answer(leg):
                await leg.read(WHOLE_ANSWER_BYTES)
        except ConnectFailed as error:
            endpoint.connect_failed(error.message)
            raise
        if leg.early and leg.early[0].startswith(_STREAM_ERROR):
            # A stream whose first event is an error has not begun: no token is lost by asking elsewhere.
            leg.status = 500
            raise await _refused(leg)
        exchange.receipt.ttft_s = monotonic_s() - exchange.started_s
        return leg


async def _refused(leg: Leg) -> AnswerRefused:
    """Return the refusal on `leg`, its body read up to a bound: what counts is its status, and how it begins."""
    with contextlib.suppress(AnswerTooLong):
        await leg.read(WHOLE_ANSWER_BYTES)
    return AnswerRefused(leg)


def _may_pass(refusal: Leg) -> bool:
    return refusal.status == TOO_MANY_REQUESTS and refusal.complete


def _whole_answer(leg: Leg) -> bool:
    for name, value in leg.headers:
        if name == b"content-length":
            return value.isdigit() and int(value) <= WHOLE_ANSWER_BYTES
    return False


def _reason(failure: UpstreamFailed | None) -> str:
    if isinstance(failure, AnswerRefused):
        return str(failure.leg.status)
    return "connect" if isinstance(failure, ConnectFailed) else "broken"
