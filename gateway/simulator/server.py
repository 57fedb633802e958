"""A simulated vLLM engine behind HTTP: routes, client disconnects, start and stop."""

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, replace
from typing import Any

from uvicorn import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from gateway.clock import wall_s
from gateway.simulator import asked
from gateway.simulator.driver import Driver, LoadFailure
from gateway.simulator.engine import Engine
from gateway.simulator.exchange import TEXT, ConnectionCut, Exchange, Message
from gateway.simulator.faults import Faults
from gateway.simulator.inference import Inference
from gateway.simulator.metrics import Metrics
from gateway.simulator.nixl import SideChannel
from gateway.simulator.openai_shapes import error_body
from gateway.simulator.profiles import PROFILES
from gateway.simulator.refusal import Refusal, malformed
from gateway.simulator.tokens import decode

VERSION = "0.32.0"
STOP_GRACE_S = 0.5
Check = Callable[[asked.Body, tuple[str, ...], int], asked.Asked]


@dataclass(frozen=True, slots=True)
class Options:
    """How a simulated engine is set up; None takes the profile's value. `bandwidth` is in bytes per second.

    A prefill keeps KV for `lease_s`; a decode that waits for its turn renews that every `heartbeat_s`.
    """

    models: tuple[str, ...] = ("sim",)
    role: str = "both"
    profile: str = "default"
    speed: float = 1.0
    seed: int = 0
    faults: tuple[str, ...] = ()
    lease_s: float = 30.0
    heartbeat_s: float = 5.0
    nixl_port: int = 0
    load_failure: LoadFailure = "fail"
    mean_output_tokens: int = 128
    block_size: int | None = None
    num_blocks: int | None = None
    max_model_len: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    bandwidth: float | None = None

    def engine(self) -> Engine:
        """Return a new engine. Raises KeyError for an unknown profile, ValueError if the sizes do not fit."""
        changed = ("block_size", "num_blocks", "max_model_len", "max_num_seqs", "max_num_batched_tokens", "bandwidth")
        values = {name: getattr(self, name) for name in changed if getattr(self, name) is not None}
        profile = replace(PROFILES[self.profile], **values)
        if "max_model_len" not in values:
            held = profile.num_blocks * profile.block_size
            profile = replace(profile, max_model_len=min(profile.max_model_len, held))
        return Engine(profile)


