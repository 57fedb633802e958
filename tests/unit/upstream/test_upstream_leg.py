"""One leg from connect to its last byte: aborted at any moment, timed, paused, sent once more, nothing left open."""

import asyncio
import socket
from contextlib import suppress
from dataclasses import replace
from itertools import count

import pytest

from gateway.errors import UpstreamFailed, UpstreamTimeout
from gateway.upstream.client import HIGH_WATER_BYTES, ConnectFailed, Leg
from gateway.upstream.pool import ConnectionPool
from gateway.upstream.protocol import EngineConnection
from tests.unit.upstream.scripted import (
    BODY,
    CHUNKED,
    HEAD,
    OK,
    PATIENT,
    UNSIZED,
    Engine,
    Talk,
    always,
    scripted,
    ticks,
)

READ_BYTES = 262144
"""The most that the event loop reads at once."""


class Left(Exception):
    """What a client that leaves gives as the reason."""


async def silent(talk: Talk) -> None:
    """Take a request and never answer."""
    await talk.request()
    await talk.gone()


async def half(talk: Talk) -> None:
    """Answer in part and then no more."""
    await talk.request()
    talk.write(UNSIZED + b"half")
    await talk.gone()


async def idle_connection(engine: Engine) -> EngineConnection:
    """Put one connection into the pool, and return it."""
    connection = await engine.pool.connect()
    engine.pool.give_back(connection)
    return connection


@pytest.mark.parametrize("reused", [False, True])
@pytest.mark.parametrize("how", ["abort", "cancel"])
async def test_a_leg_aborted_at_any_moment_raises_the_reason_and_leaves_nothing_open(how, reused):
    async with scripted(always(OK)) as engine:
        for moment in count():
            if reused and not engine.pool.idle_count:
                await idle_connection(engine)
            elif not reused and (connection := engine.pool.take()) is not None:
                connection.abort()
            leg = engine.leg()
            task = asyncio.get_running_loop().create_task(leg.open(HEAD, BODY))
            await ticks(moment)
            done = task.done() or (how == "abort" and leg.complete)
            if how == "cancel":
                task.cancel()
            leg.abort(Left())
            leg.abort(Left("once more"))
            if done:
                await task
                break
            with pytest.raises(Left if how == "abort" else (Left, asyncio.CancelledError)) as caught:
                await task
            assert str(caught.value) == ""
            await engine.at_rest()
        assert moment > 1
        assert leg.early == [b"ok"]


async def test_a_leg_aborted_before_it_is_opened_opens_nothing():
    async with scripted(always(OK)) as engine:
        connection = await idle_connection(engine)
        since_s = connection.idle_since_s
        leg = engine.leg()
        leg.abort(Left())
        with pytest.raises(Left):
            await leg.open(HEAD, BODY)
        assert (connection.idle_since_s, await engine.at_rest(), engine.connections) == (since_s, (1, 1), 1)


async def test_the_engine_sees_that_an_aborted_leg_is_gone():
    seen = asyncio.Event()

    async def script(talk: Talk) -> None:
        await half(talk)
        seen.set()

    async with scripted(script) as engine:
        leg = await engine.opened()
        task = asyncio.get_running_loop().create_task(leg.read(100))
        await ticks()
        leg.abort(Left())
        with pytest.raises(Left):
            await task
        async with asyncio.timeout(5):
            await seen.wait()
        assert await leg.next_chunk() == b"half"
        with pytest.raises(Left):  # and stays so
            await leg.next_chunk()


@pytest.mark.parametrize("reason", [Left("why"), UpstreamFailed("why")])
async def test_an_abort_counts_even_right_after_the_connection_is_lost(reason):
    async with scripted(silent) as engine:
        connection = await idle_connection(engine)
        leg = engine.leg()
        task = asyncio.get_running_loop().create_task(leg.open(HEAD, BODY))
        await ticks(3)
        assert connection.transport is not None
        connection.transport.abort()  # its loss is told in the next round of the loop, and right behind it:
        asyncio.get_running_loop().call_soon(leg.abort, reason)
        with pytest.raises(type(reason), match="why"):
            await task
        assert engine.connections == 1  # it was not sent once more


async def test_an_abort_counts_even_right_after_a_refused_connect():
    leg = Leg("e", ConnectionPool("127.0.0.1", 1, asyncio.get_running_loop()), PATIENT, asyncio.get_running_loop())
    for moment in count():
        leg = Leg("e", ConnectionPool("127.0.0.1", 1, asyncio.get_running_loop()), PATIENT, asyncio.get_running_loop())
        task = asyncio.get_running_loop().create_task(leg.open(HEAD, BODY))
        await ticks(moment)
        done = task.done()
        leg.abort(Left())
        with pytest.raises(ConnectFailed if done else Left):
            await task
        if done:
            break


