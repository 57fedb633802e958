"""The ejection table: examples of every rule, and laws over any sequence of events."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.pool.ejection import NO_PROGRESS, Event, Limits, Sight, Standing, State, outcome_of, step

E = Event
LIMITS = Limits(in_a_row=3, share=0.5, window_s=10.0, first_s=1.0, longest_s=8.0)
FAILURES = (E.FAIL, E.SILENT, E.BROKE)
OUT = (E.FAIL, E.FAIL, E.FAIL)


class Told:
    """A standing, and the events it was told, half a second apart."""

    def __init__(self, *events: Event, limits: Limits = LIMITS, last: bool = False) -> None:
        self.standing = Standing()
        self.now_s = 100.0
        self.successes = 0
        self.limits = limits
        self.tell(*events, last=last)

    def tell(self, *events: Event, last: bool = False, apart_s: float = 0.5) -> "Told":
        for event in events:
            self.now_s += apart_s
            self.successes += event in (E.SUCCESS, E.BEGUN)
            self.standing = step(self.standing, event, Sight(self.now_s, self.successes, last), self.limits)
        return self


@pytest.mark.parametrize(
    ("events", "state", "reason"),
    [
        ((), State.IN, ""),
        ((E.FAIL, E.FAIL), State.IN, ""),
        (OUT, State.OUT, "failures_in_a_row"),
        ((E.FAIL, E.SILENT, E.FAIL), State.OUT, "failures_in_a_row"),
        ((E.FAIL, E.CALLER, E.FAIL, E.CALLER, E.FAIL), State.OUT, "failures_in_a_row"),
        ((E.FAIL, E.FAIL, *[E.SUCCESS] * 3, E.FAIL, E.FAIL), State.OUT, "failure_share"),
        ((E.FAIL, E.FAIL, *[E.BEGUN] * 5, E.FAIL, E.FAIL), State.IN, ""),
        ((E.FAIL, E.SUCCESS) * 3, State.OUT, "failure_share"),
        ((E.BEGUN, E.BROKE) * 3, State.OUT, "failures_in_a_row"),
        ((E.BEGUN, E.BROKE, *[E.BEGUN, E.ENDED] * 4) * 3, State.IN, ""),
        ((E.CALLER,) * 50, State.IN, ""),
        ((E.STUCK,), State.OUT, NO_PROGRESS),
        ((*OUT, E.SUCCESS, E.BEGUN, E.ENDED, E.CALLER, *FAILURES), State.OUT, "failures_in_a_row"),
        ((*OUT, E.DUE), State.TRIAL, ""),
        ((*OUT, E.DUE, E.CALLER, E.ENDED), State.TRIAL, ""),
        ((*OUT, E.DUE, E.BEGUN), State.IN, ""),
        ((*OUT, E.DUE, E.SUCCESS), State.IN, ""),
        ((*OUT, E.DUE, E.FAIL), State.OUT, "trial_failed"),
        ((*OUT, E.DUE, E.SILENT), State.OUT, "trial_failed"),
        ((*OUT, E.DUE, E.BROKE), State.OUT, "trial_failed"),
        ((*OUT, E.DUE, E.STUCK), State.OUT, NO_PROGRESS),
        ((*OUT, E.NEEDED), State.IN, ""),
        ((*OUT, E.DUE, E.NEEDED), State.IN, ""),
        ((E.STUCK, E.NEEDED), State.OUT, NO_PROGRESS),
        ((E.STUCK, E.DUE, E.NEEDED), State.IN, ""),
        ((E.DUE, E.NEEDED), State.IN, ""),
    ],
)
def test_a_run_of_events_ends_in_its_standing(events, state, reason):
    standing = Told(*events).standing
    assert (standing.state, standing.reason) == (state, reason)


@pytest.mark.parametrize(
    ("events", "silent"),
    [
        ((E.FAIL, E.FAIL, E.SILENT), True),
        ((E.SILENT, E.SILENT, E.FAIL), False),
        ((E.SILENT,), False),
        ((*OUT, E.DUE, E.SILENT), True),
        ((E.STUCK,), True),
    ],
)
def test_one_that_went_out_for_silence_must_give_a_token_first(events, silent):
    assert Told(*events).standing.silent is silent


def test_failures_far_apart_are_no_share_of_a_window():
    told = Told()
    for _ in range(10):
        told.tell(E.FAIL, E.SUCCESS, apart_s=6.0)
    assert told.standing.state is State.IN


def test_each_time_out_is_twice_as_long_up_to_the_longest_and_a_calm_time_makes_it_short_again():
    told = Told(*OUT)
    spans = []
    for _ in range(6):
        spans.append(told.standing.until_s - told.now_s)
        told.tell(E.DUE, E.FAIL)
    assert spans == [1, 2, 4, 8, 8, 8]
    told.tell(E.DUE, E.SUCCESS, *OUT)
    assert told.standing.until_s - told.now_s == 8
    told.tell(E.DUE, E.SUCCESS, E.SUCCESS, apart_s=9.0).tell(*OUT)
    assert told.standing.until_s - told.now_s == 1


@pytest.mark.parametrize(
    ("status", "event"),
    [
        (200, E.SUCCESS),
        (302, E.SUCCESS),
        (400, E.CALLER),
        (404, E.CALLER),
        (429, E.CALLER),
        (499, E.CALLER),
        (501, E.CALLER),
        (500, E.FAIL),
        (503, E.FAIL),
        (599, E.FAIL),
    ],
)
def test_a_status_blames_the_caller_or_the_engine(status, event):
    assert outcome_of(status) is event


EVENTS = st.lists(st.tuples(st.sampled_from(Event), st.floats(0, 40), st.booleans()), max_size=60)
ANY_LIMITS = st.builds(
    Limits,
    in_a_row=st.integers(1, 8),
    share=st.floats(0.01, 1),
    window_s=st.floats(0.1, 60),
    first_s=st.floats(0.1, 5),
    longest_s=st.floats(0.1, 60),
)


def run(events, limits):
    """Yield each step: before, event, whether last, after, and the time."""
    standing, now_s, successes = Standing(), 0.0, 0
    for event, apart_s, last in events:
        now_s += apart_s
        successes += event in (E.SUCCESS, E.BEGUN)
        after = step(standing, event, Sight(now_s, successes, last), limits)
        yield standing, event, last, after, now_s
        standing = after


@given(EVENTS, ANY_LIMITS)
def test_an_answer_that_blames_the_caller_moves_nothing(events, limits):
    assert all(after == before for before, event, _, after, _ in run(events, limits) if event is E.CALLER)


@given(EVENTS, ANY_LIMITS)
def test_the_last_is_never_ejected(events, limits):
    for before, _, last, after, _ in run(events, limits):
        if last and before.state is not State.OUT:
            assert after.state is not State.OUT


@given(EVENTS, ANY_LIMITS)
def test_an_ejection_ends_in_bounded_time_and_has_a_reason(events, limits):
    for before, _, _, after, now_s in run(events, limits):
        assert bool(after.reason) is (after.state is State.OUT)
        if after.state is State.OUT and after != before:
            assert 0 < after.until_s - now_s <= limits.longest_s * (1 + 1e-9)
            assert step(after, E.DUE, Sight(after.until_s, 0), limits).state is State.TRIAL


@given(EVENTS, ANY_LIMITS)
def test_only_failures_eject_and_only_what_is_due_or_needed_ends_it(events, limits):
    for before, event, _, after, _ in run(events, limits):
        if before.state is not State.OUT and after.state is State.OUT:
            assert event in (*FAILURES, E.STUCK)
        if before.state is State.OUT and after.state is not State.OUT:
            assert event in (E.DUE, E.NEEDED)


@given(EVENTS, ANY_LIMITS)
def test_a_success_ends_a_trial_and_what_is_kept_is_bounded(events, limits):
    for before, event, _, after, _ in run(events, limits):
        assert len(after.failures) <= 64
        assert after.calm is (after.state is State.IN and after.row == after.broken == 0)
        if before.state is State.TRIAL and event in (E.SUCCESS, E.BEGUN):
            assert (after.state, after.calm) == (State.IN, True)


@given(st.integers(0, 200), st.integers(1, 8))
def test_interleaved_refusals_hide_no_failure(refusals, in_a_row):
    limits = Limits(in_a_row=in_a_row)
    standing = Standing()
    for number in range(in_a_row):
        for _ in range(refusals // in_a_row):
            standing = step(standing, E.CALLER, Sight(float(number), 0), limits)
        standing = step(standing, E.FAIL, Sight(float(number), 0), limits)
    assert standing.state is State.OUT


@given(st.integers(5, 60), st.floats(0.5, 1.0))
def test_a_half_broken_engine_goes_out_whatever_it_answers_between(rounds, apart_s):
    """One in two fails, or more, never five in a row."""
    told = Told(limits=Limits(window_s=20.0))
    for _ in range(rounds):
        told.tell(E.FAIL, E.SUCCESS, apart_s=apart_s)
    assert told.standing.state is State.OUT
