"""The pool: membership, models served and remembered, and who hears of what."""

from dataclasses import replace

import pytest

from gateway.pool import ejection, store
from gateway.pool.ejection import Event
from gateway.pool.endpoint import Endpoint
from gateway.pool.health import Limits, Signal
from gateway.pool.spec import EndpointSpec, Model
from gateway.pool.store import Pool


def spec(name: str, role="both") -> EndpointSpec:
    return EndpointSpec(name, f"http://{name}:8000", name, 8000, role)


def make_ready(endpoint, *models: str) -> None:
    endpoint.tell_models([Model(name, {"id": name, "owner": endpoint.name}) for name in models])
    endpoint.observe(Signal.PASS)


def test_endpoints_come_and_go_by_name():
    pool = Pool()
    a = pool.add(spec("a"))
    with pytest.raises(ValueError, match="'a' is in the pool"):
        pool.add(spec("a"))
    assert (pool.get("a"), pool.get("b"), len(pool), list(pool)) == (a, None, 1, [a])
    assert (pool.remove("a"), pool.remove("a"), len(pool)) == (a, None, 0)


def test_reconcile_replaces_what_changed_and_keeps_what_did_not():
    pool, dropped = Pool(), []
    pool.on_identity_change.append(lambda one: dropped.append(one.spec.role))
    added, removed = pool.reconcile([spec("a"), spec("b", "prefill"), spec("c")])
    assert ([one.name for one in added], removed) == (["a", "b", "c"], [])
    kept = pool.get("a")
    added, removed = pool.reconcile([spec("a"), spec("b", "decode")])
    assert ([one.spec.role for one in added], sorted(one.name for one in removed)) == (["decode"], ["b", "c"])
    assert (pool.get("a"), dropped) == (kept, ["prefill", "both"])
    assert pool.reconcile([spec("a"), spec("b", "decode")]) == ([], [])


def test_other_labels_and_limits_leave_an_endpoint_what_it_is():
    pool = Pool()
    kept = pool.add(spec("a"))
    make_ready(kept, "m")
    told: list[object] = []
    pool.on_identity_change.append(told.append)
    labelled = replace(spec("a"), labels={"zone": "z"})
    assert pool.reconcile([labelled]) == ([], [])
    assert (pool.get("a"), kept.spec, kept.ready, told) == (kept, labelled, True, [])
    assert pool.views(0.0)[0].labels == {"zone": "z"}
    pool.configure(Limits(unhealthy_after=1), stale_after_s=5.0)
    kept.observe(Signal.FAIL, "gone")
    assert not kept.ready


def test_views_show_every_endpoint_in_order():
    pool = Pool()
    make_ready(pool.add(spec("a")), "m")
    pool.add(spec("b"))
    assert [(view.name, view.ready) for view in pool.views(0.0)] == [("a", True), ("b", False)]
    assert [one["name"] for one in pool.describe(0.0)] == ["a", "b"]


def test_models_are_the_union_over_ready_endpoints_and_the_first_entry_counts():
    pool = Pool()
    a, b = pool.add(spec("a")), pool.add(spec("b"))
    assert (pool.served_models(), pool.any_ready(), pool.has_told) == ({}, False, False)
    make_ready(a, "m", "n")
    make_ready(b, "n", "o")
    assert pool.any_ready()
    assert {name: entry["owner"] for name, entry in pool.served_models().items()} == {"m": "a", "n": "a", "o": "b"}
    assert pool.served_models() is pool.served_models()
    a.observe(Signal.LOADING)
    assert set(pool.served_models()) == {"n", "o"}
    b.tell_models([Model("p", {"id": "p"})])
    assert set(pool.served_models()) == {"p"}
    pool.remove("b")
    assert set(pool.served_models()) == set()
    assert all(pool.remembers(name) for name in "mnop")
    assert not pool.remembers("q")
    assert pool.has_told


def test_the_memory_of_models_is_bounded_and_never_forgets_one_that_is_told_now():
    pool = Pool()
    make_ready(pool.add(spec("a")), "kept")
    gone = pool.add(spec("b"))
    make_ready(gone, "first")
    make_ready(gone, *(f"m{number}" for number in range(store.MAX_REMEMBERED_MODELS)))
    assert not pool.remembers("first")
    assert pool.remembers("kept")
    assert pool.remembers("m0")


def test_listeners_hear_of_room_states_identity_and_trouble():
    pool, heard = Pool(), []
    for kind in ("room", "state", "identity_change", "trouble"):
        getattr(pool, f"on_{kind}").append(lambda one, kind=kind: heard.append((kind, one.name, one.ready)))
    a = pool.add(spec("a"))
    make_ready(a, "m")
    assert heard == [("state", "a", False), ("state", "a", True), ("room", "a", True)]
    heard.clear()
    lease = a.lease()
    lease.release()
    lease.release()
    assert heard == [("room", "a", True)]
    heard.clear()
    a.connect_failed("refused")
    a.tell_models([Model("n", {"id": "n"})])
    assert heard == [("trouble", "a", True), ("identity_change", "a", True), ("room", "a", True)]
    heard.clear()
    pool.remove("a")
    a.lease().release()
    a.connect_failed("refused")
    assert heard == [("identity_change", "a", False), ("state", "a", False)]


