"""What a reload says has changed, and what of it waits for a restart."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.config import Config
from gateway.config_diff import FIXED, Change, applicable, changes


def config(*endpoints: dict[str, Any], **sections: Any) -> Config:
    listed = [{"url": f"http://h:{number}", **one} for number, one in enumerate(endpoints, 1)]
    return Config.model_validate({"discovery": {"static": {"endpoints": listed}}, **sections})


def lines(old: Config, new: Config) -> list[str]:
    return [change.line() for change in changes(old, new)]


def test_each_changed_key_is_told_with_both_values_in_the_order_of_the_configuration():
    new = config(timeouts={"first_byte_s": 5}, routing={"receipt_headers": True, "filters": ["healthy"]})
    assert lines(config(), new) == [
        'routing.filters: ["healthy", "model_served", "role"] → ["healthy"]',
        "routing.receipt_headers: false → true",
        "timeouts.first_byte_s: 120.0 → 5.0",
    ]


def test_endpoints_are_compared_by_name_and_scorers_by_parameter():
    old = config({"name": "a"}, {"name": "b"}, routing={"scorers": {"queue_depth": 2.0, "kv_usage": 1.0}})
    new = config(
        {"name": "b", "url": "http://h:2", "labels": {"zone": "z"}},
        {"name": "c", "role": "decode"},
        routing={"scorers": {"queue_depth": {"weight": 2.0, "full_at": 16}, "in_flight": 1.0}},
    )
    assert lines(old, new) == [
        'discovery.static.endpoints[a]: removed: {"url": "http://h:1", "name": "a"}',
        'discovery.static.endpoints[b].labels.zone: added: "z"',
        'discovery.static.endpoints[c]: added: {"url": "http://h:2", "name": "c", "role": "decode"}',
        "routing.scorers.queue_depth.full_at: added: 16",
        "routing.scorers.kv_usage: removed: {}",
        "routing.scorers.in_flight: added: {}",
    ]


def test_a_scorer_that_is_added_is_told_with_its_parameters():
    old, new = config(), config(routing={"scorers": {"queue_depth": {"weight": 4.0, "full_at": 16}}})
    assert "routing.scorers.queue_depth.weight: 2.0 → 4.0" in lines(old, new)
    assert 'routing.scorers.queue_depth: added: {"weight": 4.0, "full_at": 16}' in lines(
        config(routing={"scorers": {}}), new
    )


def test_another_order_of_endpoints_is_no_change():
    one, two = {"name": "a", "url": "http://h:1"}, {"name": "b", "url": "http://h:2"}
    assert changes(config(one, two), config(two, one)) == []


def test_what_sockets_were_opened_with_stays_until_a_restart():
    old = config(listen="127.0.0.1:1", admin={"listen": "127.0.0.1:2"})
    new = config(listen="127.0.0.1:3", admin={"listen": None}, drain={"grace_s": 1})
    assert changes(old, new) == [
        Change("listen", '"127.0.0.1:1"', '"127.0.0.1:3"', needs_restart=True),
        Change("admin.listen", '"127.0.0.1:2"', "null", needs_restart=True),
        Change("drain.grace_s", "60.0", "1.0"),
    ]
    assert lines(old, new)[0] == 'listen: "127.0.0.1:1" → "127.0.0.1:3" (needs a restart; the old value stays)'
    assert applicable(old, new) == old.model_copy(update={"drain": new.drain})


def test_a_secret_is_never_shown():
    old, new = config(admin={"token": "s3cret-a"}), config(admin={"token": "s3cret-b"})
    assert lines(old, new) == ["admin.token: (not shown) → (not shown)"]
    assert lines(old, config()) == ["admin.token: (not shown) → (not shown)"]
    assert applicable(old, new).admin.token == "s3cret-b"


def test_a_listener_that_stays_keeps_the_token_that_guards_it():
    old = config(admin={"listen": "0.0.0.0:1", "token": "t"})
    new = config(admin={"listen": "127.0.0.1:1"})
    assert [(change.path, change.needs_restart) for change in changes(old, new)] == [
        ("admin.token", True),
        ("admin.listen", True),
    ]
    assert applicable(old, new) == old


@pytest.mark.parametrize("path", sorted(FIXED))
def test_every_key_that_stays_exists(path):
    value: Any = Config()
    for name in path.split("."):
        value = getattr(value, name)


CONFIGS = st.builds(
    config,
    listen=st.sampled_from(["127.0.0.1:1", "127.0.0.1:2"]),
    admin=st.fixed_dictionaries(
        {"listen": st.sampled_from(["127.0.0.1:3", "127.0.0.1:4", None])}, optional={"token": st.sampled_from("tu")}
    ),
    timeouts=st.fixed_dictionaries({}, optional={"header_s": st.floats(1, 9), "idle_s": st.floats(1, 9)}),
    routing=st.fixed_dictionaries(
        {}, optional={"scorers": st.dictionaries(st.sampled_from("ab"), st.floats(0, 9), max_size=2)}
    ),
)


@given(CONFIGS, CONFIGS)
def test_what_is_applied_differs_by_exactly_what_needs_no_restart(old, new):
    applied = applicable(old, new)
    told = changes(old, new)
    assert changes(old, applied) == [change for change in told if not change.needs_restart]
    left = {change.path for change in changes(applied, new)}
    assert left == {change.path for change in told if change.needs_restart}
    assert changes(old, old) == []
    assert Config.model_validate(applied.model_dump()) == applied  # a configuration that could have been read


@given(CONFIGS, CONFIGS)
def test_the_way_back_tells_the_same_keys(old, new):
    there, back = changes(old, new), changes(new, old)
    assert {(change.path, change.old, change.new) for change in there} == {
        (change.path, change.new, change.old) for change in back
    }
