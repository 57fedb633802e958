"""What is read of a body: which member is the prompt, what takes one hop, and which bodies are refused."""

import json
from typing import Any

import pytest

from gateway.api.routes import OTHER, POSTED, Route
from gateway.dataplane.parse import parse, parse_form
from gateway.dataplane.records import InferenceRequest
from gateway.errors import InvalidRequest

CHAT, TEXT = POSTED["/v1/chat/completions"], POSTED["/v1/completions"]


def parsed(route: Route, **members: Any) -> InferenceRequest:
    return parse(json.dumps({"model": "m", **members}).encode(), route)


@pytest.mark.parametrize(("route", "own", "other"), [(CHAT, "messages", "prompt"), (TEXT, "prompt", "messages")])
def test_each_route_has_its_own_prompt_whatever_stands_beside_it(route, own, other):
    long, short = "x" * 4000, "y" * 2000
    alone = parsed(route, **{own: long})
    assert alone.keys
    for beside in ({other: short, own: long}, {own: long, other: short}):
        both = parsed(route, **beside)
        assert (both.prompt_bytes, both.keys) == (alone.prompt_bytes, alone.keys)
    assert parsed(route, **{other: long}).keys == alone.keys


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


@pytest.mark.parametrize("value", ["{}", '"x"', "null"])
def test_a_handoff_in_extra_arguments_is_refused_however_it_is_spelled(value):
    for name in ("kv_transfer_params", "kv\\u005ftransfer_params"):
        body = f'{{"model":"m","prompt":"x","vllm_xargs":{{"{name}":{value}}}}}'.encode()
        with pytest.raises(InvalidRequest) as refused:
            parse(body, TEXT)
        assert refused.value.param == "vllm_xargs"
    for harmless in (b'{"a":1}', b"null", b'["kv_transfer_params"]', b"3"):
        body = b'{"model":"m","prompt":"x","vllm_xargs":%b}' % harmless
        assert parse(body, TEXT).body == body


@pytest.mark.parametrize(
    ("path", "front", "prompt"),
    [
        ("/v1/messages", "system", "messages"),
        ("/v1/responses", "instructions", "input"),
        ("/v1/rerank", "query", "documents"),
        ("/score", "text_1", "text_2"),
    ],
)
def test_what_stands_before_the_prompt_is_its_front(path, front, prompt):
    route = POSTED[path]
    long, short = "s" * 4000, "p" * 300
    one, other = parsed(route, **{prompt: short, front: long}), parsed(route, **{prompt: short[1:], front: long})
    assert len(one.keys) == len(set(one.keys) & set(other.keys)) > 0
    assert one.prompt_bytes == len(json.dumps(long)) + len(json.dumps(short))
    assert parsed(route, **{prompt: long}).keys != parsed(route, **{prompt: long[:-1] + "x", front: short}).keys


@pytest.mark.parametrize("path", ["/tokenize", "/detokenize", "/v1/messages/count_tokens"])
def test_what_fills_no_cache_has_no_prompt(path):
    assert parsed(POSTED[path], prompt="x" * 4000, messages=[{"role": "user", "content": "x" * 4000}]).keys == []


def test_only_chat_and_text_completions_take_two_hops():
    two = {path for path, route in POSTED.items() if route.model_in == "member" and not parsed(route).one_hop_reason}
    assert two == {"/v1/chat/completions", "/v1/completions"}


def test_models_and_adapters_share_no_credit_for_one_prompt():
    """A10: what was computed under an adapter or a cache salt is no other's."""
    prompt = "x" * 8000
    seen: set[int] = set()
    for model in ("base", "adapter-a", "adapter-b"):
        for salt in (None, "s1", "s2"):
            keys = parse(json.dumps({"model": model, "cache_salt": salt, "prompt": prompt}).encode(), TEXT).keys
            assert keys
            assert not seen & set(keys)
            seen |= set(keys)


FORM = b"multipart/form-data; boundary=b"
AUDIO = POSTED["/v1/audio/transcriptions"]


async def test_a_form_names_its_model_and_passes_as_it_came():
    body = b'--b\r\ncontent-disposition: form-data; name="model"\r\n\r\nm\xc3\xa9\r\n--b--\r\n'
    for route in (AUDIO, OTHER):
        request = await parse_form(body, route, FORM)
        assert request.body is body
        assert (request.model, request.keys, request.one_hop_reason) == ("m\u00e9", [], "route")


@pytest.mark.parametrize(
    ("content_type", "wrong"),
    [(None, "not multipart"), (b"application/json", "not multipart"), (FORM, "begin"), (FORM + b"x", "begin")],
)
async def test_a_form_that_is_none_says_what_is_wrong(content_type, wrong):
    with pytest.raises(InvalidRequest, match=wrong):
        await parse_form(b'{"model":"m"}', AUDIO, content_type)


async def test_a_form_without_a_model_is_refused():
    for value in (b"x\r\n\r\nm", b"model\r\n\r\n"):
        with pytest.raises(InvalidRequest) as refused:
            await parse_form(b"--b\r\ncontent-disposition: form-data; name=%b\r\n--b--" % value, AUDIO, FORM)
        assert refused.value.param == "model"


async def test_another_route_reads_json_unless_it_is_told_of_a_form():
    for content_type in (b"application/json", None):
        assert (await parse_form(b'{"model":"m"}', OTHER, content_type)).model == "m"
