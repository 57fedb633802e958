"""Puts the parts together: the only place that picks implementations and starts background tasks, in one TaskGroup."""

import asyncio
import contextlib
import logging
import signal
import socket
import ssl
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from gateway import connectors
from gateway.api.admin import build_admin
from gateway.api.asgi import Bridge
from gateway.api.bounds import Bounds
from gateway.api.edges import build_edges
from gateway.api.inference import InferenceRoutes
from gateway.api.server import Server
from gateway.api.tls import listener_context, read_again
from gateway.clock import chance, monotonic_s
from gateway.config import Config
from gateway.dataplane.forward import Forwarder
from gateway.dataplane.handle import DataPlane, stopping_error
from gateway.dataplane.responses import Responses
from gateway.dataplane.route import Router
from gateway.dataplane.two_hop import PrefillLeg
from gateway.discovery.static import StaticSource
from gateway.endpoints import Endpoints
from gateway.errors import ShuttingDown
from gateway.flowcontrol.controller import BAND, Admission
from gateway.flowcontrol.retry_budget import RetryBudget
from gateway.listening import Sockets, listen, log_addresses
from gateway.observability.loop_lag import measure_loop_lag
from gateway.observability.metrics import EndpointReading, Metrics
from gateway.observability.receipts import Receipts
from gateway.observability.snapshot import Snapshot
from gateway.pool import ejection
from gateway.pool.endpoint import Endpoint
from gateway.pool.health import Limits, State
from gateway.pool.store import Pool
from gateway.pool.watch import Watch
from gateway.prefix.index import BLOCK_BYTES, PrefixIndex
from gateway.reload import Reload, Reread
from gateway.state import SharedState
from gateway.state.index import SharedIndex
from gateway.state.memory import MemoryState
from gateway.state.together import Everyone
from gateway.terminal import on_hang_up
from gateway.upstream.client import LegTimeouts
from gateway.upstream.engines import Engines
from gateway.upstream.tls import Tls
from scorers.profile import Profile
from scorers.registry import build_profile

logger = logging.getLogger("twohop")

# Per endpoint, where `routing.index_mb` leaves room; up to 3.6 MB. A block is 128 bytes to some KB of prompt: about a
# million tokens.
INDEX_BLOCKS_PER_ENDPOINT = 20_000


@dataclass(frozen=True, slots=True)
class Parts:
    """What one gateway is made of."""

    config: Config
    pool: Pool
    endpoints: Endpoints
    engines: Engines
    index: PrefixIndex
    admission: Admission
    metrics: Metrics
    receipts: Receipts
    data_plane: DataPlane
    everyone: Everyone
    tls: Tls


