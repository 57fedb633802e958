"""What one process has counted, as plain data that can be sent, added up over processes, and kept after one's end.

Law: `merge` is commutative and associative, `EMPTY` adds nothing, and as long as no part shrinks neither does a sum.
For that, times in it are whole microseconds: sums of floats depend on their order.
"""

from collections.abc import Iterable, Mapping
from functools import reduce
from itertools import zip_longest

import msgspec

Labels = tuple[str, ...]
Series = dict[Labels, float]

MAX_SERIES = 10_000
"""Series of one metric that are counted each by itself; those that come later are counted together."""

OTHER = "other"
"""Label value of what is counted together once a metric has too many series."""


class Buckets(msgspec.Struct, frozen=True, array_like=True):
    """A histogram: how many values fell into each bucket (the last: beyond all bounds), and their sum."""

    counts: tuple[int, ...] = ()
    total_us: int = 0


class Snapshot(msgspec.Struct, frozen=True, array_like=True):
    """Every series by metric name and label values.

    `counters` and `histograms` only ever grow and outlive their process. `sums` and `peaks` are gauges, which hold
    while their process lives: of several processes the sum counts (requests in flight), or the greatest value.
    """

    counters: dict[str, Series] = {}
    histograms: dict[str, dict[Labels, Buckets]] = {}
    sums: dict[str, Series] = {}
    peaks: dict[str, Series] = {}


EMPTY = Snapshot()


def merge(one: Snapshot, other: Snapshot) -> Snapshot:
    """Return both together; neither is changed."""
    histograms = {name: dict(series) for name, series in one.histograms.items()}
    for name, series in other.histograms.items():
        mine = histograms.setdefault(name, {})
        for labels, buckets in series.items():
            mine[labels] = _added(mine.get(labels, Buckets()), buckets)
    return Snapshot(
        _combined(one.counters, other.counters, peak=False),
        histograms,
        _combined(one.sums, other.sums, peak=False),
        _combined(one.peaks, other.peaks, peak=True),
    )


def merge_all(parts: Iterable[Snapshot]) -> Snapshot:
    """Return all parts together."""
    return reduce(merge, parts, EMPTY)


def lasting(snapshot: Snapshot, max_series: int = MAX_SERIES) -> Snapshot:
    """Return what stays of a process that has ended: no gauges, and a bounded number of series.

    Of each metric the first `max_series` are kept and one more for all else; its total stays what it was.
    """
    counters: dict[str, Series] = {}
    for name, series in snapshot.counters.items():
        kept = counters[name] = {}
        for labels, value in series.items():
            at = place(labels, kept, max_series)
            kept[at] = kept.get(at, 0) + value
    histograms: dict[str, dict[Labels, Buckets]] = {}
    for name, family in snapshot.histograms.items():
        held = histograms[name] = {}
        for labels, buckets in family.items():
            at = place(labels, held, max_series)
            held[at] = _added(held.get(at, Buckets()), buckets)
    return Snapshot(counters, histograms)


def place(labels: Labels, kept: Mapping[Labels, object], max_series: int = MAX_SERIES) -> Labels:
    """Return the labels under which a value of `labels` is counted beside those in `kept`."""
    return labels if len(kept) < max_series or labels in kept else (OTHER,) * len(labels)


def _added(one: Buckets, other: Buckets) -> Buckets:
    counts = tuple(mine + theirs for mine, theirs in zip_longest(one.counts, other.counts, fillvalue=0))
    return Buckets(counts, one.total_us + other.total_us)


def _combined(one: Mapping[str, Series], other: Mapping[str, Series], *, peak: bool) -> dict[str, Series]:
    combined = {name: dict(series) for name, series in one.items()}
    for name, series in other.items():
        mine = combined.setdefault(name, {})
        for labels, value in series.items():
            if labels not in mine:
                mine[labels] = value
            else:
                mine[labels] = max(mine[labels], value) if peak else mine[labels] + value
    return combined