async def test_a_complete_leg_takes_no_harm_from_an_abort():
    async with scripted(always(OK)) as engine:
        leg = await engine.opened()
        leg.abort(Left())
        assert await leg.read(10) == b"ok"
        assert await engine.at_rest() == (1, 1)


async def test_a_refused_connect_is_told_as_one():
    leg = Leg("e", ConnectionPool("127.0.0.1", 1, asyncio.get_running_loop()), PATIENT, asyncio.get_running_loop())
    with pytest.raises(ConnectFailed, match=r"endpoint e: Connection refused"):
        await leg.open(HEAD, BODY)


async def test_a_connect_has_a_limit():
    loop = asyncio.get_running_loop()
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full:
        others = [socket.socket() for _ in range(4)]  # more than the backlog holds: who comes now gets no answer
        for other in others:
            other.setblocking(False)
            with suppress(BlockingIOError):
                other.connect(full.getsockname())
        leg = Leg("e", ConnectionPool("127.0.0.1", full.getsockname()[1], loop), replace(PATIENT, connect_s=0.05), loop)
        with pytest.raises(ConnectFailed, match=r"endpoint e: no connection within 0.05 s"):
            await leg.open(HEAD, BODY)
        for other in others:
            other.close()


async def test_a_first_byte_has_a_limit():
    async with scripted(silent) as engine:
        with pytest.raises(UpstreamTimeout, match=r"endpoint e: no answer within 0.02 s"):
            await engine.opened(replace(PATIENT, first_byte_s=0.02))
        assert await engine.at_rest() == (0, 0)


async def read(leg: Leg) -> None:
    await leg.read(1 << 20)


async def relay(leg: Leg) -> None:
    await leg.relay(lambda _: None)


async def chunks(leg: Leg) -> None:
    while await leg.next_chunk() is not None:
        pass


WAYS = pytest.mark.parametrize("way", [read, relay, chunks])


@WAYS
async def test_a_silent_engine_is_left_after_the_idle_time(way):
    async with scripted(half) as engine:
        leg = await engine.opened(replace(PATIENT, idle_s=0.02))
        with pytest.raises(UpstreamTimeout, match=r"endpoint e: silent for 0.02 s"):
            await way(leg)
        assert await engine.at_rest() == (0, 0)


async def paced(talk: Talk) -> None:
    """Send a byte every few milliseconds until the client goes."""
    await talk.request()
    talk.write(UNSIZED + b"x")
    loop, gone = asyncio.get_running_loop(), False

    def beat() -> None:
        if not gone:
            talk.write(b"x")
            loop.call_later(0.005, beat)

    beat()
    try:
        await talk.gone()
    finally:
        gone = True


@WAYS
@pytest.mark.parametrize("idle_s", [0.1, 5.0])
async def test_an_engine_that_never_ends_is_left_after_the_total_time(way, idle_s):
    async with scripted(paced) as engine:
        leg = await engine.opened(replace(PATIENT, idle_s=idle_s, total_s=0.25))
        async with asyncio.timeout(2):
            with pytest.raises(UpstreamTimeout, match=r"endpoint e: not done within 0.25 s"):
                await way(leg)


async def test_a_paused_stream_is_not_silent():
    async with scripted(half) as engine:
        leg = await engine.opened(replace(PATIENT, idle_s=0.02, total_s=0.1))
        with pytest.raises(UpstreamTimeout, match=r"not done within 0.1 s"):
            await leg.relay(lambda _: leg.pause())


async def test_a_stream_that_is_resumed_has_the_whole_idle_time_again():
    async with scripted(half) as engine:
        loop = asyncio.get_running_loop()
        leg = await engine.opened(replace(PATIENT, idle_s=0.05))
        resumed_s = loop.time() + 0.12
        loop.call_at(resumed_s, leg.resume)
        with pytest.raises(UpstreamTimeout, match=r"silent for 0.05 s"):
            await leg.relay(lambda _: leg.pause())
        assert loop.time() - resumed_s >= 0.05


async def test_a_pause_on_the_last_chunk_does_not_stay_with_the_connection():
    more = asyncio.Event()

    async def script(talk: Talk) -> None:
        for part in (b"2\r\nok\r\n0\r\n\r\n", b""):
            await talk.request()
            talk.write(CHUNKED + b"2\r\nab\r\n" if part else OK)
            if part:
                await more.wait()
            talk.write(part)
        await talk.gone()

    async with scripted(script) as engine:
        leg, got = await engine.opened(), []

        def slow(chunk: bytes) -> None:
            got.append(chunk)
            if chunk == b"ok":
                leg.pause()

        relaying = asyncio.get_running_loop().create_task(leg.relay(slow))
        await ticks()
        more.set()
        await relaying
        assert got == [b"ab", b"ok"]
        leg.pause()  # too late to matter
        leg.resume()
        assert await engine.whole(replace(PATIENT, first_byte_s=0.5)) == b"ok"
        assert engine.connections == 1


