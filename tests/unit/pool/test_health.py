"""The health table: every state and signal, and laws over any sequence of signals."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.pool.health import Health, Limits, Signal, State, step

PASS, LOADING, UNCLEAR, FAIL = Signal.PASS, Signal.LOADING, Signal.UNCLEAR, Signal.FAIL
LIMITS = Limits(healthy_after=2, unhealthy_after=3)


def after(*signals: Signal, limits: Limits = LIMITS) -> Health:
    health = Health()
    for signal in signals:
        health = step(health, signal, f"saw {signal.value}", limits)
    return health


READY = (PASS, PASS)


@pytest.mark.parametrize(
    ("signals", "state"),
    [
        ((), State.UNKNOWN),
        ((PASS,), State.UNKNOWN),
        (READY, State.READY),
        ((PASS, FAIL, PASS), State.UNREADY),
        ((PASS, LOADING, PASS), State.UNREADY),
        ((PASS, UNCLEAR, PASS), State.UNKNOWN),
        ((FAIL,), State.UNREADY),
        ((LOADING,), State.UNREADY),
        ((UNCLEAR,), State.UNKNOWN),
        ((FAIL, UNCLEAR, PASS), State.UNREADY),
        ((FAIL, PASS, PASS), State.READY),
        ((*READY, LOADING), State.UNREADY),
        ((*READY, FAIL, FAIL), State.READY),
        ((*READY, FAIL, FAIL, FAIL), State.UNREADY),
        ((*READY, FAIL, FAIL, PASS, FAIL, FAIL), State.READY),
        ((*READY, FAIL, UNCLEAR, FAIL, UNCLEAR, FAIL), State.UNREADY),
        ((*READY, *[UNCLEAR] * 50), State.READY),
        ((*READY, FAIL, FAIL, FAIL, PASS), State.UNREADY),
        ((*READY, FAIL, FAIL, FAIL, PASS, PASS), State.READY),
    ],
)
def test_a_run_of_signals_ends_in_its_state(signals, state):
    assert after(*signals).state is state


def test_the_reason_is_the_latest_seen_and_goes_when_ready():
    assert after().reason == "not probed yet"
    assert after(FAIL, LOADING).reason == "saw loading"
    assert after(FAIL, PASS).reason == "saw fail"
    assert after(*READY).reason is None


SIGNALS = st.lists(st.sampled_from(Signal), max_size=40)
ANY_LIMITS = st.builds(Limits, healthy_after=st.integers(1, 5), unhealthy_after=st.integers(1, 5))


@given(SIGNALS, ANY_LIMITS)
def test_enough_passes_always_end_ready_and_enough_failures_never(signals, limits):
    assert after(*signals, *[PASS] * limits.healthy_after, limits=limits).state is State.READY
    assert after(*signals, *[FAIL] * limits.unhealthy_after, limits=limits).state is State.UNREADY


@given(SIGNALS, ANY_LIMITS)
def test_a_reason_is_told_exactly_when_not_ready(signals, limits):
    health = after(*signals, limits=limits)
    assert (health.reason is None) is (health.state is State.READY)


@given(SIGNALS, ANY_LIMITS)
def test_an_unclear_answer_never_changes_the_state_of_a_ready_endpoint(signals, limits):
    health = after(*signals, limits=limits)
    if health.state is State.READY:
        assert step(health, UNCLEAR, "4xx", limits) == health
