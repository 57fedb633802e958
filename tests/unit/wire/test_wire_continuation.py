"""Laws of going on with a broken stream: what a client sees is what one engine would have said."""

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.wire import json_object
from gateway.wire.continuation import CHAT, TEXT, Said, Seam, follow_up, may_continue, said

words = st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=5), max_size=8)
SAID = Said("first", 5, "ab", 2, 0)


def event(path: str, id_: str, word: str, role: str | None = None, **choice: Any) -> bytes:
    """Return one event."""
    delta = {"role": role, "content": word} if role else {"content": word}
    text = {"delta": delta} if path == CHAT else {"text": word}
    value = {"id": id_, "created": len(id_), "choices": [{"index": 0, **text, "finish_reason": None, **choice}]}
    return b"data: " + json.dumps(value, separators=(",", ":")).encode() + b"\n\n"


@given(
    path=st.sampled_from([CHAT, TEXT]),
    words=words,
    place=st.integers(0, 5000),
    cuts=st.lists(st.integers(0, 2000), max_size=6),
)
def test_a_stream_cut_anywhere_and_gone_on_with_is_the_whole_stream(path, words, place, cuts):
    opening = [event(path, "first", "", "assistant")] if path == CHAT else [event(path, "first", "")]
    whole = opening + [event(path, "first", word) for word in words]
    stream = b"".join(whole)
    seen = stream[: place % (len(stream) + 1)]
    before = said(seen)
    if before is None:
        assert len(seen) < len(opening[0])
        return
    events = seen.count(b"\n\n") - 1
    assert before.text == "".join(words[:events])
    assert before.tokens == sum(map(bool, words[:events]))
    assert seen[: before.whole_bytes] == b"".join(whole[: events + 1])
    rest = [event(path, "second", "", "assistant")] if path == CHAT else []
    rest += [b": ping\n\n"] + [event(path, "second", word) for word in words[events:]]
    second = b"".join(rest) + b"data: [DONE]\n\n"
    marks = sorted({0, len(second), *(cut % len(second) for cut in cuts)})
    seam = Seam(before)
    out = b"".join(seam.feed(second[start:end]) for start, end in pairwise(marks)) + seam.flush()
    assert seen[: before.whole_bytes] + out.replace(b": ping\n\n", b"") == stream + b"data: [DONE]\n\n"


@pytest.mark.parametrize(
    ("path", "more", "possible"),
    [
        (CHAT, {"messages": []}, True),
        (TEXT, {"prompt": "x"}, True),
        (TEXT, {"prompt": "x", "n": 1, "echo": False, "logprobs": None, "presence_penalty": 0, "seed": 3}, True),
        (TEXT, {"prompt": [1, 2]}, False),
        (TEXT, {"prompt": ["a"]}, False),
        (TEXT, {}, False),
        (CHAT, {"messages": "x"}, False),
        ("/v1/responses", {"messages": []}, False),
        (CHAT, {"messages": [], "stream": False}, False),
        (CHAT, {"messages": [], "stream": None}, False),
        (CHAT, {"messages": [], "n": 2}, False),
        (CHAT, {"messages": [], "tools": []}, False),
        (CHAT, {"messages": [], "response_format": {"type": "json_object"}}, False),
        (CHAT, {"messages": [], "frequency_penalty": 0.1}, False),
        (CHAT, {"messages": [], "something_new": 1}, False),
        (TEXT, {"prompt": "x", "logprobs": 1}, False),
        (TEXT, {"prompt": "x", "echo": True}, False),
        (CHAT, {"messages": [], "continue_final_message": True}, False),
    ],
)
def test_only_plain_text_of_one_choice_may_go_on(path, more, possible):
    members = json_object.parse(json.dumps({"model": "m", "stream": True, **more}).encode())
    assert may_continue(path, members) is possible


@pytest.mark.parametrize(
    "stream",
    [
        b"",
        b": ping\n\n",
        event(TEXT, "first", "a")[:-1],
        event(TEXT, "first", "a", finish_reason="stop"),
        event(TEXT, "first", "a") + b"data: [DONE]\n\n",
        event(TEXT, "first", "a", index=1),
        b'data: {"error":{"message":"x"}}\n\n',
        event(CHAT, "first", "a", delta={"content": None, "tool_calls": [1]}),
        event(CHAT, "first", "a", delta={"reasoning_content": "hm"}),
        b'data: {"id":"\xff"}\n\n',
    ],
)
def test_what_is_over_or_no_text_or_not_begun_does_not_go_on(stream):
    assert said(stream) is None


def asked(path: str, before: Said, **members: Any) -> Any:
    """Return the follow-up of a request with these members."""
    body = json.dumps({"model": "m", "stream": True, **members}).encode()
    return json.loads(follow_up(path, json_object.parse(body), before))


def test_the_rest_is_asked_for_with_what_was_said():
    text = asked(TEXT, SAID, prompt='say "', max_tokens=10, min_tokens=1)
    assert text == {"model": "m", "stream": True, "prompt": 'say "ab', "max_tokens": 8, "min_tokens": 0}
    assert asked(TEXT, SAID, prompt="x")["max_tokens"] == 14
    assert asked(TEXT, SAID, prompt="x", max_tokens=None)["max_tokens"] is None
    assert asked(TEXT, SAID, prompt="x", max_tokens=1)["max_tokens"] == 1
    user, spoken = {"role": "user", "content": "hi"}, {"role": "assistant", "content": "ab"}
    chat = asked(CHAT, SAID, messages=[user], max_completion_tokens=5)
    assert chat["messages"] == [user, spoken]
    assert (chat["continue_final_message"], chat["add_generation_prompt"]) == (True, False)
    assert (chat["max_completion_tokens"], "max_tokens" in chat) == (3, False)
    assert asked(CHAT, SAID, messages=[])["messages"] == [spoken]
    assert asked(CHAT, Said("first", 1, "", 0, 0), messages=[user]) == {
        "model": "m",
        "stream": True,
        "messages": [user],
    }


def test_the_usage_is_as_if_one_engine_had_said_it_all():
    seam = Seam(SAID)
    usage = {"prompt_tokens": 9, "completion_tokens": 3, "total_tokens": 12}
    seen = seam.feed(b'data: {"choices":[],"usage":%b}\n\n' % json.dumps(usage).encode())
    assert json.loads(seen[6:])["usage"] == {"prompt_tokens": 7, "completion_tokens": 5, "total_tokens": 12}
    odd = b'data: {"choices":[],"usage":{"prompt_tokens":null}}\n\n'
    assert seam.feed(odd) == odd
    assert seam.feed(b'data: {"choices":[],"usage":null}\n\n') == b'data: {"choices":[],"usage":null}\n\n'


@pytest.mark.parametrize(
    "other", [b": ping\n\n", b'data: {"error":{}}\n\n', b"data: [DONE]\n\n", b'data: {"choices":7}\n\n']
)
def test_what_is_no_answer_passes_as_it_is(other):
    assert Seam(SAID).feed(other) == other


def test_a_half_event_is_held_to_its_end_or_the_streams():
    seam = Seam(SAID)
    assert seam.feed(event(TEXT, "second", "x")[:-1]) == b""
    assert seam.feed(b"\ndata: ha") == event(TEXT, "first", "x")
    assert (seam.flush(), seam.flush()) == (b"data: ha", b"")
