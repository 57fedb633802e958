"""Laws of every scorer, filter and picker, and of the decision that they make together."""

from math import isfinite

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from scorers.filters import Filter
from scorers.load import Scorer
from scorers.model import Adapters, EndpointView, RequestView
from scorers.pickers import Picker
from scorers.profile import Profile, decide
from scorers.registry import build_profile, plugin_names

law = settings(deadline=None, max_examples=40)
counts = st.integers(0, 60)
shares = st.floats(0, 1)
chances = st.floats(0, 1, exclude_max=True)
hops = st.sampled_from(["single", "prefill", "decode"])
models = st.sampled_from(["m", "n"])
adapters = st.sampled_from(["n", "x", "y"])
slots = st.none() | st.integers(1, 4)

DEFAULT = build_profile(
    {"prefix_cache": 3.0, "queue_depth": 2.0, "kv_usage": 1.0, "lora": 1.0},
    ["healthy", "model_served", "role"],
    "max_score",
)


def endpoints(name: str = "e") -> st.SearchStrategy[EndpointView]:
    return st.builds(
        EndpointView,
        name=st.just(name),
        role=st.sampled_from(["both", "prefill", "decode"]),
        ready=st.booleans(),
        models=st.frozensets(models),
        waiting=counts.map(float),
        running=counts.map(float),
        kv_usage=shares,
        in_flight=counts,
        sent_since_scrape=counts,
        finished_since_scrape=counts,
        stale=st.booleans(),
        warmth=st.sampled_from([0.0, 0.25, 0.5, 1.0, 1.0]),
        adapters=st.none() | st.builds(Adapters, st.frozensets(models), st.frozensets(adapters), slots),
    )


names = st.sampled_from([f"e{i}" for i in range(9)])
pools = st.integers(0, 5).flatmap(lambda size: st.tuples(*(endpoints(f"e{i}") for i in range(size)))).map(list)
requests = st.builds(
    RequestView,
    model=models,
    hop=hops,
    prompt_bytes=st.integers(0, 10_000),
    matched=st.dictionaries(names, shares),
    shared=shares,
    held_blocks=st.dictionaries(names, st.integers(0, 20_000)),
)


def scorer(name: str) -> Scorer:
    return build_profile({name: 1.0}, [], "max_score").scorers[0].scorer


def rated(name: str, request: RequestView, pool: list[EndpointView]) -> list[float]:
    """Return the scores of a scorer that always has something to say."""
    scores = scorer(name).score(request, pool)
    assert scores is not None
    return scores


def filter_(name: str) -> Filter:
    return build_profile({}, [name], "max_score").filters[0].filter


def picker(name: str) -> Picker:
    return build_profile({}, [], name).picker


@pytest.mark.parametrize("name", plugin_names("scorers"))
@given(request=requests, pool=pools, shuffle=st.randoms(use_true_random=False))
@law
def test_a_scorer_gives_one_finite_number_each_whatever_the_order(name, request, pool, shuffle):
    shuffled = list(pool)
    shuffle.shuffle(shuffled)
    scores, again = scorer(name).score(request, pool), scorer(name).score(request, shuffled)
    if scores is None:
        assert again is None
        return
    assert len(scores) == len(pool)
    assert all(isfinite(score) and score <= 1.0 for score in scores)
    by_name = {endpoint.name: score for endpoint, score in zip(pool, scores, strict=True)}
    assert again == [by_name[endpoint.name] for endpoint in shuffled]


@pytest.mark.parametrize("name", plugin_names("filters"))
@given(request=requests, pool=pools, shuffle=st.randoms(use_true_random=False))
@law
def test_a_filter_keeps_a_part_of_the_candidates_in_their_order(name, request, pool, shuffle):
    kept = filter_(name).keep(request, pool)
    names = [endpoint.name for endpoint in kept]
    assert kept == [endpoint for endpoint in pool if endpoint.name in names]
    shuffled = list(pool)
    shuffle.shuffle(shuffled)
    assert {endpoint.name for endpoint in filter_(name).keep(request, shuffled)} == set(names)
    assert filter_(name).keep(request, kept) == kept


