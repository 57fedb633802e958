"""What the gateway counts and times, and its Prometheus text.

Rule: events only add to plain numbers, on the event loop's thread, with no lock; a `Snapshot` and its Prometheus text
are made when someone reads `/metrics`. What another part already knows (leases, readiness, queue) is read from it at
that moment.
"""

from bisect import bisect_left
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from gateway.observability.snapshot import Buckets, Labels, Series, Snapshot, place

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

REQUEST_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 900.0)
FIRST_TOKEN_S = (0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 60.0, 120.0)
INTER_TOKEN_S = (0.001, 0.0025, 0.005, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.3, 0.5, 1.0, 2.5)
QUEUE_S = (0.001, 0.005, 0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
DECISION_S = (1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2)
LAG_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0)


@dataclass(frozen=True, slots=True)
class Spec:
    """One metric: its name, what it means, its labels, and a histogram's bucket bounds (seconds).

    Of several processes, `--workers`, a gauge counts as the sum over those that live, or as the greatest (`peak`).
    """

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    meaning: str
    labels: tuple[str, ...] = ()
    bounds: tuple[float, ...] = ()
    peak: bool = False


REQUESTS = Spec("twohop_requests_total", "counter", "Requests answered.", ("model", "route", "code"))
REQUEST = Spec("twohop_request_seconds", "histogram", "From a request's arrival to its end.", (), REQUEST_S)
TTFT = Spec("twohop_ttft_seconds", "histogram", "From a request's arrival to the first byte back.", (), FIRST_TOKEN_S)
INTER_TOKEN = Spec("twohop_inter_token_seconds", "histogram", "Between two chunks of a stream.", (), INTER_TOKEN_S)
QUEUE = Spec("twohop_queue_seconds", "histogram", "Spent waiting for a turn.", ("band",), QUEUE_S)
QUEUE_DEPTH = Spec("twohop_queue_depth", "gauge", "Requests waiting for a turn now.", ("band",))
IN_FLIGHT = Spec("twohop_in_flight", "gauge", "Leases this gateway holds on an endpoint now.", ("endpoint",))
DECISION = Spec("twohop_decision_seconds", "histogram", "Spent on one routing decision.", (), DECISION_S)
PROMPT_TOKENS = Spec("twohop_prompt_tokens_total", "counter", "Prompt tokens of answers that carry usage.", ("model",))
OUTPUT_TOKENS = Spec("twohop_output_tokens_total", "counter", "Output tokens of answers that carry usage.", ("model",))
CACHED_TOKENS = Spec("twohop_cached_tokens_actual_total", "counter", "Prompt tokens that engines had cached.")
PREDICTED_TOKENS = Spec(
    "twohop_cached_tokens_predicted_total", "counter", "Prompt tokens that the prefix index expected to be cached."
)
ORPHANED = Spec("twohop_handoff_orphaned_total", "counter", "Handoffs that no decode engine has used.")
TWO_HOP = Spec("twohop_two_hop_total", "counter", "Two-hop requests by how they ended.", ("outcome",))
PREFILL = Spec("twohop_prefill_seconds", "histogram", "Spent on a prefill leg.", (), FIRST_TOKEN_S)
HANDOFF = Spec(
    "twohop_handoff_seconds", "histogram", "From a prefill answer to the decode leg's first byte.", (), FIRST_TOKEN_S
)
READY = Spec(
    "twohop_endpoint_ready",
    "gauge",
    "1 where an endpoint may be picked, by any worker, else 0.",
    ("endpoint", "role"),
    peak=True,
)
EJECTIONS = Spec(
    "twohop_endpoint_ejections_total", "counter", "Times an endpoint was taken out.", ("endpoint", "reason")
)
RETRIES = Spec("twohop_retries_total", "counter", "Attempts after the first.", ("reason",))
REFUSED_RETRIES = Spec(
    "twohop_retries_refused_total", "counter", "Retries that were not made: the budget was used up.", ("reason",)
)
SCRAPE_AGE = Spec(
    "twohop_scrape_age_seconds",
    "gauge",
    "Age of an endpoint's last good scrape; of several workers' the greatest.",
    ("endpoint",),
    peak=True,
)
DISCONNECTS = Spec("twohop_client_disconnects_total", "counter", "Clients gone before their answer's end.")
INDEX_BLOCKS = Spec("twohop_index_blocks", "gauge", "Blocks in the prefix index, summed over endpoints and processes.")
LOOP_LAG = Spec("twohop_loop_lag_seconds", "histogram", "How late the event loop woke a timer.", (), LAG_S)

