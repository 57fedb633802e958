"""Which headers cross, by law: what is for one hop stays there, what may not be set from outside is dropped."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.upstream.hop_headers import HOP_BY_HOP, ROUTING, to_client, to_engine

FREE = [b"authorization", b"content-type", b"accept", b"x-a", b"x-b", b"traceparent", b"user-agent"]
CALLERS = [b"host", b"content-length", b"expect", b"x-request-id"]
names = st.sampled_from([*FREE, *sorted(HOP_BY_HOP - {b"connection"}), *sorted(ROUTING), *CALLERS])
values = st.sampled_from([b"1", b"a, b", b"", b"x-a"])
tokens = st.sampled_from([b"keep-alive", b"Close", b"X-A", b" x-b ", b"", b"te"])
connections = st.tuples(st.just(b"connection"), st.lists(tokens, max_size=3).map(b",".join))
sent = st.lists(st.tuples(names, values) | connections, max_size=10)
answered = sent.map(lambda headers: [header for header in headers if header[0] != b"content-length"])


def named(headers) -> set[bytes]:
    lines = [value for name, value in headers if name == b"connection"]
    return {token.strip().lower() for line in lines for token in line.split(b",")}


@given(headers=sent)
def test_an_engine_gets_what_is_meant_for_it_in_order(headers):
    kept = [(name, value) for name, value in headers if name in FREE and name not in named(headers)]
    expected = b"".join(b"%b: %b\r\n" % header for header in [(b"x-request-id", b"r1"), *kept])
    assert to_engine(headers, b"r1") == expected


@given(headers=answered, extra=st.lists(st.tuples(st.just(b"x-gateway"), values), max_size=2))
def test_a_client_gets_what_is_meant_for_it_and_then_ours(headers, extra):
    unnamed = [header for header in headers if header[0] not in named(headers)]
    kept = [header for header in unnamed if header[0] not in HOP_BY_HOP | {b"x-request-id", b"content-length"}]
    lines = b"".join(b"%b: %b\r\n" % header for header in [*kept, (b"x-request-id", b"r1"), *extra])
    assert to_client(headers, b"r1", extra) == (lines, None, False)


def test_framing_and_kind_are_told_apart_from_the_lines():
    headers = [(b"content-length", b"12"), (b"content-type", b"text/event-stream; charset=utf-8")]
    lines = b"content-type: text/event-stream; charset=utf-8\r\nx-request-id: r1\r\n"
    assert to_client(headers, b"r1", []) == (lines, 12, True)


@pytest.mark.parametrize("name", sorted(ROUTING))
def test_no_client_says_where_its_request_goes(name):
    assert to_engine([(name, b"10.0.0.1:1")], b"r1") == b"x-request-id: r1\r\n"
