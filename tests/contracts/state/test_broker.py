"""What the broker alone holds to: workers that are stuck, slow, dead or talk nonsense, and bounds."""

import asyncio
import socket

import msgspec
import pytest

from gateway.state import BATCH_S, local
from gateway.state import frames as wire
from gateway.workers import broker as broker_module
from tests.contracts.state.conftest import Running, ThroughBroker, until
from tests.contracts.state.test_state import requests


async def read_frame(reader: asyncio.StreamReader) -> bytes:
    return await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))


def framed(frame: wire.Frame) -> bytes:
    payload = wire.encode(frame)
    return len(payload).to_bytes(4, "big") + payload


async def a_mute_one(group: ThroughBroker, number: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Return the socket of a worker that joins and from then on does only what the test does."""
    theirs = await group.seat(number)
    theirs.setblocking(False)
    reader, writer = await asyncio.open_unix_connection(sock=theirs)
    group.sockets.append(writer)
    writer.write(framed(wire.Joined()))
    await read_frame(reader)
    return reader, writer


async def test_one_that_does_not_answer_is_named_and_its_last_figures_count(broker_group: ThroughBroker):
    one = await broker_group.enter(1)
    one.metrics.request_done("m", "single", 200, 0.1, None)
    _, writer = await a_mute_one(broker_group, 2)
    writer.write(framed(wire.Told(counted=one.metrics.snapshot())))
    gathered = await one.state.gather("who", timeout_s=0.05)
    assert (list(gathered.answers), list(gathered.missing)) == ([1], [2])
    assert requests(await one.state.snapshot()) == 2


async def test_one_that_ends_while_it_is_asked_is_not_waited_for(broker_group: ThroughBroker):
    one = await broker_group.enter(1)
    reader, writer = await a_mute_one(broker_group, 2)
    asking = asyncio.ensure_future(one.state.gather("who", timeout_s=30))
    await read_frame(reader)
    writer.transport.abort()
    async with asyncio.timeout(5):
        assert list((await asking).answers) == [1]


async def test_one_that_asks_and_ends_leaves_nothing_behind(broker_group: ThroughBroker):
    one = await broker_group.enter(1)
    await a_mute_one(broker_group, 3)
    reader, writer = await a_mute_one(broker_group, 2)
    writer.write(framed(wire.Ask(1, "who", None, 30)))
    await read_frame(reader)
    writer.transport.abort()
    await until(lambda: not broker_group.broker.questions, "its question to go")
    assert list((await one.state.gather("who", timeout_s=0.01)).answers) == [1]


async def test_one_that_does_not_read_is_dropped_and_never_holds_up_the_others(broker_group: ThroughBroker):
    one, two = await broker_group.enter(1), await broker_group.enter(2)
    await a_mute_one(broker_group, 3)
    stuck = broker_group.seats[3]
    big = [[2**63] * local.MAX_BATCH_KEYS] * 16
    payload = wire.encode(wire.Heard(None, wire.encode([("a", keys) for keys in big])))
    while stuck.link.open:
        stuck.link.send_encoded(payload)
        assert stuck.link.unread_bytes <= wire.MAX_UNREAD_BYTES + len(payload)
    await until(lambda: stuck not in broker_group.broker.seats, "the stuck one to be dropped")
    one.held = {"a": 1}
    await until(lambda: two.elsewhere == {"a": 1}, "the others to go on")


@pytest.mark.parametrize("nonsense", [b"\0\0\0\x01\xc1", b"\xff\xff\xff\xff"])
async def test_one_that_talks_nonsense_loses_its_link(nonsense: bytes, broker_group: ThroughBroker):
    _, writer = await a_mute_one(broker_group, 1)
    writer.write(nonsense)
    await until(lambda: not broker_group.broker.seats, "it to be dropped")


async def test_an_answer_that_cannot_be_made_or_sent_is_missing_at_once(broker_group: ThroughBroker):
    one, two, three = [await broker_group.enter(number) for number in (1, 2, 3)]
    two.answers = lambda *_: "x" * wire.MAX_FRAME_BYTES
    three.answers = lambda *_: [][0]
    async with asyncio.timeout(5):
        gathered = await one.state.gather("who", timeout_s=30)
    assert (list(gathered.answers), list(gathered.missing)) == ([1], [2, 3])


async def test_answers_that_are_too_long_together_leave_ones_own(broker_group: ThroughBroker):
    one, two, three = [await broker_group.enter(number) for number in (1, 2, 3)]
    two.answers = three.answers = lambda *_: "x" * (wire.MAX_FRAME_BYTES // 2)
    gathered = await one.state.gather("who", timeout_s=5)
    assert (list(gathered.answers), list(gathered.missing)) == ([1], [2, 3])


async def test_prompts_beyond_a_batch_are_left_out(broker_group: ThroughBroker):
    one, two = await broker_group.enter(1), await broker_group.enter(2)
    keys = list(range(local.MAX_BATCH_KEYS // 2))
    for _ in range(4):
        one.state.sent("a", keys)
    one.state.sent("b", [1])
    await until(lambda: len(two.prompts) == 2, "two prompts")
    one.state.sent("c", [2])
    await until(lambda: len(two.prompts) == 3, "the next batch")
    assert [endpoint for endpoint, _ in two.prompts] == ["a", "a", "c"]


async def test_questions_and_orders_are_bounded(broker_group: ThroughBroker):
    one = await broker_group.enter(1)
    await a_mute_one(broker_group, 2)
    asked = [one.state.gather("who", timeout_s=0.2) for _ in range(broker_module.MAX_OPEN_QUESTIONS + 1)]
    answers = await asyncio.gather(*asked)
    assert sum(list(gathered.missing) == [1, 2] for gathered in answers) == 1
    for number in range(broker_module.MAX_ORDERS + 10):
        broker_group.broker.take(broker_group.seats[1], wire.encode(wire.Obeyed(str(number), {"verb": "x"}, number)))
    assert len(broker_group.broker.orders) == broker_module.MAX_ORDERS


async def test_nothing_is_told_when_nothing_has_changed():
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    reader, writer = await asyncio.open_unix_connection(sock=ours)
    writer.write(framed(wire.Welcome()))
    running = Running()
    one = await running.start(local.LinkedState(theirs, 1))
    assert wire.encode(wire.Joined()) == await read_frame(reader)
    assert wire.encode(one.metrics.snapshot()) in await read_frame(reader)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(8 * BATCH_S):
            await reader.read(1)
    one.held = {"a": 1}
    assert wire.encode(wire.Told({"a": 1})) == await read_frame(reader)
    writer.close()
    await running.tasks[one]


async def test_without_a_broker_a_question_has_ones_own_answer_and_the_rest_says_so(broker_group: ThroughBroker):
    one = await broker_group.enter(1)
    await broker_group.end(one)
    assert (await one.state.gather("who")).answers == {1: [1, "who", None]}
    for asking in (one.state.snapshot(), one.state.order("a", {"verb": "x"})):
        with pytest.raises(ConnectionError):
            await asking


async def test_frames_cut_anywhere_are_put_together():
    seen: list[bytes] = []
    link = wire.Link(seen.append, lambda: None)
    data = b"".join(framed(wire.Order(number, "k", {"verb": "x" * number})) for number in range(3))
    for at in range(len(data)):
        link.data_received(data[at : at + 1])
    assert [msgspec.msgpack.decode(payload, type=wire.Order).number for payload in seen] == [0, 1, 2]
