"""What is read of a body: which member is the prompt, what takes one hop, and which bodies are refused."""

import json
from typing import Any

import pytest

from gateway.dataplane.parse import parse
from gateway.dataplane.records import InferenceRequest
from gateway.errors import InvalidRequest

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"


def parsed(path: str, **members: Any) -> InferenceRequest:
    return parse(json.dumps({"model": "m", **members}).encode(), path)


@pytest.mark.parametrize(("path", "own", "other"), [(CHAT, "messages", "prompt"), (TEXT, "prompt", "messages")])
def test_each_path_has_its_own_prompt_whatever_stands_beside_it(path, own, other):
    long, short = "x" * 4000, "y" * 2000
    alone = parsed(path, **{own: long})
    assert alone.keys
    for beside in ({other: short, own: long}, {own: long, other: short}):
        both = parsed(path, **beside)
        assert (both.prompt_bytes, both.keys) == (alone.prompt_bytes, alone.keys)
    assert parsed(path, **{other: long}).keys == alone.keys


def test_many_prompts_are_seen_beside_messages():
    assert parsed(TEXT, messages=[], prompt=["aaa", "bbb"]).one_hop_reason == "many_prompts"
    assert parsed(TEXT, messages=["x"], prompt="aaa").one_hop_reason is None


@pytest.mark.parametrize("name", ["n", "best_of"])
@pytest.mark.parametrize(
    ("value", "harmless"),
    [("1", True), ("null", True), ("2", False), ('"2"', False), ("2.0", False), ("1.0", False), ("0", False)],
)
def test_more_than_one_answer_takes_one_hop_however_it_is_written(name, value, harmless):
    body = f'{{"model":"m","prompt":"x","{name}": {value} }}'.encode()
    assert parse(body, TEXT).one_hop_reason == (None if harmless else name)


@pytest.mark.parametrize("name", ["echo", "use_beam_search"])
@pytest.mark.parametrize(
    ("value", "harmless"), [("false", True), ("null", True), ("true", False), ('"true"', False), ("1", False)]
)
def test_a_switch_takes_one_hop_unless_it_is_off(name, value, harmless):
    body = f'{{"model":"m","prompt":"x","{name}":{value}}}'.encode()
    assert parse(body, TEXT).one_hop_reason == (None if harmless else name)


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
@pytest.mark.parametrize(
    ("value", "usable"),
    [
        ("1", True),
        ("null", True),
        ("9" * 30, True),
        ("0", False),
        ("-1", False),
        ('"5"', False),
        ("1.5", False),
        ("true", False),
        ("[]", False),
        ("9" * 5000, False),
    ],
)
def test_a_limit_that_an_engine_refuses_costs_no_prefill(name, value, usable):
    body = f'{{"model":"m","messages":[],"{name}":{value}}}'.encode()
    assert parse(body, CHAT).one_hop_reason == (None if usable else "max_tokens")


@pytest.mark.parametrize("body", [b'{"model":"m","prompt":"\xff"}', b'{"model":"m","x":[{"\xc3(":1}],"prompt":"a"}'])
def test_what_is_no_utf8_is_refused_wherever_it_stands(body):
    with pytest.raises(InvalidRequest, match="no UTF-8"):
        parse(body, TEXT)


def test_utf8_passes_as_it_came():
    body = '{"model":"m","prompt":"h\u00e9 \u6f22 \U0001f600"}'.encode()
    assert parse(body, TEXT).body == body


def test_a_clients_handoff_is_taken_out_and_nothing_else_changed():
    body = b'{"model":"m", "prompt":"\\u00e9", "kv_transfer_params":{"remote_host":"x"}, "n": 1}'
    assert parse(body, TEXT).body == b'{"model":"m","prompt":"\\u00e9","n":1}'


def test_a_clients_handoff_in_a_body_that_cannot_be_edited_is_refused():
    body = b'{"model":"m","prompt":"\\ud800","kv_transfer_params":{}}'
    with pytest.raises(InvalidRequest) as refused:
        parse(body, TEXT)
    assert refused.value.param == "kv_transfer_params"
    assert parse(b'{"model":"m","prompt":"\\ud800"}', TEXT).one_hop_reason == "lone_surrogates"
