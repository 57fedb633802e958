"""Endpoints of one process: what a source tells, and verbs as plain data."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.endpoints import Command, Endpoints, order_key
from gateway.pool.health import Signal
from gateway.pool.spec import EndpointSpec
from gateway.pool.store import Pool

NAMES = st.sampled_from("abc")


def spec(name: str, role="both") -> EndpointSpec:
    return EndpointSpec(name, f"http://{name}:8000", name, 8000, role)


@pytest.fixture
def endpoints():
    made = Endpoints(Pool(), lambda: 0.0)
    made.tell([spec("a"), spec("b")])
    return made


def names(endpoints) -> list[str]:
    return [one.name for one in endpoints.pool]


def test_an_endpoint_is_added_and_described(endpoints):
    done = endpoints.perform({"verb": "add", "endpoint": {"url": "http://c:1", "name": "x/c", "labels": {"zone": "z"}}})
    assert done["status"] == 201
    assert {key: done["body"][key] for key in ("name", "url", "role", "labels", "state", "ready")} == {
        "name": "x/c",
        "url": "http://c:1",
        "role": "both",
        "labels": {"zone": "z"},
        "state": "unknown",
        "ready": False,
    }
    assert names(endpoints) == ["a", "b", "x/c"]
    endpoints.tell([spec("b")])
    assert names(endpoints) == ["b", "x/c"]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"url": "http://c:1", "rol": "decode"}, "rol: unknown key; did you mean 'role'?"),
        ({"url": "http://c:1", "\ud800": ""}, "must be a valid string"),
        ({"url": "ftp://c:1"}, "url: 'ftp://c:1' is not http://host:port"),
        ({"role": "prefil"}, "did you mean 'prefill'?"),
        ({"role": "prefil"}, "url: is missing"),
        ({"url": "http://c:1", "labels": {"zone": "\ud800"}}, "labels: '\\ud800' holds what cannot be printed"),
        (["http://c:1"], "must be a mapping of keys to values"),
        (None, "url: is missing"),
    ],
)
def test_a_wrong_endpoint_is_refused_with_the_fix(endpoints, given, said):
    done = endpoints.perform({"verb": "add", "endpoint": given})
    assert (done["status"], done["body"]["error"]["code"]) == (400, "invalid_request")
    assert said in done["body"]["error"]["message"]
    assert names(endpoints) == ["a", "b"]


def test_a_name_is_there_once_and_an_unknown_one_is_told(endpoints):
    done = endpoints.perform({"verb": "add", "endpoint": {"url": "http://c:1", "name": "a"}})
    assert (done["status"], done["body"]["error"]["code"]) == (409, "endpoint_exists")
    for verb in ("remove", "drain", "undrain"):
        done = endpoints.perform({"verb": verb, "name": "c"})
        assert (done["status"], done["body"]["error"]["code"]) == (404, "endpoint_not_found")


def test_a_removed_endpoint_keeps_its_leases_and_does_not_come_back_with_the_next_telling(endpoints):
    endpoint = endpoints.pool.get("a")
    endpoint.observe(Signal.PASS)
    lease = endpoint.lease()
    done = endpoints.perform({"verb": "remove", "name": "a"})
    assert (done["status"], done["body"]["in_flight"], done["body"]["why_not_ready"]) == (200, 1, "left the pool")
    endpoints.tell([spec("a"), spec("b")])
    assert names(endpoints) == ["b"]
    lease.release()
    assert endpoint.in_flight == 0
    endpoints.tell([spec("a", "decode"), spec("b")])
    assert sorted(names(endpoints)) == ["a", "b"]


def test_draining_twice_is_draining_once(endpoints):
    endpoint = endpoints.pool.get("a")
    endpoint.observe(Signal.PASS)
    told = []
    endpoints.pool.on_state.append(lambda one: told.append(one.ready))
    for _ in range(2):
        done = endpoints.perform({"verb": "drain", "name": "a"})
        assert (done["status"], done["body"]["state"], done["body"]["why_not_ready"]) == (200, "draining", "draining")
    endpoints.tell([spec("a"), spec("b")])
    assert endpoint.draining
    for _ in range(2):
        done = endpoints.perform({"verb": "undrain", "name": "a"})
        assert (done["status"], done["body"]["state"], done["body"]["ready"]) == (200, "ready", True)
    assert told == [False, True]


VERBS = st.one_of(
    st.builds(lambda verb, name: {"verb": verb, "name": name}, st.sampled_from(["remove", "drain", "undrain"]), NAMES),
    st.builds(
        lambda name, port: {"verb": "add", "endpoint": {"url": f"http://h:{port}", "name": name}},
        NAMES,
        st.integers(1, 3),
    ),
)


@given(st.lists(VERBS, max_size=12))
def test_the_last_order_under_each_key_brings_a_newcomer_to_the_same_endpoints(commands):
    one, other = (Endpoints(Pool(), lambda: 0.0) for _ in range(2))
    orders: dict[str, Command] = {}
    one.tell([spec("a"), spec("b")])
    for command in commands:
        if one.perform(command)["status"] < 300:
            orders.pop(order_key(command), None)
            orders[order_key(command)] = command
    other.tell([spec("a"), spec("b")])
    for command in orders.values():
        other.perform(command)
    assert by_name(other) == by_name(one)


def test_an_addition_that_is_refused_has_a_key_too():
    assert order_key({"verb": "add", "endpoint": {"url": "ftp://h"}}) == "add:"


def by_name(endpoints: Endpoints) -> dict[str, tuple[str, bool]]:
    return {one.name: (one.spec.url, one.draining) for one in endpoints.pool}
