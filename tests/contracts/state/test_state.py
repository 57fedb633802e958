"""What every `SharedState` holds to, with one, two and three participants."""

import asyncio

import pytest

from gateway.observability.snapshot import Snapshot
from gateway.state import OrderRefused
from tests.contracts.state.conftest import Group, until

DRAIN = {"verb": "drain", "name": "a"}
UNDRAIN = {"verb": "undrain", "name": "a"}


def requests(snapshot: Snapshot) -> float:
    return sum(snapshot.counters["twohop_requests_total"].values())


async def test_one_alone_is_asked_obeyed_and_counted(group: Group):
    one = await group.enter(1)
    one.metrics.request_done("m", "single", 200, 0.5, None)
    assert (await one.state.gather("who", 7)).answers == {1: [1, "who", 7]}
    assert await one.state.order("a", DRAIN) == {"done": "drain", "by": 1}
    assert one.obeyed == [DRAIN]
    assert requests(await one.state.snapshot()) == 1


async def test_each_hears_what_the_others_hold_together(group: Group):
    one, two, three = [await group.enter(number) for number in (1, 2, 3)]
    one.held, two.held = {"a": 2, "b": 1}, {"a": 3}
    await until(lambda: three.elsewhere == {"a": 5, "b": 1}, "the sum of both")
    await until(lambda: (one.elsewhere, two.elsewhere) == ({"a": 3}, {"a": 2, "b": 1}), "what the other holds")
    one.held = {"a": 1, "b": 0}
    await until(lambda: three.elsewhere == {"a": 4}, "fewer")


async def test_what_an_ended_one_held_vanishes_and_what_it_counted_stays(group: Group):
    one, two = await group.enter(1), await group.enter(2)
    two.held = {"a": 4}
    two.metrics.request_done("m", "single", 200, 0.5, 0.1)
    await until(lambda: one.elsewhere == {"a": 4}, "its leases")
    assert requests(await one.state.snapshot()) == 1
    await group.end(two)
    await until(lambda: one.elsewhere == {}, "them to vanish")
    assert requests(await one.state.snapshot()) == 1
    again = await group.enter(2)
    again.metrics.request_done("m", "single", 200, 0.5, 0.1)
    assert requests(await one.state.snapshot()) == 2


async def test_everyone_reads_the_same_counts_at_any_time(group: Group):
    people = [await group.enter(number) for number in (1, 2, 3)]
    for expected in range(1, 10):
        people[expected % 3].metrics.request_done("m", "single", 200, 0.1, None)
        assert [requests(await one.state.snapshot()) for one in people] == [expected] * 3


async def test_a_prompt_is_heard_by_the_others_alone(group: Group):
    one, two, three = [await group.enter(number) for number in (1, 2, 3)]
    one.state.sent("a", [1, 2**64 - 1])
    one.state.sent("b", [3])
    told = [("a", [1, 2**64 - 1]), ("b", [3])]
    await until(lambda: two.prompts == told and three.prompts == told, "both prompts")
    assert one.prompts == []


async def test_all_obey_in_one_sequence(group: Group):
    one, two = await group.enter(1), await group.enter(2)
    given = [one.state.order("a", DRAIN), two.state.order("a", UNDRAIN), one.state.order("b", {"verb": "x"})]
    told = await asyncio.gather(*given)
    assert [answer["by"] for answer in told] == [1, 2, 1]
    await until(lambda: len(one.obeyed) == len(two.obeyed) == 3, "all orders")
    assert one.obeyed == two.obeyed


async def test_one_that_joins_later_obeys_the_newest_order_of_each_key_before_it_serves(group: Group):
    one = await group.enter(1)
    await one.state.order("a", DRAIN)
    await one.state.order("b", {"verb": "add"})
    await one.state.order("a", UNDRAIN)
    assert (await group.enter(2)).obeyed == [{"verb": "add"}, UNDRAIN]


async def test_a_refused_order_is_told_its_giver_and_not_kept(group: Group):
    one = await group.enter(1)
    one.refuses = {"drain"}
    with pytest.raises(OrderRefused):
        await one.state.order("a", DRAIN)
    assert (await group.enter(2)).obeyed == []


async def test_an_order_that_another_refuses_holds_all_the_same(group: Group):
    one, two = await group.enter(1), await group.enter(2)
    two.refuses = {"drain"}
    assert (await one.state.order("a", DRAIN))["by"] == 1
    assert two.obeyed == []
    await until(lambda: one.obeyed == [DRAIN], "its giver's own part")


async def test_a_question_is_answered_by_everyone(group: Group):
    one, _, _ = [await group.enter(number) for number in (1, 2, 3)]
    gathered = await one.state.gather("who", {"limit": 3})
    assert gathered.answers == {number: [number, "who", {"limit": 3}] for number in (1, 2, 3)}
    assert list(gathered.missing) == []
