"""Which endpoint made which response: what is kept, how much of it, and what is read of an answer."""

import asyncio

import pytest

from gateway.dataplane.responses import MAX_ASKED, Made, Responses, first_found
from gateway.pool.store import Pool
from gateway.upstream.client import Leg, LegTimeouts
from gateway.upstream.pool import ConnectionPool


@pytest.fixture
async def answer():
    """Return a function that makes an answered leg."""
    loop = asyncio.get_running_loop()
    pool = ConnectionPool("x", 1, loop)

    def make(*early: bytes, name: str = "a", status: int = 200) -> Leg:
        leg = Leg(name, pool, LegTimeouts(1, 1, 1, 1), loop)
        leg.status, leg.early, leg.complete = status, list(early), True
        return leg

    return make


async def test_the_id_is_read_from_the_first_bytes_alone(answer):
    known = Responses(Pool())
    known.note(answer(b'{"id" :\n"resp_a", "x": {"id": "resp_no"}}'), "m")
    known.note(answer(b"event: response.created\nda", b'ta: {"response":{"id":"resp_b"}}'), "m")
    known.note(answer(b" " * 4090 + b'"id":"resp_far"'), "m")
    known.note(answer(b'{"id":"resp_refused"}', status=400), "m")
    known.note(answer(b'{"id":"other"}'), "m")
    known.note(answer(), "m")
    assert [known.maker(f"resp_{name}") is not None for name in ("a", "b", "far", "refused", "no")] == [True] * 2 + [
        False
    ] * 3
    assert len(known) == 2


async def test_the_first_maker_stays_and_the_longest_unused_goes(answer):
    known = Responses(Pool(), limit=3)
    for number in range(3):
        known.note(answer(b'{"id":"resp_%d"}' % number), "m")
    known.note(answer(b'{"id":"resp_0"}', name="b"), "n")
    assert known.maker("resp_0") == Made("a", "m")
    known.note(answer(b'{"id":"resp_3"}'), "m")
    assert len(known) == 3
    assert [known.maker(f"resp_{number}") is not None for number in range(4)] == [True, False, True, True]


async def test_the_search_ends_at_an_answer_at_the_last_endpoint_and_at_its_bound(answer):
    asked = 0

    async def following() -> Leg | None:
        nonlocal asked
        asked += 1
        leg: Leg = answer(b"none", status=404)
        return leg

    async def nobody() -> None:
        return None

    assert (await first_found(answer(b"x"), following)).early == [b"x"]
    assert asked == 0
    assert (await first_found(answer(b"last", status=404), nobody)).early == [b"last"]
    assert (await first_found(answer(b"x", status=404), following)).early == [b"none"]
    assert asked == MAX_ASKED
