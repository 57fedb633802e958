"""What the gateway knows of one engine: who it is, what it holds in flight, what it last told, whether it is ready.

Invariant: `in_flight` equals the leases taken and not yet released; every change of state drops the cached view.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from gateway.pool.health import Health, Limits, Signal, State, step
from gateway.pool.scrape import Load
from scorers.model import NO_LABELS, EndpointView, Role

NEVER_S = float("-inf")


@dataclass(frozen=True, slots=True)
class EndpointSpec:
    """What discovery tells of an endpoint; `url` has no trailing slash, `host` no brackets, `port` is a number.

    `tls`: it speaks https. `authority` is what a request's `host` header says.
    """

    name: str
    url: str
    host: str
    port: int
    role: Role = "both"
    labels: Mapping[str, str] = field(default_factory=lambda: NO_LABELS)
    tls: bool = False
    authority: bytes = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Make what every request to it says once."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        object.__setattr__(self, "authority", f"{host}:{self.port}".encode("ascii"))


@dataclass(frozen=True, slots=True)
class Model:
    """One entry of an engine's `/v1/models`: its id, and the whole JSON object as told."""

    id: str
    entry: Mapping[str, Any]


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
            self._endpoint._give_back()  # noqa: SLF001 - the lease is the endpoint's other half


def _ignore(_: "Endpoint") -> None:
    """Tell nobody."""


class Endpoint:
    """Mutable state of one engine, changed on the event loop only.

    `on_room` is called when it becomes ready or a lease comes back; `on_state` after each change between ready and
    not ready; `on_identity_change` when another process, model list or role is seen behind the same name, so that what
    was learned of the old one (prefix index, pooled connections) can be dropped; `on_trouble` when a request could not
    connect, so that it is probed at once; `on_models` when it told another model list.
    """

    def __init__(self, spec: EndpointSpec, limits: Limits | None = None, stale_after_s: float = 5.0) -> None:
        self.spec = spec
        self.name = spec.name
        self.load: Load | None = None
        self.models: tuple[Model, ...] = ()
        self.model_ids: frozenset[str] = frozenset()
        self.health = Health()
        self.draining = False
        self.gone = False
        self.in_flight = 0
        self.identity_changes = 0
        self.scrape_error: str | None = None
        self.on_room: Callable[[Endpoint], None] = _ignore
        self.on_state: Callable[[Endpoint], None] = _ignore
        self.on_identity_change: Callable[[Endpoint], None] = _ignore
        self.on_trouble: Callable[[Endpoint], None] = _ignore
        self.on_models: Callable[[Endpoint], None] = _ignore
        self._limits = limits or Limits()
        self._stale_after_s = stale_after_s
        self._sent = 0
        self._finished = 0
        self._mark = ScrapeMark(NEVER_S, 0, 0)
        self.kept_view: EndpointView | None = None
        self.fresh_until_s = NEVER_S

    @property
    def ready(self) -> bool:
        """Whether it may get new requests: healthy, not draining, still in the pool."""
        return self.health.state is State.READY and not self.draining and not self.gone

    @property
    def why_not_ready(self) -> str | None:
        """In words why it gets no requests; None when it is ready."""
        if self.gone:
            return "left the pool"
        if self.draining and self.health.state is State.READY:
            return "draining"
        return self.health.reason

    def lease(self) -> Lease:
        """Take a slot for one request; the caller releases it on every path."""
        self.in_flight += 1
        self._sent += 1
        self.kept_view = None
        return Lease(self)

    def _give_back(self) -> None:
        self.in_flight -= 1
        self._finished += 1
        self.kept_view = None
        self.on_room(self)

    def view(self, now_s: float) -> EndpointView:
        """Return this endpoint as a decision sees it at `now_s` (monotonic); the same object while nothing changed."""
        stale_from_s = self._mark.started_s + self._stale_after_s
        stale = now_s > stale_from_s
        view = self.kept_view
        if view is None or view.stale is not stale:
            view = self.kept_view = self._make_view(stale)
            self.fresh_until_s = float("inf") if stale else stale_from_s
        return view

    def _make_view(self, stale: bool) -> EndpointView:
        load, spec = self.load, self.spec
        return EndpointView(
            name=spec.name,
            role=spec.role,
            ready=self.ready,
            models=self.model_ids,
            waiting=(load.waiting or 0.0) if load else 0.0,
            running=(load.running or 0.0) if load else 0.0,
            kv_usage=(load.kv_usage or 0.0) if load else 0.0,
            in_flight=self.in_flight,
            sent_since_scrape=self._sent - self._mark.sent,
            finished_since_scrape=self._finished - self._mark.finished,
            stale=stale,
            labels=spec.labels,
        )

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
        if before and before != after:
            self._change_identity()
        self.on_models(self)

    def _change_identity(self) -> None:
        """Forget the figures of the process that was there before; leases stay until their holders let go."""
        self.identity_changes += 1
        self.load = None
        self._mark = ScrapeMark(NEVER_S, self._sent, self._finished)
        self.kept_view = None
        self.on_identity_change(self)

    def observe(self, signal: Signal, reason: str | None = None) -> None:
        """Take in what a probe saw; `reason` says it in words."""
        before = self.ready
        self.health = step(self.health, signal, reason, self._limits)
        self._after_state(before)

    def connect_failed(self, reason: str) -> None:
        """Take in that a request could not connect: counts like a failed probe and asks for a probe at once."""
        self.observe(Signal.FAIL, reason)
        self.on_trouble(self)

    def drain(self, on: bool = True) -> None:
        """Stop (or resume) giving it new requests; those in flight go on."""
        before = self.ready
        self.draining = on
        self._after_state(before)

    def relabel(self, spec: EndpointSpec) -> None:
        """Take on another spec of the same engine: same name, address and role, other labels."""
        self.spec = spec
        self._view = None

    def configure(self, limits: Limits, stale_after_s: float) -> None:
        """Judge by other limits from now on."""
        self._limits, self._stale_after_s = limits, stale_after_s

    def leave(self) -> None:
        """Be out of the pool for good: not ready, and telling nobody; leases still out come back as before."""
        self.gone = True
        self.kept_view = None
        self.on_room = self.on_state = self.on_identity_change = self.on_trouble = self.on_models = _ignore

    def _after_state(self, before: bool) -> None:
        self.kept_view = None
        if self.ready is before:
            return
        self.on_state(self)
        if self.ready:
            self.on_room(self)

    def describe(self, now_s: float) -> dict[str, Any]:
        """Return what `GET /admin/endpoints` shows of this endpoint at `now_s`; JSON types, unknown figures null."""
        spec, load, age_s = self.spec, self.load, self.scrape_age_s(now_s)
        return {
            "name": spec.name,
            "url": spec.url,
            "role": spec.role,
            "labels": dict(spec.labels),
            "state": "draining" if self.draining else self.health.state.value,
            "ready": self.ready,
            "why_not_ready": self.why_not_ready,
            "models": sorted(self.model_ids),
            "in_flight": self.in_flight,
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
