"""Keeps the pool true: probes health and models, and scrapes load, of each endpoint by itself.

Invariant: an endpoint that hangs, drips or lies delays no other, and its metrics delay not even its own health probes.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from gateway.clock import chance, monotonic_s
from gateway.config import HealthConfig, ScrapeConfig
from gateway.pool.endpoint import Endpoint
from gateway.pool.health import Signal, State
from gateway.pool.scrape import BadSample, parse
from gateway.pool.spec import EndpointSpec, Model
from gateway.pool.standing import StandingWatch
from gateway.pool.store import Pool
from gateway.upstream.fetch import Answer, Fetcher
from gateway.upstream.tls import Tls

logger = logging.getLogger(__name__)

MAX_ANSWER_BYTES = 16 * 1024 * 1024
FIRST_PAUSE_S = 0.05  # between probes of an endpoint that is not ready, or of a ready one whose last probe failed
PAUSE_SHARE = 0.1  # an endpoint that has not been ready for 10 s is probed every second, up to the interval


class Verdict(NamedTuple):
    """What a probe saw: the signal, its reason in words, and the models where the engine named them."""

    signal: Signal
    reason: str | None = None
    models: tuple[Model, ...] = ()


@dataclass(slots=True)
class _Followed:
    """What the tasks of one endpoint share."""

    endpoint: Endpoint
    client: Fetcher
    probe_now: asyncio.Event = field(default_factory=asyncio.Event)
    scrape_now: asyncio.Event = field(default_factory=asyncio.Event)
    not_ready_since_s: float = field(default_factory=monotonic_s)
    logged: State = State.UNKNOWN
    scrape_logged: bool = False


def _always(_: str) -> bool:
    """Take every endpoint for one that sends bytes."""
    return True


class Watch:
    """Follows endpoints with tasks in `group`; every change reaches the pool's listeners from the event loop.

    `stirred(name)` tells whether any data-plane connection of an endpoint got a byte since it was last asked.
    """

    def __init__(
        self,
        pool: Pool,
        scrape: ScrapeConfig,
        health: HealthConfig,
        group: asyncio.TaskGroup,
        tls: Tls | None = None,
        stirred: Callable[[str], bool] = _always,
    ) -> None:
        self._pool = pool
        self._scrape = scrape
        self._health = health
        self._group = group
        self._tls = tls
        self._followed: dict[str, tuple[_Followed, asyncio.Task[None]]] = {}
        self._standings = StandingWatch(pool, health.progress_s, stirred)
        pool.on_state.append(self._state_changed)
        pool.on_trouble.append(self._trouble)

    def apply(self, specs: Iterable[EndpointSpec]) -> None:
        """Make the pool hold exactly `specs`, and follow each of them."""
        added, removed = self._pool.reconcile(specs)
        for endpoint in removed:
            self.stop(endpoint.name)
        for endpoint in added:
            self.start(endpoint)

    def configure(self, scrape: ScrapeConfig, health: HealthConfig) -> None:
        """Follow by other figures from now on: each endpoint is asked at once, and then at the new intervals."""
        if (scrape, health) == (self._scrape, self._health):
            return
        self._scrape, self._health = scrape, health
        self._standings.configure(health.progress_s)
        for followed, _ in self._followed.values():
            followed.probe_now.set()
            followed.scrape_now.set()

    def start(self, endpoint: Endpoint) -> None:
        """Probe and scrape `endpoint` from now on."""
        client = Fetcher(endpoint.spec, asyncio.get_running_loop(), self._tls)
        followed = _Followed(endpoint, client)
        task = self._group.create_task(self._follow(followed), name=f"watch {endpoint.name}")
        self._followed[endpoint.name] = (followed, task)

    def stop(self, name: str) -> None:
        """Follow the endpoint called `name` no longer."""
        entry = self._followed.pop(name, None)
        if entry is not None:
            entry[1].cancel()

    async def _follow(self, followed: _Followed) -> None:
        client = followed.client
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._probe_on(followed), name=f"probe {followed.endpoint.name}")
                group.create_task(self._scrape_on(followed), name=f"scrape {followed.endpoint.name}")
                follow = self._standings.follow(followed.endpoint, client.post)
                group.create_task(follow, name=f"standing {followed.endpoint.name}")
        finally:
            client.close()

    async def _probe_on(self, followed: _Followed) -> None:
        endpoint = followed.endpoint
        while True:
            followed.probe_now.clear()
            verdict = await probe(followed.client, self._health.timeout_s)
            if verdict.models:
                endpoint.tell_models(verdict.models)
            endpoint.observe(verdict.signal, verdict.reason)
            _log_state(followed)
            probed_s = monotonic_s()
            await _wait(followed.probe_now, self._pause_s(followed))
            # Requests that fail one after the other ask for a probe each: not more often than one that is not ready.
            await asyncio.sleep(probed_s + FIRST_PAUSE_S - monotonic_s())

    def _pause_s(self, followed: _Followed) -> float:
        health, interval_s = followed.endpoint.health, self._health.interval_s
        if health.state is not State.READY:
            waited_s = monotonic_s() - followed.not_ready_since_s
            return min(interval_s, max(FIRST_PAUSE_S, PAUSE_SHARE * waited_s))
        return _jittered(interval_s) if health.fails == 0 else min(interval_s, FIRST_PAUSE_S)

    async def _scrape_on(self, followed: _Followed) -> None:
        endpoint = followed.endpoint
        while True:
            if endpoint.health.state is not State.READY:
                await followed.scrape_now.wait()
            followed.scrape_now.clear()
            await self._scrape_once(followed)
            await _wait(followed.scrape_now, _jittered(self._scrape.interval_s))

    async def _scrape_once(self, followed: _Followed) -> None:
        endpoint = followed.endpoint
        mark = endpoint.begin_scrape(monotonic_s())
        answer = await followed.client.get("/metrics", self._scrape.timeout_s, MAX_ANSWER_BYTES)
        try:
            load = parse(_metrics_of(answer))
        except BadSample as error:
            endpoint.refuse_scrape(str(error))
        else:
            endpoint.accept_scrape(mark, load)
        _log_scrape(followed)

    def _state_changed(self, endpoint: Endpoint) -> None:
        followed = self._find(endpoint)
        if followed is None:
            return
        if endpoint.health.state is State.READY:
            followed.scrape_now.set()
        else:
            followed.not_ready_since_s = monotonic_s()
        _log_state(followed)

    def _trouble(self, endpoint: Endpoint) -> None:
        followed = self._find(endpoint)
        if followed is not None:
            followed.probe_now.set()

    def _find(self, endpoint: Endpoint) -> _Followed | None:
        entry = self._followed.get(endpoint.name)
        return entry[0] if entry is not None and entry[0].endpoint is endpoint else None


async def probe(client: Fetcher, timeout_s: float) -> Verdict:
    """Ask an engine for `/health`, then for its models; each question has `timeout_s`."""
    health = await client.get("/health", timeout_s, MAX_ANSWER_BYTES)
    if health.status == 0 or health.status >= 500:
        return Verdict(Signal.FAIL, health.problem or f"GET /health answered {health.status}")
    return judge_models(await client.get("/v1/models", timeout_s, MAX_ANSWER_BYTES))


def judge_models(answer: Answer) -> Verdict:
    """Return what the answer of `/v1/models` says of a live engine."""
    status = answer.status
    if status == 503:
        return Verdict(Signal.LOADING, "loading: GET /v1/models answered 503")
    if 400 <= status < 500:
        return Verdict(Signal.UNCLEAR, f"GET /v1/models answered {status}, so its models are not known")
    if status != 200:
        return Verdict(Signal.FAIL, answer.problem or f"GET /v1/models answered {status}")
    models = models_in(answer.body)
    if models is None:
        return Verdict(Signal.FAIL, "GET /v1/models answered no model list")
    if not models:
        return Verdict(Signal.LOADING, "loading: GET /v1/models lists no model yet")
    return Verdict(Signal.PASS, models=models)


def _metrics_of(answer: Answer) -> bytes:
    if answer.status != 200:
        raise BadSample(answer.problem or f"GET /metrics answered {answer.status}")
    return answer.body


def models_in(body: bytes) -> tuple[Model, ...] | None:
    """Return the entries of an OpenAI model list; None where `body` is none."""
    try:
        data = msgspec.json.decode(body)["data"]
        return tuple(Model(entry["id"], entry) for entry in _entries(data))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, KeyError, TypeError):
        return None


def _entries(data: object) -> Sequence[dict[str, str]]:
    if not isinstance(data, list) or not all(isinstance(entry, dict) for entry in data):
        raise TypeError
    if not all(isinstance(entry["id"], str) for entry in data):
        raise TypeError
    return data


def _jittered(seconds: float) -> float:
    """Return about `seconds`, so that endpoints do not fall into step."""
    return seconds * (0.9 + 0.2 * chance())


async def _wait(event: asyncio.Event, timeout_s: float) -> None:
    """Wait until `event` is set, at most `timeout_s`."""
    try:
        async with asyncio.timeout(timeout_s):
            await event.wait()
    except TimeoutError:
        return


def _log_state(followed: _Followed) -> None:
    endpoint = followed.endpoint
    state = endpoint.health.state
    if state is followed.logged:
        return
    followed.logged = state
    if state is State.READY:
        models = ", ".join(sorted(endpoint.model_ids))
        logger.info("endpoint %s is ready, role %s, models %s", endpoint.name, endpoint.spec.role, models)
    else:
        logger.warning("endpoint %s is not ready: %s", endpoint.name, endpoint.health.reason)


def _log_scrape(followed: _Followed) -> None:
    endpoint = followed.endpoint
    failing = endpoint.scrape_error is not None
    if failing is followed.scrape_logged:
        return
    followed.scrape_logged = failing
    if failing:
        logger.info("endpoint %s tells no load: %s", endpoint.name, endpoint.scrape_error)
    else:
        logger.info("endpoint %s tells its load again", endpoint.name)
