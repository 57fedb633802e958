"""Which headers cross, by law: what is for one hop stays there, what may not be set from outside is dropped."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.upstream.hop_headers import HOP_BY_HOP, ROUTING, to_client, to_engine, trailers_to_client

FREE = [b"authorization", b"content-type", b"accept", b"x-a", b"x-b", b"tracestate", b"user-agent"]
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


TRACE, PARENT = b"4bf92f3577b34da6a3ce929d0e0e4736", b"00f067aa0ba902b7"
STATE = (b"tracestate", b"congo=t61rcWkgMzE")


def fields(lines: bytes) -> dict[bytes, bytes]:
    return dict(line.split(b": ", 1) for line in lines.split(b"\r\n") if line)


@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize("connection", [[], [(b"connection", b"keep-alive")], [(b"connection", b"x-a")]])
def test_a_trace_keeps_its_id_and_each_leg_gets_a_parent_of_its_own(order, connection):
    sent = [(b"traceparent", b"00-%b-%b-01" % (TRACE, PARENT)), STATE, (b"x-b", b"1"), *connection][::order]
    legs = [fields(to_engine(sent, b"r1")) for _ in range(3)]
    parents = set()
    for leg in legs:
        version, trace, parent, flags = leg.pop(b"traceparent").split(b"-")
        assert (version, trace, flags) == (b"00", TRACE, b"01")
        assert re.fullmatch(rb"[0-9a-f]{16}", parent)
        assert leg == {b"x-request-id": b"r1", b"x-b": b"1", b"tracestate": STATE[1]}
        parents.add(parent)
    assert len(parents | {PARENT}) == 4


@pytest.mark.parametrize(
    "wrong",
    [
        [b""],
        [b"x"],
        [b"00-%b-%b" % (TRACE, PARENT)],
        [b"00-%b-%b-01" % (TRACE.upper(), PARENT)],
        [b"00-%b-%b-01-x" % (TRACE, PARENT)],
        [b"00-%b-%b-01\n" % (TRACE, PARENT)],
        [b"00-%b-%b-01" % (b"0" * 32, PARENT)],
        [b"00-%b-%b-01" % (TRACE, b"0" * 16)],
        [b"ff-%b-%b-01" % (TRACE, PARENT)],
        [b"00-%b-%b-0g" % (TRACE, PARENT)],
        [b"00-%b-%b-01" % (TRACE, PARENT)] * 2,
    ],
)
@pytest.mark.parametrize("order", [1, -1])
def test_a_trace_that_is_none_goes_and_its_state_with_it(wrong, order):
    sent = [*((b"traceparent", value) for value in wrong), STATE, (b"x-b", b"1")][::order]
    assert fields(to_engine(sent, b"r1")) == {b"x-request-id": b"r1", b"x-b": b"1"}


def test_a_state_without_a_trace_passes_and_a_trace_for_one_hop_does_not():
    assert fields(to_engine([STATE], b"r1")) == {b"x-request-id": b"r1", STATE[0]: STATE[1]}
    trace = (b"traceparent", b"00-%b-%b-01" % (TRACE, PARENT))
    assert fields(to_engine([trace, (b"connection", b"traceparent")], b"r1")) == {b"x-request-id": b"r1"}


def test_trailers_pass_but_for_those_that_belong_into_a_head():
    passing = [(b"x-checksum", b"1"), (b"server-timing", b"a;dur=1")]
    dropped = [(name, b"1") for name in (b"content-length", b"transfer-encoding", b"set-cookie", b"x-request-id")]
    assert trailers_to_client([*dropped, *passing]) == passing
    assert trailers_to_client(()) == []


@pytest.mark.parametrize("kind", [b"text/event-stream", b"Text/Event-Stream; charset=utf-8"])
def test_a_stream_is_known_by_its_content_type_in_any_case(kind):
    assert to_client([(b"content-type", kind)], b"id", []).events
