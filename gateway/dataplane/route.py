"""Where a request goes: pool view, prefix match, profile; then, once all is decided, the leases; no await in between.

On one event loop that makes choosing and reserving one step: no two requests decide on the same figures.
"""

from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

from gateway.dataplane.records import Exchange, InferenceRequest, Plan, SingleHop, TwoHop
from gateway.errors import QueueFull
from gateway.pool.endpoint import Endpoint, Lease
from gateway.pool.store import Pool
from gateway.prefix.index import PrefixIndex, shares
from scorers.model import EndpointView, Hop, RequestView
from scorers.profile import Profile, decide


class _Known(NamedTuple):
    """What the prefix index tells of one prompt; see `RequestView`."""

    matched: dict[str, float]
    shared: float
    held_blocks: dict[str, int]


class Router:
    """Plans routes over one pool.

    `mode` is `disaggregation.mode`; an endpoint that holds `max_in_flight` requests is left out. `clock` is monotonic
    seconds, `chance` a number in [0, 1) that breaks ties.
    """

    def __init__(
        self,
        pool: Pool,
        profile: Profile,
        index: PrefixIndex,
        mode: str,
        max_in_flight: int,
        clock: Callable[[], float],
        chance: Callable[[], float],
    ) -> None:
        self._pool, self._profile, self._index = pool, profile, index
        self._mode, self._max_in_flight = mode, max_in_flight
        self._clock, self._chance = clock, chance

    def configure(self, profile: Profile, mode: str, max_in_flight: int) -> None:
        """Decide by these from now on, for requests that wait too."""
        self._profile, self._mode, self._max_in_flight = profile, mode, max_in_flight

    def plan(self, exchange: Exchange, request: InferenceRequest) -> Plan | None:
        """Return the route with its leases taken, or None where nobody can take the request now."""
        views = self._views()
        known = self._know(exchange, request)
        exchange.receipt.decisions.clear()  # those of a turn that found no room: one that waits long has many
        reason = request.one_hop_reason
        if reason is None:
            reason = "mode_never" if self._mode == "never" else "no_pair"
            if self._mode != "never" and self._pool.has_roles:
                pair = self._pair(exchange, request, views, known)
                if pair is not None:
                    return pair
        endpoint = self._pick(exchange, request, "single", self._single(request, views), known)
        return None if endpoint is None else SingleHop(self._reserve(exchange, request, endpoint), reason)

    def plan_on(self, exchange: Exchange, request: InferenceRequest, name: str) -> Plan | None:
        """Return a route to the one endpoint that can do it; None where it left, is not ready, or has another model.

        Raises QueueFull where it is full: what waits in line waits for any endpoint of its model.
        """
        endpoint = self._pool.get(name)
        if endpoint is None or not endpoint.ready or request.model not in endpoint.servable:
            return None
        if endpoint.in_flight >= self._max_in_flight:
            raise QueueFull(f"endpoint {name}, which keeps the response before this one, is full", retry_after_s=1.0)
        return SingleHop(self._reserve(exchange, request, endpoint), "response_id")

    def another(self, exchange: Exchange, request: InferenceRequest, hop: Hop, tried: Collection[str]) -> Lease | None:
        """Return a lease on an endpoint that has not been tried, or None."""
        views = [view for view in self._views() if view.name not in tried]
        if hop == "single":
            views = self._single(request, views, tried)
        endpoint = self._pick(exchange, request, hop, views, self._know(exchange, request))
        return None if endpoint is None else self._reserve(exchange, request, endpoint)

    def _know(self, exchange: Exchange, request: InferenceRequest) -> _Known:
        """Return what the prefix index tells of the prompt, and let it learn where the prompt is new."""
        index, keys, size = self._index, request.keys, request.prompt_bytes
        matched = index.match(keys)
        if not matched:
            exchange.matched = {}
            return _Known(exchange.matched, 0.0, index.held_blocks())
        exchange.matched = shares(matched, size)
        longest = max(matched.values())
        shared = index.shared_bytes(keys, longest)
        if not exchange.receipt.decisions:  # the first decision of this request: what follows is a retry
            index.note(keys, longest)
        return _Known(exchange.matched, shared / size, index.held_blocks())

    def _views(self) -> list[EndpointView]:
        limit = self._max_in_flight
        return [view for view in self._pool.views(self._clock()) if view.in_flight < limit]

    def _single(
        self, request: InferenceRequest, views: list[EndpointView], tried: Collection[str] = ()
    ) -> list[EndpointView]:
        """Leave prefill endpoints out while others, full as they may be, serve the model and have not failed it."""
        if not self._pool.has_roles:
            return views
        for one in self._pool:
            usable = one.accepting and one.name not in tried and request.model in one.servable
            if one.spec.role != "prefill" and usable:
                return [view for view in views if view.role != "prefill"]
        return views

    def _pair(
        self, exchange: Exchange, request: InferenceRequest, views: Sequence[EndpointView], known: _Known
    ) -> TwoHop | None:
        """Return a prefill and a decode endpoint; a `both` endpoint joins only opposite an explicit role."""
        able = [view.role for view in views if view.ready and request.model in view.models]
        has_prefill, has_decode = "prefill" in able, "decode" in able
        if not has_prefill and not has_decode:
            return None
        opposite_decode = views if has_prefill else [view for view in views if view.role == "decode"]
        decode = self._pick(exchange, request, "decode", opposite_decode, known)
        if decode is None:
            return None
        if decode.spec.role == "both":
            views = [view for view in views if view.role == "prefill"]
        prefill = self._pick(exchange, request, "prefill", views, known)
        if prefill is None:
            return None
        decode_lease = self._reserve(exchange, request, decode)
        return TwoHop(self._reserve(exchange, request, prefill), decode_lease, "pair")

    def _pick(
        self,
        exchange: Exchange,
        request: InferenceRequest,
        hop: Hop,
        views: Sequence[EndpointView],
        known: _Known,
    ) -> Endpoint | None:
        view = RequestView(request.model, hop, request.prompt_bytes, known.matched, known.shared, known.held_blocks)
        decision = decide(self._profile, view, views, self._chance())
        exchange.receipt.decisions.append((hop, decision))
        return self._pool.get(decision.picked) if decision.picked is not None else None

    def _reserve(self, exchange: Exchange, request: InferenceRequest, endpoint: Endpoint) -> Lease:
        lease = endpoint.lease()
        exchange.leases.append(lease)
        # Fed now, not at the end: the next turn, or the same prompt once more, may be decided a moment from here.
        self._index.insert(request.keys, endpoint.name)
        return lease
