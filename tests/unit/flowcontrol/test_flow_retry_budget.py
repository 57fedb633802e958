"""The retry budget never lets more through than its rule says, and always lets a little through."""

from hypothesis import given
from hypothesis import strategies as st

from gateway.flowcontrol.retry_budget import FLOOR, FLOOR_PER_S, RetryBudget

STEPS = st.lists(st.one_of(st.just("request"), st.just("retry"), st.floats(0, 5)), max_size=200)


def take(budget: RetryBudget, now_s: float) -> bool:
    allowed = budget.allows(now_s)
    if allowed:
        budget.spend()
    return allowed


@given(st.floats(0, 2), STEPS)
def test_retries_never_go_over_the_budget(ratio, steps):
    start_s = now_s = 50.0
    budget = RetryBudget(ratio, now_s)
    requests = retries = 0
    for one in steps:
        if one == "request":
            budget.earn()
            requests += 1
        elif one == "retry":
            retries += take(budget, now_s)
        else:
            now_s += one
        assert retries <= FLOOR + FLOOR_PER_S * (now_s - start_s) + ratio * requests + 1e-6


def test_a_share_of_the_requests_is_retried_once_the_floor_is_used_up():
    budget = RetryBudget(0.2, 0.0)
    while take(budget, 0.0):
        pass
    made = 0
    for _ in range(1000):
        budget.earn()
        made += take(budget, 0.0)
    assert 199 <= made <= 200


def test_little_traffic_can_always_retry():
    budget = RetryBudget(0.0, 0.0)
    assert all(take(budget, second * 1.0) for second in range(100))


def test_what_many_requests_save_up_is_bounded():
    budget = RetryBudget(1.0, 0.0)
    for _ in range(100_000):
        budget.earn()
    assert sum(take(budget, 0.0) for _ in range(1000)) == 100


def test_another_ratio_holds_from_then_on_and_what_is_saved_up_stays():
    budget = RetryBudget(1.0, 0.0)
    for _ in range(20):
        budget.earn()
    budget.configure(0.0)
    budget.earn()
    assert sum(take(budget, 0.0) for _ in range(100)) == FLOOR + 20
