"""The small pure parts: stop strings, schemas, faults, histograms, the chat template."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.simulator.asked import chat_request, completion_request, tokenize_request
from gateway.simulator.blocks import BlockPool
from gateway.simulator.choice import Choice
from gateway.simulator.engine import Engine
from gateway.simulator.faults import FAULTS, Faults
from gateway.simulator.job import Job
from gateway.simulator.metrics import Histogram
from gateway.simulator.nixl import remote_of
from gateway.simulator.openai_shapes import Answer
from gateway.simulator.profiles import PROFILES
from gateway.simulator.refusal import Refusal
from gateway.simulator.template import chat_text
from gateway.simulator.tokens import Sampler, encode
from gateway.simulator.tools import forced_answer, sample

HELLO = [{"role": "user", "content": "Hello"}]


def choice_of(stop: list[str], *, keep: bool = False) -> Choice:
    asked = completion_request({"prompt": "x", "stop": stop, "include_stop_str_in_output": keep}, ("m",), 100)
    return Choice(0, Job(id="j", prompt=[1], max_tokens=9, sampler=Sampler("m", [1], None, 9)), asked)


@given(st.text(st.sampled_from("ab cé"), max_size=30), st.lists(st.text("ab ", min_size=1, max_size=3), max_size=3))
def test_a_stop_string_is_never_shown_and_nothing_before_it_is_lost(text, stops):
    choice = choice_of(stops)
    shown = ""
    for token in encode(text):
        ended = choice.feed([token])
        shown += choice.delta()
        if ended:
            break
    else:
        choice.job.finish_reason = "length"
        choice.feed([])
        shown += choice.delta()
    assert text.startswith(shown)
    assert not any(stop in shown for stop in stops)
    cut_at = [text.startswith(stop, len(shown)) for stop in stops]
    assert any(cut_at) if choice.finish_reason == "stop" else shown == text
    assert (choice.finish_reason == "stop") == any(stop in text for stop in stops)


def test_a_stop_string_can_be_kept():
    choice = choice_of(["lo"], keep=True)
    assert choice.feed(encode("hello world"))
    assert choice.delta() == "hello"
    assert choice.stop == "lo"


SCHEMAS = st.recursive(
    st.sampled_from([{"type": kind} for kind in ("string", "integer", "number", "boolean", "null")]),
    lambda inner: st.one_of(
        st.builds(lambda items: {"type": "array", "items": items}, inner),
        st.builds(
            lambda properties: {"type": "object", "properties": properties},
            st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
        ),
    ),
    max_leaves=6,
)
TYPES: dict[str, Any] = {"string": str, "integer": int, "number": float, "boolean": bool, "null": type(None)}


def fits(value: Any, schema: dict[str, Any]) -> bool:
    if schema["type"] == "array":
        return isinstance(value, list) and all(fits(each, schema["items"]) for each in value)
    if schema["type"] == "object":
        parts = schema["properties"]
        return value.keys() == parts.keys() and all(fits(value[name], part) for name, part in parts.items())
    return type(value) is TYPES[schema["type"]]


@given(SCHEMAS, st.integers(0, 1 << 64))
def test_samples_fit_their_schema_and_repeat(schema, seed):
    value = sample(schema, seed)
    assert fits(value, schema)
    assert sample(schema, seed) == value


def test_enum_const_minimum_and_unions_are_kept():
    assert sample({"enum": ["a", "b"]}, 3) == "b"
    assert sample({"const": 7}, 3) == 7
    assert sample({"type": "integer", "minimum": 1000}, 5) >= 1000
    assert isinstance(sample({"type": ["string", "null"]}, 1), str)
    assert isinstance(sample({"type": []}, 1), str)
    assert sample("nonsense", 1) is None


def test_tools_are_called_until_one_has_answered():
    tools = [{"type": "function", "function": {"name": "f"}}]
    text, call = forced_answer({"messages": HELLO, "tools": tools}, 1)
    assert call is not None
    assert (text, call.name, call.named) == ("{}", "f", False)
    answered = [*HELLO, {"role": "tool", "content": "12"}]
    assert forced_answer({"messages": answered, "tools": tools}, 1) == (None, None)
    assert forced_answer({"messages": answered, "tools": tools, "tool_choice": "required"}, 1)[1] is not None
    assert forced_answer({"messages": HELLO, "tools": tools, "tool_choice": "none"}, 1) == (None, None)


def test_a_response_format_forces_json():
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}}
    wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    text, call = forced_answer({"messages": HELLO, "response_format": wanted}, 4)
    assert (text, call) == ('{"n": ' + str(sample(schema, 4)["n"]) + "}", None)
    assert forced_answer({"messages": HELLO, "response_format": {"type": "text"}}, 4) == (None, None)
    assert forced_answer({"messages": HELLO, "response_format": {"type": "json_object"}}, 4)[0] is not None


@pytest.mark.parametrize("tools", ["x", [3], [{"function": {}}], [{"function": 4}]])
def test_bad_tools_are_refused(tools):
    with pytest.raises(Refusal):
        forced_answer({"messages": HELLO, "tools": tools}, 1)


def test_an_unknown_tool_choice_is_refused():
    with pytest.raises(Refusal):
        forced_answer({"messages": HELLO, "tools": [{"function": {"name": "f"}}], "tool_choice": "perhaps"}, 1)


def test_the_end_of_a_prefix_is_evicted_before_its_beginning():
    pool = BlockPool(4)
    held = pool.take(3)
    for block in held:
        pool.remember(block, 100 + block)
    pool.drop(held)
    assert pool.lookup([100 + block for block in held]) == held
    pool.take(2)  # one block was never used, the other is the end of the prefix
    assert pool.lookup([100 + block for block in held]) == held[:2]
    assert pool.evictions == 1


def test_a_choice_with_nothing_new_makes_no_chunk():
    choice = choice_of([])
    assert Answer(choice.asked, "cmpl-1", 0, 1).chunk(choice) == b""


def test_a_conversation_begins_with_its_earlier_part():
    parts = [{"type": "text", "text": "look"}, {"type": "image_url", "image_url": {"url": "data:x"}}]
    messages = [*HELLO, {"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]}]
    longer = [*messages, {"role": "user", "content": parts}, "not a message", {"role": "user", "content": 7}]
    short = chat_text(messages, None, generation_prompt=False)
    assert chat_text(longer, None, generation_prompt=True).startswith(short)
    assert "look" in chat_text(longer, None, generation_prompt=False)
    assert "data:x" in chat_text(longer, None, generation_prompt=False)


@pytest.mark.parametrize("spec", [*FAULTS, *(f"{name}:0.5" for name in FAULTS)])
def test_every_fault_can_be_given_as_named(spec):
    assert Faults([spec]) is not None


def test_a_fault_strikes_its_share_by_rule():
    struck = [Faults(["error=503:0.25"], seed=seed) for seed in (1, 1, 2)]
    runs = [[faults.value("error") for _ in range(400)] for faults in struck]
    assert runs[0] == runs[1] != runs[2]
    assert 70 < runs[0].count("503") < 130


def test_faults_have_values_and_can_be_cleared():
    faults = Faults(["slow-start", "truncate=5", "metrics-missing=vllm:prompt_tokens", "metrics-missing=vllm:x:1"])
    assert (faults.number("slow-start"), faults.number("truncate"), faults.number("hang")) == (1, 5, None)
    assert faults.value("metrics-missing") == "vllm:x"
    faults.clear("truncate")
    faults.clear("truncate")
    assert faults.value("truncate") is None


@pytest.mark.parametrize("spec", ["nonsense", "error=many", "error=503:2", "error=503:x"])
def test_a_fault_that_makes_no_sense_is_refused(spec):
    with pytest.raises(ValueError, match=r"fault|share|float"):
        Faults([spec])


@given(st.lists(st.floats(0, 100), max_size=50))
def test_histogram_buckets_are_cumulative(values):
    histogram = Histogram((0.5, 1.0, 50.0))
    for value in values:
        histogram.observe(value)
    *buckets, count, total = [float(line.rpartition(" ")[2]) for line in histogram.lines("h", 'a="b"')]
    expected = [sum(value <= bound for value in values) for bound in (0.5, 1.0, 50.0, float("inf"))]
    assert buckets == expected
    assert count == len(values)
    assert total == pytest.approx(sum(values))


PARAMS: dict[str, Any] = {
    "do_remote_prefill": True,
    "remote_engine_id": "e",
    "remote_request_id": "r",
    "remote_host": "127.0.0.1",
    "remote_port": 9,
    "remote_block_ids": [[4, 5]],
    "remote_num_tokens": 20,
}


@pytest.mark.parametrize(
    ("change", "tokens"),
    [({}, 20), ({"remote_block_ids": [4, 5]}, 20), ({"remote_num_tokens": None}, 32), ({"remote_num_tokens": 99}, 32)],
)
def test_params_name_what_can_be_read(change, tokens):
    remote = remote_of(PARAMS | change, 16)
    assert remote is not None
    assert (remote.blocks, remote.tokens) == ((4, 5), tokens)


BROKEN: tuple[dict[str, Any], ...] = (
    {"do_remote_prefill": False},
    {"remote_engine_id": None},
    {"remote_block_ids": []},
    {"remote_block_ids": [["x"]]},
    {"remote_port": "x"},
)


@pytest.mark.parametrize("change", BROKEN, ids=str)
def test_params_that_name_nothing_are_ignored(change):
    assert remote_of(PARAMS | change, 16) is None
    assert remote_of(None, 16) is None


BAD_BODIES = (
    {"messages": HELLO, "model": 7},
    {"messages": HELLO, "stream": "yes"},
    {"messages": HELLO, "temperature": "hot"},
    {"messages": HELLO, "stop": [1]},
    {"messages": HELLO, "stop": [""]},
    {"messages": HELLO, "stream": True, "stream_options": 3},
    {"messages": HELLO, "kv_transfer_params": 3},
)


@pytest.mark.parametrize("body", BAD_BODIES, ids=str)
def test_bad_bodies_are_refused(body):
    with pytest.raises(Refusal) as refused:
        chat_request(body, ("m",), 1000)
    assert refused.value.status == 400


@pytest.mark.parametrize("logprobs", [-1, True, "x"])
def test_bad_completion_logprobs_are_refused(logprobs):
    with pytest.raises(Refusal):
        completion_request({"prompt": "x", "logprobs": logprobs}, ("m",), 1000)


def test_logprobs_need_their_flag_and_tokens_their_shape():
    with pytest.raises(Refusal):
        chat_request({"messages": HELLO, "top_logprobs": 1}, ("m",), 1000)
    with pytest.raises(Refusal):
        tokenize_request({"prompt": 3}, ("m",))
    assert tokenize_request({"prompt": "a b"}, ("m",)) == encode("a b")


def test_text_that_is_no_ascii_comes_whole_however_it_is_cut():
    choice = choice_of([])
    for token in encode("naïve → 日本"):
        choice.feed([token])
    assert choice.text == "naïve → 日本"


def test_a_pool_whose_books_are_wrong_is_noticed():
    pool = BlockPool(4)
    pool.check()
    pool.drop([2])
    with pytest.raises(AssertionError, match=r"\[2\]"):
        pool.check()


def test_a_job_that_is_aborted_before_its_load_begins_is_not_loaded():
    engine = Engine(PROFILES["fast"])
    engine.add(Job("j", [1, 2, 3], 5, Sampler("m", [1], None, 9), remote_tokens=3), 0.0)
    assert engine.begin_step(0.0) is None
    engine.abort("j")
    assert engine.take_loads() == []
