"""Prometheus text with vLLM's names and labels for one simulated engine."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from gateway.simulator.engine import Engine
from gateway.simulator.job import Job

LATENCY = (0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0)
FIRST_TOKEN = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0)
INTER_TOKEN = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0)
TOKENS = tuple(float(unit * 10**power) for power in range(5) for unit in (1, 2, 5))
TRANSFER = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 5.0)
BYTES = tuple(float(2**power) for power in range(11, 35, 2))
COUNTS = (0.0, 1.0, 2.0, 5.0, 10.0, 20.0)
DESCRIPTORS = (10.0, 20.0, 30.0, 50.0, 75.0, 100.0, 200.0, 400.0, 1000.0, 2000.0, 4000.0)

HISTOGRAMS: dict[str, Sequence[float]] = {
    "vllm:time_to_first_token_seconds": FIRST_TOKEN,
    "vllm:inter_token_latency_seconds": INTER_TOKEN,
    "vllm:request_time_per_output_token_seconds": INTER_TOKEN,
    "vllm:e2e_request_latency_seconds": LATENCY,
    "vllm:request_queue_time_seconds": LATENCY,
    "vllm:request_inference_time_seconds": LATENCY,
    "vllm:request_prefill_time_seconds": LATENCY,
    "vllm:request_decode_time_seconds": LATENCY,
    "vllm:request_prompt_tokens": TOKENS,
    "vllm:request_generation_tokens": TOKENS,
    "vllm:request_params_max_tokens": TOKENS,
    "vllm:request_num_preemptions": COUNTS,
    "vllm:nixl_xfer_time_seconds": TRANSFER,
    "vllm:nixl_bytes_transferred": BYTES,
    "vllm:nixl_num_descriptors": DESCRIPTORS,
}
Family = tuple[str, str, list[str]]
REASONS = ("stop", "length", "abort", "error", "repetition")


class Histogram:
    """Counts of observations in buckets up to and with each bound, their number and their sum."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        """Count one observation."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def lines(self, name: str, labels: str) -> Iterator[str]:
        """Yield the sample lines."""
        total = 0
        for bound, count in zip((*map(str, self.bounds), "+Inf"), self.counts, strict=True):
            total += count
            yield f'{name}_bucket{{le="{bound}",{labels}}} {float(total)}'
        yield f"{name}_count{{{labels}}} {float(total)}"
        yield f"{name}_sum{{{labels}}} {self.sum}"