SPECS = (
    REQUESTS,
    REQUEST,
    TTFT,
    INTER_TOKEN,
    QUEUE,
    QUEUE_DEPTH,
    IN_FLIGHT,
    DECISION,
    PROMPT_TOKENS,
    OUTPUT_TOKENS,
    PREDICTED_TOKENS,
    CACHED_TOKENS,
    TWO_HOP,
    PREFILL,
    HANDOFF,
    ORPHANED,
    READY,
    EJECTIONS,
    RETRIES,
    REFUSED_RETRIES,
    SCRAPE_AGE,
    DISCONNECTS,
    INDEX_BLOCKS,
    LOOP_LAG,
)


class Histogram:
    """Counts of observed seconds by bucket; `counts[i]` holds values up to `bounds[i]`, the last those beyond all."""

    __slots__ = ("bounds", "counts", "total_s")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.total_s = 0.0

    def observe(self, seconds: float) -> None:
        """Count one value."""
        self.counts[bisect_left(self.bounds, seconds)] += 1
        self.total_s += seconds

    def buckets(self) -> Buckets:
        """Return what has been counted so far, the sum to the microsecond."""
        return Buckets(tuple(self.counts), round(self.total_s * 1e6))


class Tally:
    """Counters of one metric by label values, bounded: endpoints and models come and go while the process stays."""

    __slots__ = ("values",)

    def __init__(self) -> None:
        self.values: dict[tuple[str, ...], float] = {}

    def add(self, labels: tuple[str, ...], amount: float = 1) -> None:
        """Add `amount` to the counter with these label values."""
        values = self.values
        if labels not in values:
            labels = place(labels, values)
        values[labels] = values.get(labels, 0) + amount


@dataclass(frozen=True, slots=True)
class EndpointReading:
    """What `/metrics` tells of one endpoint; `scrape_age_s` is None before the first good scrape."""

    name: str
    role: str
    ready: bool
    in_flight: int
    scrape_age_s: float | None = None


