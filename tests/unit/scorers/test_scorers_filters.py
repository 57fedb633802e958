"""What each filter takes out, and how a decision tells it."""

import pytest

from scorers.model import EndpointView, RequestView
from scorers.profile import decide
from scorers.registry import build_profile

PROFILE = build_profile({"in_flight": 1.0}, ["healthy", "model_served", "role"], "max_score")
SERVES = frozenset({"m"})


def one_of_each() -> list[EndpointView]:
    return [
        EndpointView("p", role="prefill", models=SERVES),
        EndpointView("d", role="decode", models=SERVES),
        EndpointView("b", role="both", models=SERVES),
    ]


@pytest.mark.parametrize(("hop", "kept"), [("single", {"d", "b"}), ("decode", {"d", "b"}), ("prefill", {"p", "b"})])
def test_a_hop_goes_to_the_roles_that_take_it(hop, kept):
    decision = decide(PROFILE, RequestView("m", hop=hop), one_of_each(), 0.0)
    assert set(decision.candidates) == kept


@pytest.mark.parametrize(("hop", "picked"), [("single", "p"), ("decode", None), ("prefill", "p")])
def test_a_prefill_endpoint_alone_takes_a_single_hop_but_no_decode_hop(hop, picked):
    assert decide(PROFILE, RequestView("m", hop=hop), one_of_each()[:1], 0.0).picked == picked


def test_a_decode_endpoint_alone_takes_no_prefill_hop():
    assert decide(PROFILE, RequestView("m", hop="prefill"), one_of_each()[1:2], 0.0).picked is None


def test_a_dead_decode_endpoint_does_not_keep_a_single_hop_from_the_prefill_endpoint():
    pool = [EndpointView("d", role="decode", models=SERVES, ready=False), *one_of_each()[:1]]
    assert decide(PROFILE, RequestView("m"), pool, 0.0).picked == "p"


def test_each_rejected_endpoint_is_told_with_the_filter_that_took_it_out():
    pool = [
        EndpointView("down", ready=False),
        EndpointView("other", models=frozenset({"m/adapter"})),
        EndpointView("silent"),
        *one_of_each(),
    ]
    decision = decide(PROFILE, RequestView("m"), pool, 0.0)
    expected = {"down": "healthy", "other": "model_served", "silent": "model_served", "p": "role"}
    assert decision.rejected == expected


def warming(warmth: float, in_flight: int) -> list[str]:
    """Return who may get a request: two warm endpoints that hold 10 and 5, and one that warms in."""
    pool = [
        EndpointView("w1", models=SERVES, in_flight=10),
        EndpointView("w2", models=SERVES, in_flight=5),
        EndpointView("new", models=SERVES, in_flight=in_flight, warmth=warmth),
    ]
    return list(decide(PROFILE, RequestView("m"), pool, 0.0).candidates)


@pytest.mark.parametrize(
    ("warmth", "in_flight", "takes_part"),
    [
        (0.0, 0, True),
        (0.0, 1, False),
        (0.5, 4, True),
        (0.5, 5, False),
        (0.99, 8, True),
        (0.99, 9, False),
        (1.0, 50, True),
    ],
)
def test_an_endpoint_that_warms_in_holds_its_part_of_what_the_warm_ones_hold_and_one(warmth, in_flight, takes_part):
    assert ("new" in warming(warmth, in_flight)) is takes_part


def test_who_warms_in_is_told_as_taken_out_by_the_filter():
    pool = [EndpointView("w", models=SERVES), EndpointView("new", models=SERVES, in_flight=1, warmth=0.1)]
    decision = decide(PROFILE, RequestView("m"), pool, 0.0)
    assert (decision.picked, decision.rejected) == ("w", {"new": "healthy"})


@pytest.mark.parametrize(
    "others",
    [
        [],
        [EndpointView("as new", models=SERVES, warmth=0.0)],
        [EndpointView("other model", models=frozenset({"n"}))],
        [EndpointView("other hop", models=SERVES, role="prefill")],
        [EndpointView("down", models=SERVES, ready=False)],
    ],
)
def test_where_nobody_warmer_can_take_it_the_newcomer_takes_all(others):
    new = EndpointView("new", models=SERVES, in_flight=50, warmth=0.0)
    assert "new" in decide(PROFILE, RequestView("m"), [new, *others], 0.0).candidates