class Gateway:
    """One gateway process: `run` serves until `stop` is called; `reload` has it read its configuration again.

    Once `started` is set it listens: `address` is (host, port) of the inference API, `admin_address` that of the admin
    API, None where it is off. `reread` reads the sources of the configuration again; it raises ConfigError. `sockets`
    are listened on already and closed at the end; without them it listens where `config` says. `state` is what it
    shares with the other processes of the gateway; without it there are none.
    """

    def __init__(
        self,
        config: Config,
        reread: Reread | None = None,
        sockets: Sockets | None = None,
        state: SharedState | None = None,
    ) -> None:
        self.config = config
        self._given = sockets
        self._state = state or MemoryState()
        self.parts: Parts | None = None
        self.address: tuple[str, int] | None = None
        self.admin_address: tuple[str, int] | None = None
        self.started = asyncio.Event()
        self._stop = asyncio.Event()
        self._end_now = asyncio.Event()
        self._closed = False
        self._reload = Reload(reread, lambda: self.config, self._apply)
        self._live: _Live | None = None
        self._tls: ssl.SSLContext | None = None

    async def run(self) -> None:
        """Serve until `stop`. Raises ConfigError where an address cannot be listened on."""
        with contextlib.ExitStack() as sockets:
            listener, admin_listener = self._given or listen(self.config)
            sockets.enter_context(listener)
            if admin_listener is not None:
                sockets.enter_context(admin_listener)
            parts = self.parts = build(self.config, asyncio.get_running_loop(), lambda: self._closed, self._state)
            edges = Bridge(build_edges(parts.pool, parts.metrics, self._stop.is_set))
            routes = InferenceRoutes(parts.data_plane, edges)
            self._tls = listener_context(self.config.tls.settings)
            server = Server(routes, _bounds(self.config), self._tls)
            self.address = listener.getsockname()[:2]
            served = [(server, listener)]
            if admin_listener is not None:
                app = build_admin(parts.everyone, lambda: self.config.admin.token)
                served.append((Server(Bridge(app), _bounds(self.config)), admin_listener))
                self.admin_address = admin_listener.getsockname()[:2]
            try:
                await self._run(parts, routes, served)
            finally:
                parts.engines.close()

    async def _run(self, parts: Parts, routes: InferenceRoutes, served: list[tuple[Server, socket.socket]]) -> None:
        async with asyncio.TaskGroup() as group:
            watch = Watch(parts.pool, self.config.scrape, self.config.health, group, parts.tls, parts.engines.stirred)
            parts.endpoints.apply = watch.apply
            live = self._live = _Live(group, watch, routes, [server for server, _ in served])
            live.discover(self.config, parts.endpoints)
            background = [
                group.create_task(self._reload.run(), name="reload"),
                group.create_task(measure_loop_lag(parts.metrics.loop_lag), name="loop lag"),
            ]
            await asyncio.sleep(0)  # discovery has begun: orders of the others are about endpoints that are there
            await self._state.join(parts.everyone)
            background.append(group.create_task(self._share(), name="shared state"))
            for server, sock in served:
                await server.listen(sock)
            self.started.set()
            if self._given is None:
                log_addresses(self.address, self.admin_address)
            await self._stop.wait()
            await self._wind_up(live.servers, group)
            for task in (*background, *live.discovery):
                task.cancel()
            for endpoint in parts.pool:
                watch.stop(endpoint.name)
        logger.info("stopped")

    async def _share(self) -> None:
        """Share until the others cannot be reached: then this process is an orphan, and stops."""
        await self._state.run()
        if not self._stop.is_set():
            logger.error("the supervisor is gone")
            self.stop()

    async def _wind_up(self, servers: list[Server], group: asyncio.TaskGroup) -> None:
        """Serve on for the delay, give what is in flight its grace, end what is left, close all.

        Health checks are answered meanwhile, with 503.
        """
        inference, drain = servers[0], self.config.drain
        logger.info(
            "stopping: %d requests in flight, up to %g s for them%s (a second signal ends them now)",
            inference.in_flight,
            drain.grace_s,
            f", after {drain.delay_s:g} s in which new ones are served" if drain.delay_s else "",
        )
        ended = group.create_task(self._end_now.wait(), name="second signal")
        if drain.delay_s:
            await asyncio.wait({ended}, timeout=drain.delay_s)
        self._closed = True
        inference.drain()
        idle = group.create_task(inference.wait_idle(), name="drain")
        await asyncio.wait({idle, ended}, timeout=drain.grace_s, return_when=asyncio.FIRST_COMPLETED)
        idle.cancel()
        ended.cancel()
        for server in servers:
            server.cut(stopping_error())
            await server.close()

    def stop(self) -> None:
        """Be not ready, and after `drain.delay_s` take no requests; those in flight then have `drain.grace_s`.

        A second call ends all of it now.
        """
        if self._stop.is_set():
            self._end_now.set()
        self._stop.set()

    def reload(self) -> None:
        """Have the configuration read again; what can change while running does, and nothing in flight is dropped."""
        self._reload.ask()

    def reconfigure(self, config: Config) -> None:
        """Go on by another configuration that somebody else has read, as a reload does."""
        self._reload.take(config)

    def _apply(self, old: Config, new: Config) -> None:
        if self.parts is None or self._live is None:
            return
        if self._tls is not None:
            read_again(self._tls, new.tls.settings)
        if new == old:
            return
        self.parts = reconfigured(self.parts, new)
        self.config = new
        self._live.routes.data_plane = self.parts.data_plane
        self._live.watch.configure(new.scrape, new.health)
        for server in self._live.servers:
            server.bounds = _bounds(new)
        if old.discovery != new.discovery:
            self._live.discover(new, self.parts.endpoints)


