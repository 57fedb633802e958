"""One endpoint: leases, views, what a scrape corrects, identity, and what it tells."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.pool.endpoint import Endpoint
from gateway.pool.health import Signal
from gateway.pool.scrape import Load
from gateway.pool.spec import EndpointSpec, Model
from scorers.model import Adapters


def spec(name: str = "a", **more) -> EndpointSpec:
    return EndpointSpec(name, f"http://{name}:8000", name, 8000, **more)


def model(name: str, **entry) -> Model:
    return Model(name, {"id": name, **entry})


def no_endpoints() -> list[Endpoint]:
    return []


def ready_endpoint() -> Endpoint:
    endpoint = Endpoint(spec())
    endpoint.tell_models([model("m")])
    endpoint.observe(Signal.PASS)
    return endpoint


def test_a_new_endpoint_is_not_ready_and_says_why():
    endpoint = Endpoint(spec(role="prefill", labels={"zone": "z"}))
    view = endpoint.view(0.0)
    assert (view.name, view.role, view.ready, view.stale, view.labels) == ("a", "prefill", False, True, {"zone": "z"})
    assert endpoint.why_not_ready == "not probed yet"


def test_a_view_is_the_same_object_until_something_changes():
    endpoint = ready_endpoint()
    endpoint.accept_scrape(endpoint.begin_scrape(10.0), Load(waiting=1))
    first = endpoint.view(10.0)
    assert endpoint.view(15.0) is first
    assert endpoint.view(15.1).stale
    assert endpoint.view(15.0) == first
    endpoint.lease()
    assert endpoint.view(15.0).in_flight == 1


@given(st.lists(st.sampled_from(["lease", "release", "again", "scrape"]), max_size=60))
def test_in_flight_is_always_leases_taken_less_leases_given_back(steps):
    endpoint, held, gone = ready_endpoint(), [], []
    sent = finished = 0
    for number, one in enumerate(steps):
        if one == "lease":
            held.append(endpoint.lease())
            sent += 1
        elif one == "release" and held:
            gone.append(held.pop())
            gone[-1].release()
            finished += 1
        elif one == "again" and gone:
            gone[-1].release()
        elif one == "scrape":
            endpoint.accept_scrape(endpoint.begin_scrape(float(number)), Load(running=len(held)))
            sent = finished = 0
        view = endpoint.view(float(number))
        assert view.in_flight == len(held) == sum(lease.held for lease in held)
        assert (view.sent_since_scrape, view.finished_since_scrape) == (sent, finished)


def test_what_is_sent_while_a_scrape_runs_counts_as_sent_since():
    endpoint = ready_endpoint()
    before = endpoint.lease()
    mark = endpoint.begin_scrape(1.0)
    endpoint.lease()
    before.release()
    endpoint.accept_scrape(mark, Load(waiting=1, running=2, kv_usage=0.5))
    view = endpoint.view(2.0)
    assert (view.waiting, view.running, view.kv_usage) == (1, 2, 0.5)
    assert (view.sent_since_scrape, view.finished_since_scrape, view.in_flight) == (1, 1, 1)


def test_a_refused_scrape_keeps_the_figures_and_they_turn_stale():
    endpoint = ready_endpoint()
    endpoint.accept_scrape(endpoint.begin_scrape(1.0), Load(waiting=4))
    endpoint.refuse_scrape("GET /metrics answered 500")
    assert (endpoint.view(2.0).waiting, endpoint.view(2.0).stale, endpoint.view(7.0).stale) == (4, False, True)
    assert endpoint.describe(7.0)["scrape_error"] == "GET /metrics answered 500"
    endpoint.accept_scrape(endpoint.begin_scrape(8.0), Load(waiting=4))
    assert endpoint.scrape_error is None


def test_figures_that_an_engine_does_not_tell_count_as_none():
    endpoint = ready_endpoint()
    endpoint.accept_scrape(endpoint.begin_scrape(1.0), Load(running=2))
    view = endpoint.view(1.0)
    assert (view.waiting, view.running, view.kv_usage) == (0, 2, 0)


@pytest.mark.parametrize(
    ("told", "changes"),
    [
        ([model("m")], 0),
        ([model("m"), model("adapter", parent="m")], 0),
        ([model("m", created=5)], 0),
        ([model("n")], 1),
        ([model("m"), model("n")], 1),
        ([model("m", root="elsewhere")], 1),
    ],
)
def test_other_models_are_another_engine_and_other_adapters_are_not(told, changes):
    endpoint, seen = ready_endpoint(), no_endpoints()
    endpoint.on_identity_change = seen.append
    endpoint.accept_scrape(endpoint.begin_scrape(1.0), Load(waiting=9))
    endpoint.tell_models(told)
    assert endpoint.view(1.0).models == {one.id for one in told}
    assert seen == [endpoint] * changes
    assert endpoint.view(1.0).waiting == (0 if changes else 9)
    assert endpoint.view(1.0).stale is bool(changes)


def test_a_restart_seen_in_a_scrape_drops_what_was_known_and_keeps_the_new_figures():
    endpoint, seen = ready_endpoint(), no_endpoints()
    endpoint.on_identity_change = seen.append
    endpoint.accept_scrape(endpoint.begin_scrape(1.0), Load(waiting=9, process_started_s=1))
    endpoint.accept_scrape(endpoint.begin_scrape(2.0), Load(waiting=9, process_started_s=1))
    assert seen == []
    endpoint.accept_scrape(endpoint.begin_scrape(3.0), Load(waiting=2, process_started_s=2))
    assert seen == [endpoint]
    assert (endpoint.view(3.0).waiting, endpoint.view(3.0).stale, endpoint.identity_changes) == (2, False, 1)


def test_refused_connections_take_a_ready_endpoint_out_and_ask_for_a_probe():
    endpoint, asked, states = ready_endpoint(), no_endpoints(), []
    endpoint.on_trouble = asked.append
    endpoint.on_state = lambda one: states.append(one.ready)
    for _ in range(3):
        endpoint.connect_failed("connection refused")
    assert (endpoint.ready, endpoint.why_not_ready, len(asked), states) == (False, "connection refused", 3, [False])
    endpoint.observe(Signal.PASS)
    assert (endpoint.ready, states) == (True, [False, True])


def test_draining_stops_new_requests_and_undraining_brings_them_back():
    endpoint, room = ready_endpoint(), no_endpoints()
    endpoint.on_room = room.append
    endpoint.drain()
    endpoint.drain()
    assert (endpoint.view(0.0).ready, endpoint.why_not_ready, endpoint.describe(0.0)["state"]) == (
        False,
        "draining",
        "draining",
    )
    assert room == []
    endpoint.drain(on=False)
    assert (endpoint.view(0.0).ready, endpoint.why_not_ready, room) == (True, None, [endpoint])


def test_a_draining_endpoint_that_fails_tells_the_failure():
    endpoint = ready_endpoint()
    endpoint.drain()
    endpoint.observe(Signal.LOADING, "loading")
    assert endpoint.why_not_ready == "loading"


def test_an_endpoint_that_left_is_not_ready_and_its_leases_still_come_back():
    endpoint, room = ready_endpoint(), no_endpoints()
    endpoint.on_room = room.append
    lease = endpoint.lease()
    endpoint.leave()
    lease.release()
    assert (endpoint.view(0.0).ready, endpoint.why_not_ready, endpoint.in_flight, room) == (
        False,
        "left the pool",
        0,
        [],
    )
    assert lease.endpoint is endpoint


def test_the_description_is_plain_json_and_tells_the_age_of_the_data():
    endpoint = ready_endpoint()
    assert endpoint.describe(4.0)["scrape_age_s"] is None
    endpoint.accept_scrape(endpoint.begin_scrape(1.0), Load(waiting=1, running=2, kv_usage=0.5, block_tokens=16))
    endpoint.lease()
    assert endpoint.describe(4.0) == {
        "name": "a",
        "url": "http://a:8000",
        "role": "both",
        "labels": {},
        "state": "ready",
        "ready": True,
        "why_not_ready": None,
        "ejected_for_s": None,
        "models": ["m"],
        "in_flight": 1,
        "in_flight_elsewhere": 0,
        "sent_since_scrape": 1,
        "finished_since_scrape": 0,
        "load": {
            "waiting": 1,
            "running": 2,
            "kv_usage": 0.5,
            "prefix_queries": None,
            "prefix_hits": None,
            "block_tokens": 16,
            "num_blocks": None,
            "process_started_s": None,
            "adapters": None,
            "adapter_slots": None,
        },
        "scrape_age_s": 3.0,
        "stale": False,
        "scrape_error": None,
        "identity_changes": 0,
    }


def test_the_view_tells_the_adapters_of_the_present_process():
    endpoint = ready_endpoint()
    models = [Model("m", {"id": "m"}), Model("a", {"id": "a", "parent": "m"})]
    endpoint.tell_models(models)
    assert endpoint.view(0.0).adapters is None
    endpoint.accept_scrape(endpoint.begin_scrape(1.0), Load(running=1, adapters=("a",), adapter_slots=2))
    assert endpoint.view(1.0).adapters == Adapters(frozenset({"m"}), frozenset({"a"}), 2)
    endpoint.tell_models([*models, Model("n", {"id": "n"})])  # another list of its own: another process
    assert endpoint.view(1.0).adapters is None
    endpoint.accept_scrape(endpoint.begin_scrape(2.0), Load(adapters=()))
    assert endpoint.view(2.0).adapters == Adapters(frozenset({"m", "n"}))


def test_what_can_be_loaded_is_served_and_never_listed():
    endpoint = Endpoint(EndpointSpec("a", "http://a:1", "a", 1, loadable_adapters=("team/*", "x?")))
    for models in ((), (Model("m", {"id": "m"}),)):
        if models:
            endpoint.tell_models(models)
        able = [name for name in ("m", "team/a", "team", "xy", "xyz", "Team/a") if name in endpoint.servable]
        assert able == ([] if not models else ["m"]) + ["team/a", "xy"]
    assert endpoint.model_ids == {"m"}
    assert Endpoint(EndpointSpec("b", "http://b:1", "b", 1)).servable == frozenset()
