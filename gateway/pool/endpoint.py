"""What the gateway knows of one engine: who it is, what it holds in flight, what it last told, whether it is ready.

Invariant: `in_flight` equals the leases taken and not yet released; every change of state drops the cached view; while
it is tried again after an ejection (`State.TRIAL`) at most one lease taken since then is out.
"""

from collections.abc import Callable, Container, Sequence
from typing import Any, NamedTuple, Protocol

from gateway.errors import EngineStuck
from gateway.pool import ejection
from gateway.pool.ejection import Event, Sight, Standing
from gateway.pool.health import Health, Limits, Signal, State, step
from gateway.pool.scrape import Load
from gateway.pool.servable import servable
from gateway.pool.spec import EndpointSpec, Model
from scorers.model import Adapters, EndpointView

NEVER_S = float("-inf")
_REASON_CHARS = 200


class Abortable(Protocol):
    """A request that waits for this endpoint's answer and can be told to stop waiting."""

    def abort(self, reason: BaseException) -> None:
        """Stop; whoever waits gets `reason`."""


class ScrapeMark(NamedTuple):
    """Where the counters stood when a scrape began, on the monotonic clock."""

    started_s: float
    sent: int
    finished: int


class Lease:
    """One counted slot on an endpoint; `release` gives it back once, however often it is called."""

    __slots__ = ("_endpoint", "_held")

    def __init__(self, endpoint: "Endpoint") -> None:
        self._endpoint = endpoint
        self._held = True

    @property
    def endpoint(self) -> "Endpoint":
        """The endpoint that the slot belongs to."""
        return self._endpoint

    @property
    def held(self) -> bool:
        """Whether the slot is still taken."""
        return self._held

    def release(self) -> None:
        """Give the slot back; a second call does nothing."""
        if self._held:
            self._held = False
            self._endpoint._give_back(self)  # noqa: SLF001 - the lease is the endpoint's other half


_SUCCESS, _BEGUN, _ENDED = Event.SUCCESS, Event.BEGUN, Event.ENDED
_AGAINST = frozenset({Event.FAIL, Event.SILENT, Event.BROKE, Event.STUCK})
_STATES = {ejection.State.IN: "ready", ejection.State.OUT: "ejected", ejection.State.TRIAL: "trial"}


def _ignore(_: "Endpoint") -> None:
    """Tell nobody."""


