"""The admin's word over what a source tells: how long it holds, and what it comes to."""

from hypothesis import given
from hypothesis import strategies as st

from gateway.pool.overrides import Override, added, kept, removed, wanted
from gateway.pool.spec import EndpointSpec

NAMES = "abc"
SPECS = st.builds(
    lambda name, port: EndpointSpec(name, f"http://h:{port}", "h", port), *map(st.sampled_from, (NAMES, (1, 2)))
)
TOLD = st.lists(SPECS, unique_by=lambda one: one.name).map(lambda specs: {one.name: one for one in specs})
VERBS = st.lists(st.one_of(SPECS, st.sampled_from(NAMES)), max_size=6)


def spec(name: str, port: int = 1) -> EndpointSpec:
    return EndpointSpec(name, f"http://h:{port}", "h", port)


def after(told, verbs) -> dict[str, Override]:
    overrides: dict[str, Override] = {}
    for verb in verbs:
        overrides = removed(told, overrides, verb) if isinstance(verb, str) else added(told, overrides, verb)
    return overrides


def names(told, overrides) -> list[str]:
    return [one.name for one in wanted(told, overrides)]


def test_an_added_endpoint_stays_until_the_source_tells_of_its_name():
    told = {"a": spec("a")}
    overrides = added(told, {}, spec("b"))
    assert names(told, overrides) == ["a", "b"]
    assert kept(told, overrides) == overrides
    assert kept({}, overrides) == overrides
    assert kept({"b": spec("b", 2)}, overrides) == {}


def test_a_removed_endpoint_stays_away_while_the_source_tells_the_same_of_it():
    told = {"a": spec("a"), "b": spec("b")}
    overrides = removed(told, {}, "a")
    assert names(told, overrides) == ["b"]
    assert kept(told, overrides) == overrides
    assert kept({"a": spec("a", 2)}, overrides) == {}
    assert kept({"b": spec("b")}, overrides) == {}


def test_a_removed_endpoint_that_is_added_again_is_the_sources_own():
    told = {"a": spec("a")}
    assert added(told, removed(told, {}, "a"), spec("a")) == {}


def test_an_endpoint_put_in_another_ones_place_outlives_it():
    told = {"a": spec("a")}
    overrides = added(told, removed(told, {}, "a"), spec("a", 2))
    assert wanted(told, overrides) == [spec("a", 2)]
    assert wanted({}, kept({}, overrides)) == [spec("a", 2)]
    assert removed(told, overrides, "a") == {"a": Override(None, spec("a"))}
    assert removed({}, kept({}, overrides), "a") == {}


@given(TOLD, VERBS)
def test_the_last_word_on_each_name_holds(told, verbs):
    last = {verb if isinstance(verb, str) else verb.name: verb for verb in verbs}
    expected = {**told, **{name: verb for name, verb in last.items() if not isinstance(verb, str)}}
    for name, verb in last.items():
        if isinstance(verb, str):
            expected.pop(name, None)
    assert {one.name: one for one in wanted(told, after(told, verbs))} == expected


@given(TOLD, TOLD, VERBS)
def test_what_the_source_tells_anew_goes_over_what_was_said_before(told, then, verbs):
    overrides = kept(then, after(told, verbs))
    there = {one.name: one for one in wanted(then, overrides)}
    assert all(there.get(name) == one for name, one in then.items() if told.get(name) != one)
    assert kept(then, overrides) == overrides
    assert kept(told, after(told, verbs)) == after(told, verbs)


@given(TOLD, VERBS)
def test_no_name_is_there_twice_and_nothing_is_kept_that_says_nothing(told, verbs):
    overrides = after(told, verbs)
    there = names(told, overrides)
    assert len(there) == len(set(there))
    assert all(one.spec != one.over for one in overrides.values())
