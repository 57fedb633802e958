"""Snapshots of several processes add up: in any order, in any grouping, and never to less."""

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from gateway.observability.metrics import EndpointReading, Metrics, render
from gateway.observability.snapshot import EMPTY, OTHER, Buckets, Snapshot, lasting, merge, merge_all

names = st.sampled_from(["one", "two"])
labels = st.tuples(st.sampled_from(["a", "b", "c"]), st.sampled_from(["x", "y"]))
counts = st.integers(min_value=0, max_value=2**40)
families = st.dictionaries(names, st.dictionaries(labels, counts.map(float), max_size=4), max_size=2)
buckets = st.builds(Buckets, st.tuples(counts, counts, counts), counts)
snapshots = st.builds(
    Snapshot,
    families,
    st.dictionaries(names, st.dictionaries(labels, buckets, max_size=4), max_size=2),
    families,
    families,
)


@given(snapshots, snapshots, snapshots)
def test_order_and_grouping_make_no_difference(a: Snapshot, b: Snapshot, c: Snapshot):
    assert merge(a, b) == merge(b, a)
    assert merge(merge(a, b), c) == merge(a, merge(b, c)) == merge_all([c, a, b])


@given(snapshots)
def test_nothing_adds_nothing(a: Snapshot):
    assert merge(a, EMPTY) == a == merge(EMPTY, a)


@given(snapshots, snapshots, snapshots)
def test_more_counted_in_one_part_is_never_less_in_the_sum(a: Snapshot, more: Snapshot, b: Snapshot):
    before, after = merge(a, b), merge(merge(a, more), b)
    for name, series in before.counters.items():
        assert all(after.counters[name][key] >= value for key, value in series.items())
    for name, family in before.histograms.items():
        for key, value in family.items():
            now = after.histograms[name][key]
            assert now.total_us >= value.total_us
            assert all(late >= early for late, early in zip(now.counts, value.counts, strict=True))
    for name, series in before.peaks.items():
        assert all(after.peaks[name][key] >= value for key, value in series.items())


@given(snapshots, st.integers(min_value=0, max_value=3))
def test_what_stays_of_an_ended_process_has_its_totals_in_few_series_and_no_gauge(a: Snapshot, limit: int):
    left = lasting(a, limit)
    assert left.sums == left.peaks == {}
    for name, series in a.counters.items():
        assert sum(left.counters[name].values()) == sum(series.values())
        assert len(left.counters[name]) <= limit + 1
        assert len(left.counters[name]) <= limit or (OTHER, OTHER) in left.counters[name]
    for name, family in a.histograms.items():
        assert sum(one.total_us for one in left.histograms[name].values()) == sum(
            one.total_us for one in family.values()
        )
        assert len(left.histograms[name]) <= limit + 1
    assert lasting(left, 100) == left


@given(snapshots)
def test_it_crosses_a_wire_unchanged(a: Snapshot):
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(a), type=Snapshot) == a


def test_two_processes_read_as_one():
    one = Metrics(lambda: [EndpointReading("a", "both", ready=True, in_flight=2, scrape_age_s=0.5)])
    other = Metrics(
        lambda: [EndpointReading("a", "both", ready=False, in_flight=3, scrape_age_s=2.5)], lambda: {"standard": 4}
    )
    for metrics in (one, other):
        metrics.request_done("m", "single", 200, 0.25, 0.1)
        metrics.queued("standard", 0.002)
    text = render(merge(one.snapshot(), other.snapshot())).decode()
    for line in (
        'twohop_requests_total{code="200",model="m",route="single"} 2.0',
        "twohop_request_seconds_sum 0.5",
        'twohop_queue_seconds_count{band="standard"} 2.0',
        'twohop_in_flight{endpoint="a"} 5.0',
        'twohop_queue_depth{band="standard"} 4.0',
        'twohop_endpoint_ready{endpoint="a",role="both"} 1.0',
        'twohop_scrape_age_seconds{endpoint="a"} 2.5',
    ):
        assert line in text.splitlines()