@dataclass(slots=True)
class _Live:
    """What a running gateway has beside its parts, and a reload reaches."""

    group: asyncio.TaskGroup
    watch: Watch
    routes: InferenceRoutes
    servers: list[Server]
    discovery: list[asyncio.Task[None]] = field(default_factory=list)

    def discover(self, config: Config, endpoints: Endpoints) -> None:
        """Follow the configured source of endpoints, and no other from now on."""
        for task in self.discovery:
            task.cancel()
        source = StaticSource(config.discovery.static.endpoints)
        self.discovery = [self.group.create_task(endpoints.follow(source), name="discovery")]


def _bounds(config: Config) -> Bounds:
    limits, timeouts = config.limits, config.timeouts
    return Bounds(limits.header_bytes, limits.body_bytes, timeouts.header_s, timeouts.body_s)


def build(
    config: Config, loop: asyncio.AbstractEventLoop, stopping: Callable[[], bool], state: SharedState | None = None
) -> Parts:
    """Return the parts of a gateway for `config`, wired; nothing runs yet. `stopping()`: take no new requests."""
    state = state or MemoryState()
    flow = config.flow_control
    pool = Pool(_limits(config), config.scrape.stale_after_s, _ejection_limits(config), config.health.warm_in_s)
    tls = Tls(config.upstream_tls.settings)
    engines = Engines(loop, config.max_connections, tls)
    blocks, most = INDEX_BLOCKS_PER_ENDPOINT, _index_blocks(config)
    index = PrefixIndex(blocks, most) if state.alone else SharedIndex(blocks, most, state.sent)
    admission = Admission(pool, flow.max_in_flight_per_endpoint, flow.max_queue, flow.max_queue_wait_s, monotonic_s)
    metrics = Metrics(lambda: _readings(pool), lambda: {BAND: admission.waiting}, index.__len__)
    receipts = Receipts()
    endpoints = Endpoints(pool, monotonic_s)
    everyone = Everyone(state, endpoints, metrics, receipts, index, monotonic_s)
    metrics.over_all = lambda: _over_all(state)
    router = Router(
        pool,
        _profile(config),
        index,
        config.disaggregation.mode,
        flow.max_in_flight_per_endpoint,
        monotonic_s,
        chance,
    )
    pool.on_identity_change.append(lambda endpoint: index.drop(endpoint.name))
    pool.on_identity_change.append(engines.drop)
    pool.on_state.append(lambda endpoint: _count_unhealthy(endpoint, metrics))
    pool.on_standing.append(lambda endpoint: _count_ejection(endpoint, metrics))
    data_plane = DataPlane(
        pool=pool,
        admission=admission,
        router=router,
        responses=Responses(pool),
        metrics=metrics,
        receipts=receipts,
        stopping=stopping,
        **_settings(config, engines, metrics),
    )
    return Parts(config, pool, endpoints, engines, index, admission, metrics, receipts, data_plane, everyone, tls)


