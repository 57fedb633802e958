"""The prefill leg: the same request, one token, and what it hands over."""

from gateway.clock import monotonic_s
from gateway.connectors import Connector, Handoff
from gateway.dataplane.records import Exchange, InferenceRequest
from gateway.errors import EngineStuck, UpstreamFailed, UpstreamTimeout
from gateway.observability.metrics import Metrics
from gateway.pool.ejection import Event, outcome_of
from gateway.pool.endpoint import Lease
from gateway.upstream.client import AllInUse, ConnectFailed, LegTimeouts
from gateway.upstream.engines import Engines, request_head
from gateway.upstream.hop_headers import to_engine

_ANSWER_BYTES = 8 << 20


class PrefillLeg:
    """Runs prefill legs over `engines` with one connector."""

    def __init__(self, engines: Engines, timeouts: LegTimeouts, connector: Connector, metrics: Metrics) -> None:
        self._engines, self._timeouts = engines, timeouts
        self._connector, self._metrics = connector, metrics

    async def prefill(self, exchange: Exchange, request: InferenceRequest, lease: Lease) -> Handoff | str:
        """Return the handoff, or one token that says why there is none; the lease comes back either way.

        Raises ClientGone alone: whatever the prefill engine does, the decode engine can do the whole work.
        """
        started_s = monotonic_s()
        endpoint = lease.endpoint
        try:
            result = await self._ask(exchange, request, lease)
        except ConnectFailed as error:
            if not isinstance(error, AllInUse):
                endpoint.connect_failed(error.message)
                endpoint.outcome(Event.FAIL, monotonic_s(), error.message)
            result = "prefill_connect"
        except UpstreamTimeout as error:
            endpoint.outcome(Event.SILENT, monotonic_s(), error.message)
            result = "prefill_timeout"
        except EngineStuck:
            result = "prefill_no_progress"
        except UpstreamFailed as error:
            endpoint.outcome(Event.FAIL, monotonic_s(), error.message)
            result = "prefill_broken"
        finally:
            lease.release()
        exchange.receipt.attempts.append((endpoint.name, result if isinstance(result, str) else "handoff"))
        if not isinstance(result, str):
            exchange.receipt.prefill = endpoint.name
            self._metrics.prefill(monotonic_s() - started_s)
        return result

    async def _ask(self, exchange: Exchange, request: InferenceRequest, lease: Lease) -> Handoff | str:
        leg = self._engines.leg(lease.endpoint, self._timeouts)
        exchange.wait_for(leg)
        body = self._connector.prefill_body(request.members)
        # The answer is read here, so it must come as it is.
        headers = [header for header in exchange.client.headers if header[0] != b"accept-encoding"]
        lines = to_engine(headers, exchange.engine_request_id)
        endpoint = lease.endpoint
        endpoint.waiting.add(leg)
        try:
            await leg.open(request_head(b"POST", exchange.client.target, endpoint, lines, len(body)), body)
            answer = await leg.read(_ANSWER_BYTES)
        finally:
            endpoint.waiting.discard(leg)
        endpoint.outcome(outcome_of(leg.status), monotonic_s(), f"endpoint {leg.name} answered {leg.status}")
        if leg.status != 200:
            return f"prefill_{leg.status}"
        handoff = self._connector.read_handoff(answer)
        return handoff if isinstance(handoff, Handoff) else f"prefill_{handoff}"
