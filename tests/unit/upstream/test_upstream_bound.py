"""How many connections a pool opens, and the line of those who wait: in order, within their time, leaking nothing."""

import asyncio
from dataclasses import replace
from itertools import count

import pytest

from gateway.upstream.client import AllInUse, ConnectFailed, Leg
from tests.unit.upstream.scripted import BODY, HEAD, OK, PATIENT, Engine, Talk, always, scripted, ticks


def when(event: asyncio.Event):
    """Return a script that answers each request once `event` is set."""

    async def script(talk: Talk) -> None:
        while True:
            await talk.request()
            await event.wait()
            talk.write(OK)

    return script


async def waits(engine: Engine, legs: int) -> list[asyncio.Task[bytes]]:
    """Start so many requests, and return when they have all been sent or wait for a connection."""
    tasks = [asyncio.get_running_loop().create_task(engine.whole()) for _ in range(legs)]
    async with asyncio.timeout(5):
        while engine.pool.open_count < engine.pool.limit:
            await asyncio.sleep(0)
    await ticks()
    return tasks


async def test_no_more_connections_are_opened_than_the_limit_and_all_who_wait_are_served():
    go = asyncio.Event()
    async with scripted(when(go)) as engine:
        engine.pool.limit = 3
        tasks = await waits(engine, 20)
        assert engine.pool.open_count == 3
        go.set()
        async with asyncio.timeout(5):
            assert await asyncio.gather(*tasks) == [b"ok"] * 20
        assert engine.connections == 3
        assert await engine.at_rest() == (3, 3)


async def test_who_waits_is_served_in_the_order_of_coming():
    served: list[int] = []

    async def one(engine: Engine, number: int) -> None:
        await engine.whole()
        served.append(number)

    async with scripted(always(OK)) as engine:
        engine.pool.limit = 1
        await asyncio.gather(*(one(engine, number) for number in range(10)))
        assert served == list(range(10))


async def test_a_connection_that_closes_makes_room_for_a_new_one():
    go = asyncio.Event()

    async def script(talk: Talk) -> None:
        await talk.request()
        await go.wait()
        talk.write(OK)

    async with scripted(script) as engine:
        engine.pool.limit = 2
        tasks = await waits(engine, 9)
        go.set()
        async with asyncio.timeout(5):
            assert await asyncio.gather(*tasks) == [b"ok"] * 9
        assert engine.connections == 9
        assert await engine.at_rest() == (0, 0)


async def test_a_wait_that_is_too_long_is_told_plainly_and_costs_nobody_a_place():
    go = asyncio.Event()
    async with scripted(when(go)) as engine:
        engine.pool.limit = 1
        (busy,) = await waits(engine, 1)
        told = r"all 1 connections to it are in use, and none came free within 0.02 s \(upstream.max_connections\)"
        with pytest.raises(AllInUse, match=told):
            await engine.opened(replace(PATIENT, connect_s=0.02))
        go.set()
        assert [await busy, await engine.whole()] == [b"ok", b"ok"]
        assert engine.connections == 1


@pytest.mark.parametrize("how", ["abort", "cancel"])
@pytest.mark.parametrize("ends", ["kept", "closed"])
async def test_who_leaves_the_line_at_any_moment_leaks_nothing(how, ends):
    async def script(talk: Talk) -> None:
        await talk.request()
        talk.write(OK)
        while ends == "kept":
            await talk.request()
            talk.write(OK)

    async with scripted(script) as engine:
        engine.pool.limit = 1
        for moment in count():
            first = asyncio.get_running_loop().create_task(engine.whole())
            await ticks(1)
            leg = engine.leg()
            task = asyncio.get_running_loop().create_task(leg.open(HEAD, BODY))
            await ticks(moment)
            done = task.done()
            if how == "cancel":
                task.cancel()
            leg.abort(ConnectFailed("left"))
            await asyncio.wait({task})
            assert await first == b"ok"
            if done:
                break
            async with asyncio.timeout(5):
                assert await engine.whole() == b"ok"  # the place is free, or comes free
        await engine.at_rest()
        assert moment > 3


async def test_a_refused_connect_gives_its_place_back():
    async with scripted(always(OK)) as engine:
        engine.pool.limit = 1
    for _ in range(3):  # nobody listens there any more
        with pytest.raises(ConnectFailed, match="Connection refused"):
            await engine.opened()


async def test_the_second_try_is_made_on_a_new_connection_even_where_all_places_are_taken():
    async def script(talk: Talk) -> None:
        await talk.request()
        if talk.number == 1:
            return
        while True:
            talk.write(OK)
            await talk.request()

    async with scripted(script) as engine:
        engine.pool.limit = 2
        dying, idle = await engine.pool.connect(), await engine.pool.connect()
        async with asyncio.timeout(5):
            while engine.connections < 2:
                await asyncio.sleep(0)
        engine.pool.give_back(idle)
        engine.pool.give_back(dying)
        assert await engine.whole() == b"ok"
        assert engine.connections == 3
        assert (await engine.at_rest())[0] <= 2


async def test_a_second_try_waits_in_line_for_a_new_one_where_both_are_busy_and_idle_ones_make_room():
    async with scripted(always(OK)) as engine:
        engine.pool.limit = 2
        one, two = await engine.pool.connect(), await engine.pool.connect()
        loop = asyncio.get_running_loop()
        leg = Leg("e", engine.pool, PATIENT, loop)
        # As after a kept connection died: both places have been taken by others meanwhile.
        task = loop.create_task(leg._connect(fresh=True))  # noqa: SLF001 - the moment lasts one turn of the loop
        await ticks()
        assert not task.done()
        engine.pool.give_back(one)  # not taken, but closed to make room
        fresh = await asyncio.wait_for(task, 5)
        assert (fresh.kept, one.reusable, engine.connections) == (False, False, 3)
        engine.pool.give_back(two)
        engine.pool.give_back(fresh)
        leg = Leg("e", engine.pool, PATIENT, loop)
        fresh = await leg._connect(fresh=True)  # noqa: SLF001 - both are idle now: the oldest makes room
        assert (fresh.kept, two.reusable, engine.pool.open_count) == (False, False, 2)
        engine.pool.give_back(fresh)


async def test_the_line_tells_whether_any_connection_has_stirred():
    async with scripted(always(OK)) as engine:
        assert not engine.pool.stirred()
        await engine.whole()
        assert [engine.pool.stirred(), engine.pool.stirred()] == [True, False]
        await engine.whole()
        assert engine.pool.stirred()
