"""One request to one endpoint, and elsewhere again while no byte has gone to the client.

What comes of each attempt is told to its endpoint here, and that of a stream when its engine is done with it.
"""

import contextlib
from collections.abc import Callable, Collection

import msgspec

from gateway.clock import monotonic_s
from gateway.dataplane.records import Exchange
from gateway.errors import EngineError, EngineStuck, UpstreamFailed, UpstreamTimeout
from gateway.flowcontrol.retry_budget import RetryBudget
from gateway.observability.metrics import Metrics
from gateway.pool.ejection import Event, outcome_of
from gateway.pool.endpoint import Endpoint, Lease
from gateway.upstream.client import AllInUse, AnswerTooLong, ConnectFailed, Leg, LegTimeouts
from gateway.upstream.engines import Engines, request_head
from gateway.upstream.hop_headers import to_engine

# A whole answer of this size is read before its head goes out, so that an engine's death in it can be mended.
WHOLE_ANSWER_BYTES = 1 << 20
BAD_REQUEST = 400
NOT_FOUND = 404
TOO_MANY_REQUESTS = 429
_RETRIED = frozenset({429, 500, 502, 503, 504})
_STREAM_ERRORS = (b'data: {"error"', b"event: error\n", b"event: error\r\n")
_TIMER_EARLY_S = 0.01  # a timer may come a little before its time; then too the request's own time was over
_SUCCESS = Event.SUCCESS
# The engine has done no work for these, so that trying elsewhere adds none; the attempts bound them.
_FREE_OF_BUDGET = frozenset({"connect", "429", "no_progress"})


class AnswerRefused(UpstreamFailed):
    """An engine answered, and another may do better: `leg` is the answer, whole (`leg.complete`) or its beginning.

    `told` is what it says of the engine.
    """

    def __init__(self, leg: Leg, event: Event) -> None:
        excerpt = b"".join(leg.early)[:500].decode("utf-8", "replace")
        super().__init__(f"endpoint {leg.name} answered {leg.status}: {excerpt}")
        self.leg, self.told = leg, event


class _Tries:
    """What has come of the attempts of one request so far."""

    __slots__ = ("failure", "names", "refusal", "server_errors")

    def __init__(self) -> None:
        self.names: set[str] = set()
        self.failure: UpstreamFailed | None = None
        self.refusal: Leg | None = None
        self.server_errors = 0

    def note(self, failure: UpstreamFailed) -> None:
        """Take in how the last attempt failed."""
        self.failure = failure
        if isinstance(failure, AnswerRefused) and _may_pass(failure.leg):
            self.refusal = failure.leg
        self.server_errors += _reason(failure) == "500"


class Forwarder:
    """Sends requests to endpoints; at most `max_attempts` for one request, and as `budget` lets it."""

    def __init__(
        self, engines: Engines, timeouts: LegTimeouts, max_attempts: int, budget: RetryBudget, metrics: Metrics
    ) -> None:
        self._engines, self._timeouts = engines, timeouts
        self._max_attempts, self._budget, self._metrics = max_attempts, budget, metrics

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
        tries = _Tries()
        for _ in range(self._max_attempts):
            if tries.failure is not None:
                next_lease = self._next(tries.failure, tries.names, another)
                if next_lease is None:
                    break
                lease.release()
                lease = next_lease
            tries.names.add(lease.endpoint.name)
            try:
                leg = await self._attempt(exchange, lease, body_after(tries.failure))
            except UpstreamTimeout as error:
                # The engine may be at work on it still: doing it elsewhere too would double the load it suffers from.
                exchange.receipt.attempts.append((lease.endpoint.name, error.code))
                raise
            except UpstreamFailed as error:
                exchange.receipt.attempts.append((lease.endpoint.name, _reason(error)))
                tries.note(error)
                if tries.server_errors > 1:
                    break
            else:
                exchange.receipt.attempts.append((lease.endpoint.name, str(leg.status)))
                exchange.receipt.endpoint = lease.endpoint.name
                return leg
        if tries.refusal is not None:
            # Nobody did better than the last 429: it passes with its Retry-After, since the engine knows its queue.
            exchange.receipt.endpoint = tries.refusal.name
            return tries.refusal
        raise tries.failure or UpstreamFailed("no attempt was made (retries.max_attempts)")

    def may_go_on(self, reason: str) -> bool:
        """Whether the budget lets work be done a second time for `reason`; if so, its token is taken."""
        if not self._budget.allows(monotonic_s()):
            self._metrics.retry_refused(reason)
            return False
        self._budget.spend()
        return True

    def earn(self) -> None:
        """Count one request of a client."""
        self._budget.earn()

    def _next(
        self, failure: UpstreamFailed, tried: Collection[str], another: Callable[[Collection[str]], Lease | None]
    ) -> Lease | None:
        """Return a lease for another attempt, if there is budget for it and somebody to take it."""
        reason = _reason(failure)
        free = reason in _FREE_OF_BUDGET
        if not free and not self._budget.allows(monotonic_s()):
            self._metrics.retry_refused(reason)
            return None
        lease = another(tried)
        if lease is not None:
            self._metrics.retry(reason)
            if not free:
                self._budget.spend()
        return lease

    async def _attempt(self, exchange: Exchange, lease: Lease, body: bytes | bytearray) -> Leg:
        endpoint = lease.endpoint
        leg = self._engines.leg(endpoint, self._timeouts, monotonic_s() - exchange.started_s)
        leg.on_over = lease.release  # not when the client has taken the answer: it may never do so
        exchange.wait_for(leg)
        late_s = exchange.started_s + self._timeouts.total_s - _TIMER_EARLY_S
        endpoint.waiting.add(leg)
        try:
            await self._open(exchange, endpoint, leg, body)
        except EngineError as error:
            _blame(endpoint, error, late_s)
            raise
        finally:
            endpoint.waiting.discard(leg)
        now_s = monotonic_s()
        exchange.receipt.ttft_s = now_s - exchange.started_s
        event = _SUCCESS if leg.status < BAD_REQUEST else outcome_of(leg.status)
        if event is _SUCCESS and not leg.complete:
            event, leg.on_over = Event.BEGUN, _rest_of(leg, lease, late_s)
        elif leg.status == NOT_FOUND and exchange.receipt.model in endpoint.model_ids:
            endpoint.on_trouble(endpoint)  # it had told this model: it may have another one now
        endpoint.outcome(event, now_s)
        return leg

    async def _open(self, exchange: Exchange, endpoint: Endpoint, leg: Leg, body: bytes | bytearray) -> None:
        lines = to_engine(exchange.client.headers, exchange.engine_request_id)
        method = exchange.client.method.encode("ascii")
        await leg.open(request_head(method, exchange.client.target, endpoint, lines, len(body)), body)
        if leg.status in _RETRIED:
            raise await _refused(leg)
        if not leg.complete and _whole_answer(leg):
            await leg.read(WHOLE_ANSWER_BYTES)
        if leg.early and leg.early[0].startswith(_STREAM_ERRORS):
            # A stream whose first event is an error has not begun: no token is lost by asking elsewhere.
            event = _stream_error(leg.early[0])
            leg.status = 500
            raise await _refused(leg, event)


