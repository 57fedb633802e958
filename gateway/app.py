"""Puts the parts together: the only place that picks implementations and starts background tasks, in one TaskGroup."""

import asyncio
import contextlib
import logging
import math
import signal
import socket
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass

import uvicorn
from starlette.types import ASGIApp

from gateway import connectors
from gateway.api.admin import build_admin
from gateway.api.edges import build_edges
from gateway.api.inference import InferenceRoutes
from gateway.api.protocol import ClientConnection
from gateway.clock import chance, monotonic_s
from gateway.config import Config
from gateway.dataplane.forward import Forwarder
from gateway.dataplane.handle import DataPlane
from gateway.dataplane.route import Router
from gateway.dataplane.two_hop import PrefillLeg
from gateway.discovery.static import StaticSource
from gateway.errors import ShuttingDown
from gateway.flowcontrol.controller import BAND, Admission
from gateway.listening import Sockets, listen, log_addresses
from gateway.observability.loop_lag import measure_loop_lag
from gateway.observability.metrics import EndpointReading, Metrics
from gateway.observability.receipts import Receipts
from gateway.observability.snapshot import Snapshot
from gateway.pool.endpoint import Endpoint
from gateway.pool.health import Limits, State
from gateway.pool.store import Pool
from gateway.pool.watch import Watch
from gateway.prefix.index import PrefixIndex
from gateway.state import SharedState
from gateway.state.index import SharedIndex
from gateway.state.memory import MemoryState
from gateway.state.together import Everyone
from gateway.upstream.client import LegTimeouts
from gateway.upstream.engines import Engines
from scorers.profile import Profile
from scorers.registry import build_profile

logger = logging.getLogger("twohop")

# Per endpoint; at 100 to 180 bytes each, up to 4 MB. A block is 128 bytes to some KB of prompt: about a million tokens.
INDEX_BLOCKS_PER_ENDPOINT = 20_000
KEEP_ALIVE_S = 75


@dataclass(frozen=True, slots=True)
class Parts:
    """What one gateway is made of."""

    config: Config
    pool: Pool
    engines: Engines
    index: PrefixIndex
    admission: Admission
    metrics: Metrics
    receipts: Receipts
    data_plane: DataPlane
    everyone: Everyone


class Gateway:
    """One gateway process: `run` serves until `stop` is called.

    Once `started` is set it listens: `address` is (host, port) of the inference API, `admin_address` that of the admin
    API, None where it is off. `sockets` listen already and are closed at the end; without them it listens where
    `config` says. `state` is what it shares with the other processes of the gateway; without it there are none.
    """

    def __init__(self, config: Config, sockets: Sockets | None = None, state: SharedState | None = None) -> None:
        self.config = config
        self._given = sockets
        self._state = state or MemoryState()
        self.parts: Parts | None = None
        self.address: tuple[str, int] | None = None
        self.admin_address: tuple[str, int] | None = None
        self.started = asyncio.Event()
        self._servers: list[_Server] = []
        self._stopping = False

    async def run(self) -> None:
        """Serve until `stop`. Raises ConfigError where an address cannot be listened on."""
        with contextlib.ExitStack() as sockets:
            listener, admin_listener = self._given or listen(self.config)
            sockets.enter_context(listener)
            if admin_listener is not None:
                sockets.enter_context(admin_listener)
            parts = self.parts = build(self.config, asyncio.get_running_loop(), self._is_stopping, self._state)
            edges = build_edges(parts.pool, parts.metrics, self._is_stopping)
            self._servers = [self._server(InferenceRoutes(parts.data_plane, edges))]
            served: list[tuple[_Server, socket.socket]] = [(self._servers[0], listener)]
            self.address = listener.getsockname()[:2]
            if admin_listener is not None:
                app = build_admin(parts.everyone, self.config.admin.token)
                self._servers.append(self._server(app))
                served.append((self._servers[1], admin_listener))
                self.admin_address = admin_listener.getsockname()[:2]
            try:
                await self._run(parts, served)
            finally:
                parts.engines.close()

    async def _run(self, parts: Parts, served: list[tuple["_Server", socket.socket]]) -> None:
        async with asyncio.TaskGroup() as group:
            watch = Watch(parts.pool, self.config.scrape, self.config.health, group)
            source = StaticSource(self.config.discovery.static.endpoints)
            background = [
                group.create_task(watch.run(source), name="discovery"),
                group.create_task(measure_loop_lag(parts.metrics.loop_lag), name="loop lag"),
            ]
            await asyncio.sleep(0)  # discovery has begun: orders of the others are about endpoints that are there
            await self._state.join(parts.everyone)
            background.append(group.create_task(self._share(), name="shared state"))
            servers = [group.create_task(server.serve([sock]), name="server") for server, sock in served]
            self.started.set()
            if self._given is None:
                log_addresses(self.address, self.admin_address)
            for task in servers:
                await task
            for task in background:
                task.cancel()
            for endpoint in parts.pool:
                watch.stop(endpoint.name)
        logger.info("stopped")

    async def _share(self) -> None:
        """Share until the others cannot be reached: then this process is an orphan, and stops."""
        await self._state.run()
        if not self._stopping:
            logger.error("the supervisor is gone")
            self.stop()

    def stop(self) -> None:
        """Take no connections; requests in flight have `drain.grace_s`, rounded up, or none after a second call."""
        for server in self._servers:
            server.force_exit = server.should_exit
            server.should_exit = True
        if not self._stopping and self.parts is not None:
            logger.info(
                "stopping: %d requests in flight, up to %g s for them (a second signal ends them now)",
                sum(endpoint.in_flight for endpoint in self.parts.pool),
                self.config.drain.grace_s,
            )
        self._stopping = True

    def _is_stopping(self) -> bool:
        return self._stopping

    def _server(self, app: ASGIApp) -> "_Server":
        limits = self.config.limits
        return _Server(
            uvicorn.Config(
                app,
                http=ClientConnection.with_limits(limits.header_bytes, self.config.timeouts.header_s),
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                proxy_headers=False,
                server_header=False,
                date_header=False,
                timeout_keep_alive=KEEP_ALIVE_S,
                timeout_graceful_shutdown=math.ceil(self.config.drain.grace_s),
            )
        )


