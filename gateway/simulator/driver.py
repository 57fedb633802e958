"""Runs a simulated engine in real time: steps when they are due, tokens to those who wait, KV from other engines.

Engine time runs `speed` times as fast as the clock. Between steps the driver sleeps; with nothing to do it sleeps
until something is submitted. An engine that cannot keep up falls behind rather than skipping work.
"""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Literal

from gateway.simulator.engine import Engine
from gateway.simulator.job import Job, Status
from gateway.simulator.metrics import Metrics
from gateway.simulator.nixl import Remote, SideChannel, TransferError, notify, pull, remote_of

MAX_DEBT_S = 0.25
LoadFailure = Literal["fail", "recompute"]


class Mailbox:
    """Where the tokens of one request's jobs arrive; `eager` wakes the reader for each token, else at the end only."""

    def __init__(self, jobs: int, *, eager: bool) -> None:
        self.open = jobs
        self._eager = eager
        self._new: dict[Job, list[int]] = {}
        self._waiter: asyncio.Future[None] | None = None

    def put(self, job: Job, token: int | None) -> None:
        """Add a token of `job` (None: it ended without one)."""
        tokens = self._new.setdefault(job, [])
        if token is not None:
            tokens.append(token)
        if job.finish_reason is not None:
            self.open -= 1
        if self._waiter is not None and (self._eager or not self.open):
            if not self._waiter.done():  # cancelled: the reader is on its way out
                self._waiter.set_result(None)
            self._waiter = None

    async def take(self) -> dict[Job, list[int]]:
        """Wait for news, and return all since the last call. One caller at a time."""
        if not self._new or (self.open and not self._eager):
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        new, self._new = self._new, {}
        return new


class Driver:
    """The real-time life of `engine`; `spawn` starts a task that someone owns."""

    def __init__(
        self, engine: Engine, metrics: Metrics, side: Callable[[Callable[[], None]], SideChannel], *,
        speed: float, heartbeat_s: float, load_failure: LoadFailure,
        spawn: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]],
    ) -> None:  # fmt: skip
        self.engine = engine
        self.metrics = metrics
        self.side = side(self.wake)
        self._speed = speed
        self._heartbeat_s = heartbeat_s
        self._load_failure = load_failure
        self._spawn = spawn
        self._loop = asyncio.get_running_loop()
        self._started_s = self._loop.time()
        self._clock_s = 0.0
        self._awake = asyncio.Event()
        self._boxes: dict[str, Mailbox] = {}
        self._remotes: dict[str, Remote] = {}
        self._pulls: dict[str, asyncio.Task[None]] = {}
        self._met: set[str] = set()

    def now_s(self) -> float:
        """Return the engine time."""
        return (self._loop.time() - self._started_s) * self._speed

    def wake(self) -> None:
        """Something has changed that may let a step begin."""
        self._awake.set()

    def submit(self, jobs: Mapping[Job, Remote | None], box: Mailbox) -> None:
        """Queue `jobs`; what they say goes to `box`. Raises ValueError as `Engine.add` does."""
        for job, remote in jobs.items():
            if remote is not None:
                job.remote_tokens = remote.tokens
            self.engine.add(job, self.now_s())
            self._boxes[job.id] = box
            if remote is not None:
                self._remotes[job.id] = remote
                self._loop.call_later(self._heartbeat_s, self._renew, job)
        self.wake()

    def abort(self, job: Job, *, told: str | None = None) -> None:
        """End `job` now if it lives; its blocks, and those another engine keeps for it, become free.

        `told` is the reason to be counted, None to count nothing: vLLM forgets a request whose client has left, and
        counts one that a stop string ends.
        """
        if self.engine.abort(job.id) is not None:
            self._ended(job, told)
            self.wake()

    def reject(self, params: object) -> None:
        """A request with these kv_transfer_params will not run: let the engine that holds its KV free it."""
        remote = remote_of(params, self.engine.profile.block_size) if isinstance(params, Mapping) else None
        if remote is not None:
            self._spawn(self._notify(remote, "free"))

    async def run(self) -> None:
        """Step for ever."""
        while True:
            duration_s = self.engine.begin_step(self._clock_s)
            for job in self.engine.take_loads():
                self._pulls[job.id] = self._spawn(self._load(job, self._remotes[job.id]))
            if duration_s is None:
                self._awake.clear()
                await self._awake.wait()
                self._clock_s = max(self._clock_s, self.now_s())
                continue
            self._clock_s += duration_s
            ahead_s = (self._clock_s - self.now_s()) / self._speed
            if -ahead_s > MAX_DEBT_S:
                self._clock_s = self.now_s()
            await asyncio.sleep(max(ahead_s, 0.0))
            self._deliver()

    def _deliver(self) -> None:
        token_seen = self.metrics.token
        before = {job: job.last_token_s for job in self.engine.running}
        for job, token in self.engine.end_step(self._clock_s):
            token_seen(job, before[job])
            box = self._boxes[job.id]
            if job.finish_reason is not None:
                self._ended(job, job.finish_reason)
            box.put(job, token)

    def _ended(self, job: Job, told: str | None) -> None:
        del self._boxes[job.id]
        if told is not None:
            self.metrics.end(job, told)
        if job.id in self.engine.pins:
            self.side.lease(job.id)
        task = self._pulls.pop(job.id, None)
        if task is not None and job.finish_reason == "abort":
            task.cancel()
        remote = self._remotes.pop(job.id, None)
        if remote is not None and job.finish_reason != "error":
            self._spawn(self._notify(remote, "free"))

    async def _load(self, job: Job, remote: Remote) -> None:
        profile = self.engine.profile
        first = job.cached_tokens // profile.block_size
        count = -(-(job.cached_tokens + job.external_tokens) // profile.block_size) - first
        size_bytes = count * profile.block_size * profile.kv_token_bytes
        transfer_s = profile.transfer_s + size_bytes / profile.bandwidth
        if remote.engine_id not in self._met:
            transfer_s += profile.handshake_s
        try:
            await pull(remote, first, profile.block_size, transfer_s / self._speed)
        except TransferError:
            self.metrics.failed_transfers += 1
            self._load_failed(job)
            return
        self._met.add(remote.engine_id)
        self.metrics.transfer(transfer_s / self._speed, size_bytes, count)
        if job.status is Status.LOADING:
            del self._remotes[job.id], self._pulls[job.id]
            self.engine.loaded(job)
            self.wake()

    def _load_failed(self, job: Job) -> None:
        if job.status is not Status.LOADING:
            return
        del self._remotes[job.id], self._pulls[job.id]
        box = self._boxes[job.id]
        self.engine.load_failed(job, recompute=self._load_failure == "recompute")
        if job.finish_reason is not None:
            self._ended(job, job.finish_reason)
            box.put(job, None)
        self.wake()

    def _renew(self, job: Job) -> None:
        remote = self._remotes.get(job.id)
        if remote is not None:
            self._spawn(self._notify(remote, "renew"))
            self._loop.call_later(self._heartbeat_s, self._renew, job)

    async def _notify(self, remote: Remote, op: str) -> None:
        try:
            await notify(remote, op)
        except TransferError:
            self.metrics.failed_notifications += 1
