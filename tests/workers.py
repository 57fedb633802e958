"""`twohop serve --workers N` as real processes on free ports."""

import asyncio
import os
import re
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import httpx

from tests.gateways import PLAIN

SERVES = re.compile(r"worker (\d+) \(pid (\d+)\) serves")


class Workers:
    """A gateway of several processes: where it listens, what it has written, and clients of it."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.lines: list[str] = []
        self.url = self.admin_url = ""

    async def read(self) -> None:
        """Keep every line that it writes, until it ends."""
        assert self.process.stderr is not None
        while line := (await self.process.stderr.readline()).decode():
            self.lines.append(line.rstrip())
            if "twohop: listening on" in line:
                self.url = line.split()[-1]
            if "twohop: admin API on" in line:
                self.admin_url = line.split()[-1]

    def pids(self) -> dict[int, int]:
        """Return the process id of each worker by its number, the newest of each."""
        return {int(found[1]): int(found[2]) for line in self.lines if (found := SERVES.search(line))}

    def wrote(self, text: str) -> bool:
        """Whether a line holds `text`."""
        return any(text in line for line in self.lines)

    def client(self) -> httpx.AsyncClient:
        """Return a client that uses a new connection for each request, so that any worker may get it."""
        limits = httpx.Limits(max_keepalive_connections=0)
        return httpx.AsyncClient(base_url=self.url, timeout=30, verify=PLAIN, limits=limits)

    async def admin(self, path: str) -> Any:
        """Return the JSON of an admin answer."""
        async with httpx.AsyncClient(base_url=self.admin_url, timeout=30, verify=PLAIN) as client:
            return (await client.get(path)).raise_for_status().json()

    async def series(self, *prefixes: str) -> list[str]:
        """Return the lines of one scrape that begin with one of `prefixes`."""
        async with self.client() as client:
            text = (await client.get("/metrics")).raise_for_status().text
        return [line for line in text.splitlines() if line.startswith(prefixes)]


async def until(condition: Callable[[], bool | Awaitable[bool]], what: str) -> None:
    """Wait until `condition()` holds; fail after 30 s."""
    try:
        async with asyncio.timeout(30):
            while True:
                with suppress(httpx.TransportError):  # a connection that a dying worker had not taken yet is reset
                    held = condition()
                    if held if isinstance(held, bool) else await held:
                        return
                await asyncio.sleep(0.02)
    except TimeoutError:
        raise AssertionError(f"waited 30 s for {what}") from None


@asynccontextmanager
async def run_workers(
    count: int, *engines: str, file: Path | None = None, **environment: str
) -> AsyncIterator[Workers]:
    """Run a gateway of `count` workers before `engines` once every worker says that all are ready."""
    flags = [word for url in engines for word in ("--endpoint", url)]
    flags += [] if file is None else ["--config", str(file)]
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "gateway", "serve", "--listen", "127.0.0.1:0", "--workers", str(count), *flags),
        stderr=PIPE,
        env={**os.environ, "TWOHOP_ADMIN__LISTEN": "127.0.0.1:0", "TWOHOP_DRAIN__GRACE_S": "1", **environment},
    )
    workers = Workers(process)
    reading = asyncio.get_running_loop().create_task(workers.read())
    try:
        await until(lambda: bool(workers.url and workers.admin_url) or process.returncode is not None, "it to listen")
        await until(lambda: len(ready_lines(workers)) >= count * len(engines), "all engines to be ready for all")
        yield workers
    finally:
        if process.returncode is None:
            for _ in range(2):
                with suppress(ProcessLookupError):  # it may be quicker than the second
                    process.send_signal(signal.SIGTERM)
                await asyncio.sleep(0.05)
        try:
            await asyncio.wait_for(process.wait(), 20)
        except TimeoutError:
            process.kill()
        await reading  # every worker has ended: they write to the same pipe


def ready_lines(workers: Workers) -> list[str]:
    """Return the lines that say an endpoint is ready."""
    return [line for line in workers.lines if re.search(r"worker \d+: endpoint .* is ready", line)]
