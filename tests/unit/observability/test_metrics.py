"""The metrics: names and labels of the contract, true counts, and a cost that the hot path can bear."""

import timeit

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from gateway.observability.metrics import CONTENT_TYPE, SPECS, EndpointReading, Histogram, Metrics, cumulative
from gateway.observability.snapshot import MAX_SERIES, OTHER

seconds = st.floats(min_value=0, max_value=1e6, allow_nan=False)
bounds = st.lists(st.floats(min_value=1e-6, max_value=1e4), min_size=1, max_size=20, unique=True).map(sorted)


def samples(metrics: Metrics) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """Return what a scraper reads: (sample name, sorted labels) to value."""
    families = text_string_to_metric_families(metrics.render().decode())
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in families
        for sample in family.samples
    }


@given(bounds, st.lists(seconds))
def test_a_histogram_counts_each_value_once_and_under_every_bound_it_fits(bounds: list[float], values: list[float]):
    histogram = Histogram(bounds)
    for value in values:
        histogram.observe(value)
    assert histogram.total_s == pytest.approx(sum(values))
    buckets = cumulative(histogram.bounds, histogram.buckets().counts)
    assert buckets[-1] == ("+Inf", len(values))
    for text, count in buckets[:-1]:
        assert count == sum(value <= float(text) for value in values)


def test_a_finished_request_is_counted_by_model_route_and_code():
    metrics = Metrics()
    metrics.request_done("m", "single", 200, 0.5, 0.1)
    metrics.request_done("m", "single", 200, 0.5, 0.1)
    metrics.request_done("unknown", "none", 404, 0.001, None)
    seen = samples(metrics)
    assert seen["twohop_requests_total", (("code", "200"), ("model", "m"), ("route", "single"))] == 2
    assert seen["twohop_requests_total", (("code", "404"), ("model", "unknown"), ("route", "none"))] == 1
    assert seen["twohop_request_seconds_count", ()] == 3
    assert seen["twohop_request_seconds_sum", ()] == pytest.approx(1.001)
    assert seen["twohop_ttft_seconds_count", ()] == 2


def test_events_reach_their_own_metric():
    metrics = Metrics()
    metrics.inter_token(0.02)
    metrics.decision(4e-5)
    metrics.prefill(0.3)
    metrics.handoff(0.01)
    metrics.loop_lag(0.002)
    metrics.queued("batch", 1.5)
    metrics.two_hop("ok")
    metrics.retry("connect")
    metrics.ejected("a", "health")
    metrics.client_disconnected()
    metrics.tokens("m", 100, 20, 64)
    metrics.tokens("m", 10, 2, 0)
    seen = samples(metrics)
    for name in ("inter_token", "decision", "prefill", "handoff", "loop_lag"):
        assert seen[f"twohop_{name}_seconds_count", ()] == 1
    assert seen["twohop_queue_seconds_bucket", (("band", "batch"), ("le", "1.0"))] == 0
    assert seen["twohop_queue_seconds_bucket", (("band", "batch"), ("le", "2.5"))] == 1
    assert seen["twohop_two_hop_total", (("outcome", "ok"),)] == 1
    assert seen["twohop_retries_total", (("reason", "connect"),)] == 1
    assert seen["twohop_endpoint_ejections_total", (("endpoint", "a"), ("reason", "health"))] == 1
    assert seen["twohop_client_disconnects_total", ()] == 1
    assert seen["twohop_prompt_tokens_total", (("model", "m"),)] == 110
    assert seen["twohop_output_tokens_total", (("model", "m"),)] == 22
    assert seen["twohop_cached_tokens_actual_total", ()] == 64


def test_the_size_of_the_index_is_read_when_someone_asks():
    blocks = [1, 2]
    metrics = Metrics(index_blocks=blocks.__len__)
    blocks.append(3)
    assert samples(metrics)["twohop_index_blocks", ()] == 3


def test_gauges_are_read_when_someone_asks():
    pool = [EndpointReading("a", "prefill", ready=True, in_flight=3, scrape_age_s=0.5)]
    depth = {"standard": 0}
    metrics = Metrics(lambda: pool, lambda: depth)
    pool.append(EndpointReading("b", "decode", ready=False, in_flight=0))
    depth["standard"] = 7
    seen = samples(metrics)
    assert seen["twohop_endpoint_ready", (("endpoint", "a"), ("role", "prefill"))] == 1
    assert seen["twohop_endpoint_ready", (("endpoint", "b"), ("role", "decode"))] == 0
    assert seen["twohop_in_flight", (("endpoint", "a"),)] == 3
    assert seen["twohop_scrape_age_seconds", (("endpoint", "a"),)] == 0.5
    assert ("twohop_scrape_age_seconds", (("endpoint", "b"),)) not in seen
    assert seen["twohop_queue_depth", (("band", "standard"),)] == 7
    pool.clear()
    assert ("twohop_in_flight", (("endpoint", "a"),)) not in samples(metrics)


def test_every_metric_of_the_table_is_declared_with_its_type():
    text = Metrics().render().decode()
    assert CONTENT_TYPE.startswith("text/plain")
    for spec in SPECS:
        assert f"# TYPE {spec.name} {spec.kind}\n" in text
        assert f"# HELP {spec.name} {spec.meaning}\n" in text


def test_two_gateways_in_one_process_count_apart():
    one, other = Metrics(), Metrics()
    one.client_disconnected()
    assert samples(other)["twohop_client_disconnects_total", ()] == 0


def test_a_hostile_model_name_cannot_break_the_text():
    metrics = Metrics()
    name = 'a"\n} twohop_fake 1\\'
    metrics.tokens(name, 1, 0, 0)
    assert samples(metrics)["twohop_prompt_tokens_total", (("model", name),)] == 1


def test_the_hot_path_can_bear_the_cost():
    """The bounds are ten times the budget (6 and 0.4 µs): only a change of kind breaks them, not a busy machine."""
    metrics = Metrics()

    def one_request() -> None:
        metrics.queued("standard", 0.0)
        metrics.decision(4e-5)
        metrics.prefill(0.3)
        metrics.handoff(0.01)
        metrics.two_hop("ok")
        metrics.tokens("m", 1000, 100, 900)
        metrics.request_done("m", "two_hop", 200, 1.0, 0.3)

    runs = 2000
    assert min(timeit.repeat(one_request, number=runs, repeat=5)) / runs < 60e-6
    assert min(timeit.repeat(lambda: metrics.inter_token(0.012), number=runs, repeat=5)) / runs < 4e-6


def test_endpoints_that_come_and_go_for_ever_are_counted_within_a_bound_and_none_is_lost():
    metrics = Metrics()
    for number in range(MAX_SERIES + 5):
        metrics.ejected(f"pod-{number}", "health")
    metrics.ejected("pod-0", "health")
    series = metrics.snapshot().counters["twohop_endpoint_ejections_total"]
    assert len(series) == MAX_SERIES + 1
    assert (series["pod-0", "health"], series[OTHER, OTHER], sum(series.values())) == (2, 5, MAX_SERIES + 6)
