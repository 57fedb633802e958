"""Chunked framing: what is exactly one chunk, and nothing else, is told to be one."""

import httptools
from hypothesis import given
from hypothesis import strategies as st

from gateway.wire.chunked import frame, payload_start

HEAD = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"


class Events:
    """What a parser tells of a body."""

    def __init__(self) -> None:
        self.body: list[bytes] = []
        self.chunks = 0
        self.ended = False

    def on_body(self, body: bytes) -> None:
        self.body.append(body)

    def on_chunk_complete(self) -> None:
        self.chunks += 1

    def on_message_complete(self) -> None:
        self.ended = True


@given(st.binary(min_size=1, max_size=5000))
def test_a_framed_payload_is_one_chunk(payload):
    framed = frame(payload)
    start = payload_start(framed)
    assert framed[start:-2] == payload


@given(st.one_of(st.binary(max_size=40), st.from_regex(rb"\A[0-9a-fA-F+x_ ;]{0,4}\r\n.{0,20}(\r\n)?\Z")))
def test_what_is_told_to_be_one_chunk_is_one_to_a_full_parser_too(data):
    start = payload_start(data)
    if start:
        events = Events()
        parser = httptools.HttpResponseParser(events)
        parser.feed_data(HEAD + data)
        assert (b"".join(events.body), events.chunks, events.ended) == (data[start:-2], 1, False)


def test_what_is_not_one_whole_chunk_is_told_so():
    for data in (b"", b"0\r\n\r\n", b"1\r\na", b"1\r\na\r\n1\r\nb\r\n", b"2\r\na\r\n", b"1;x\r\na\r\n", b"+1\r\na\r\n"):
        assert payload_start(data) == 0
