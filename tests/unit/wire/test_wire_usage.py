"""Laws of reading and correcting token counts in bytes, however the bytes are cut."""

import json
import re
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.wire.usage import CachedTokensCorrection, Usage, find

# The same rule over a body in one piece: an integer of at most 19 digits, at most 8 spaces on each side of the colon.
WHOLE = re.compile(rb'"cached_tokens"\s{0,8}:\s{0,8}(\d+)(?![.eE\d])|"prompt_tokens_details"\s{0,8}:\s{0,8}null')
HELD_AT_MOST = 64

spaces = st.sampled_from(["", "", " ", "\n  ", " " * 8])
numbers = st.integers(0, 10**18).map(str)
PARTS = r"""
" \" { } , : null nul n 5 data: "cached "cached_tokens "prompt_tokens_details "cached_tokens" "prompt_tokens_details"
"prompt_tokens" \"cached_tokens\":5 "\"cached_tokens\"" "cached_tokens":null "cached_tokens":-1 "cached_tokens":1.5
"prompt_tokens_details":{ "cached_tokens"5 "prompt_tokens_details":n
"""
fragments = st.one_of(
    st.sampled_from([*PARTS.split(), "\n\n"]),
    st.builds('"cached_tokens"{}:{}{}'.format, spaces, spaces, numbers),
    st.builds('"prompt_tokens_details"{}:{}null'.format, spaces, spaces),
    st.text(max_size=5),
)
bodies = st.lists(fragments, max_size=12).map(lambda parts: "".join(parts).encode("utf-8", "replace"))


def whole(body: bytes, count: int) -> bytes:
    """Return the body corrected in one piece."""

    def put(match: re.Match[bytes]) -> bytes:
        if match[1] is None:
            return b'"prompt_tokens_details":{"cached_tokens":%d}' % count
        return b'"cached_tokens":%d' % count if len(match[1]) <= 19 else match[0]

    return WHOLE.sub(put, body)


def pieces(body: bytes, cuts: list[int]) -> list[bytes]:
    places = [0, *sorted(cut % (len(body) + 1) for cut in cuts), len(body)]
    return [body[start:end] for start, end in pairwise(places)]


@given(body=bodies, count=st.integers(0, 10**6), cuts=st.lists(st.integers(0, 500), max_size=12))
@settings(max_examples=500)
def test_a_body_in_pieces_is_corrected_as_in_one(body, count, cuts):
    correction = CachedTokensCorrection(count)
    out = [correction.feed(piece) for piece in pieces(body, cuts)]
    assert b"".join(out) + correction.flush() == whole(body, count)
    assert correction.flush() == b""


@given(body=bodies, count=st.integers(0, 10**6))
@settings(max_examples=60)
def test_a_body_byte_by_byte_is_corrected_as_in_one(body, count):
    correction = CachedTokensCorrection(count)
    assert b"".join(correction.feed(bytes((byte,))) for byte in body) + correction.flush() == whole(body, count)


@given(body=bodies)
@settings(max_examples=500)
def test_little_is_held_back(body):
    correction = CachedTokensCorrection(7)
    correction.feed(body)
    assert len(correction.flush()) <= HELD_AT_MOST


@pytest.mark.parametrize("filler", [b" ", b"5"])
def test_an_endless_member_is_not_held_back(filler):
    correction = CachedTokensCorrection(7)
    sent = b"".join(correction.feed(filler) for _ in range(1000))
    out = correction.feed(b'"cached_tokens":') + b"".join(correction.feed(filler) for _ in range(1000))
    assert len(out) >= 1000
    assert sent + out + correction.flush() == filler * 1000 + b'"cached_tokens":' + filler * 1000


