"""A simulated vLLM engine behind HTTP: routes, client disconnects, start and stop."""

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Coroutine, MutableMapping
from dataclasses import dataclass, replace
from typing import Any

import msgspec
from uvicorn import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from gateway.clock import wall_s
from gateway.simulator import asked
from gateway.simulator.driver import Driver, LoadFailure
from gateway.simulator.engine import Engine
from gateway.simulator.faults import Faults
from gateway.simulator.inference import ConnectionCut, Inference, Send, reply
from gateway.simulator.metrics import Metrics
from gateway.simulator.nixl import SideChannel
from gateway.simulator.openai_shapes import encode, error_body
from gateway.simulator.profiles import PROFILES
from gateway.simulator.refusal import Refusal, malformed
from gateway.simulator.tokens import decode

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
VERSION = "0.32.0"
TEXT = [(b"content-type", b"text/plain; version=0.0.4; charset=utf-8")]
STOP_GRACE_S = 0.5


@dataclass(frozen=True, slots=True)
class Options:
    """How a simulated engine is set up; None takes the profile's value. `bandwidth` is in bytes per second."""

    models: tuple[str, ...] = ("sim",)
    role: str = "both"
    profile: str = "default"
    speed: float = 1.0
    seed: int = 0
    faults: tuple[str, ...] = ()
    lease_s: float = 30.0
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
        self._routes: dict[tuple[str, str], Callable[[Scope, Receive, Send], Awaitable[None]]] = {
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

    async def start(self, host: str = "127.0.0.1", port: int = 0) -> None:
        """Listen on `host` and `port` (0: any free one) and run. Raises OSError if the port is taken."""
        loop = asyncio.get_running_loop()
        self._driver = Driver(
            self.engine, self.metrics, self._side,
            speed=self.options.speed, load_failure=self.options.load_failure, spawn=self._spawn,
        )  # fmt: skip
        self._inference = Inference(self._driver, self.faults, self.options.mean_output_tokens)
        await self._driver.side.start("127.0.0.1" if host == "0.0.0.0" else host, self.options.nixl_port)  # noqa: S104
        config = Config(self, http="httptools", ws="none", lifespan="off", access_log=False, log_level="warning")
        config.load()
        self._server = await loop.create_server(
            lambda: HttpToolsProtocol(config=config, server_state=self._state, app_state={}), host, port, backlog=2048
        )
        self.url = "http://{}:{}".format(*self._server.sockets[0].getsockname()[:2])
        self._spawn(self._driver.run())

    async def stop(self) -> None:
        """Stop listening, cut what is open, end all tasks."""
        self._server.close()
        for connection in tuple(self._state.connections):
            connection.shutdown()
        for connection in tuple(self._state.connections):
            if connection.transport is not None:
                connection.transport.abort()
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._driver.side.stop()
        await self._server.wait_closed()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request; the ASGI application."""
        route = self._routes.get((scope["method"], scope["path"]))
        try:
            if route is None:
                known = scope["path"] in {path for _, path in self._routes}
                status, word = (405, "Method Not Allowed") if known else (404, "Not Found")
                raise Refusal(status, word, word)
            await route(scope, receive, send)
        except Refusal as refusal:
            await reply(send, refusal.status, encode(error_body(refusal)))
        except ConnectionCut:
            cycle = getattr(send, "__self__", None)
            cycle.transport.abort()  # type: ignore[union-attr]  # uvicorn's send is a method of the open request

    def _side(self, wake: Callable[[], None]) -> SideChannel:
        return SideChannel(
            self.engine, self.metrics, engine_id=self.engine_id, lease_s=self.options.lease_s, freed=wake,
            refuse=lambda: None if self.faults.value("pull-refused") is None else "a fault was asked for",
        )  # fmt: skip

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _chat(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = await _read_json(receive)
        await self._infer(asked.chat_request(body, *self._limits()), body, scope, receive, send)

    async def _completion(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = await _read_json(receive)
        await self._infer(asked.completion_request(body, *self._limits()), body, scope, receive, send)

    async def _infer(self, request: asked.Asked, body: asked.Body, scope: Scope, receive: Receive, send: Send) -> None:
        request_id = body.get("request_id")
        for name, value in scope["headers"]:
            if name == b"x-request-id":
                request_id = value.decode("latin-1")
        work = asyncio.ensure_future(self._inference.answer(request, str(request_id or uuid.uuid4().hex), send))
        gone = asyncio.ensure_future(_disconnected(receive))
        try:
            await asyncio.wait((work, gone), return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                await work
        finally:
            gone.cancel()
            work.cancel()
            await asyncio.wait((work, gone))

    async def _tokenize(self, scope: Scope, receive: Receive, send: Send) -> None:
        tokens = asked.tokenize_request(await _read_json(receive), self.options.models)
        limit = self.engine.profile.max_model_len
        answer = {"count": len(tokens), "max_model_len": limit, "tokens": tokens, "token_strs": None}
        await reply(send, 200, encode(answer))

    async def _detokenize(self, scope: Scope, receive: Receive, send: Send) -> None:
        tokens = (await _read_json(receive)).get("tokens")
        if not isinstance(tokens, list) or not all(isinstance(token, int) and token >= 0 for token in tokens):
            raise malformed("tokens: a list of token ids is required", "tokens")
        await reply(send, 200, encode({"prompt": decode(tokens)}))

    async def _models(self, scope: Scope, receive: Receive, send: Send) -> None:
        cards = [
            {
                "id": model, "object": "model", "created": self._created_s, "owned_by": "vllm", "root": model,
                "parent": None, "max_model_len": self.engine.profile.max_model_len, "permission": [],
            }
            for model in self.options.models
        ]  # fmt: skip
        await reply(send, 200, encode({"object": "list", "data": cards}))

    async def _health(self, scope: Scope, receive: Receive, send: Send) -> None:
        await reply(send, int(self.faults.number("health-error") or 200), b"", [])

    async def _version(self, scope: Scope, receive: Receive, send: Send) -> None:
        await reply(send, 200, encode({"version": VERSION}))

    async def _load(self, scope: Scope, receive: Receive, send: Send) -> None:
        await reply(send, 200, encode({"server_load": len(self.engine.jobs)}))

    async def _metrics(self, scope: Scope, receive: Receive, send: Send) -> None:
        status = self.faults.number("metrics-error")
        if status is not None:
            raise Refusal(int(status), "a fault was asked for", "InternalServerError")
        await asyncio.sleep(self.faults.number("metrics-slow") or 0)
        missing = self.faults.value("metrics-missing")
        text = self.metrics.text(self.engine, without=frozenset({missing} if missing else ()))
        await reply(send, 200, text.encode(), TEXT)

    def _limits(self) -> tuple[tuple[str, ...], int]:
        return self.options.models, self.engine.profile.max_model_len


async def _read_json(receive: Receive) -> asked.Body:
    parts = []
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ConnectionCut
        parts.append(message.get("body", b""))
        if not message.get("more_body"):
            break
    try:
        body = msgspec.json.decode(b"".join(parts))
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise malformed(f"the body is not JSON: {error}", "body") from error
    if not isinstance(body, dict):
        raise malformed("the body must be a JSON object", "body")
    return body


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
