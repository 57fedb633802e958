"""The engines: simulated ones in processes of their own, which can be killed and come back at the same address."""

import asyncio
import os
import signal
import sys
import time
import urllib.request
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from benchmarks.overhead.processes import PinnedGroup
from benchmarks.overhead.proxies import ROOT, free_port
from benchmarks.served import NotServed, Reading

MODEL = "soak"
ROLES = {
    "prefill-1": "prefill",
    "prefill-2": "prefill",
    "decode-1": "decode",
    "decode-2": "decode",
    "both-1": "both",
    "faulty-1": "both",
}
FAULTS = {
    "faulty-1": (
        "reset:0.05", "reset-mid-stream=3:0.1", "error=503:0.05", "hang:0.01", "metrics-slow=2:0.3",
        "prefill-no-params:0.1", "pull-refused:0.1",
    )
}  # fmt: skip
_START_S = 60.0
_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


@dataclass
class Engine:
    """One engine's place, and the process that is there now."""

    name: str
    port: int = field(default_factory=free_port)
    group: PinnedGroup | None = None
    downs: int = 0

    def start(self, core: int, folder: Path) -> None:
        """Start a process at the engine's address."""
        command = [sys.executable, "-m", "gateway", "engine", "--listen", f"127.0.0.1:{self.port}", "--model", MODEL]
        command += ["--role", ROLES[self.name], "--profile", "fast", "--lease-s", "5"]
        for fault in FAULTS.get(self.name, ()):
            command += ["--fault", fault]
        self.group = PinnedGroup(command, core, folder / f"{self.name}-{self.downs}.log", cwd=ROOT)

    def listens(self) -> bool:
        """Tell whether the engine has said that it listens. Raises NotServed where it has ended instead."""
        group = self.group
        if group is None or not group.running:
            raise NotServed(f"{self.name} ended; it last said: {group.last_words() if group is not None else ''}")
        return b"listening on" in group.log.read_bytes()

    def end(self, sign: int = signal.SIGTERM) -> None:
        """End the process with this signal, if there is one."""
        if self.group is None:
            return
        with suppress(ProcessLookupError):
            os.killpg(self.group.pid, sign)
        self.group.end()
        self.group = None

    def running(self) -> float:
        """Return how many requests the engine says it has."""
        with _DIRECT.open(f"http://127.0.0.1:{self.port}/metrics", timeout=10) as answer:
            reading = Reading(answer.read().decode())
        return reading.total("vllm:num_requests_running") + reading.total("vllm:num_requests_waiting")


def _await_listening(engine: Engine) -> None:
    until_s = time.monotonic() + _START_S
    while not engine.listens():
        if time.monotonic() > until_s:
            raise NotServed(f"{engine.name} did not start in {_START_S:.0f} s")
        time.sleep(0.05)


class Fleet:
    """All engines of a soak."""

    def __init__(self, core: int, folder: Path) -> None:
        self.engines = [Engine(name) for name in ROLES]
        self._core, self._folder = core, folder

    def start(self) -> None:
        """Start all engines and return when all listen. Raises NotServed."""
        for engine in self.engines:
            engine.start(self._core, self._folder)
        for engine in self.engines:
            _await_listening(engine)

    def configured(self) -> list[dict[str, str]]:
        """Return the engines as the gateway's configuration lists them."""
        return [
            {"name": engine.name, "url": f"http://127.0.0.1:{engine.port}", "role": ROLES[engine.name]}
            for engine in self.engines
        ]

    @property
    def kills(self) -> int:
        """How many times an engine was taken down."""
        return sum(engine.downs for engine in self.engines)

    async def disturb(self, chance: Random, until_s: float, every_s: float) -> None:
        """Take one engine after the other down, most by SIGKILL, and bring it back; all are up when this returns."""
        loop = asyncio.get_running_loop()
        while loop.time() < until_s:
            await asyncio.sleep(min(chance.uniform(0.5, 1.5) * every_s, max(0.0, until_s - loop.time())))
            if loop.time() >= until_s:
                return
            engine = chance.choice(self.engines)
            engine.downs += 1
            sign = signal.SIGKILL if chance.random() < 0.7 else signal.SIGTERM
            await asyncio.to_thread(engine.end, sign)
            await asyncio.sleep(chance.uniform(0.0, 0.3) * every_s)
            await self._bring_back(engine)

    async def _bring_back(self, engine: Engine) -> None:
        for _ in range(20):
            engine.start(self._core, self._folder)
            try:
                await asyncio.to_thread(_await_listening, engine)
            except NotServed:  # someone had its port for a moment
                await asyncio.to_thread(engine.end)
                await asyncio.sleep(0.5)
            else:
                return
        raise NotServed(f"{engine.name} did not come back")

    def end(self) -> None:
        """End all engines."""
        for engine in self.engines:
            engine.end()