def _blame(endpoint: Endpoint, error: EngineError, late_s: float) -> None:
    """Tell `endpoint` what its failure was; nothing where our own limits ended it, or the request's time was over."""
    now_s = monotonic_s()
    if isinstance(error, AllInUse):
        return
    if isinstance(error, ConnectFailed):
        endpoint.connect_failed(error.message)
    if isinstance(error, AnswerRefused):
        endpoint.outcome(error.told, now_s, error.message)
    elif isinstance(error, UpstreamTimeout):
        if now_s < late_s:
            endpoint.outcome(Event.SILENT, now_s, error.message)
    elif not isinstance(error, EngineStuck):
        endpoint.outcome(Event.FAIL, now_s, error.message)


def _rest_of(leg: Leg, lease: Lease, late_s: float) -> Callable[[], None]:
    """Return what is to be done when the engine has nothing more to do for an answer that has begun."""

    def over() -> None:
        lease.release()
        if leg.complete:
            lease.endpoint.outcome(Event.ENDED, 0.0)
        elif isinstance(leg.failure, EngineError) and (now_s := monotonic_s()) < late_s:
            lease.endpoint.outcome(Event.BROKE, now_s, leg.failure.message)

    return over


async def _refused(leg: Leg, event: Event | None = None) -> AnswerRefused:
    """Return the refusal on `leg`, its body read up to a bound: what counts is its status, and how it begins."""
    with contextlib.suppress(AnswerTooLong):
        await leg.read(WHOLE_ANSWER_BYTES)
    return AnswerRefused(leg, outcome_of(leg.status) if event is None else event)


def _stream_error(chunk: bytes) -> Event:
    """Return what an error event at the beginning of a stream says of the engine: its code may blame the caller."""
    try:
        code = msgspec.json.decode(chunk.split(b"\n", 1)[0].removeprefix(b"data:"))["error"]["code"]
    except (msgspec.DecodeError, KeyError, TypeError, UnicodeDecodeError, RecursionError):
        return Event.FAIL
    return outcome_of(code) if isinstance(code, int) and code >= 400 else Event.FAIL


def _may_pass(refusal: Leg) -> bool:
    return refusal.status == TOO_MANY_REQUESTS and refusal.complete


def _whole_answer(leg: Leg) -> bool:
    for name, value in leg.headers:
        if name == b"content-length":
            return value.isdigit() and int(value) <= WHOLE_ANSWER_BYTES
    return False


def _reason(failure: UpstreamFailed) -> str:
    if isinstance(failure, AnswerRefused):
        return str(failure.leg.status)
    if isinstance(failure, EngineStuck):
        return "no_progress"
    return "connect" if isinstance(failure, ConnectFailed) else "broken"
