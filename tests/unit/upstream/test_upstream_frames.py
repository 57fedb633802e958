"""Whole chunks pass a connection without the parser; whatever way the bytes are cut, what comes out is the body."""

import asyncio
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from gateway.upstream.protocol import EngineConnection
from gateway.wire.chunked import frame, payload_start

HEAD = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"


class Deaf(asyncio.Transport):
    """A transport that swallows what is written."""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return 0


class Body:
    """A reader that keeps the body, framed chunks and parsed ones in the order in which they came."""

    def __init__(self) -> None:
        self.got: list[bytes] = []
        self.framed = 0
        self.ended = False

    def on_head(self, status: int, headers: object) -> None:
        assert (status, headers) == (200, [(b"transfer-encoding", b"chunked")])

    def on_chunk(self, chunk: bytes) -> None:
        self.got.append(chunk)

    def on_frame(self, chunk: bytes) -> None:
        self.framed += 1
        start = payload_start(chunk)
        assert start
        self.got.append(chunk[start:-2])

    def on_trailers(self, trailers: object) -> None:
        raise AssertionError(trailers)

    def on_end(self) -> None:
        self.ended = True

    def on_lost(self, reason: str) -> None:
        raise AssertionError(reason)


def receive(pieces: list[bytes]) -> Body:
    """Let a connection with a framed reader receive these reads."""
    connection, body = EngineConnection(lambda _: None), Body()
    connection.connection_made(Deaf())
    connection.request(b"", b"", body)
    connection.frames = body.on_frame
    for piece in pieces:
        connection.data_received(piece)
    return body


@given(st.lists(st.binary(min_size=1, max_size=30), min_size=1, max_size=8), st.lists(st.integers(1, 400), max_size=12))
def test_however_it_is_cut_the_body_is_the_body(payloads, cuts):
    answer = HEAD + b"".join(map(frame, payloads)) + b"0\r\n\r\n"
    points = sorted({cut for cut in cuts if cut < len(answer)})
    body = receive([answer[begin:end] for begin, end in pairwise([0, *points, len(answer)])])
    assert b"".join(body.got) == b"".join(payloads)
    assert body.ended


def test_a_read_that_is_one_chunk_takes_the_short_way():
    body = receive([HEAD, *(frame(b"data: %d\n\n" % number) for number in range(5)), b"0\r\n\r\n"])
    assert body.got == [b"data: %d\n\n" % number for number in range(5)]
    assert body.framed == 4  # the first goes through the parser, which then stands between two chunks
    assert body.ended


def test_a_size_line_that_was_begun_keeps_the_parser_in_charge():
    payload = b"ab\r\n" + b"x" * 14
    whole = frame(payload)
    looks_whole = b"2\r\nab\r\n"
    assert whole.startswith(b"1" + looks_whole)
    assert payload_start(looks_whole)
    body = receive([HEAD, frame(b"first"), b"1", looks_whole, b"x" * 14 + b"\r\n", b"0\r\n\r\n"])
    assert b"".join(body.got) == b"first" + payload
    assert (body.framed, body.ended) == (0, True)