@pytest.mark.parametrize("limit", [0, 3, 5000])
async def test_a_whole_answer_has_a_limit(limit):
    more = asyncio.Event()

    async def script(talk: Talk) -> None:
        await talk.request()
        talk.write(b"HTTP/1.1 200 OK\r\ncontent-length: 6000\r\n\r\nhalf")
        await more.wait()
        talk.write(b"x" * 5996)
        await talk.gone()

    async with scripted(script) as engine:
        leg = await engine.opened()
        more.set()
        with pytest.raises(UpstreamFailed, match=f"endpoint e: the answer is over {limit} bytes"):
            await leg.read(limit)
        assert await engine.at_rest() == (0, 0)


async def test_the_limit_holds_for_what_has_come_already():
    async with scripted(always(OK)) as engine:
        leg = await engine.opened()
        with pytest.raises(UpstreamFailed, match="over 1 bytes"):
            await leg.read(1)
        assert await (await engine.opened()).read(2) == b"ok"


@pytest.mark.parametrize("way", ["chunks", "relay", "read"])
async def test_an_engine_waits_until_somebody_asks_and_then_no_byte_is_missing(way):
    size = 4 << 20

    async with scripted(always(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % size + bytes(size))) as engine:
        leg = await engine.opened()
        async with asyncio.timeout(5):
            while sum(map(len, leg.early)) <= HIGH_WATER_BYTES:
                await asyncio.sleep(0)
        await ticks(200)
        assert HIGH_WATER_BYTES < sum(map(len, leg.early)) <= HIGH_WATER_BYTES + READ_BYTES
        got: list[bytes] = []
        if way == "relay":
            await leg.relay(got.append)
        elif way == "read":
            got.append(await leg.read(size))
        else:
            while (chunk := await leg.next_chunk()) is not None:
                assert len(chunk) <= HIGH_WATER_BYTES + READ_BYTES
                got.append(chunk)
        assert b"".join(got) == bytes(size)
        assert await engine.at_rest() == (1, 1)


async def test_chunks_come_joined_and_end_with_none():
    async with scripted(always(CHUNKED + b"2\r\nab\r\n2\r\ncd\r\n0\r\n\r\n")) as engine:
        leg = await engine.opened()
        assert [await leg.next_chunk(), await leg.next_chunk(), await leg.next_chunk()] == [b"abcd", None, None]
        leg = await engine.opened()
        got: list[bytes] = []
        await leg.relay(got.append)
        assert (got, leg.early) == ([b"abcd"], [])


def dies_after(requests: int, last_words: bytes = b"", *, on_connections: int = 1):
    """Return a script whose first connections answer so many requests and die in the next; later ones answer all."""

    async def script(talk: Talk) -> None:
        if talk.number > on_connections:
            await always(OK)(talk)
        for _ in range(requests):
            await talk.request()
            talk.write(OK)
        await talk.request()
        talk.write(last_words)

    return script


async def test_a_kept_connection_that_dies_unanswered_costs_one_more_try_on_a_new_one():
    async with scripted(dies_after(1)) as engine:
        assert [await engine.whole(), await engine.whole()] == [b"ok", b"ok"]
        assert engine.connections == 2
        assert await engine.at_rest() == (1, 1)


async def test_there_is_one_more_try_and_no_third():
    async with scripted(dies_after(0, on_connections=9)) as engine:
        await idle_connection(engine)
        await idle_connection(engine)
        with pytest.raises(UpstreamFailed, match="closed the connection before its answer was complete"):
            await engine.whole()
        assert engine.connections == 3  # one kept, one new; the other kept one was not touched
        assert await engine.at_rest() == (1, 1)


@pytest.mark.parametrize("last_words", [b"H", b"HTTP/1.1 100 Continue\r\n\r\n", OK[:-1]])
async def test_a_request_that_was_answered_in_part_is_not_sent_again(last_words):
    async with scripted(dies_after(1, last_words)) as engine:
        await engine.whole()
        with pytest.raises(UpstreamFailed, match="closed the connection before its answer was complete"):
            await engine.whole()
        assert engine.connections == 1


async def test_a_new_connection_that_dies_is_not_tried_again():
    async with scripted(dies_after(0)) as engine:
        with pytest.raises(UpstreamFailed, match="closed the connection before its answer was complete"):
            await engine.whole()
        assert engine.connections == 1
