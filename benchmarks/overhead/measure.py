"""One proxy in one run: a new engine and a new proxy, warm-up, a quiet window, three measured phases, the end of both.

Rule: a phase counts only if every answer was right and the engine saw exactly as many requests as were sent, whole; a
run counts only if every endpoint had its part. Else `Broken` is raised. The proxy has one core to itself, engine and
client share another.
"""

import asyncio
import http.client
import json
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import uvloop

from benchmarks.overhead.load import Cost, StreamCost, WrongAnswer, closed_loop, paced_streams
from benchmarks.overhead.payloads import PLAIN_ANSWER, chat_body, chat_request
from benchmarks.overhead.processes import PinnedGroup
from benchmarks.overhead.proxies import ROOT, Place, Proxy, free_port
from benchmarks.served import fake_engine

_START_LIMIT_S = 60.0
_SPREAD_TRIES = 20
_NUMBER_SPACE = 1_000_000  # each phase numbers its requests from its own million: no two prompts of a run are equal


class Broken(Exception):
    """The proxy did not start, answered wrongly, or left an endpoint or a request out."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How much is done per proxy and run. Every phase is bounded in count and in time."""

    endpoints: int = 4
    warmup_requests: int = 1000
    idle_s: float = 2.0
    plain_requests: int = 8000
    plain_limit_s: float = 4.0
    plain_connections: int = 16
    plain_prompt_bytes: int = 1024
    streams: int = 200
    events: int = 120
    interval_s: float = 0.05
    window_s: float = 4.0
    long_requests: int = 192
    long_limit_s: float = 5.0
    long_connections: int = 4
    long_prompt_bytes: int = 400_000

    @property
    def families(self) -> int:
        """How many different first halves the prompts have: enough that affinity still reaches every endpoint."""
        return 4 * self.endpoints


FULL = Plan()
QUICK = Plan(
    warmup_requests=500,
    idle_s=1.0,
    plain_requests=2000,
    plain_limit_s=1.0,
    events=50,
    window_s=1.5,
    long_requests=48,
    long_limit_s=2.0,
)


@dataclass(frozen=True, slots=True)
class Sample:
    """What one proxy cost in one run: µs of CPU per unit, net of the idle rate; `rss_mb` is the memory at the end."""

    plain_us: float
    chunk_us: float
    long_us: float
    idle_ms_per_s: float
    rss_mb: float
    delivered: float  # share of the chunks due in the window that reached the client
    foreign: float  # share of the proxy's core that others used during the phases: over some per cent, measure again
    frames_per_chunk: float  # body pieces per chunk at the client; under 1: chunks were put together on the way


def measure(proxy: Proxy, plan: Plan, core: int) -> Sample:
    """Measure `proxy` once on `core`; the caller, and so the engine, must be bound to others. Raises `Broken`."""
    with (
        tempfile.TemporaryDirectory(prefix="overhead-") as name,
        fake_engine(plan.endpoints, plan.events, plan.interval_s) as ports,
    ):
        folder = Path(name)
        place = Place(free_port(), [f"http://127.0.0.1:{port}" for port in ports], folder)
        group = PinnedGroup(proxy.command(place), core, folder / "proxy.log", cwd=ROOT)
        try:
            _await_answer(group, place.port)
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                return _Measurement(plan, group, place.port, ports[0], runner).sample()
        except (WrongAnswer, OSError) as error:
            raise Broken(f"{error}; it last said: {group.last_words()}") from error
        finally:
            group.end()


def _await_answer(group: PinnedGroup, port: int) -> None:
    """Return when the proxy gives the right answer to a chat request for the first time."""
    until_s = time.monotonic() + _START_LIMIT_S
    body = chat_body(0, 1, 1024)
    while time.monotonic() < until_s:
        if not group.running:
            raise Broken(f"it ended at its start; it last said: {group.last_words()}")
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5.0)
        try:
            connection.request("POST", "/v1/chat/completions", body, {"content-type": "application/json"})
            if connection.getresponse().read() == PLAIN_ANSWER:
                return
        except (OSError, http.client.HTTPException):  # it does not listen yet
            pass
        finally:
            connection.close()
        time.sleep(0.1)
    raise Broken(f"no right answer in {_START_LIMIT_S:.0f} s; it last said: {group.last_words()}")


