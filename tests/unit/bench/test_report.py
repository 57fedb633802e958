"""The verdict of the overhead benchmark: ratios of medians, the required lines, the exit status."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.overhead import report
from benchmarks.overhead.measure import Sample

SAMPLE = Sample(
    plain_us=50.0,
    chunk_us=20.0,
    long_us=500.0,
    idle_ms_per_s=1.0,
    rss_mb=80.0,
    delivered=1.0,
    foreign=0.01,
    frames_per_chunk=1.0,
)
PEERS = [line.peer for line in report.REQUIRED]


def all_measured(ours: Sample) -> dict[str, list[Sample]]:
    return {report.OURS: [ours], **{peer: [SAMPLE] for peer in PEERS}}


# What holds every line: of each column the strictest limit.
STRICTEST = {
    line.unit: min(other.limit for other in report.REQUIRED if other.unit == line.unit) for line in report.REQUIRED
}
GOOD = replace(SAMPLE, **{unit: getattr(SAMPLE, unit) * limit for unit, limit in STRICTEST.items()})


def test_costs_at_the_limits_hold_every_line():
    judged = report.verdicts(all_measured(GOOD))
    assert [verdict.ratio for verdict in judged] == pytest.approx([STRICTEST[line.unit] for line in report.REQUIRED])
    assert report.exit_status(judged, broken={}) == 0
    assert report.verdict_lines(judged).count("pass") == len(report.REQUIRED)


@pytest.mark.parametrize("line", report.REQUIRED)
def test_a_line_fails_just_above_its_limit_and_nowhere_else(line):
    cost = getattr(SAMPLE, line.unit) * line.limit * 1.001
    above = report.verdicts(all_measured(replace(GOOD, **{line.unit: cost})))
    failed = [verdict.required for verdict in above if not verdict.held]
    assert failed == [one for one in report.REQUIRED if one.unit == line.unit and one.limit <= line.limit]
    assert report.exit_status(above, broken={}) == 1
    assert report.verdict_lines(above).count("FAIL") == len(failed)


@pytest.mark.parametrize("missing", [report.OURS, *PEERS])
def test_what_was_not_measured_is_not_a_pass(missing):
    samples = all_measured(GOOD)
    samples[missing] = []
    judged = report.verdicts(samples)
    assert report.exit_status(judged, broken={}) == 2
    assert "NOT MEASURED" in report.verdict_lines(judged)


def test_a_failed_line_outweighs_a_missing_peer_and_a_broken_gateway_fails():
    samples = all_measured(replace(SAMPLE, plain_us=500.0))
    samples["smg:cache_aware"] = []
    assert report.exit_status(report.verdicts(samples), broken={}) == 1
    samples[report.OURS] = []
    assert report.exit_status(report.verdicts(samples), broken={report.OURS: "wrong bytes"}) == 1
    assert report.exit_status(report.verdicts(samples), broken={"smg:cache_aware": "it ended"}) == 2


@given(st.lists(st.floats(1.0, 1e4), min_size=1, max_size=9), st.floats(0.1, 10.0))
def test_a_ratio_is_the_factor_between_two_proxies_whatever_the_runs(costs, factor):
    peer = [replace(SAMPLE, long_us=cost) for cost in costs]
    ours = [replace(SAMPLE, long_us=cost * factor) for cost in costs]
    assert report.ratio({report.OURS: ours, "peer": peer}, "long_us", "peer") == pytest.approx(factor)


def test_the_table_shows_median_and_spread_and_skips_what_has_no_sample():
    runs = [replace(SAMPLE, plain_us=cost) for cost in (30.0, 10.0, 20.0)]
    samples = {report.OURS: runs, "naive": [SAMPLE], "smg:cache_aware": []}
    table = report.table(samples, {report.OURS: "this tree"})
    assert "20.0 (10.0-30.0)" in table
    assert "smg" not in table
    ratios = report.ratios(samples).splitlines()
    assert len(ratios) == 2
    assert ratios[1].split() == ["naive", "0.40", "1.00", "1.00"]
    assert report.ratios({"naive": [SAMPLE]}) == ""


def test_a_disturbed_run_says_so():
    assert report.disturbed({"naive": [SAMPLE]}) == ""
    assert "up to 30%" in report.disturbed({"naive": [SAMPLE, replace(SAMPLE, foreign=0.3)]})