class Endpoint:
    """Mutable state of one engine, changed on the event loop only.

    `ready`: it may get requests, for it is healthy, not draining, not ejected, still in the pool. `accepting`: it may
    get one now, for it is ready, and where it is tried again after an ejection, nobody tries yet.
    `waiting` are the requests that have sent all to it and got no answer; they are told when it is found stuck.

    `on_room` is called when it becomes ready or a lease comes back; `on_state` after each change between ready and
    not ready; `on_identity_change` when another process, model list or role is seen behind the same name, so that what
    was learned of the old one can be dropped; `on_trouble` when a request could not connect or did not find a model, so
    that it is probed at once; `on_models` when it told another model list; `on_standing` when it was ejected, is tried
    again or is back. `is_last` says whether nobody else is left for one of its models.
    """

    def __init__(
        self,
        spec: EndpointSpec,
        limits: Limits | None = None,
        stale_after_s: float = 5.0,
        ejection_limits: ejection.Limits | None = None,
        warm_in_s: float = 0.0,
    ) -> None:
        self.spec = spec
        self.name = spec.name
        self.load: Load | None = None
        self.models: tuple[Model, ...] = ()
        self.model_ids: frozenset[str] = frozenset()
        self.servable: Container[str] = servable(self.model_ids, spec.loadable_adapters)
        self._adapters: Adapters | None = None
        self.health = Health()
        self.standing = Standing()
        self.draining = False
        self.gone = False
        self.ready = False
        self.accepting = False
        self.in_flight = 0
        self.waiting: set[Abortable] = set()
        self.in_flight_elsewhere = 0  # leases of the gateway's other processes, as last told
        self.identity_changes = 0
        self.scrape_error: str | None = None
        self.on_room: Callable[[Endpoint], None] = _ignore
        self.on_state: Callable[[Endpoint], None] = _ignore
        self.on_identity_change: Callable[[Endpoint], None] = _ignore
        self.on_trouble: Callable[[Endpoint], None] = _ignore
        self.on_models: Callable[[Endpoint], None] = _ignore
        self.on_standing: Callable[[Endpoint], None] = _ignore
        self.is_last: Callable[[Endpoint], bool] = lambda _: True  # of an endpoint outside a pool
        self._limits = limits or Limits()
        self._ejection_limits = ejection_limits or ejection.Limits()
        self._stale_after_s = stale_after_s
        self._warm_in_s = warm_in_s
        self._warming = warm_in_s > 0
        self._warming_since_s: float | None = None
        self._calm = True
        self._on_trial = False
        self._successes = 0
        self._trial: Lease | None = None
        self._why_out = ""
        self._sent = 0
        self._finished = 0
        self._mark = ScrapeMark(NEVER_S, 0, 0)
        self.kept_view: EndpointView | None = None
        self.fresh_until_s = NEVER_S

    @property
    def free(self) -> bool:
        """Whether it gets requests without a limit that comes from an ejection."""
        return self.ready and self.standing.state is ejection.State.IN

    @property
    def why_not_ready(self) -> str | None:
        """In words why it gets no requests; None when it is ready."""
        if self.gone:
            return "left the pool"
        if self.health.state is not State.READY:
            return self.health.reason
        if self.draining:
            return "draining"
        if self.standing.state is ejection.State.OUT:
            return f"ejected, {self.standing.reason}: {self._why_out}"
        return None

    def lease(self) -> Lease:
        """Take a slot for one request; the caller releases it on every path."""
        self.in_flight += 1
        self._sent += 1
        self.kept_view = None
        lease = Lease(self)
        if self._on_trial:
            self._trial, self.accepting = lease, False
        return lease

    def _give_back(self, lease: Lease) -> None:
        self.in_flight -= 1
        self._finished += 1
        self.kept_view = None
        if lease is self._trial:
            self._trial, self.accepting = None, self.ready
        self.on_room(self)

    def hear_elsewhere(self, in_flight: int) -> None:
        """Take in how many leases the gateway's other processes hold on it."""
        fewer = in_flight < self.in_flight_elsewhere
        self.in_flight_elsewhere = in_flight
        self.kept_view = None
        if fewer:
            self.on_room(self)

    def view(self, now_s: float) -> EndpointView:
        """Return this endpoint as a decision sees it at `now_s` (monotonic); the same object while nothing changed."""
        stale_from_s = self._mark.started_s + self._stale_after_s
        stale = now_s > stale_from_s
        view = self.kept_view
        if view is None or view.stale is not stale or self._warming:
            view = self.kept_view = self._make_view(stale, self._warmth(now_s) if self._warming else 1.0)
            self.fresh_until_s = NEVER_S if self._warming else float("inf") if stale else stale_from_s
        return view

    def _warmth(self, now_s: float) -> float:
        """Return how warm it is, 0 to 1. It warms from its first view on: while nobody asks, nothing warms it."""
        if self._warming_since_s is None:
            self._warming_since_s = now_s
        warmth = (now_s - self._warming_since_s) / self._warm_in_s
        if warmth < 1.0:
            return max(0.0, warmth)
        self._warming = False
        return 1.0

    def _cool(self) -> None:
        """Begin to warm in."""
        self._warming, self._warming_since_s, self.kept_view = self._warm_in_s > 0, None, None

    def _make_view(self, stale: bool, warmth: float) -> EndpointView:
        load, spec = self.load, self.spec
        return EndpointView(
            name=spec.name,
            role=spec.role,
            ready=self.accepting,
            models=self.servable,
            waiting=(load.waiting or 0.0) if load else 0.0,
            running=(load.running or 0.0) if load else 0.0,
            kv_usage=(load.kv_usage or 0.0) if load else 0.0,
            in_flight=self.in_flight + self.in_flight_elsewhere,
            sent_since_scrape=self._sent - self._mark.sent,
            finished_since_scrape=self._finished - self._mark.finished,
            stale=stale,
            labels=spec.labels,
            warmth=warmth,
            adapters=self._adapters,
        )

    def _tell_adapters(self) -> None:
        load, self.kept_view = self.load, None
        if load is None or load.adapters is None:
            self._adapters = None
            return
        own = frozenset(model.id for model in self.models if not model.entry.get("parent"))
        self._adapters = Adapters(own, frozenset(load.adapters), load.adapter_slots)

    def scrape_age_s(self, now_s: float) -> float:
        """Seconds since the last good scrape began; infinite before the first."""
        return now_s - self._mark.started_s

    def begin_scrape(self, now_s: float) -> ScrapeMark:
        """Note where the counters stand; what is sent from here on is not yet in the engine's own figures."""
        return ScrapeMark(now_s, self._sent, self._finished)

    def accept_scrape(self, mark: ScrapeMark, load: Load) -> None:
        """Take in a good scrape that began at `mark`; a restart seen in its counters is an identity change."""
        if self.load is not None and load.restarted_since(self.load):
            self._change_identity()
        self.load = load
        self._tell_adapters()
        self.scrape_error = None
        self._mark = mark
        self.kept_view = None

    def refuse_scrape(self, reason: str) -> None:
        """Note a failed scrape; the old figures stay, and turn stale with time."""
        self.scrape_error = reason

    def tell_models(self, models: Sequence[Model]) -> None:
        """Take in the engine's model list (not empty); other models of its own than before are an identity change."""
        told = tuple(models)
        if told == self.models:
            return
        before, after = _own_models(self.models), _own_models(told)
        self.models, self.model_ids, self.kept_view = told, frozenset(model.id for model in told), None
        self.servable = servable(self.model_ids, self.spec.loadable_adapters)
        if before and before != after:
            self._change_identity()
        self._tell_adapters()
        self.on_models(self)

    def _change_identity(self) -> None:
        """Forget the figures of the process that was there before; leases stay until their holders let go."""
        self.identity_changes += 1
        self.load = None
        self._tell_adapters()
        self._mark = ScrapeMark(NEVER_S, self._sent, self._finished)
        self._cool()
        self._take(Standing())
        self.on_identity_change(self)

    def observe(self, signal: Signal, reason: str | None = None) -> None:
        """Take in what a probe saw; `reason` says it in words."""
        before = self.health.state
        self.health = step(self.health, signal, reason, self._limits)
        if self.health.state is State.READY and before is not State.READY:
            self._cool()
        self._after_state()

    def connect_failed(self, reason: str) -> None:
        """Take in that a request could not connect: counts like a failed probe and asks for a probe at once."""
        self.observe(Signal.FAIL, reason)
        self.on_trouble(self)

    def outcome(self, event: Event, now_s: float, why: str = "") -> None:
        """Take in what became of a request, or what else bears on its standing; `why` says a failure in words."""
        if event is _SUCCESS or event is _BEGUN:
            self._successes += 1
            if self._calm:
                return
        elif event is _ENDED and self._calm:
            return
        sight = Sight(now_s, self._successes, event in _AGAINST and self.is_last(self))
        self._take(ejection.step(self.standing, event, sight, self._ejection_limits), why)

    def _take(self, after: Standing, why: str = "") -> None:
        before, self.standing, self._calm = self.standing, after, after.calm
        if after.state is before.state:
            return
        self._trial, self._on_trial = None, after.state is ejection.State.TRIAL
        if after.state is ejection.State.OUT:
            self._why_out = why[:_REASON_CHARS]
        elif after.state is ejection.State.IN:
            self._cool()
        was_ready = self.ready
        self._after_state()
        if was_ready and self.ready:  # more may come than before
            self.on_room(self)
        self.on_standing(self)
        if after.reason == ejection.NO_PROGRESS:
            for request in tuple(self.waiting):
                request.abort(EngineStuck(f"endpoint {self.name} makes no progress: {why}"))

    def drain(self, on: bool = True) -> None:
        """Stop (or resume) giving it new requests; those in flight go on."""
        self.draining = on
        self._after_state()

    def relabel(self, spec: EndpointSpec) -> None:
        """Take on another spec of the same engine: same name, address and role, other labels."""
        self.spec = spec
        self.kept_view = None

    def configure(
        self, limits: Limits, stale_after_s: float, ejection_limits: ejection.Limits | None, warm_in_s: float
    ) -> None:
        """Judge by other limits from now on."""
        self._limits, self._stale_after_s = limits, stale_after_s
        self._ejection_limits = ejection_limits or ejection.Limits()
        self._warm_in_s, self._warming = warm_in_s, self._warming and warm_in_s > 0
        self.kept_view = None

    def leave(self) -> None:
        """Be out of the pool for good: not ready, and telling nobody; leases still out come back as before."""
        self.gone = True
        self.ready = self.accepting = False
        self.kept_view = None
        self.on_room = self.on_state = self.on_identity_change = self.on_trouble = self.on_models = _ignore
        self.on_standing = _ignore

    def _after_state(self) -> None:
        before = self.ready
        out = self.draining or self.gone or self.standing.state is ejection.State.OUT
        self.ready = self.health.state is State.READY and not out
        self.accepting = self.ready and self._trial is None
        self.kept_view = None
        if self.ready is before:
            return
        self.on_state(self)
        if self.ready:
            self.on_room(self)

    @property
    def _state(self) -> str:
        if self.draining:
            return "draining"
        if self.health.state is not State.READY:
            return str(self.health.state.value)
        return _STATES[self.standing.state]

    def describe(self, now_s: float) -> dict[str, Any]:
        """Return what `GET /admin/endpoints` shows of this endpoint at `now_s`; JSON types, unknown figures null."""
        spec, load, age_s = self.spec, self.load, self.scrape_age_s(now_s)
        out = self.standing.state is ejection.State.OUT
        left_s = max(0.0, self.standing.until_s - now_s) if out else None
        return {
            "name": spec.name,
            "url": spec.url,
            "role": spec.role,
            "labels": dict(spec.labels),
            "state": self._state,
            "ready": self.ready,
            "why_not_ready": self.why_not_ready,
            "ejected_for_s": None if left_s is None else round(left_s, 3),
            "models": sorted(self.model_ids),
            "in_flight": self.in_flight + self.in_flight_elsewhere,
            "in_flight_elsewhere": self.in_flight_elsewhere,
            "sent_since_scrape": self._sent - self._mark.sent,
            "finished_since_scrape": self._finished - self._mark.finished,
            "load": load.describe() if load else None,
            "scrape_age_s": None if self._mark.started_s == NEVER_S else round(age_s, 3),
            "stale": age_s > self._stale_after_s,
            "scrape_error": self.scrape_error,
            "identity_changes": self.identity_changes,
        }


def _own_models(models: Sequence[Model]) -> frozenset[tuple[str, str]]:
    """Return id and root of the models that are no adapters: adapters come and go while the process stays."""
    return frozenset((model.id, str(model.entry.get("root"))) for model in models if not model.entry.get("parent"))