@pytest.mark.parametrize("name", plugin_names("picker"))
@given(totals=st.lists(st.floats(-100, 100), min_size=1), chance=chances)
@law
def test_a_picker_picks_an_index(name, totals, chance):
    assert totals[picker(name).pick(totals, chance)] in totals


@given(totals=st.lists(st.floats(-100, 100), min_size=1), chance=chances)
@law
def test_max_score_picks_nobody_who_is_clearly_less(totals, chance):
    assert totals[picker("max_score").pick(totals, chance)] >= max(totals) - 1e-9


@given(ties=st.integers(1, 20), losers=st.integers(0, 5), top=st.floats(-100, 100))
@law
def test_chance_spreads_evenly_over_ties(ties, losers, top):
    totals = [top + 1e-10 * (index % 2) for index in range(ties)] + [top - 1.0] * losers
    picks = [picker("max_score").pick(totals, (k + 0.5) / ties) for k in range(ties)]
    assert picks == list(range(ties))


@given(totals=st.lists(st.sampled_from([float("nan"), 0.0, 1.0, float("-inf")]), min_size=1), chance=chances)
@law
def test_max_score_never_prefers_what_is_not_a_number(totals, chance):
    pick = totals[picker("max_score").pick(totals, chance)]
    numbers = [total for total in totals if total == total]
    if max(numbers, default=float("-inf")) > float("-inf"):
        assert pick == max(numbers)


@pytest.mark.parametrize(
    ("name", "signal", "up"),
    [
        ("queue_depth", "waiting", False),
        ("queue_depth", "running", False),
        ("queue_depth", "in_flight", False),
        ("queue_depth", "sent_since_scrape", False),
        ("queue_depth", "finished_since_scrape", True),
        ("in_flight", "in_flight", False),
        ("kv_usage", "kv_usage", False),
    ],
)
@given(request=requests, pool=pools, endpoint=endpoints(), data=st.data())
@law
def test_load_scores_are_monotone_in_their_signal(name, signal, up, request, pool, endpoint, data):
    more = data.draw(st.floats(endpoint.kv_usage, 1) if signal == "kv_usage" else st.integers(1, 50).map(float))
    heavier = endpoint._replace(**{signal: more if signal == "kv_usage" else getattr(endpoint, signal) + more})
    before = rated(name, request, [*pool, endpoint])[-1]
    after = rated(name, request, [*pool, heavier])[-1]
    assert after >= before if up else after <= before


@given(endpoint=endpoints(), more=st.integers(1, 50))
@law
def test_every_dispatch_of_ours_lowers_a_fresh_depth_score(endpoint, more):
    sent = endpoint._replace(in_flight=endpoint.in_flight + more, sent_since_scrape=endpoint.sent_since_scrape + more)
    request = RequestView("m")
    assume(not endpoint.stale)
    assert rated("queue_depth", request, [sent])[0] < rated("queue_depth", request, [endpoint])[0]


@given(request=requests, first=shares, second=shares)
@law
def test_more_of_the_prompt_is_never_worse_and_beyond_what_is_shared_it_is_better(request, first, second):
    more, less = max(first, second), min(first, second)
    request = request._replace(matched={"a": more, "b": less}, held_blocks={})
    high, low = rated("prefix_cache", request, [EndpointView("a"), EndpointView("b")])
    assert high >= low
    if more > max(less, request.shared) + 1e-9:
        assert high > low


@given(request=requests, pool=pools)
@law
def test_credit_for_the_prompt_is_a_share_of_it(request, pool):
    scores = rated("prefix_cache", request, pool)
    assert all(0.0 <= score <= 1.0 for score in scores)
    credit = [request.matched.get(endpoint.name, 0.0) for endpoint in pool]
    if any(scores) and max(scores) > 0.05 + 1e-9:  # above what an empty cache is worth: it is credit
        assert all(score <= held + 1e-9 for score, held in zip(scores, credit, strict=True))


