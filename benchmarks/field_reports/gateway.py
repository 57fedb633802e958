"""The gateway under test: a process of `python -m gateway serve`, looked at from outside alone."""

import asyncio
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from benchmarks.field_reports.case import CaseFailed, expect, until
from benchmarks.field_reports.client import Address, Answer, Headers, ask, post
from benchmarks.field_reports.engine import Engine
from benchmarks.overhead.processes import group_members

ROOT = Path(__file__).resolve().parents[2]
START_S = 20.0
_LISTENS = re.compile(r"listening on http://([\d.]+):(\d+)")
_ADMIN = re.compile(r"admin API on http://([\d.]+):(\d+)")

Listed = Sequence[Engine | Mapping[str, Any]]


class Gateway:
    """A gateway process: where it listens, what it tells, what it holds."""

    def __init__(self, config: Mapping[str, Any], folder: Path, workers: int) -> None:
        self.config = dict(config)
        self._file, self._log = folder / "gateway.yaml", folder / "log"
        self._write()
        command = [sys.executable, "-m", "gateway", "serve", "--config", str(self._file)]
        if workers > 1:
            command += ["--workers", str(workers)]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=ROOT, start_new_session=True
            )
        self.pid = self._process.pid
        self.address: Address = ("", 0)
        self.admin: Address = ("", 0)

    def _write(self) -> None:
        self._file.write_text(json.dumps(self.config))  # JSON is YAML

    @property
    def log(self) -> str:
        """What it has printed so far."""
        return self._log.read_text(errors="replace")

    @property
    def running(self) -> bool:
        """Whether the process lives."""
        return self._process.poll() is None

    async def until_listening(self) -> None:
        """Wait until it says where it listens."""

        def listens() -> bool:
            expect(self.running, f"the gateway ended at its start: {self.log[-2000:]}")
            return _ADMIN.search(self.log) is not None

        await until(listens, "the gateway to listen", START_S)
        for name, found in (("address", _LISTENS.search(self.log)), ("admin", _ADMIN.search(self.log))):
            if found is not None:
                setattr(self, name, (found[1], int(found[2])))

    async def until_ready(self, count: int, within_s: float = START_S) -> None:
        """Wait until it tells `count` ready endpoints."""

        async def are_ready() -> bool:
            return await self.value("twohop_endpoint_ready") >= count

        await until(are_ready, f"{count} endpoints to be ready", within_s)

    async def post(self, body: bytes, headers: Headers = (), path: str = "/v1/chat/completions") -> Answer:
        """POST on a connection of its own."""
        return await post(self.address, body, headers, path)

    async def get(self, target: str, headers: Headers = ()) -> Answer:
        """GET on a connection of its own."""
        return await ask(self.address, "GET", target, None, headers)

    async def from_admin(self, method: str, target: str, body: bytes | None = None) -> Answer:
        """Ask the admin API."""
        return await ask(self.admin, method, target, body)

    async def metrics(self) -> "Samples":
        """Return what `/metrics` tells. Raises CaseFailed where it is no valid exposition."""
        answer = await self.get("/metrics")
        expect(answer.status == 200, f"/metrics answered {answer.told()}")
        return Samples(answer.body.decode())

    async def value(self, name: str, **labels: str) -> float:
        """Return the sum of the samples called `name` that have these labels; 0 where there are none."""
        return (await self.metrics()).value(name, **labels)

    async def until_idle(self, within_s: float = 10.0) -> None:
        """Wait until no lease is out and nobody waits."""

        async def idle() -> bool:
            told = await self.metrics()
            return told.value("twohop_in_flight") == 0 and told.value("twohop_queue_depth") == 0

        await until(idle, "in-flight and queue gauges to return to 0", within_s)

    async def endpoint(self, name: str) -> dict[str, Any]:
        """Return what the admin API tells of one endpoint."""
        told = (await self.from_admin("GET", "/admin/endpoints")).json
        listed = told["endpoints"] if isinstance(told, dict) else told
        found: dict[str, Any] = next(one for one in listed if one["name"] == name)
        return found

    def reload(self, listed: Listed) -> None:
        """Write a configuration with these endpoints and ask for a reload."""
        self.config["discovery"] = {"static": {"endpoints": _entries(listed)}}
        self._write()
        os.kill(self.pid, signal.SIGHUP)

    def rss_mb(self) -> float:
        """Return the resident memory of all its processes in MB (10^6 bytes)."""
        pages = sum(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in group_members(self.pid))
        return pages * os.sysconf("SC_PAGE_SIZE") / 1e6

    def peak_mb(self) -> float:
        """Return the highest resident memory of its first process so far, in MB."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        return int(status.partition("VmHWM:")[2].split()[0]) * 1024 / 1e6

    def descriptors(self) -> int:
        """Return how many file descriptors its first process holds."""
        return len(list(Path(f"/proc/{self.pid}/fd").iterdir()))

    def end(self) -> None:
        """End it, children included."""
        for sign in (signal.SIGTERM, signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, sign)
            until_s = time.monotonic() + 2.0
            while self.running or group_members(self.pid):
                if time.monotonic() > until_s:
                    break
                time.sleep(0.01)
            else:
                return
        raise RuntimeError(f"gateway process {self.pid} is still there")


class Samples:
    """One reading of `/metrics`."""

    def __init__(self, text: str) -> None:
        self.text = text
        try:
            families = list(text_string_to_metric_families(text))
        except ValueError as error:
            raise CaseFailed(f"/metrics is no valid exposition: {error}") from error
        self.samples = [sample for family in families for sample in family.samples]

    @property
    def lines(self) -> int:
        """How many lines that are no comments."""
        return sum(not line.startswith("#") for line in self.text.splitlines())

    def value(self, name: str, **labels: str) -> float:
        """Return the sum of the samples called `name` that have these labels; 0 where there are none."""
        return sum(
            sample.value for sample in self.samples if sample.name == name and labels.items() <= sample.labels.items()
        )

    def labels(self, name: str, label: str) -> set[str]:
        """Return the values of one label of a metric."""
        return {sample.labels[label] for sample in self.samples if sample.name == name}


def _entries(listed: Listed) -> list[dict[str, Any]]:
    return [{"url": one.url} if isinstance(one, Engine) else dict(one) for one in listed]


@contextlib.asynccontextmanager
async def serve(
    listed: Listed, *, ready: int | None = None, workers: int = 1, listen: str = "127.0.0.1:0", **sections: Any
) -> AsyncIterator[Gateway]:
    """Run a gateway before `listed` endpoints until `ready` (default: all) are ready; `sections` of its configuration.

    A case that has passed must have left no traceback in the log.
    """
    config = {
        "listen": listen,
        "admin": {"listen": "127.0.0.1:0"},
        "discovery": {"static": {"endpoints": _entries(listed)}},
        "drain": {"grace_s": 1.0},
        **sections,
    }
    with tempfile.TemporaryDirectory() as folder:
        gateway = Gateway(config, Path(folder), workers)
        try:
            await gateway.until_listening()
            await gateway.until_ready(len(listed) if ready is None else ready)
            yield gateway
            expect(gateway.running, f"the gateway has died: {gateway.log[-2000:]}")
            expect("Traceback" not in gateway.log, f"a traceback in the log: {gateway.log[-3000:]}")
        finally:
            await asyncio.to_thread(gateway.end)
