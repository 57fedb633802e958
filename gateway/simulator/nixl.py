"""The side channel between simulated engines: who may read whose KV blocks, over TCP, one JSON object a line.

A prefill engine answers `read` (may these blocks of that request be read?), `done` and `free` (they may go), `renew`
(keep them longer). A decode engine asks, lets the time pass that the bytes would take, and says `done`.

Real NIXL reads memory without asking, so a read after the lease ends gives whatever is there; here it fails.
"""

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from gateway.simulator.engine import Engine, Pin
from gateway.simulator.metrics import Metrics

LINE_LIMIT = 4 << 20
CONNECT_S = 5.0
NEEDED = ("remote_engine_id", "remote_request_id", "remote_host", "remote_port", "remote_block_ids")


class TransferError(Exception):
    """KV blocks cannot be read: refused, unreachable, or cut off."""


@dataclass(frozen=True, slots=True)
class Remote:
    """KV that another engine holds: `blocks` of its request, `tokens` tokens in them."""

    engine_id: str
    request_id: str
    host: str
    port: int
    blocks: tuple[int, ...]
    tokens: int
    cached_tokens: int | None


def remote_of(params: Mapping[str, Any] | None, block_size: int) -> Remote | None:
    """Read the kv_transfer_params of a decode request; None where they name nothing to be read."""
    if params is None or params.get("do_remote_prefill") is not True or not all(params.get(name) for name in NEEDED):
        return None
    blocks = params["remote_block_ids"]
    if isinstance(blocks, list) and blocks and isinstance(blocks[0], list):
        blocks = blocks[0]
    port = params["remote_port"]
    if not isinstance(blocks, list) or not all(isinstance(block, int) for block in blocks) or not str(port).isdigit():
        return None
    tokens = params.get("remote_num_tokens")
    held = len(blocks) * block_size
    cached = params.get("remote_prefill_cached_tokens")
    return Remote(
        engine_id=str(params["remote_engine_id"]),
        request_id=str(params["remote_request_id"]),
        host=str(params["remote_host"]),
        port=int(port),
        blocks=tuple(blocks),
        tokens=min(held, tokens) if isinstance(tokens, int) else held,
        cached_tokens=cached if isinstance(cached, int) else None,
    )


