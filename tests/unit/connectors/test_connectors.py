"""What each leg of two hops is asked, and what a prefill answer hands over or why it does not."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.connectors import Handoff, load, names
from gateway.wire import json_object

NIXL = load("nixl")
PARAMS = {"remote_engine_id": "e", "remote_block_ids": [1, 2], "remote_host": "10.0.0.1", "remote_port": 5600}
LIMITS = ("stream", "stream_options", "max_tokens", "max_completion_tokens", "min_tokens", "kv_transfer_params")

others = st.sampled_from(
    ["model", "messages", "prompt", "temperature", "n", "tools", "seed", "stop", "x", "max_tokens_"]
)
fields = st.one_of(others, st.sampled_from(LIMITS))
values = st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=5) | st.just({"include_usage": True})
requests = st.dictionaries(fields, values, max_size=10)
spellings = st.sampled_from([(",", ":"), (", ", " : ")])


def test_there_is_a_connector_for_each_file():
    assert names() == ["nixl"]
    with pytest.raises(ValueError, match="unknown connector 'nixi'; there are: nixl"):
        load("nixi")


@given(request=requests, spelling=spellings)
def test_a_prefill_leg_asks_for_one_token_of_the_same_prompt_at_once(request, spelling):
    members = json_object.parse(json.dumps(request, separators=spelling).encode())
    asked = json.loads(NIXL.prefill_body(members))
    assert {name: value for name, value in asked.items() if name not in LIMITS} == {
        name: value for name, value in request.items() if name not in LIMITS
    }
    limits = {name: asked[name] for name in LIMITS if name in asked and name != "kv_transfer_params"}
    one_more = {"max_completion_tokens": 1} if "max_completion_tokens" in request else {}
    assert limits == {"stream": False, "max_tokens": 1, **one_more}
    assert asked["kv_transfer_params"] == {
        "do_remote_decode": True, "do_remote_prefill": False, "remote_engine_id": None,
        "remote_block_ids": None, "remote_host": None, "remote_port": None,
    }  # fmt: skip


@given(request=requests, spelling=spellings, more=st.dictionaries(st.text(max_size=5), values, max_size=3))
def test_a_decode_leg_gets_the_clients_own_members_and_the_handoff_to_the_byte(request, spelling, more):
    members = json_object.parse(json.dumps(request, separators=spelling).encode())
    params = json.dumps({**more, **PARAMS}, separators=spelling).encode()
    sent = json_object.parse(NIXL.decode_body(members, Handoff(params, None)))
    assert bytes(sent.pop("kv_transfer_params")) == params
    assert sent == {name: value for name, value in members.items() if name != "kv_transfer_params"}


@given(
    more=st.dictionaries(st.text(max_size=5).filter(lambda name: name not in PARAMS), values, max_size=4),
    spelling=spellings,
    cached=st.none() | st.integers(0, 10**6),
)
def test_a_handoff_is_what_the_answer_says_unknown_members_included(more, spelling, cached):
    raw = json.dumps({**more, **PARAMS}, separators=spelling)
    usage = json.dumps({"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": cached}})
    handoff = NIXL.read_handoff(f'{{"id":"x", "usage": {usage}, "kv_transfer_params": {raw} }}'.encode())
    assert handoff == Handoff(raw.encode(), cached)


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (b"", "not_json"),
        (b"data: {}", "not_json"),
        (b"[]", "not_json"),
        (b"{}", "no_params"),
        (b'{"kv_transfer_params": null}', "no_params"),
        (b'{"kv_transfer_params": {}}', "empty_params"),
        (b'{"kv_transfer_params": []}', "wrong_params"),
        (b'{"kv_transfer_params": "a"}', "wrong_params"),
        (b'{"kv_transfer_params": {"do_remote_prefill": true}}', "wrong_params"),
    ],
)
def test_an_answer_that_hands_nothing_over_says_why(answer, why):
    assert NIXL.read_handoff(answer) == why


@pytest.mark.parametrize("missing", PARAMS)
def test_each_part_of_the_address_is_needed(missing):
    rest = {name: value for name, value in PARAMS.items() if name != missing}
    for params in (rest, {**rest, missing: None}):
        assert NIXL.read_handoff(json.dumps({"kv_transfer_params": params}).encode()) == "wrong_params"


@pytest.mark.parametrize(
    "usage",
    ["null", "[]", "7", "{}", '{"prompt_tokens_details":null}', '{"prompt_tokens_details":[]}',
     '{"prompt_tokens_details":{}}', '{"prompt_tokens_details":{"cached_tokens":"3"}}'],
)  # fmt: skip
def test_a_usage_without_a_count_of_cached_tokens_tells_none(usage):
    answer = f'{{"kv_transfer_params":{json.dumps(PARAMS)},"usage":{usage}}}'.encode()
    assert NIXL.read_handoff(answer) == Handoff(json.dumps(PARAMS).encode(), None)


def test_an_answer_without_usage_tells_no_count():
    assert NIXL.read_handoff(json.dumps({"kv_transfer_params": PARAMS}).encode()) == Handoff(
        json.dumps(PARAMS).encode(), None
    )
