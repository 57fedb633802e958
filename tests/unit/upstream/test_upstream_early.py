"""Engines that answer while the request is still being sent, on both event loops: the answer counts, not the pipe."""

import asyncio
import socket

import pytest
import uvloop

from gateway.errors import UpstreamFailed
from tests.unit.upstream.scripted import CHUNKED, Talk, scripted

LOOPS = pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
SIZES = pytest.mark.parametrize("size", [400_000, 30_000_000])
READ = 65_536
ANSWERS = {
    "refused": (413, b"HTTP/1.1 413 Content Too Large\r\ncontent-length: 2\r\n\r\nno"),
    "refused, no length": (400, b"HTTP/1.1 400 Bad Request\r\n\r\nno"),
    "refused, in chunks": (
        400,
        b"HTTP/1.1 400 Bad Request\r\n" + CHUNKED.partition(b"\r\n")[2] + b"2\r\nno\r\n0\r\n\r\n",
    ),
    "answered": (200, b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nno"),
}


CASES = [(what, then) for what in ANSWERS for then in ("close", "reset", "stop reading")]
CASES.remove(("refused, no length", "stop reading"))  # it has no end


async def ask(answer: bytes, then: str, size: int) -> tuple[int, bytes, tuple[int, int]]:
    """Send `size` bytes to an engine that answers after the first 64 KB; return status, body, (open, idle) at rest."""
    over = asyncio.Event()

    async def script(talk: Talk) -> None:
        await talk.reader.readexactly(READ)
        talk.write(answer)
        if then == "reset":
            await talk.writer.drain()
            talk.reset()
        elif then == "stop reading":
            await over.wait()

    async with scripted(script) as engine, asyncio.timeout(10):
        leg = engine.leg()
        await leg.open(b"POST / HTTP/1.1\r\ncontent-length: %d\r\n\r\n" % size, bytes(size))
        body = await leg.read(100)
        while engine.pool.open_count and then != "stop reading":
            await asyncio.sleep(0)  # the engine's last word may not have come yet
        at_rest = await engine.at_rest()
        over.set()
        return leg.status, body, at_rest


@LOOPS
@SIZES
@pytest.mark.parametrize(("what", "then"), CASES)
def test_an_early_answer_reaches_the_leg_and_its_connection_is_not_used_again(loop, size, what, then):
    status, answer = ANSWERS[what]
    # Of a body that the kernels have taken whole nobody can say that the engine will not read it.
    kept = 1 if (status, then, size) == (200, "stop reading", 400_000) else 0
    with asyncio.Runner(loop_factory=loop) as runner:
        assert runner.run(ask(answer, then, size)) == (status, b"no", (kept, kept))


async def test_an_early_answer_without_length_that_is_no_refusal_is_not_believed_after_a_reset():
    async def script(talk: Talk) -> None:
        await talk.reader.readexactly(READ)
        talk.write(b"HTTP/1.1 200 OK\r\n\r\nhalf")
        await talk.writer.drain()
        talk.reset()

    async with scripted(script) as engine:
        leg = engine.leg()
        await leg.open(b"POST / HTTP/1.1\r\ncontent-length: 400000\r\n\r\n", bytes(400_000))
        with pytest.raises(UpstreamFailed, match="endpoint e: Connection reset by peer"):
            await leg.read(100)


async def test_an_early_answer_of_an_engine_that_then_reads_all_keeps_the_connection():
    size = 400_000

    async def script(talk: Talk) -> None:
        for _ in range(2):
            await talk.reader.readuntil(b"\r\n\r\n")
            await talk.reader.readexactly(READ)
            talk.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\no")
            await talk.reader.readexactly(size - READ)
            talk.write(b"k")
        await talk.gone()

    async with scripted(script) as engine:
        for _ in range(2):
            leg = engine.leg()
            await leg.open(b"POST / HTTP/1.1\r\ncontent-length: %d\r\n\r\n" % size, bytes(size))
            assert await leg.read(10) == b"ok"
        assert engine.connections == 1


async def test_a_token_is_sent_without_delay():
    async with scripted(lambda talk: talk.gone()) as engine:
        connection = await engine.pool.connect()
        assert connection.transport is not None
        sock = connection.transport.get_extra_info("socket")
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        connection.abort()