class Metrics:
    """All metrics of one gateway process; `render_all` covers every process of the gateway.

    `endpoints`, `queue_depth` (requests by band) and `index_blocks` are called at each scrape. Label values must be
    bounded by the caller: a model that no endpoint serves is counted as "unknown". Times are seconds.
    """

    def __init__(
        self,
        endpoints: Callable[[], Iterable[EndpointReading]] = tuple,
        queue_depth: Callable[[], Mapping[str, int]] = dict,
        index_blocks: Callable[[], int] = int,
    ) -> None:
        self._endpoints = endpoints
        self._queue_depth = queue_depth
        self._index_blocks = index_blocks
        self._tallies = {spec.name: Tally() for spec in SPECS if spec.kind == "counter"}
        self._histograms = {
            spec.name: Histogram(spec.bounds) for spec in SPECS if spec.kind == "histogram" and not spec.labels
        }
        self._queue: dict[str, Histogram] = {}
        for spec in (CACHED_TOKENS, PREDICTED_TOKENS, ORPHANED, DISCONNECTS):
            self._tallies[spec.name].add((), 0)
        self._requests = self._tallies[REQUESTS.name]
        self._request = self._histograms[REQUEST.name]
        self._ttft = self._histograms[TTFT.name]
        # One call less per streamed chunk and per decision: these methods are the histograms' own.
        self.inter_token = self._histograms[INTER_TOKEN.name].observe
        self.decision = self._histograms[DECISION.name].observe
        self.prefill = self._histograms[PREFILL.name].observe
        self.handoff = self._histograms[HANDOFF.name].observe
        self.loop_lag = self._histograms[LOOP_LAG.name].observe
        self.over_all: Callable[[], Awaitable[Snapshot]] = self._alone

    def request_done(self, model: str, route: str, code: int, seconds: float, ttft_s: float | None) -> None:
        """Count a finished request; `ttft_s` is None when no byte of an answer was sent."""
        self._requests.add((model, route, str(code)))
        self._request.observe(seconds)
        if ttft_s is not None:
            self._ttft.observe(ttft_s)

    def tokens(self, model: str, prompt: int, output: int, cached: int) -> None:
        """Add one request's tokens as the engine counted them; `cached` is the part of `prompt` it had already."""
        label = (model,)
        self._tallies[PROMPT_TOKENS.name].add(label, prompt)
        self._tallies[OUTPUT_TOKENS.name].add(label, output)
        if cached:
            self._tallies[CACHED_TOKENS.name].add((), cached)

    def predicted(self, cached: int) -> None:
        """Add the tokens of one answered prompt that were expected to be cached where it went."""
        if cached:
            self._tallies[PREDICTED_TOKENS.name].add((), cached)

    def orphaned(self) -> None:
        """Count one handoff whose blocks stay held until the prefill engine's lease ends."""
        self._tallies[ORPHANED.name].add(())

    def queued(self, band: str, seconds: float) -> None:
        """Count one wait for a turn, zero waits too."""
        histogram = self._queue.get(band)
        if histogram is None:
            histogram = self._queue[band] = Histogram(QUEUE.bounds)
        histogram.observe(seconds)

    def two_hop(self, outcome: str) -> None:
        """Count one request that set out on two hops, by how it ended."""
        self._tallies[TWO_HOP.name].add((outcome,))

    def retry(self, reason: str) -> None:
        """Count one attempt after the first."""
        self._tallies[RETRIES.name].add((reason,))

    def retry_refused(self, reason: str) -> None:
        """Count one failure that was not tried elsewhere for want of budget."""
        self._tallies[REFUSED_RETRIES.name].add((reason,))

    def ejected(self, endpoint: str, reason: str) -> None:
        """Count one endpoint taken out of the ready ones."""
        self._tallies[EJECTIONS.name].add((endpoint, reason))

    def client_disconnected(self) -> None:
        """Count one client that left before its answer's end."""
        self._tallies[DISCONNECTS.name].add(())

    def snapshot(self) -> Snapshot:
        """Return everything that this process has counted, and its gauges as they are now."""
        endpoints = list(self._endpoints())
        gauges: dict[str, Series] = {
            QUEUE_DEPTH.name: {(band,): depth for band, depth in self._queue_depth().items()},
            IN_FLIGHT.name: {(reading.name,): reading.in_flight for reading in endpoints},
            READY.name: {(reading.name, reading.role): float(reading.ready) for reading in endpoints},
            SCRAPE_AGE.name: {
                (reading.name,): reading.scrape_age_s for reading in endpoints if reading.scrape_age_s is not None
            },
            INDEX_BLOCKS.name: {(): self._index_blocks()},
        }
        peaks = {spec.name: gauges.pop(spec.name) for spec in SPECS if spec.peak}
        counters = {name: dict(tally.values) for name, tally in self._tallies.items()}
        histograms: dict[str, dict[Labels, Buckets]] = {
            name: {(): histogram.buckets()} for name, histogram in self._histograms.items()
        }
        histograms[QUEUE.name] = {(band,): histogram.buckets() for band, histogram in self._queue.items()}
        return Snapshot(counters, histograms, gauges, peaks)

    def render(self) -> bytes:
        """Return what this process has counted as Prometheus text; its content type is `CONTENT_TYPE`."""
        return render(self.snapshot())

    async def render_all(self) -> bytes:
        """Return the same over all processes of the gateway, those that have ended too."""
        return render(await self.over_all())

    async def _alone(self) -> Snapshot:
        return self.snapshot()


def render(snapshot: Snapshot) -> bytes:
    """Return a snapshot as Prometheus text, a family for each of `SPECS`."""
    registry = CollectorRegistry()
    registry.register(_Families(snapshot))
    return generate_latest(registry)


class _Families(Collector):
    """One Prometheus metric family for each of `SPECS`."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot

    def collect(self) -> Iterator[Metric]:
        snapshot = self._snapshot
        for spec in SPECS:
            if spec.kind == "counter":
                counter = CounterMetricFamily(spec.name, spec.meaning, labels=spec.labels)
                for labels, value in snapshot.counters.get(spec.name, {}).items():
                    counter.add_metric(labels, value)
                yield counter
            elif spec.kind == "gauge":
                gauge = GaugeMetricFamily(spec.name, spec.meaning, labels=spec.labels)
                values = snapshot.peaks if spec.peak else snapshot.sums
                for labels, value in values.get(spec.name, {}).items():
                    gauge.add_metric(labels, float(value))
                yield gauge
            else:
                histogram = HistogramMetricFamily(spec.name, spec.meaning, labels=spec.labels)
                for labels, buckets in snapshot.histograms.get(spec.name, {}).items():
                    histogram.add_metric(labels, cumulative(spec.bounds, buckets.counts), buckets.total_us / 1e6)
                yield histogram


def cumulative(bounds: Sequence[float], counts: Sequence[int]) -> list[tuple[str, float]]:
    """Return Prometheus buckets: (upper bound, how many values are at most that)."""
    buckets, seen = [], 0
    for bound, count in zip((*map(str, bounds), "+Inf"), counts, strict=True):
        seen += count
        buckets.append((bound, float(seen)))
    return buckets
