"""Engines that close idle connections just as they are used (A16): each request is answered, and processed once."""

import asyncio
from collections import Counter

import pytest

from tests.unit.upstream.scripted import BODY, HEAD, OK, Engine, Talk, scripted, ticks


class Closing:
    """Counts the requests that it has processed; closes connections that have been idle."""

    def __init__(self, how: str, idle_s: float) -> None:
        self.how, self.idle_s = how, idle_s
        self.processed: Counter[bytes] = Counter()

    async def __call__(self, talk: Talk) -> None:
        served = 0
        while True:
            try:
                async with asyncio.timeout(self.idle_s if served else None):
                    first = await talk.reader.readexactly(1)
            except TimeoutError:
                return
            if served and self.how == "reset":
                talk.reset()
                return
            self.processed[first + await talk.request()] += 1
            served += 1
            talk.write(OK)


async def numbered(engine: Engine, number: int) -> bytes:
    leg = engine.leg()
    await leg.open(HEAD.replace(b"host: e", b"host: e\r\nx-number: %d" % number), BODY)
    return await leg.read(10)


@pytest.mark.parametrize(("how", "gap_s"), [("close", 0.02), ("close", 0.0), ("reset", 0.0)])
async def test_requests_around_the_idle_time_are_all_answered_and_processed_once(how, gap_s):
    closing = Closing(how, 0.02)
    async with scripted(closing) as engine:
        for number in range(30):
            assert await numbered(engine, number) == b"ok"
            await asyncio.sleep(gap_s * (0.95 + number % 4 * 0.05))
        assert len(closing.processed) == 30
        assert set(closing.processed.values()) == {1}


@pytest.mark.parametrize("how", ["close", "reset"])
async def test_two_hundred_at_once_after_a_pause_are_all_answered_and_processed_once(how):
    closing = Closing(how, 0.1)
    async with scripted(closing) as engine:
        for _ in range(2):
            answers = await asyncio.gather(*(numbered(engine, number) for number in range(200)))
            assert answers == [b"ok"] * 200
            await asyncio.sleep(0.1)
        assert len(closing.processed) == 200
        assert set(closing.processed.values()) == {2}


async def test_a_connection_whose_engine_has_said_goodbye_is_never_taken():
    async with scripted(Closing("close", 60)) as engine:
        connection = await engine.pool.connect()
        engine.pool.give_back(connection)
        connection.eof_received()  # and its transport closes in the loop's next turn
        assert engine.pool.take() is None
        await ticks()
        assert (engine.pool.open_count, engine.pool.idle_count) == (0, 0)