class Metrics:
    """What an engine tells: counters and histograms kept here, the rest read from the engine when asked.

    Times given in engine time are divided by `speed`, so that they are what a client would measure.
    """

    def __init__(self, model: str, role: str, profile: str, speed: float) -> None:
        self.histograms = {name: Histogram(bounds) for name, bounds in HISTOGRAMS.items()}
        self.finished: Counter[str] = Counter()
        self.failed_transfers = 0
        self.failed_notifications = 0
        self.expired = 0
        self.late_notifications = 0
        self._speed = speed
        self._inter_token = self.histograms["vllm:inter_token_latency_seconds"]
        self._first_token = self.histograms["vllm:time_to_first_token_seconds"]
        self._labels = f'engine="0",model_name="{model}"'
        self._info = f'profile="{profile}",role="{role}"'

    def token(self, job: Job, before_s: float) -> None:
        """Count the time of a token just said; `before_s` is when the one before it was, 0 for none."""
        if before_s:
            self._inter_token.observe((job.last_token_s - before_s) / self._speed)
        else:
            self._first_token.observe((job.last_token_s - job.arrived_s) / self._speed)

    def end(self, job: Job, reason: str) -> None:
        """Count a job that has ended for `reason`, one of `REASONS`."""
        self.finished[reason] += 1
        said = job.output_tokens
        if not said:
            return
        whole = job.last_token_s - job.arrived_s
        decode = job.last_token_s - job.first_token_s
        seconds = {
            "vllm:e2e_request_latency_seconds": whole,
            "vllm:request_queue_time_seconds": job.started_s - job.arrived_s,
            "vllm:request_inference_time_seconds": job.last_token_s - job.started_s,
            "vllm:request_prefill_time_seconds": job.first_token_s - job.started_s,
            "vllm:request_decode_time_seconds": decode,
            "vllm:request_time_per_output_token_seconds": decode / max(said - 1, 1),
        }
        for name, value in seconds.items():
            self.histograms[name].observe(value / self._speed)
        self.histograms["vllm:request_prompt_tokens"].observe(len(job.prompt))
        self.histograms["vllm:request_generation_tokens"].observe(said)
        self.histograms["vllm:request_params_max_tokens"].observe(job.max_tokens)
        self.histograms["vllm:request_num_preemptions"].observe(job.preemptions)

    def transfer(self, seconds: float, size_bytes: int, blocks: int) -> None:
        """Count one KV transfer that has arrived."""
        self.histograms["vllm:nixl_xfer_time_seconds"].observe(seconds)
        self.histograms["vllm:nixl_bytes_transferred"].observe(size_bytes)
        self.histograms["vllm:nixl_num_descriptors"].observe(blocks)

    def text(self, engine: Engine, *, without: frozenset[str] = frozenset()) -> str:
        """Return the exposition, leaving out the families named in `without`."""
        lines: list[str] = []
        for name, kind, samples in self._families(engine):
            if name not in without:
                lines += (f"# HELP {name} {name.partition(':')[2].replace('_', ' ')}.", f"# TYPE {name} {kind}")
                lines += samples
        return "\n".join(lines) + "\n"

    def _families(self, engine: Engine) -> Iterator[Family]:
        yield from self._gauges(engine)
        yield from self._counters(engine)
        for name, histogram in self.histograms.items():
            yield name, "histogram", list(histogram.lines(name, self._labels))
        profile = engine.profile
        size = f'block_size="{profile.block_size}",cache_dtype="auto",enable_prefix_caching="True",engine="0"'
        concurrency = profile.num_blocks * profile.block_size / profile.max_model_len
        size += f',kv_cache_max_concurrency="{concurrency}",num_gpu_blocks="{profile.num_blocks}"'
        yield "vllm:cache_config_info", "gauge", [f"vllm:cache_config_info{{{size}}} 1.0"]
        yield self._family("sim:kv_blocks_pinned", "gauge", engine.pinned_blocks)
        yield "sim:engine_info", "gauge", [f"sim:engine_info{{{self._labels},{self._info}}} 1.0"]

    def _gauges(self, engine: Engine) -> Iterator[Family]:
        deferred, capacity = len(engine.loading), len(engine.waiting)
        fetched = sum(1 for job in engine.waiting if job.external_tokens and not job.preemptions)
        asked = sum(1 for job in engine.waiting if job.remote_tokens and not job.external_tokens)
        stages = {"waiting_to_start": asked, "in_progress": deferred, "completed_waiting": fetched}
        sleep = {"awake": 1, "weights_offloaded": 0, "discard_all": 0}
        yield self._family("vllm:num_requests_running", "gauge", len(engine.running))
        yield self._family("vllm:num_requests_waiting", "gauge", capacity + deferred)
        reasons = {"capacity": capacity, "deferred": deferred}
        yield self._labelled("vllm:num_requests_waiting_by_reason", "gauge", "reason", reasons)
        yield self._labelled("vllm:num_requests_kv_fetch_by_stage", "gauge", "stage", stages)
        yield self._labelled("vllm:engine_sleep_state", "gauge", "sleep_state", sleep)
        yield self._family("vllm:kv_cache_usage_perc", "gauge", engine.usage)

    def _counters(self, engine: Engine) -> Iterator[Family]:
        totals = engine.totals
        sources = {
            "local_compute": totals.computed,
            "local_cache_hit": totals.cached,
            "external_kv_transfer": totals.external,
        }
        reasons = {reason: self.finished[reason] for reason in REASONS}
        yield self._labelled("vllm:prompt_tokens_by_source", "counter", "source", sources)
        yield self._labelled("vllm:request_success", "counter", "finished_reason", reasons)
        plain = {
            "vllm:prefix_cache_queries": totals.prefix_queries,
            "vllm:prefix_cache_hits": totals.prefix_hits,
            "vllm:external_prefix_cache_queries": totals.external_queries,
            "vllm:external_prefix_cache_hits": totals.external_hits,
            "vllm:num_preemptions": totals.preemptions,
            "vllm:prompt_tokens": totals.prompt,
            "vllm:prompt_tokens_cached": totals.cached + totals.external,
            "vllm:generation_tokens": totals.generated,
            "vllm:nixl_num_failed_transfers": self.failed_transfers,
            "vllm:nixl_num_failed_notifications": self.failed_notifications,
            "vllm:nixl_num_kv_expired_reqs": self.expired,
            "vllm:nixl_num_notifications_after_expiry": self.late_notifications,
        }
        for name, value in plain.items():
            yield self._family(name, "counter", value)

    def _family(self, name: str, kind: str, value: float) -> Family:
        suffix = "_total" if kind == "counter" else ""
        return name, kind, [f"{name}{suffix}{{{self._labels}}} {float(value)}"]

    def _labelled(self, name: str, kind: str, label: str, values: Mapping[str, float]) -> Family:
        suffix = "_total" if kind == "counter" else ""
        return name, kind, [f'{name}{suffix}{{{self._labels},{label}="{key}"}} {float(values[key])}' for key in values]