class _Measurement:
    def __init__(self, plan: Plan, group: PinnedGroup, port: int, counts_port: int, runner: asyncio.Runner) -> None:
        self.plan, self.group, self.port, self.counts_port, self.runner = plan, group, port, counts_port, runner

    def sample(self) -> Sample:
        plan = self.plan
        self.warm_up()
        idle_rate = self.idle_rate()
        seen_before, foreign_before_s, begun_s = self.counts(), self.group.foreign_s(), time.monotonic()
        plain = self.plain(1, plan.plain_requests)
        self.long(2, plan.families)  # every first half is seen once before the measured ones
        long = self.long(3, plan.long_requests)
        streams = self.streams(4)
        foreign_s, elapsed_s = self.group.foreign_s() - foreign_before_s, time.monotonic() - begun_s
        seen = [now - past for (now, _), (past, _) in zip(self.counts(), seen_before, strict=True)]
        if not all(seen):
            raise Broken(f"requests per endpoint were {seen}: not every endpoint had its part")

        def net_us(cost: Cost) -> float:
            return (cost.cpu_s - idle_rate * cost.elapsed_s) / cost.units * 1e6

        return Sample(
            plain_us=net_us(plain),
            chunk_us=net_us(streams),
            long_us=net_us(long),
            idle_ms_per_s=idle_rate * 1e3,
            rss_mb=self.group.rss_mb(),
            delivered=streams.units / streams.due,
            foreign=foreign_s / elapsed_s,
            frames_per_chunk=streams.frames / streams.units,
        )

    def warm_up(self) -> None:
        """Send plain requests until every endpoint has had some: a proxy may still be learning of its endpoints."""
        for attempt in range(_SPREAD_TRIES):
            before = self.counts()
            self.plain(attempt + 10, self.plan.warmup_requests)
            if all(after > past for (after, _), (past, _) in zip(self.counts(), before, strict=True)):
                return
            time.sleep(0.5)
        raise Broken("warm-up requests never reached every endpoint")

    def idle_rate(self) -> float:
        """Return the CPU seconds per second that the proxy uses while nobody asks anything."""
        cpu_before, begun_s = self.group.cpu_s(), time.monotonic()
        time.sleep(self.plan.idle_s)
        return (self.group.cpu_s() - cpu_before) / (time.monotonic() - begun_s)

    def plain(self, phase: int, count: int) -> Cost:
        plan = self.plan
        requests = self.requests(phase, count, plan.plain_prompt_bytes)
        return self.closed_loop(requests, plan.plain_prompt_bytes, plan.plain_connections, plan.plain_limit_s)

    def long(self, phase: int, count: int) -> Cost:
        plan = self.plan
        requests = self.requests(phase, count, plan.long_prompt_bytes)
        return self.closed_loop(requests, plan.long_prompt_bytes, plan.long_connections, plan.long_limit_s)

    def closed_loop(self, requests: list[bytes], prompt_bytes: int, connections: int, limit_s: float) -> Cost:
        before = self.counts()
        cost = self.runner.run(
            closed_loop(
                self.port, requests, PLAIN_ANSWER, connections=connections, limit_s=limit_s, cpu=self.group.cpu_s
            )
        )
        self.check_arrival(before, cost.units, prompt_bytes)
        return cost

    def streams(self, phase: int) -> StreamCost:
        plan, before = self.plan, self.counts()
        cost = self.runner.run(
            paced_streams(
                self.port,
                self.requests(phase, plan.streams, plan.plain_prompt_bytes, stream=True),
                events=plan.events,
                interval_s=plan.interval_s,
                window_s=plan.window_s,
                cpu=self.group.cpu_s,
            )
        )
        self.check_arrival(before, plan.streams, plan.plain_prompt_bytes)
        return cost

    def requests(self, phase: int, count: int, prompt_bytes: int, *, stream: bool = False) -> list[bytes]:
        numbers = range(phase * _NUMBER_SPACE, phase * _NUMBER_SPACE + count)
        families = self.plan.families
        return [chat_request(chat_body(number, families, prompt_bytes, stream=stream)) for number in numbers]

    def counts(self) -> list[tuple[int, int]]:
        """Return requests and body bytes that each endpoint has seen so far."""
        connection = http.client.HTTPConnection("127.0.0.1", self.counts_port, timeout=5.0)
        try:
            connection.request("GET", "/counts")
            return [(seen["requests"], seen["body_bytes"]) for seen in json.loads(connection.getresponse().read())]
        finally:
            connection.close()

    def check_arrival(self, before: list[tuple[int, int]], sent: int, prompt_bytes: int) -> None:
        """Raise `Broken` unless the engine saw exactly the requests that were sent, with all of their prompts."""
        after = self.counts()
        requests = sum(now - past for (now, _), (past, _) in zip(after, before, strict=True))
        body_bytes = sum(now - past for (_, now), (_, past) in zip(after, before, strict=True))
        if requests != sent:
            raise Broken(f"{sent} requests were sent and the engine saw {requests}")
        if body_bytes < sent * prompt_bytes:
            raise Broken(f"the engine saw {body_bytes} bytes of {sent} prompts of {prompt_bytes} bytes")
