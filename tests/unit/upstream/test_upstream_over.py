"""When an engine has nothing more to do for a leg: answer whole, broken or aborted, not before a second send."""

import pytest

from gateway.errors import UpstreamFailed
from gateway.upstream.client import AnswerTooLong, Leg
from tests.unit.upstream.scripted import BODY, HEAD, OK, UNSIZED, Engine, Talk, always, scripted


def watched(engine: Engine) -> tuple[Leg, list[str]]:
    """Return a leg and what it was told on being over."""
    leg, told = engine.leg(), []
    leg.on_over = lambda: told.append("whole" if leg.complete else "not whole")
    return leg, told


async def half(talk: Talk) -> None:
    """Answer in part, and no more until told to break off."""
    await talk.request()
    talk.write(UNSIZED + b"half")
    await talk.gone()


async def test_when_the_answer_is_whole():
    async with scripted(always(OK)) as engine:
        leg, told = watched(engine)
        await leg.open(HEAD, BODY)
        assert told == ["whole"]
        leg.abort(RuntimeError())
        assert told == ["whole"]


async def test_when_it_is_aborted():
    async with scripted(half) as engine:
        leg, told = watched(engine)
        await leg.open(HEAD, BODY)
        assert told == []
        leg.abort(RuntimeError())
        assert told == ["not whole"]


async def test_when_the_answer_is_too_long():
    async with scripted(half) as engine:
        leg, told = watched(engine)
        await leg.open(HEAD, BODY)
        with pytest.raises(AnswerTooLong):
            await leg.read(3)
        assert (told, leg.early) == (["not whole"], [b"half"])


async def test_when_the_engine_breaks_it_off():
    async def break_off(talk: Talk) -> None:
        await talk.request()
        talk.write(OK[:-1])

    async with scripted(break_off) as engine:
        leg, told = watched(engine)
        await leg.open(HEAD, BODY)
        with pytest.raises(UpstreamFailed):
            await leg.read(10)
        assert told == ["not whole"]


async def test_not_when_it_is_sent_once_more():
    async def die_on_the_second(talk: Talk) -> None:
        if talk.number > 1:
            await always(OK)(talk)
        await talk.request()
        talk.write(OK)
        await talk.request()

    async with scripted(die_on_the_second) as engine:
        await engine.whole()
        leg, told = watched(engine)
        await leg.open(HEAD, BODY)
        assert (engine.connections, told) == (2, ["whole"])