class _Server(uvicorn.Server):
    """uvicorn's server without its signal handlers: two of them run in one process, and `Gateway` has its own."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield


def build(config: Config, loop: asyncio.AbstractEventLoop, stopping: Callable[[], bool], state: SharedState) -> Parts:
    """Return the parts of a gateway for `config`, wired; nothing runs yet. `stopping()`: take no new requests."""
    flow, timeouts = config.flow_control, config.timeouts
    pool = Pool(
        Limits(config.health.healthy_after, config.health.unhealthy_after), stale_after_s=config.scrape.stale_after_s
    )
    engines = Engines(loop)
    blocks = INDEX_BLOCKS_PER_ENDPOINT
    index = PrefixIndex(blocks) if state.alone else SharedIndex(blocks, state.sent)
    admission = Admission(pool, flow.max_in_flight_per_endpoint, flow.max_queue, flow.max_queue_wait_s, monotonic_s)
    metrics = Metrics(lambda: _readings(pool), lambda: {BAND: admission.waiting})
    receipts = Receipts()
    everyone = Everyone(state, pool, metrics, receipts, index, monotonic_s)
    metrics.over_all = lambda: _over_all(state)
    connector = connectors.load(config.disaggregation.connector)
    router = Router(
        pool,
        _profile(config),
        index,
        config.disaggregation.mode,
        flow.max_in_flight_per_endpoint,
        monotonic_s,
        chance,
    )
    answer = LegTimeouts(timeouts.connect_s, timeouts.first_byte_s, timeouts.idle_s, timeouts.total_s)
    prefill = LegTimeouts(timeouts.connect_s, timeouts.prefill_s, timeouts.prefill_s, timeouts.prefill_s)
    pool.on_identity_change.append(lambda endpoint: index.drop(endpoint.name))
    pool.on_identity_change.append(engines.drop)
    pool.on_state.append(lambda endpoint: _count_ejection(endpoint, metrics))
    data_plane = DataPlane(
        pool=pool,
        admission=admission,
        router=router,
        prefill_leg=PrefillLeg(engines, prefill, connector, metrics),
        forwarder=Forwarder(engines, answer, config.retries.max_attempts, metrics),
        connector=connector,
        metrics=metrics,
        receipts=receipts,
        body_bytes=config.limits.body_bytes,
        total_s=timeouts.total_s,
        receipt_headers=config.routing.receipt_headers,
        stopping=stopping,
    )
    return Parts(config, pool, engines, index, admission, metrics, receipts, data_plane, everyone)


def run_until_signal(config: Config, sockets: Sockets | None = None, state: SharedState | None = None) -> None:
    """Serve in this thread, on uvloop, until SIGINT or SIGTERM; raise ConfigError where it cannot start.

    `sockets` and `state` are as `Gateway` takes them.
    """
    import uvloop

    async def serve() -> None:
        gateway = Gateway(config, sockets, state)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, gateway.stop)
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


def _count_ejection(endpoint: Endpoint, metrics: Metrics) -> None:
    if endpoint.health.state is State.UNREADY and not endpoint.gone:
        metrics.ejected(endpoint.name, "health")