@given(request=requests, held=shares, other=shares)
@law
def test_a_short_front_part_that_many_share_is_no_reason(request, held, other):
    shared = max(held, other)
    request = request._replace(matched={"a": held, "b": other}, shared=shared, prompt_bytes=2000)
    one, another = rated("prefix_cache", request, [EndpointView("a"), EndpointView("b")])
    cold = request._replace(matched={})
    assert [one, another] == rated("prefix_cache", cold, [EndpointView("a"), EndpointView("b")])


@given(shared=st.floats(0.01, 1), weight=shares, beyond=shares)
@law
def test_a_long_front_part_that_many_share_counts_its_weight(shared, weight, beyond):
    by = build_profile({"prefix_cache": {"weight": 1, "shared_weight": weight}}, [], "max_score").scorers[0].scorer
    whole = shared + beyond * (1 - shared)
    request = RequestView("m", prompt_bytes=1_000_000, matched={"a": shared, "b": whole, "c": 0.0}, shared=shared)
    scores = by.score(request, [EndpointView(name) for name in "abc"])
    assert scores is not None
    front, all_of_it, _ = scores
    assert front == pytest.approx(weight * shared)
    assert all_of_it - front == pytest.approx(whole - shared)


@given(pool=pools, held=st.dictionaries(names, st.integers(0, 20_000)), shared=shares)
@law
def test_a_prompt_that_nobody_knows_goes_where_the_least_is_cached(pool, held, shared):
    scores = rated("prefix_cache", RequestView("m", shared=shared, held_blocks=held), pool)
    blocks = [held.get(endpoint.name, 0) for endpoint in pool]
    assert all(0.0 <= score <= 0.05 for score in scores)
    order = sorted(range(len(pool)), key=lambda index: blocks[index])
    assert [scores[index] for index in order] == sorted(scores, reverse=True)
    if pool and min(blocks) < max(blocks):
        assert scores[order[0]] > scores[order[-1]] == 0.0


@pytest.mark.parametrize("setting", [{"shared_weight": -0.1}, {"shared_weight": 1.1}, {"shared_from_bytes": -1}])
def test_a_weight_of_what_is_shared_out_of_range_is_refused(setting):
    with pytest.raises(ValueError, match="prefix_cache: shared_weight must be 0 to 1 and shared_from_bytes 0 or more"):
        build_profile({"prefix_cache": {"weight": 1, **setting}}, [], "max_score")


@given(pool=pools)
@law
def test_a_stale_endpoint_is_never_the_favourite_by_load(pool):
    profile = build_profile({"queue_depth": 2.0, "kv_usage": 1.0}, [], "max_score")
    assume(any(not endpoint.stale for endpoint in pool))
    decision = decide(profile, RequestView("m"), pool, 0.0)
    best_fresh = max(total for total, endpoint in zip(decision.totals, pool, strict=True) if not endpoint.stale)
    assert all(total <= best_fresh + 1e-9 for total in decision.totals)


def reasons(request: RequestView, endpoint: EndpointView) -> bool:
    """Say whether the default filters may keep this endpoint, whoever else is there."""
    fits = endpoint.role != "decode" if request.hop == "prefill" else endpoint.role != "prefill"
    return endpoint.ready and request.model in endpoint.models and (fits or request.hop == "single")


@given(request=requests, pool=pools, chance=chances)
@law
def test_a_decision_picks_among_candidates_and_accounts_for_everyone(request, pool, chance):
    decision = decide(DEFAULT, request, pool, chance)
    assert set(decision.candidates).isdisjoint(decision.rejected)
    assert set(decision.candidates) | set(decision.rejected) == {endpoint.name for endpoint in pool}
    assert all(reasons(request, endpoint) for endpoint in pool if endpoint.name in decision.candidates)
    assert (decision.picked in decision.candidates) if decision.candidates else decision.picked is None
    assert decision == decide(DEFAULT, request, pool, chance)


