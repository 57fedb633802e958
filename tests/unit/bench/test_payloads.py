"""The bytes of the overhead benchmark: valid JSON, exact sizes, shared first halves, no two prompts alike."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.overhead import payloads


@given(st.integers(0, 10**7), st.integers(1, 64), st.integers(100, 5000), st.booleans())
def test_a_body_is_json_with_a_prompt_of_the_asked_size(number, families, prompt_bytes, stream):
    body = payloads.chat_body(number, families, prompt_bytes, stream=stream)
    parsed = json.loads(body)
    assert parsed["model"] == payloads.MODEL
    assert parsed.get("stream", False) is stream
    texts = [json.dumps(message["content"])[1:-1] for message in parsed["messages"]]
    assert sum(map(len, texts)) == prompt_bytes // 2 * 2


@given(st.integers(0, 10**6), st.integers(0, 10**6))
def test_first_halves_are_equal_within_a_family_only_and_second_halves_never(one, other):
    first, second = (json.loads(payloads.chat_body(n, 16, 2000))["messages"] for n in (one, other))
    assert (first[0] == second[0]) is (one % 16 == other % 16)
    assert (first[1] == second[1]) is (one == other)


def test_a_400_kb_prompt_fits_the_text():
    assert len(payloads.chat_body(10**7, 16, 400_000)) > 400_000


def test_a_request_announces_its_length():
    head, _, body = payloads.chat_request(b'{"a":1}').partition(b"\r\n\r\n")
    assert b"content-length: 7" in head
    assert body == b'{"a":1}'


def test_events_are_equally_long_and_numbered():
    events = payloads.stream_events(300)
    assert len({len(event) for event in events}) == 1
    assert len(set(events)) == 300
    assert json.loads(events[7].removeprefix(b"data: "))["choices"][0]["delta"]["content"] == " w0007"
    assert payloads.stream_body(300) == b"".join(events) + b"data: [DONE]\n\n"
    with pytest.raises(ValueError, match="events"):
        payloads.stream_events(payloads.EVENT_COUNT_LIMIT + 1)


def test_the_plain_answer_is_json():
    assert json.loads(payloads.PLAIN_ANSWER)["usage"]["completion_tokens"] == 28
