"""Answers that two readers could read in two ways, or that no reader can: each is refused in words, none hangs."""

import pytest

from gateway.errors import UpstreamFailed
from gateway.upstream.protocol import MAX_HEAD_BYTES
from tests.unit.upstream.scripted import CHUNKED, OK, Talk, always, scripted

START = b"HTTP/1.1 200 OK\r\n"
TWO = b"content-length: 2\r\n"
MALFORMED = {
    "a length and chunks": START + TWO + b"transfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
    "chunks and a length": START + b"transfer-encoding: chunked\r\n" + TWO + b"\r\n2\r\nok\r\n0\r\n\r\n",
    "two lengths": START + TWO + b"content-length: 3\r\n\r\nok!",
    "the same length twice": START + TWO + TWO + b"\r\nok",
    "a list of lengths": START + b"content-length: 2, 2\r\n\r\nok",
    "a negative length": START + b"content-length: -2\r\n\r\nok",
    "a signed length": START + b"content-length: +2\r\n\r\nok",
    "a length in hexadecimal": START + b"content-length: 0x2\r\n\r\nok",
    "a length beyond 64 bits": START + b"content-length: 18446744073709551618\r\n\r\nok",
    "no length at all": START + b"content-length: \r\n\r\nok",
    "a chunk size beyond 64 bits": CHUNKED + b"1" + b"0" * 16 + b"\r\nok",
    "a negative chunk size": CHUNKED + b"-2\r\nok\r\n0\r\n\r\n",
    "a chunk longer than its size": CHUNKED + b"2\r\nok!\r\n0\r\n\r\n",
    "a chunk without its line break": CHUNKED + b"2\r\nok0\r\n\r\n",
    "a transfer encoding of two": START + b"transfer-encoding: gzip, chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
    "an unknown transfer encoding": START + b"transfer-encoding: gzip\r\n\r\nok",
    "a NUL in a header": START + b"x-a: a\x00b\r\n" + TWO + b"\r\nok",
    "a NUL in a name": START + b"x-\x00a: b\r\n" + TWO + b"\r\nok",
    "a space before the colon": START + b"content-length : 2\r\n\r\nok",
    "a bare CR in a header": START + b"x-a: b\rcontent-length: 0\r\n" + TWO + b"\r\nok",
    "a head with bare LF": b"HTTP/1.1 200 OK\ncontent-length: 2\n\nok",
    "one line with bare LF": START + b"x-a: b\n" + TWO + b"\r\nok",
    "a folded header": START + b"x-a: b\r\n c\r\n" + TWO + b"\r\nok",
    "no version": b"200 OK\r\n" + TWO + b"\r\nok",
    "an unknown version": b"HTTP/9.9 200 OK\r\n" + TWO + b"\r\nok",
    "a request": b"GET / HTTP/1.1\r\nhost: e\r\n\r\n",
    "a name with a line break": START + b"x-a\r\nb: c\r\n" + TWO + b"\r\nok",
}


@pytest.mark.parametrize("what", MALFORMED)
async def test_a_malformed_answer_is_refused(what):
    async def script(talk: Talk) -> None:
        await talk.request()
        talk.write(MALFORMED[what])
        await talk.gone()  # the engine leaves it open: what ends it is us

    async with scripted(script) as engine:
        with pytest.raises(UpstreamFailed, match=r"endpoint e: the answer is not HTTP/1\.1: "):
            await engine.whole()
        assert await engine.at_rest() == (0, 0)


async def test_a_second_head_in_the_body_is_body_and_never_an_answer():
    split = START + b"content-length: %d\r\n\r\n" % len(OK) + OK
    async with scripted(always(split)) as engine:
        assert [await engine.whole(), await engine.whole()] == [OK, OK]
        assert engine.connections == 1


@pytest.mark.parametrize(
    "endless",
    [
        pytest.param(b"0\r\nx-filler: " + b"a" * (3 * MAX_HEAD_BYTES), id="one trailer"),
        pytest.param(b"0\r\n" + (b"x-filler: " + b"a" * 1000 + b"\r\n") * 200, id="many trailers"),
        pytest.param(b"2;x=" + b"a" * (3 * MAX_HEAD_BYTES), id="a chunk extension"),
    ],
)
async def test_what_stands_between_the_chunks_has_a_limit(endless):
    async def script(talk: Talk) -> None:
        await talk.request()
        talk.write(CHUNKED + b"2\r\nok\r\n")
        talk.write(endless)
        await talk.gone()

    async with scripted(script) as engine:
        with pytest.raises(UpstreamFailed, match=r"endpoint e: the answer is not HTTP/1\.1: "):
            await engine.whole()
        assert await engine.at_rest() == (0, 0)