def reconfigured(parts: Parts, config: Config) -> Parts:
    """Return the same parts with a data plane for `config`; what they share follows it from now on.

    Requests that wait are planned by the new configuration; those on their way go on by the data plane they began with.
    """
    flow, profile = config.flow_control, _profile(config)
    data_plane = replace(parts.data_plane, **_settings(config, parts.engines, parts.metrics))
    parts.engines.configure(config.max_connections)
    parts.index.configure(_index_blocks(config))
    parts.pool.configure(
        _limits(config), config.scrape.stale_after_s, _ejection_limits(config), config.health.warm_in_s
    )
    data_plane.router.configure(profile, config.disaggregation.mode, flow.max_in_flight_per_endpoint)
    parts.admission.configure(flow.max_in_flight_per_endpoint, flow.max_queue, flow.max_queue_wait_s)
    return replace(parts, config=config, data_plane=data_plane)


def _settings(config: Config, engines: Engines, metrics: Metrics) -> dict[str, Any]:
    """Return the fields of a data plane that a configuration decides."""
    timeouts = config.timeouts
    connector = connectors.load(config.disaggregation.connector)
    budget = RetryBudget(config.retries.budget_ratio, monotonic_s())
    answer = LegTimeouts(timeouts.connect_s, timeouts.first_byte_s, timeouts.idle_s, timeouts.total_s)
    prefill = LegTimeouts(timeouts.connect_s, timeouts.prefill_s, timeouts.prefill_s, timeouts.prefill_s)
    return {
        "prefill_leg": PrefillLeg(engines, prefill, connector, metrics),
        "forwarder": Forwarder(engines, answer, config.retries.max_attempts, budget, metrics),
        "connector": connector,
        "total_s": timeouts.total_s,
        "receipt_headers": config.routing.receipt_headers,
        "continues": config.continuation,
    }


def _limits(config: Config) -> Limits:
    return Limits(config.health.healthy_after, config.health.unhealthy_after)


def _index_blocks(config: Config) -> int:
    return config.routing.index_mb * 1_000_000 // BLOCK_BYTES


def run_until_signal(
    config: Config,
    reread: Reread | None = None,
    sockets: Sockets | None = None,
    state: SharedState | None = None,
) -> None:
    """Serve in this thread, on uvloop, until SIGINT or SIGTERM; raise ConfigError where it cannot start.

    With `reread`, SIGHUP has the configuration read again; where it says that the terminal of this process was closed,
    it is taken for SIGTERM. `sockets` and `state` are as `Gateway` takes them.
    """
    import uvloop

    async def serve() -> None:
        gateway = Gateway(config, reread, sockets, state)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, gateway.stop)
        if reread is not None:
            loop.add_signal_handler(signal.SIGHUP, on_hang_up(gateway.reload, gateway.stop))
        await gateway.run()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve())


def _profile(config: Config) -> Profile:
    routing = config.routing
    scorers = {name: {"weight": one.weight, **one.parameters} for name, one in routing.scorers.items()}
    return build_profile(scorers, routing.filters, routing.picker)


async def _over_all(state: SharedState) -> Snapshot:
    try:
        return await state.snapshot()
    except ConnectionError as error:  # this process's own figures alone would read as a fall of every counter
        raise ShuttingDown(f"the figures of all workers are not known: {error}", retry_after_s=1.0) from error


def _readings(pool: Pool) -> Iterable[EndpointReading]:
    now_s = monotonic_s()
    for endpoint in pool:
        age_s = endpoint.scrape_age_s(now_s)
        yield EndpointReading(
            endpoint.name,
            endpoint.spec.role,
            endpoint.ready,
            endpoint.in_flight,
            None if age_s == float("inf") else age_s,
        )


def _count_unhealthy(endpoint: Endpoint, metrics: Metrics) -> None:
    if endpoint.health.state is State.UNREADY and not endpoint.gone:
        metrics.ejected(endpoint.name, "health")


def _count_ejection(endpoint: Endpoint, metrics: Metrics) -> None:
    if endpoint.standing.state is ejection.State.OUT:
        metrics.ejected(endpoint.name, endpoint.standing.reason)


def _ejection_limits(config: Config) -> ejection.Limits:
    asked = config.ejection
    return ejection.Limits(asked.failures_in_a_row, asked.failure_share, asked.window_s, asked.first_s, asked.longest_s)