def test_a_listener_may_leave_while_it_is_told():
    pool, heard = Pool(), []

    def once(endpoint) -> None:
        heard.append(endpoint.name)
        pool.on_state.remove(once)

    pool.on_state.append(once)
    pool.on_state.append(lambda one: heard.append(f"{one.name}!"))
    pool.add(spec("a"))
    pool.add(spec("b"))
    assert heard == ["a", "a!", "b!"]


def test_a_ready_endpoint_that_gains_a_model_tells_of_room():
    pool = Pool()
    endpoint = pool.add(EndpointSpec("a", "http://a:1", "a", 1))
    told: list[str] = []
    pool.on_room.append(lambda one: told.append(one.name))
    endpoint.tell_models([Model("m", {})])
    assert told == []
    endpoint.observe(Signal.PASS)
    assert told == ["a"]
    endpoint.tell_models([Model("m", {}), Model("adapter", {"parent": "m"})])
    assert told == ["a", "a"]


def member(pool: Pool, name: str) -> Endpoint:
    endpoint = pool.get(name)
    assert endpoint is not None
    return endpoint


def failing(endpoint, times: int = 5) -> None:
    for _ in range(times):
        endpoint.outcome(Event.FAIL, 1.0, "answered 500")


def pool_of(**endpoints: tuple[str, ...]) -> Pool:
    pool = Pool()
    for name, models in endpoints.items():
        make_ready(pool.add(spec(name, "prefill" if name.startswith("p") else "both")), *models)
    return pool


def ready(pool: Pool) -> set[str]:
    return {one.name for one in pool if one.ready}


@pytest.mark.parametrize(
    ("endpoints", "left"),
    [
        ({"a": ("m",)}, {"a"}),
        ({"a": ("m",), "b": ("n",)}, {"a", "b"}),
        ({"a": ("m",), "b": ("m",)}, {"b"}),
        ({"a": ("m", "adapter"), "b": ("m",)}, {"a", "b"}),
        ({"a": ("m", "n"), "b": ("m",), "c": ("n",)}, {"b", "c"}),
        ({"a": ("m",), "p": ("m",)}, {"p"}),
        ({"p": ("m",), "b": ("m",)}, {"b"}),
    ],
)
def test_an_endpoint_is_ejected_only_where_each_of_its_models_has_another(endpoints, left):
    pool = pool_of(**endpoints)
    failing(next(iter(pool)))
    assert ready(pool) == left


def test_however_many_fail_one_stays_and_what_it_counted_holds_once_another_is_back():
    pool = pool_of(a=("m",), b=("m",), c=("m",))
    a, b, c = pool
    for one in (a, b, c):
        failing(one)
    assert ready(pool) == {"c"}
    a.outcome(Event.DUE, 2.0)
    failing(c, 1)
    assert ready(pool) == {"a", "c"}  # one on trial cannot take its place
    a.outcome(Event.SUCCESS, 2.1)
    failing(c, 1)
    assert ready(pool) == {"a"}


def lose_by_health(pool: Pool) -> None:
    member(pool, "b").observe(Signal.LOADING, "loading")


def lose_by_drain(pool: Pool) -> None:
    member(pool, "b").drain()


def lose_by_leaving(pool: Pool) -> None:
    pool.remove("b")


def lose_the_model(pool: Pool) -> None:
    member(pool, "b").tell_models([Model("n", {"id": "n"})])


@pytest.mark.parametrize("lose", [lose_by_health, lose_by_drain, lose_by_leaving, lose_the_model])
def test_an_ejected_endpoint_comes_back_at_once_when_the_last_other_is_lost(lose):
    pool = pool_of(a=("m",), b=("m",))
    failing(member(pool, "a"))
    lose(pool)
    assert member(pool, "a").free


def test_one_that_gave_no_token_does_not_come_back_for_that():
    pool = pool_of(a=("m",), b=("m",))
    member(pool, "a").outcome(Event.STUCK, 1.0, "gave no token")
    lose_by_leaving(pool)
    assert not member(pool, "a").ready


def test_listeners_hear_of_an_ejection_its_trial_and_its_end():
    pool, heard = pool_of(a=("m",), b=("m",)), []
    pool.on_standing.append(lambda one: heard.append((one.name, one.standing.state, one.ready)))
    a = member(pool, "a")
    failing(a)
    a.outcome(Event.DUE, 3.0)
    a.outcome(Event.SUCCESS, 3.1)
    states = ejection.State
    assert heard == [("a", states.OUT, False), ("a", states.TRIAL, True), ("a", states.IN, True)]


def test_a_reload_changes_when_endpoints_go_out_and_how_newcomers_warm_in():
    pool = pool_of(a=("m",), b=("m",))
    pool.configure(Limits(), 5.0, ejection.Limits(in_a_row=1), warm_in_s=4.0)
    failing(member(pool, "a"), 1)
    assert ready(pool) == {"b"}
    b = member(pool, "b")
    b.observe(Signal.LOADING, "loading")
    b.observe(Signal.PASS)
    assert [view.warmth for _ in range(2) for view in pool.views(10.0) if view.name == "b"] == [0.0, 0.0]
    assert next(view for view in pool.views(11.0) if view.name == "b").warmth == 0.25
    pool.configure(Limits(), 5.0)
    assert next(view for view in pool.views(11.0) if view.name == "b").warmth == 1.0
