"""Our HTTP/1.1 client against raw bytes: what is an answer, what ends a connection, what is kept."""

import asyncio

import pytest

from gateway.errors import UpstreamFailed
from gateway.upstream.pool import MAX_IDLE, MAX_IDLE_S, ConnectionPool
from gateway.upstream.protocol import JOIN_BELOW_BYTES, MAX_HEAD_BYTES, EngineConnection
from tests.unit.upstream.scripted import BODY, CHUNKED, HEAD, OK, UNSIZED, Talk, always, once, scripted, ticks


async def test_a_connection_serves_one_request_after_another():
    async with scripted(always(OK)) as engine:
        assert [await engine.whole() for _ in range(3)] == [b"ok"] * 3
        assert engine.connections == 1
        assert await engine.at_rest() == (1, 1)


@pytest.mark.parametrize(
    "interim", [b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n" * 3]
)
async def test_interim_answers_are_passed_over(interim):
    async with scripted(always(interim + OK)) as engine:
        for _ in range(2):
            leg = await engine.opened()
            assert (leg.status, leg.headers) == (200, [(b"content-length", b"2")])
            assert await leg.read(10) == b"ok"
        assert engine.connections == 1


@pytest.mark.parametrize("status", [0, 99, 600, 999, 1000])
async def test_a_status_that_is_none_is_no_answer(status):
    async with scripted(once(b"HTTP/1.1 %d X\r\ncontent-length: 2\r\n\r\nok" % status)) as engine:
        with pytest.raises(UpstreamFailed, match=r"not HTTP/1\.1: .*status"):
            await engine.opened()
        assert await engine.at_rest() == (0, 0)


async def test_a_body_may_end_with_the_connection():
    async with scripted(once(UNSIZED + b"all of it")) as engine:
        assert await engine.whole() == b"all of it"
        assert await engine.at_rest() == (0, 0)


async def test_a_body_that_a_reset_cuts_off_is_no_answer():
    async def script(talk: Talk) -> None:
        await talk.request()
        talk.write(UNSIZED + b"part")
        await talk.reader.readexactly(1)
        talk.reset()

    async with scripted(script) as engine:
        leg = engine.leg()
        connection = await engine.pool.connect()
        engine.pool.give_back(connection)
        await leg.open(HEAD, BODY)
        assert connection.transport is not None
        connection.transport.write(b"!")
        with pytest.raises(UpstreamFailed, match="endpoint e: "):
            await leg.read(100)


async def test_trailers_are_kept_and_cost_the_connection_nothing():
    trailed = CHUNKED + b"3\r\nabc\r\n2;x=y\r\nde\r\n0\r\nX-Trailer: 1\r\nx-other: 2\r\n\r\n"
    answers = [trailed, CHUNKED + b"2\r\nok\r\n0\r\n\r\n", trailed]

    async def script(talk: Talk) -> None:
        for answer in answers:
            await talk.request()
            talk.write(answer)
        await talk.gone()

    async with scripted(script) as engine:
        got = []
        for _ in answers:
            leg = await engine.opened()
            got.append((await leg.read(100), list(leg.trailers)))
            assert leg.headers == [(b"transfer-encoding", b"chunked")]
        told = [(b"x-trailer", b"1"), (b"x-other", b"2")]
        assert got == [(b"abcde", told), (b"ok", []), (b"abcde", told)]
        assert engine.connections == 1


@pytest.mark.parametrize("status", [b"204 No Content", b"304 Not Modified"])
async def test_an_answer_without_body_needs_no_length(status):
    async with scripted(always(b"HTTP/1.1 " + status + b"\r\nX-A: 1\r\n\r\n")) as engine:
        assert [await engine.whole(), await engine.whole()] == [b"", b""]
        assert engine.connections == 1


@pytest.mark.parametrize("close", [b"HTTP/1.1 200 OK\r\nconnection: close", b"HTTP/1.0 200 OK"])
async def test_a_connection_that_the_engine_will_close_is_not_used_again(close):
    async with scripted(always(close + b"\r\ncontent-length: 2\r\n\r\nok")) as engine:
        assert [await engine.whole(), await engine.whole()] == [b"ok", b"ok"]
        assert engine.connections == 2
        assert await engine.at_rest() == (0, 0)


@pytest.mark.parametrize(
    "more", [OK, b"garbage", b"HTTP/1.1 2", b"\x00", UNSIZED + b"x", b"HTTP/1.1 100 Continue\r\n\r\n"]
)
@pytest.mark.parametrize("sized", [OK, CHUNKED + b"2\r\nok\r\n0\r\n\r\n"])
async def test_bytes_after_an_answer_cost_the_connection_and_not_the_answer(sized, more):
    async with scripted(always(sized + more)) as engine:
        assert [await engine.whole(), await engine.whole()] == [b"ok", b"ok"]
        assert engine.connections == 2
        assert await engine.at_rest() == (0, 0)


async def test_bytes_that_nobody_asked_for_close_an_idle_connection():
    asked = asyncio.Event()

    async def script(talk: Talk) -> None:
        await talk.request()
        talk.write(OK)
        await asked.wait()
        talk.write(OK)
        await talk.gone()

    async with scripted(script) as engine:
        await engine.whole()
        asked.set()
        async with asyncio.timeout(5):
            while engine.pool.open_count:
                await asyncio.sleep(0)
        assert engine.pool.idle_count == 0


def heads():
    field = b"x-filler: " + b"a" * 1000 + b"\r\n"
    yield "many headers", b"HTTP/1.1 200 OK\r\n" + field * (MAX_HEAD_BYTES // 1000 + 1) + b"\r\n"
    yield "one endless header", b"HTTP/1.1 200 OK\r\nx-filler: " + b"a" * (3 * MAX_HEAD_BYTES)
    yield "one endless name", b"HTTP/1.1 200 OK\r\n" + b"a" * (3 * MAX_HEAD_BYTES)
    yield "an endless reason", b"HTTP/1.1 200 " + b"a" * (3 * MAX_HEAD_BYTES)
    yield "endless interim answers", b"HTTP/1.1 100 Continue\r\n\r\n" * (MAX_HEAD_BYTES // 8)


@pytest.mark.parametrize("head", [pytest.param(head, id=name) for name, head in heads()])
async def test_a_head_has_a_limit(head):
    async def script(talk: Talk) -> None:
        await talk.request()
        talk.write(head)
        await talk.gone()

    async with scripted(script) as engine:
        with pytest.raises(UpstreamFailed, match=r"endpoint e: the answer is not HTTP/1.1"):
            await engine.opened()
        assert await engine.at_rest() == (0, 0)


async def test_a_head_just_below_the_limit_passes_and_a_long_body_is_no_head():
    filler = b"x-filler: " + b"a" * (MAX_HEAD_BYTES - 100) + b"\r\n"
    answer = b"HTTP/1.1 200 OK\r\n" + filler + b"content-length: 400000\r\n\r\n" + b"b" * 400_000
    async with scripted(always(answer)) as engine:
        assert len(await engine.whole()) == 400_000


@pytest.mark.parametrize(
    "answer",
    [
        b"nonsense\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: x\r\n\r\n",
        CHUNKED + b"zz\r\n",
    ],
)
async def test_what_is_no_http_is_no_answer(answer):
    async with scripted(once(answer)) as engine:
        with pytest.raises(UpstreamFailed, match=r"endpoint e: the answer is not HTTP/1.1: "):
            await engine.whole()
        assert await engine.at_rest() == (0, 0)


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 200 OK\r\ncontent-", OK[:-1], CHUNKED + b"5\r\nabc"])
async def test_an_answer_that_ends_too_early_is_no_answer(answer):
    async with scripted(once(answer)) as engine:
        with pytest.raises(UpstreamFailed, match="endpoint e: the engine closed the connection before its answer was"):
            await engine.whole()
        assert engine.connections == 1
        assert await engine.at_rest() == (0, 0)


@pytest.mark.parametrize("size", [0, JOIN_BELOW_BYTES - 1, JOIN_BELOW_BYTES, 300_000])
async def test_a_request_arrives_to_the_byte(size):
    seen: list[bytes] = []

    async def script(talk: Talk) -> None:
        await talk.reader.readuntil(b"\r\n\r\n")
        seen.append(await talk.reader.readexactly(size))
        talk.write(OK)
        await talk.gone()

    body = bytes(range(256)) * (size // 256) + b"e" * (size % 256)
    async with scripted(script) as engine:
        await engine.leg().open(b"POST / HTTP/1.1\r\ncontent-length: %d\r\n\r\n" % size, body)
    assert seen == [body]


class Noted:
    """A reader that notes what it is told, and may leave on its first chunk."""

    def __init__(self, leaves: EngineConnection | None = None) -> None:
        self.told: list[object] = []
        self._leaves = leaves

    def on_head(self, status, headers) -> None:
        self.told += [status, dict(headers)]

    def on_chunk(self, chunk) -> None:
        self.told.append(chunk)
        if self._leaves is not None:
            self._leaves.abort()

    def on_trailers(self, trailers) -> None:
        self.told.append(trailers)

    def on_end(self) -> None:
        self.told.append("end")

    def on_lost(self, reason) -> None:
        self.told += ["lost", reason]


async def test_a_connection_takes_one_request_at_a_time_while_it_is_open():
    async with scripted(always(OK)) as engine:
        connection, reader = await engine.pool.connect(), Noted()
        connection.request(HEAD, BODY, reader)
        with pytest.raises(RuntimeError, match="one request at a time"):
            connection.request(HEAD, BODY, Noted())
        async with asyncio.timeout(5):
            while "end" not in reader.told:
                await asyncio.sleep(0)
        connection.abort()
        await engine.at_rest()
        with pytest.raises(RuntimeError, match="while it is open"):
            connection.request(HEAD, BODY, Noted())
        assert reader.told == [200, {b"content-length": b"2"}, b"ok", "end"]


async def test_a_reader_that_leaves_on_the_last_chunk_hears_no_more():
    async with scripted(always(OK)) as engine:
        connection = await engine.pool.connect()
        reader = Noted(leaves=connection)
        connection.request(HEAD, BODY, reader)
        await engine.at_rest()
        assert reader.told == [200, {b"content-length": b"2"}, b"ok"]
        connection.abort()


async def test_idle_connections_are_taken_newest_first_and_never_old():
    async with scripted(always(OK)) as engine:
        loop, pool = asyncio.get_running_loop(), engine.pool
        old, fresh, newest = [await pool.connect() for _ in range(3)]
        for connection in (old, fresh, newest):
            pool.give_back(connection)
        old.idle_since_s = loop.time() - MAX_IDLE_S - 0.1
        assert [pool.take(), pool.take(), pool.take()] == [newest, fresh, None]
        assert (pool.idle_count, old.reusable) == (0, False)
        for connection in (fresh, newest):
            pool.give_back(connection)
        fresh.idle_since_s = loop.time() - MAX_IDLE_S - 0.1
        assert pool.take() is newest  # and what it leaves behind has been closed for its age, not kept for ever
        assert (pool.idle_count, fresh.reusable) == (0, False)
        newest.abort()
        assert await engine.at_rest() == (0, 0)


async def test_a_pool_keeps_so_many_idle_connections_and_none_once_closed():
    async with scripted(always(OK)) as engine:
        pool = engine.pool
        connections = [await pool.connect() for _ in range(MAX_IDLE + 2)]
        last = connections.pop()
        for connection in connections:
            pool.give_back(connection)
        assert pool.idle_count == MAX_IDLE
        pool.close()
        assert pool.idle_count == 0
        pool.give_back(last)
        assert await engine.at_rest() == (0, 0)


async def test_an_idle_connection_that_the_engine_closes_is_forgotten():
    async with scripted(once(OK)) as engine:
        assert await engine.whole() == b"ok"
        async with asyncio.timeout(5):
            while engine.pool.open_count:
                await asyncio.sleep(0)
        assert engine.pool.idle_count == 0


async def test_a_pool_says_who_refused():
    pool = ConnectionPool("127.0.0.1", 1, asyncio.get_running_loop())
    with pytest.raises(OSError, match=r"127.0.0.1"):
        await pool.connect()
    await ticks(2)
    assert pool.open_count == 0