class SimServer:
    """One running engine: `url` is where it listens, `engine`, `metrics` and `faults` are its live parts."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.faults = Faults(options.faults, options.seed)
        self.engine = options.engine()
        self.metrics = Metrics(options.models[0], options.role, options.profile, options.speed)
        self.engine_id = str(uuid.uuid4())
        self.url = ""
        self._tasks: set[asyncio.Task[None]] = set()
        self._state = ServerState()
        self._created_s = int(wall_s())
        self._routes: dict[tuple[str, str], Callable[[Exchange], Awaitable[None]]] = {
            ("POST", "/v1/chat/completions"): self._chat,
            ("POST", "/v1/completions"): self._completion,
            ("POST", "/tokenize"): self._tokenize,
            ("POST", "/detokenize"): self._detokenize,
            ("GET", "/v1/models"): self._models,
            ("GET", "/health"): self._health,
            ("GET", "/ping"): self._health,
            ("GET", "/version"): self._version,
            ("GET", "/load"): self._load,
            ("GET", "/metrics"): self._metrics,
        }

    @property
    def connections(self) -> int:
        """The number of open HTTP connections."""
        return len(self._state.connections)

    async def start(self, host: str = "127.0.0.1", port: int = 0) -> None:
        """Listen on `host` and `port` (0: any free one) and run. Raises OSError if the port is taken."""
        self._driver = Driver(
            self.engine,
            self.metrics,
            self._side,
            speed=self.options.speed,
            heartbeat_s=self.options.heartbeat_s,
            load_failure=self.options.load_failure,
            spawn=self._spawn,
        )
        self._inference = Inference(self._driver, self.faults, self.options.mean_output_tokens)
        config = Config(
            self._app,
            http="httptools",
            ws="none",
            interface="asgi3",
            lifespan="off",
            access_log=False,
            log_level="warning",
        )
        config.load()
        self._server = await asyncio.get_running_loop().create_server(
            lambda: HttpToolsProtocol(config=config, server_state=self._state, app_state={}), host, port, backlog=2048
        )
        bound_host, bound_port = self._server.sockets[0].getsockname()[:2]
        self.url = f"http://[{bound_host}]:{bound_port}" if ":" in bound_host else f"http://{bound_host}:{bound_port}"
        await self._driver.side.start(bound_host, self.options.nixl_port)
        self._spawn(self._driver.run())

    async def stop(self) -> None:
        """Stop listening, cut what is open, end all tasks."""
        self._server.close()
        for connection in tuple(self._state.connections):
            if connection.transport is not None:
                connection.transport.abort()
        if self._state.tasks:  # each sees its client gone and ends by itself
            await asyncio.wait(self._state.tasks, timeout=STOP_GRACE_S)
        while tasks := (*self._tasks, *self._state.tasks):  # one that ends may start another
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        await self._driver.side.stop()
        await self._server.wait_closed()

    async def _app(self, scope: Message, receive: Any, send: Any) -> None:
        exchange = Exchange(scope, receive, send)
        try:
            await self._route(exchange)
        except Refusal as refusal:
            await exchange.reply(refusal.status, error_body(refusal))
        except ConnectionCut:
            exchange.cut()

    async def _route(self, exchange: Exchange) -> None:
        path = exchange.scope["path"]
        route = self._routes.get((exchange.scope["method"], path))
        if route is None:
            known = any(path == other for _, other in self._routes)
            status, word = (405, "Method Not Allowed") if known else (404, "Not Found")
            await exchange.reply(status, {"detail": word})
        else:
            await route(exchange)

    def _side(self, wake: Callable[[], None]) -> SideChannel:
        return SideChannel(
            self.engine,
            self.metrics,
            engine_id=self.engine_id,
            lease_s=self.options.lease_s,
            freed=wake,
            refuse=lambda: None if self.faults.value("pull-refused") is None else "a fault was asked for",
        )

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _chat(self, exchange: Exchange) -> None:
        await self._infer(asked.chat_request, exchange)

    async def _completion(self, exchange: Exchange) -> None:
        await self._infer(asked.completion_request, exchange)

    async def _infer(self, check: Check, exchange: Exchange) -> None:
        body = await exchange.json()
        try:
            request = check(body, self.options.models, self.engine.profile.max_model_len)
        except Refusal:
            self._driver.reject(body.get("kv_transfer_params"))
            raise
        request_id = exchange.header(b"x-request-id") or body.get("request_id") or uuid.uuid4().hex
        work = self._spawn(self._inference.answer(request, str(request_id), exchange))
        gone = self._spawn(exchange.until_disconnect())
        try:
            await asyncio.wait((work, gone), return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                await work
        finally:
            gone.cancel()
            work.cancel()
            await asyncio.wait((work, gone))

    async def _tokenize(self, exchange: Exchange) -> None:
        tokens = asked.tokenize_request(await exchange.json(), self.options.models)
        limit = self.engine.profile.max_model_len
        await exchange.reply(200, {"count": len(tokens), "max_model_len": limit, "tokens": tokens, "token_strs": None})

    async def _detokenize(self, exchange: Exchange) -> None:
        tokens = (await exchange.json()).get("tokens")
        if not isinstance(tokens, list) or not all(map(asked.is_token, tokens)):
            raise malformed("tokens: a list of token ids is required", "tokens")
        await exchange.reply(200, {"prompt": decode(tokens)})

    async def _models(self, exchange: Exchange) -> None:
        cards = [self._card(model) for model in self.options.models]
        await exchange.reply(200, {"object": "list", "data": cards})

    def _card(self, model: str) -> dict[str, Any]:
        return {
            "id": model,
            "object": "model",
            "created": self._created_s,
            "owned_by": "vllm",
            "root": model,
            "parent": None,
            "max_model_len": self.engine.profile.max_model_len,
            "permission": [],
        }

    async def _health(self, exchange: Exchange) -> None:
        await exchange.reply(int(self.faults.number("health-error") or 200), b"", ())

    async def _version(self, exchange: Exchange) -> None:
        await exchange.reply(200, {"version": VERSION})

    async def _load(self, exchange: Exchange) -> None:
        await exchange.reply(200, {"server_load": len(self.engine.jobs)})

    async def _metrics(self, exchange: Exchange) -> None:
        status = self.faults.number("metrics-error")
        if status is not None:
            raise Refusal(int(status), "a fault was asked for", "InternalServerError")
        await asyncio.sleep(self.faults.number("metrics-slow") or 0)
        missing = self.faults.value("metrics-missing")
        text = self.metrics.text(self.engine, without=frozenset({missing} if missing else ()))
        await exchange.reply(200, text.encode(), TEXT)