class SideChannel:
    """The prefill side: pins under leases of `lease_s` seconds, and the server that others read them through.

    `freed` is called when blocks have become free. `refuse` gives a reason to refuse reads, or None.
    """

    def __init__(
        self, engine: Engine, metrics: Metrics, *, engine_id: str, lease_s: float,
        freed: Callable[[], None], refuse: Callable[[], str | None],
    ) -> None:  # fmt: skip
        self.engine_id = engine_id
        self.host = ""
        self.port = 0
        self._engine = engine
        self._metrics = metrics
        self._lease_s = lease_s
        self._freed = freed
        self._refuse = refuse
        self._until: dict[str, float] = {}
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._reading: dict[str, int] = {}
        self._server: asyncio.Server | None = None
        self._connections: dict[asyncio.StreamWriter, asyncio.Task[None] | None] = {}
        self._stopped = False

    async def start(self, host: str, port: int) -> None:
        """Listen on `host` and `port` (0: any free one)."""
        self._server = await asyncio.start_server(self._serve, host, port, limit=LINE_LIMIT)
        self.host, self.port = self._server.sockets[0].getsockname()[:2]

    async def stop(self) -> None:
        """Close the server, its connections and all timers."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        self._stopped = True
        if self._server is not None:
            self._server.close()
            for writer in tuple(self._connections):
                writer.transport.abort()
            await asyncio.gather(*(task for task in self._connections.values() if task is not None))
            await self._server.wait_closed()

    def lease(self, request_id: str) -> None:
        """Start the lease of blocks that the engine has just pinned for `request_id`."""
        loop = asyncio.get_running_loop()
        self._until[request_id] = loop.time() + self._lease_s
        self._timers[request_id] = loop.call_later(self._lease_s, self._expire, request_id)

    def release(self, request_id: str) -> bool:
        """Free the pinned blocks of `request_id`; False if there are none."""
        self._until.pop(request_id, None)
        timer = self._timers.pop(request_id, None)
        if timer is not None:
            timer.cancel()
        if not self._engine.unpin(request_id):
            return False
        self._freed()
        return True

    def _expire(self, request_id: str) -> None:
        loop = asyncio.get_running_loop()
        left = self._until[request_id] - loop.time()
        if self._reading.get(request_id):
            left = self._lease_s
        if left > 0:
            self._timers[request_id] = loop.call_later(left, self._expire, request_id)
        elif self.release(request_id):
            self._metrics.expired += 1

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections[writer] = asyncio.current_task()
        reading: str | None = None
        try:
            while not self._stopped and (line := await reader.readline()):
                message = msgspec.json.decode(line)
                refusal = self._refusal(message)
                if refusal is None:
                    request_id = message["request_id"]
                    if message["op"] == "read":
                        reading = request_id
                        self._reading[request_id] = self._reading.get(request_id, 0) + 1
                    self._act(message["op"], request_id)
                writer.write(msgspec.json.encode({"ok": refusal is None, "error": refusal}) + b"\n")
                await writer.drain()
        except (OSError, ValueError, msgspec.DecodeError):
            pass  # a peer that breaks off or talks nonsense loses its connection, nothing else
        finally:
            del self._connections[writer]
            if reading is not None:
                self._reading[reading] -= 1
                if not self._reading[reading]:
                    del self._reading[reading]
            writer.close()

    def _refusal(self, message: Any) -> str | None:
        if not isinstance(message, dict) or message.get("op") not in ("read", "done", "free", "renew"):
            return "unknown operation"
        if message.get("engine_id") != self.engine_id:
            return f"this engine is {self.engine_id}, not {message.get('engine_id')}"
        pin = self._engine.pins.get(str(message.get("request_id")))
        if pin is None:
            if message["op"] in ("done", "free"):
                self._metrics.late_notifications += 1
            return "no blocks are held for this request"
        return self._read_refusal(message, pin) if message["op"] == "read" else None

    def _read_refusal(self, message: Mapping[str, Any], pin: Pin) -> str | None:
        if message.get("block_size") != self._engine.profile.block_size:
            return "block sizes differ"
        if not set(message.get("blocks") or ()) <= set(pin.blocks):
            return "these blocks are not held for this request"
        return self._refuse()

    def _act(self, op: str, request_id: str) -> None:
        if op in ("done", "free"):
            self.release(request_id)
        elif op == "renew":
            loop = asyncio.get_running_loop()
            self._until[request_id] = max(self._until[request_id], loop.time() + self._lease_s * 2 / 3)


async def pull(remote: Remote, first_block: int, block_size: int, seconds: float) -> None:
    """Read the blocks of `remote` from `first_block` on, which takes `seconds`, and free them there.

    Raises TransferError.
    """
    reader, writer = await _connect(remote)
    try:
        blocks = remote.blocks[first_block:]
        await _ask(reader, writer, remote, op="read", blocks=blocks, block_size=block_size)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(reader.read(1), seconds)
            raise TransferError("the other engine closed the connection")
        with contextlib.suppress(TransferError):  # the bytes are here; if nobody frees them, the lease does
            await _ask(reader, writer, remote, op="done")
    except OSError as error:
        raise TransferError(str(error)) from error
    finally:
        writer.close()


async def notify(remote: Remote, op: str) -> None:
    """Tell the other engine to `free` or `renew` the blocks of `remote`. Raises TransferError."""
    reader, writer = await _connect(remote)
    try:
        await _ask(reader, writer, remote, op=op)
    except OSError as error:
        raise TransferError(str(error)) from error
    finally:
        writer.close()


async def _connect(remote: Remote) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    try:
        async with asyncio.timeout(CONNECT_S):
            return await asyncio.open_connection(remote.host, remote.port, limit=LINE_LIMIT)
    except (OSError, TimeoutError) as error:
        raise TransferError(f"{remote.host}:{remote.port}: {error}") from error


async def _ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, remote: Remote, **message: object) -> None:
    message |= {"engine_id": remote.engine_id, "request_id": remote.request_id}
    writer.write(msgspec.json.encode(message) + b"\n")
    try:
        async with asyncio.timeout(CONNECT_S):
            line = await reader.readline()
    except TimeoutError as error:
        raise TransferError("no answer") from error
    answer = msgspec.json.decode(line) if line else {"error": "closed"}
    if not answer.get("ok"):
        raise TransferError(str(answer.get("error")))
