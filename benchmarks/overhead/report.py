"""From samples to a table, ratios, and a verdict on the required lines; nothing here measures."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from benchmarks.overhead.measure import Sample

OURS = "twohop"
UNITS = {"plain_us": "plain request", "chunk_us": "streamed chunk", "long_us": "400 KB request"}

DISTURBED_FROM = 0.05  # share of the core; beside it, a quiet machine shows 1 to 2 % of clock ticks and interrupts

Samples = Mapping[str, Sequence[Sample]]  # by the proxy's name, one per run


@dataclass(frozen=True, slots=True)
class Required:
    """A line that must hold: our median of `unit` is at most `limit` times the peer's."""

    unit: str
    peer: str
    limit: float


REQUIRED = (
    Required("plain_us", "vllm-router:cache_aware", 0.7),
    Required("plain_us", "smg:cache_aware", 1.3),
    Required("chunk_us", "vllm-router:round_robin", 1.0),
    Required("chunk_us", "smg:cache_aware", 1.0),
    Required("long_us", "smg:cache_aware", 0.85),
)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of a required line; `ratio` is None where one side was not measured."""

    required: Required
    ratio: float | None

    @property
    def held(self) -> bool:
        """Tell whether the line was measured and holds."""
        return self.ratio is not None and self.ratio <= self.required.limit


def middle(samples: Sequence[Sample], field: str) -> float:
    """Return the median of one field over the runs."""
    return float(median(getattr(sample, field) for sample in samples))


def ratio(samples: Samples, field: str, peer: str) -> float | None:
    """Return our median divided by the peer's, None where one of them has no sample."""
    if not samples.get(OURS) or not samples.get(peer):
        return None
    return middle(samples[OURS], field) / middle(samples[peer], field)


def verdicts(samples: Samples) -> list[Verdict]:
    """Judge every required line."""
    return [Verdict(required, ratio(samples, required.unit, required.peer)) for required in REQUIRED]


def exit_status(judged: Sequence[Verdict], broken: Mapping[str, str]) -> int:
    """Return 1 where a line fails or the gateway itself broke, else 2 where a line was not measured, else 0."""
    if OURS in broken or any(verdict.ratio is not None and not verdict.held for verdict in judged):
        return 1
    return 0 if all(verdict.held for verdict in judged) else 2


def table(samples: Samples, versions: Mapping[str, str]) -> str:
    """Return medians with their spread, one proxy a line."""
    head = f"{'proxy':<26}{'version':<11}" + "".join(f"{'µs / ' + unit:>26}" for unit in UNITS.values())
    lines = [
        head + f"{'idle ms/s':>11}{'RSS MB':>9}  {'chunks in time':>14}  {'pieces/chunk':>12}  {'others on core':>14}"
    ]
    for name, runs in samples.items():
        if not runs:
            continue
        cells = "".join(f"{_spread([getattr(run, field) for run in runs]):>26}" for field in UNITS)
        lines.append(
            f"{name:<26}{versions.get(name, ''):<11}{cells}"
            f"{middle(runs, 'idle_ms_per_s'):>11.1f}{middle(runs, 'rss_mb'):>9.0f}"
            f"  {middle(runs, 'delivered'):>14.1%}  {middle(runs, 'frames_per_chunk'):>12.2f}"
            f"  {max(run.foreign for run in runs):>14.1%}"
        )
    return "\n".join(lines)


def _spread(values: Sequence[float]) -> str:
    return f"{median(values):.1f} ({min(values):.1f}-{max(values):.1f})"


def disturbed(samples: Samples) -> str:
    """Return a warning where others used the proxy's core while it was measured, else nothing."""
    worst = max((run.foreign for runs in samples.values() for run in runs), default=0.0)
    if worst <= DISTURBED_FROM:
        return ""
    return (
        f"DISTURBED: others used up to {worst:.0%} of the proxy's core, which makes every figure dearer; measure again."
    )


def ratios(samples: Samples) -> str:
    """Return our cost divided by each peer's, one peer a line; empty where we were not measured."""
    if not samples.get(OURS):
        return ""
    lines = [f"{OURS + ' divided by':<37}" + "".join(f"{unit:>26}" for unit in UNITS.values())]
    for peer, runs in samples.items():
        if peer != OURS and runs:
            lines.append(f"{peer:<37}" + "".join(f"{ratio(samples, field, peer) or 0.0:>26.2f}" for field in UNITS))
    return "\n".join(lines)


def verdict_lines(judged: Sequence[Verdict]) -> str:
    """Return one line per required line: what it asks, what was found."""
    lines = []
    for verdict in judged:
        line = verdict.required
        asked = f"{UNITS[line.unit]} at most {line.limit} times {line.peer}"
        if verdict.ratio is None:
            lines.append(f"NOT MEASURED  {asked}")
        else:
            lines.append(f"{'pass' if verdict.held else 'FAIL':<12}  {asked}: {verdict.ratio:.2f}")
    return "\n".join(lines)