@given(text=st.text(max_size=30), cuts=st.lists(st.integers(0, 500), max_size=8))
def test_what_a_model_writes_is_never_changed(text, cuts):
    content = text + '"cached_tokens":5,"prompt_tokens_details":null' + text
    body = json.dumps({"content": content, '"cached_tokens': "cached_tokens"}).encode()
    correction = CachedTokensCorrection(9)
    assert b"".join(map(correction.feed, pieces(body, cuts))) + correction.flush() == body


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b'{"prompt_tokens_details":null}', b'{"prompt_tokens_details":{"cached_tokens":9}}'),
        (b'{"prompt_tokens_details":{"cached_tokens": 0 }}', b'{"prompt_tokens_details":{"cached_tokens":9 }}'),
        (b'{"cached_tokens":null}', b'{"cached_tokens":null}'),
    ],
)
def test_a_count_is_put_in_where_there_is_one_or_none(before, after):
    for cut in range(len(before) + 1):
        correction = CachedTokensCorrection(9)
        assert correction.feed(before[:cut]) + correction.feed(before[cut:]) + correction.flush() == after


usages = st.builds(
    Usage, prompt=st.integers(0, 10**9), output=st.integers(0, 10**9), cached=st.none() | st.integers(0, 10**9)
)


@given(usage=usages, earlier=usages, content=st.text(max_size=20), spelling=st.sampled_from([(",", ":"), (", ", ": ")]))
def test_the_last_usage_of_a_tail_is_found(usage, earlier, content, spelling):
    def event(one: Usage) -> str:
        told = {"prompt_tokens": one.prompt, "total_tokens": 1, "completion_tokens": one.output}
        details = None if one.cached is None else {"cached_tokens": one.cached}
        shape = {"text": content + '"usage":{"prompt_tokens":1}', "usage": {**told, "prompt_tokens_details": details}}
        return f"data: {json.dumps(shape, separators=spelling)}\n\n"

    tail = (content + event(earlier) + event(usage) + "data: [DONE]\n\n").encode("utf-8", "replace")
    assert find(tail) == usage
    assert find(tail[tail.rindex(b'"usage"') :]) == usage


ENDLESS = b'{"usage":{"prompt_tokens":' + b"1" * 5000  # more digits than int() takes


@pytest.mark.parametrize(
    "tail", [b"", b"data: [DONE]\n\n", b'{"usage":null}', b'{"prompt_tokens":3}', b'{"usage":{"x":1}}', ENDLESS]
)
def test_a_tail_without_usage_has_none(tail):
    assert find(tail) is None


@pytest.mark.parametrize("after", [b'"prompt_token_ids":[' + b"12345," * 100_000 + b"1]", b'"x":{"usage":null}'])
def test_what_follows_a_usage_does_not_hide_it(after):
    assert find(b'{"usage":{"prompt_tokens":3000,"completion_tokens":7},' + after + b"}") == Usage(3000, 7, None)


@given(digits=st.integers(1, 40), cut=st.integers(0, 200))
def test_a_number_is_read_whole_and_bounded_or_not_at_all(digits, cut):
    body = b'{"usage":{"prompt_tokens":' + b"7" * digits + b',"completion_tokens":' + b"8" * digits + b"}}"
    found = find(body[: max(0, len(body) - cut)])
    assert found is None or found.prompt == int("7" * digits) < 10**19
    assert found is None or found.output in (0, int("8" * digits))
    assert (find(body) is None) is (digits > 19)


def test_usages_without_counts_are_looked_at_up_to_a_bound():
    assert find(b'{"usage":{"prompt_tokens":3}}' + b'{"usage":null}' * 3) == Usage(3, 0, None)
    assert find(b'{"usage":{"prompt_tokens":3}}' + b'{"usage":null}' * 1000) is None


def test_an_answer_without_output_counts_none():
    assert find(b'{"usage":{"prompt_tokens":3,"total_tokens":3}}') == Usage(3, 0, None)


@pytest.mark.parametrize(
    ("usage", "found"),
    [
        (b'{"input_tokens":3,"output_tokens":4,"input_tokens_details":{"cached_tokens":2}}', Usage(3, 4, 2)),
        (b'{"input_tokens":3,"cache_creation_input_tokens":5,"cache_read_input_tokens":8}', Usage(16, 0, 8)),
        (b'{"input_tokens":3,"output_tokens":4}', Usage(3, 4, None)),
        (b'{"total_tokens":9}', Usage(9, 0, None)),
        (b'{"completion_tokens":9}', None),
    ],
)
def test_the_formats_of_other_routes_are_read_too(usage, found):
    assert find(b'{"usage":' + usage + b"}") == found
