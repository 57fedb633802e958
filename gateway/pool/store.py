"""All endpoints by name, the models they serve, and who wants to hear of changes; no I/O.

Invariant: every callback runs synchronously inside the change that caused it, on the event loop.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from gateway.clock import monotonic_s
from gateway.pool import ejection
from gateway.pool.endpoint import Endpoint
from gateway.pool.health import Limits, State
from gateway.pool.spec import EndpointSpec
from scorers.model import EndpointView

Listener = Callable[[Endpoint], None]

MAX_REMEMBERED_MODELS = 10_000


class Pool:
    """Endpoints by name in the order they were added.

    Listeners, each a list that takes callables of one endpoint: `on_room` (became ready, or a lease came back),
    `on_state` (ready or not ready changed, came or left), `on_identity_change` (another engine behind the name, or
    the endpoint left: what was learned under the name no longer holds), `on_trouble` (a request could not connect, or
    the engine did not know a model that it had told), `on_standing` (ejected, tried again, or back).

    An endpoint is ejected only while every model that it serves, adapters too, has another endpoint that is ready and
    not ejected, whatever its role: each can do a whole request where no other is left. Where the last such one is
    lost, the ejected come back at once.
    """

    def __init__(
        self,
        limits: Limits | None = None,
        stale_after_s: float = 5.0,
        ejection_limits: ejection.Limits | None = None,
        warm_in_s: float = 0.0,
    ) -> None:
        self.on_room: list[Listener] = []
        self.on_state: list[Listener] = []
        self.on_identity_change: list[Listener] = []
        self.on_trouble: list[Listener] = []
        self.on_standing: list[Listener] = []
        self._limits = limits or Limits()
        self._stale_after_s = stale_after_s
        self._ejection_limits = ejection_limits
        self._warm_in_s = warm_in_s
        self._endpoints: dict[str, Endpoint] = {}
        self._remembered: dict[str, None] = {}
        self._has_roles = False
        self._served: dict[str, Mapping[str, Any]] | None = None

    def __len__(self) -> int:
        return len(self._endpoints)

    def __iter__(self) -> Iterator[Endpoint]:
        return iter(tuple(self._endpoints.values()))

    def each(self) -> Iterable[Endpoint]:
        """Return the endpoints as they are, without a copy: for a look that changes nothing."""
        return self._endpoints.values()

    def get(self, name: str) -> Endpoint | None:
        """Return the endpoint called `name`, or None."""
        return self._endpoints.get(name)

    def add(self, spec: EndpointSpec) -> Endpoint:
        """Add an endpoint in state unknown; raise ValueError where the name is taken."""
        if spec.name in self._endpoints:
            raise ValueError(f"an endpoint named {spec.name!r} is in the pool already")
        endpoint = Endpoint(spec, self._limits, self._stale_after_s, self._ejection_limits, self._warm_in_s)
        endpoint.on_room = lambda one: _tell(self.on_room, one)
        endpoint.on_state = self._state_changed
        endpoint.on_identity_change = lambda one: _tell(self.on_identity_change, one)
        endpoint.on_trouble = lambda one: _tell(self.on_trouble, one)
        endpoint.on_models = self._models_changed
        endpoint.on_standing = lambda one: _tell(self.on_standing, one)
        endpoint.is_last = self._is_last
        self._endpoints[spec.name] = endpoint
        self._has_roles = self._has_roles or spec.role != "both"
        _tell(self.on_state, endpoint)
        return endpoint

    def remove(self, name: str) -> Endpoint | None:
        """Take the endpoint called `name` out, if there; its leases stay valid and come back to it alone."""
        endpoint = self._endpoints.pop(name, None)
        if endpoint is None:
            return None
        self._has_roles = any(one.spec.role != "both" for one in self._endpoints.values())
        endpoint.leave()
        _tell(self.on_identity_change, endpoint)
        self._state_changed(endpoint)
        return endpoint

    def configure(
        self,
        limits: Limits,
        stale_after_s: float,
        ejection_limits: ejection.Limits | None = None,
        warm_in_s: float = 0.0,
    ) -> None:
        """Judge every endpoint, now there or to come, by these limits from now on."""
        self._limits, self._stale_after_s = limits, stale_after_s
        self._ejection_limits, self._warm_in_s = ejection_limits, warm_in_s
        for endpoint in self._endpoints.values():
            endpoint.configure(limits, stale_after_s, ejection_limits, warm_in_s)

    def reconcile(self, specs: Iterable[EndpointSpec]) -> tuple[list[Endpoint], list[Endpoint]]:
        """Make the pool hold exactly `specs`; return (added, removed).

        Other labels are taken on; any other change of a spec is a removal and an addition.
        """
        wanted = {spec.name: spec for spec in specs}
        for one in self:
            spec = wanted.get(one.name)
            if spec is not None and spec != one.spec and replace(spec, labels=one.spec.labels) == one.spec:
                one.relabel(spec)
        gone = [one.name for one in self if wanted.get(one.name) != one.spec]
        removed = [endpoint for name in gone if (endpoint := self.remove(name)) is not None]
        added = [self.add(spec) for name, spec in wanted.items() if name not in self._endpoints]
        return added, removed

    def views(self, now_s: float) -> list[EndpointView]:
        """Return every endpoint, ready or not, as a decision sees it at `now_s` (monotonic)."""
        return [
            view
            if (view := endpoint.kept_view) is not None and now_s < endpoint.fresh_until_s
            else endpoint.view(now_s)
            for endpoint in self._endpoints.values()
        ]

    @property
    def has_roles(self) -> bool:
        """Whether any endpoint is for prefill or decode alone, so that roles matter at all."""
        return self._has_roles

    def any_ready(self) -> bool:
        """Whether at least one endpoint may get requests now."""
        return any(endpoint.ready for endpoint in self._endpoints.values())

    def served_models(self) -> Mapping[str, Mapping[str, Any]]:
        """Return the `/v1/models` entry of every model that a ready endpoint serves, by id, in pool order."""
        if self._served is None:
            served: dict[str, Mapping[str, Any]] = {}
            for endpoint in self._endpoints.values():
                if endpoint.ready:
                    for model in endpoint.models:
                        served.setdefault(model.id, model.entry)
            self._served = served
        return self._served

    @property
    def has_told(self) -> bool:
        """Whether any endpoint has ever told its models."""
        return bool(self._remembered)

    def remembers(self, model: str) -> bool:
        """Whether any endpoint, there now or gone, has told `model` (the newest 10,000 names are kept)."""
        return model in self._remembered or any(model in one.model_ids for one in self._endpoints.values())

    def could_serve(self, model: str) -> bool:
        """Whether any endpoint has told `model`, or one that is there could load it."""
        return self.remembers(model) or any(model in one.servable for one in self._endpoints.values())

    def describe(self, now_s: float) -> list[dict[str, Any]]:
        """Return what `GET /admin/endpoints` shows."""
        return [endpoint.describe(now_s) for endpoint in self._endpoints.values()]

    def _is_last(self, endpoint: Endpoint) -> bool:
        """Whether one of its models has no other endpoint that gets requests freely."""
        left = endpoint.model_ids
        for other in self._endpoints.values():
            if other is not endpoint and other.free:
                left = left - other.model_ids
                if not left:
                    return False
        return bool(left)

    def _bring_back(self) -> None:
        """Let those come back that are the last now for one of their models."""
        for one in self:
            ejected = one.standing.state is not ejection.State.IN
            if ejected and one.health.state is State.READY and not one.draining and self._is_last(one):
                one.outcome(ejection.Event.NEEDED, monotonic_s())

    def _state_changed(self, endpoint: Endpoint) -> None:
        self._served = None
        _tell(self.on_state, endpoint)
        if not endpoint.ready:
            self._bring_back()

    def _models_changed(self, endpoint: Endpoint) -> None:
        self._served = None
        for model in endpoint.model_ids:
            self._remembered.pop(model, None)
            self._remembered[model] = None
        while len(self._remembered) > MAX_REMEMBERED_MODELS:
            del self._remembered[next(iter(self._remembered))]
        self._bring_back()
        if endpoint.ready:  # it has room for requests that wait for a model it did not serve before
            _tell(self.on_room, endpoint)


def _tell(listeners: list[Listener], endpoint: Endpoint) -> None:
    for listener in tuple(listeners):
        listener(endpoint)
