"""What the long proofs share: a real gateway process, read from outside, a fake engine, and lines that hold or fail.

All that is told of a gateway comes from `/metrics` and from `/proc`: nothing in it knows that it is watched.
"""

import json
import os
import resource
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from benchmarks.overhead.processes import PinnedGroup
from benchmarks.overhead.proxies import ROOT, free_port

START_LIMIT_S = 60.0
_OPEN = {"01", "08"}  # Linux: established, and closed by the other side alone
_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class NotServed(Exception):
    """The gateway or an engine ended, or was not ready in time."""


@dataclass(frozen=True, slots=True)
class Line:
    """One thing that must hold: what it says, what was found, whether it holds (None: not judged)."""

    asked: str
    found: str
    held: bool | None

    def __str__(self) -> str:
        verdict = "not judged" if self.held is None else "pass" if self.held else "FAIL"
        return f"{verdict:<12}{self.asked}: {self.found}"


def exit_status(lines: Sequence[Line]) -> int:
    """Return 1 where a line fails, else 0."""
    return int(any(line.held is False for line in lines))


class Reading:
    """One reading of a gateway's `/metrics`."""

    def __init__(self, text: str) -> None:
        self._samples: dict[str, list[tuple[Mapping[str, str], float]]] = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                self._samples.setdefault(sample.name, []).append((sample.labels, sample.value))

    def total(self, name: str, **labels: str) -> float:
        """Return the sum of the samples called `name` that have these labels; 0 where there is none."""
        wanted = labels.items()
        return sum(value for has, value in self._samples.get(name, ()) if wanted <= has.items())

    def mean_since(self, before: "Reading", histogram: str) -> float:
        """Return the mean of what a histogram has observed since `before`; 0 where that is nothing."""
        count = self.total(f"{histogram}_count") - before.total(f"{histogram}_count")
        return (self.total(f"{histogram}_sum") - before.total(f"{histogram}_sum")) / count if count else 0.0


class GatewayProcess:
    """`python -m gateway serve`, alone on one core; defaults but for `sections`, a free port and the engines."""

    def __init__(self, endpoints: Sequence[Mapping[str, Any]], core: int, folder: Path, **sections: Any) -> None:
        self.port, self.endpoints = free_port(), endpoints
        config = folder / "gateway.json"
        document = {
            "listen": f"127.0.0.1:{self.port}",
            "admin": {"listen": None},
            "discovery": {"static": {"endpoints": list(endpoints)}},
            **sections,
        }
        config.write_text(json.dumps(document))  # JSON is YAML
        command = [sys.executable, "-m", "gateway", "serve", "--config", str(config)]
        self.group = PinnedGroup(command, core, folder / "gateway.log", cwd=ROOT)

    def await_ready(self) -> None:
        """Return when every endpoint is ready. Raises NotServed."""
        until_s = time.monotonic() + START_LIMIT_S
        while time.monotonic() < until_s and self.group.running:
            try:
                if self.read().total("twohop_endpoint_ready") == len(self.endpoints):
                    return
            except OSError:  # it does not listen yet
                pass
            time.sleep(0.05)
        raise NotServed(f"the gateway was not ready; it last said: {self.group.last_words()}")

    def read(self) -> Reading:
        """Return what `/metrics` tells now. Raises OSError."""
        with _DIRECT.open(f"http://127.0.0.1:{self.port}/metrics", timeout=10) as answer:
            return Reading(answer.read().decode())

    def rss_mb(self) -> float:
        """Return the resident memory in MB (10^6 bytes)."""
        return self.group.rss_mb()

    def descriptors(self) -> int:
        """Return the number of open file descriptors, sockets among them."""
        return sum(1 for _ in Path(f"/proc/{self.group.pid}/fd").iterdir())

    def client_sockets(self) -> int:
        """Return the number of connections to its port that it has not closed."""
        lines = Path("/proc/net/tcp").read_text().splitlines()[1:]
        wanted = f":{self.port:04X}"
        return sum(local.endswith(wanted) and state in _OPEN for _, local, _, state, *_ in map(str.split, lines))

    def end(self) -> None:
        """End it, and return when it is gone."""
        self.group.end()


@contextmanager
def gateway(
    endpoints: Sequence[Mapping[str, Any]], core: int, folder: Path, **sections: Any
) -> Iterator[GatewayProcess]:
    """Run a gateway with all its endpoints ready."""
    process = GatewayProcess(endpoints, core, folder, **sections)
    try:
        process.await_ready()
        yield process
    finally:
        process.end()


@contextmanager
def fake_engine(endpoints: int, events: int, interval_s: float) -> Iterator[list[int]]:
    """Run the fake engine of the overhead benchmark on this process's cores and yield the ports of its endpoints."""
    command = [sys.executable, "-m", "benchmarks.overhead.engine", "--endpoints", str(endpoints)]
    command += ["--events", str(events), "--interval", str(interval_s)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None  # noqa: S101 - asked for a line above
            yield json.loads(process.stdout.readline())
        finally:
            process.terminate()


def urls(ports: Sequence[int]) -> list[dict[str, str]]:
    """Return the endpoints at these ports as the configuration lists them."""
    return [{"url": f"http://127.0.0.1:{port}"} for port in ports]


@contextmanager
def two_cores() -> Iterator[int]:
    """Yield the core for the gateway; this process, and what it starts, has another one meanwhile if there is one."""
    usable = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, usable[1:2] or usable)
    try:
        yield usable[0]
    finally:
        os.sched_setaffinity(0, usable)


def raise_descriptor_limit(needed: int) -> None:
    """Raise the limit of open files, of this process and of those that it starts. Raises NotServed where it is low."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most != resource.RLIM_INFINITY and most < needed:
        raise NotServed(f"needs {needed} open files per process and the hard limit is {most} (ulimit -Hn)")
    wanted = needed if most == resource.RLIM_INFINITY else most
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))