@given(request=requests, pool=pools)
@law
def test_one_that_warms_in_is_left_out_only_for_a_warmer_one_that_can_take_the_request(request, pool):
    kept = filter_("healthy").keep(request, pool)
    for endpoint in pool:
        if endpoint.ready and endpoint not in kept:
            warmer = [one for one in kept if one.warmth > endpoint.warmth and reasons(request, one)]
            assert warmer
            assert endpoint.in_flight > endpoint.warmth / max(one.warmth for one in warmer) * min(
                one.in_flight for one in warmer
            )
    decided = decide(DEFAULT, request, pool, 0.0).picked
    assert (decided is None) is (
        decide(DEFAULT, request, [one._replace(warmth=1.0) for one in pool], 0.0).picked is None
    )


@given(request=requests, pool=pools, chance=chances)
@law
def test_totals_are_the_weighted_sum_of_the_terms(request, pool, chance):
    decision = decide(DEFAULT, request, pool, chance)
    for index, total in enumerate(decision.totals):
        terms = [weight * column[index] for weight, column in zip(decision.weights, decision.terms, strict=True)]
        assert total == pytest.approx(sum(terms))
    if decision.picked is not None:
        assert decision.totals[decision.candidates.index(decision.picked)] >= max(decision.totals) - 1e-9


@given(request=requests, pool=pools, chance=chances, shuffle=st.randoms(use_true_random=False))
@law
def test_the_order_of_the_pool_changes_no_score(request, pool, chance, shuffle):
    shuffled = list(pool)
    shuffle.shuffle(shuffled)
    one, other = (decide(DEFAULT, request, order, chance) for order in (pool, shuffled))
    assert dict(zip(one.candidates, one.totals, strict=True)) == dict(zip(other.candidates, other.totals, strict=True))
    assert one.rejected == other.rejected


@given(pool=pools, chance=chances)
@law
def test_without_filters_and_scorers_chance_alone_decides(pool, chance):
    decision = decide(Profile((), (), picker("max_score")), RequestView("m"), pool, chance)
    assert decision.picked == (pool[int(chance * len(pool))].name if pool else None)


@given(request=requests, pool=pools)
@law
def test_lora_takes_part_only_where_the_model_is_an_adapter_to_someone_who_tells(request, pool):
    tellers = [one for one in pool if one.adapters is not None and request.model not in one.adapters.own]
    scores = scorer("lora").score(request, pool)
    assert (scores is None) == (not tellers)
    decision = decide(DEFAULT, request, pool, 0.5)
    left = [one for one in tellers if one.name in decision.candidates]
    assert ("lora" in decision.scorers) == bool(left)
    for index, total in enumerate(decision.totals):  # the table is true with or without it
        terms = zip(decision.weights, decision.terms, strict=True)
        assert total == pytest.approx(sum(weight * column[index] for weight, column in terms))


@given(active=st.frozensets(adapters), slots=slots, stale=st.booleans())
@law
def test_active_is_better_than_room_and_room_than_none_and_stale_is_never_better(active, slots, stale):
    def one(model: str, active: frozenset[str], stale: bool) -> float:
        endpoint = EndpointView("e", stale=stale, adapters=Adapters(frozenset({"base"}), active, slots))
        return rated("lora", RequestView(model), [endpoint])[0]

    room = slots is None or len(active) < slots
    assert one("z", active | {"z"}, False) > one("z", active, False) == (0.5 if room else 0.0)
    assert one("z", active, True) <= one("z", active, False)
    assert one("z", active | {"z"}, True) < one("z", active | {"z"}, False)
    mixed = [
        EndpointView("untold", stale=stale),
        EndpointView("own", stale=stale, adapters=Adapters(frozenset({"z"}))),
        EndpointView("adapter", stale=stale, adapters=Adapters(frozenset({"base"}), frozenset({"z"}))),
    ]
    assert rated("lora", RequestView("z"), mixed) == [0.5, 1.0, 0.5 if stale else 1.0]
