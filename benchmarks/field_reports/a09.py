"""A09: streams that clients abort, at every moment, leave nothing behind in the gateway."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable

from benchmarks.field_reports.case import Figures, Scenario, Size, expect, until
from benchmarks.field_reports.client import CHAT, Connection, Post, chat, closed_loop, head, statuses
from benchmarks.field_reports.engine import Call, Engine, engine
from benchmarks.field_reports.gateway import Gateway, serve

STREAM = chat(stream=True)
AT_ONCE = 25
AFTER = 20
FIRST_BYTE_S = 0.5


async def _silent(call: Call) -> None:
    if call.json.get("stream"):
        await call.gone()
    else:
        call.answer()


async def _half(call: Call) -> None:
    if not call.json.get("stream"):
        call.answer()
        return
    call.start_stream()
    await call.piece(b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n')
    await call.gone()


async def _flowing(call: Call) -> None:
    if not call.json.get("stream"):
        call.answer()
        return
    call.start_stream()
    with contextlib.suppress(ConnectionError):
        while not call.writer.is_closing():
            await call.piece(b'data: {"choices":[{"delta":{"content":"%b"}}]}\n\n' % (b"a" * 500))


async def _begin(gateway: Gateway) -> Connection:
    connection = await Connection.to(gateway.address)
    connection.send(head("POST", CHAT, (), len(STREAM)) + STREAM)
    await connection.writer.drain()
    return connection


def _leave(connection: Connection, number: int) -> None:
    """Leave, every other client by a reset."""
    if number % 2:
        connection.reset()
    else:
        connection.close()


async def _when_sent(one: Engine, gateway: Gateway, number: int) -> None:
    reached = len(one.calls)
    connection = await _begin(gateway)
    if number % 3:  # else at once: the gateway may have read no byte yet
        await until(lambda: len(one.calls) > reached or one.accepted, "the engine to get the request")
        await asyncio.sleep(0.002 * (number % 5))
    _leave(connection, number)


async def _when_begun(_: Engine, gateway: Gateway, number: int) -> None:
    connection = await _begin(gateway)
    await connection.reader.readuntil(b"data: ")
    _leave(connection, number)


async def _at_the_timeout(_: Engine, gateway: Gateway, number: int) -> None:
    connection = await _begin(gateway)
    await asyncio.sleep(FIRST_BYTE_S + 0.002 * (number % 9 - 4))
    _leave(connection, number)


async def _nothing_left(one: Engine, gateway: Gateway, descriptors: int) -> Figures:
    """Check that requests go through, fast, and that all that was held has come back."""
    answers = await closed_loop(gateway.address, [Post(chat())] * AFTER, 1)
    slowest_s = max(answer.seconds for answer in answers)
    expect(statuses(answers) == {200: AFTER}, f"after the aborts {AFTER} requests got {statuses(answers)}")
    expect(slowest_s < 1.0, f"after the aborts a request took {slowest_s:.2f} s")
    await gateway.until_idle()
    await until(lambda: len(one.connections) <= AT_ONCE, f"{len(one.connections)} engine connections to close")
    now = 0

    def back() -> bool:
        nonlocal now
        now = gateway.descriptors()
        return now <= descriptors + 10

    await until(back, f"file descriptors to come back to {descriptors}, last {gateway.descriptors()}")
    return {"slowest_s": slowest_s, "descriptors": now - descriptors, "engine_connections": len(one.connections)}


Abort = Callable[[Engine, Gateway, int], Awaitable[None]]


def _scenario(name: str, handler: Callable[[Call], Awaitable[None]], abort: Abort) -> Scenario:
    async def run(size: Size) -> Figures:
        times = size.count(75, 500)
        timeouts = {"first_byte_s": FIRST_BYTE_S if abort is _at_the_timeout else 60}
        async with engine(handler) as one, serve([one], timeouts=timeouts) as gateway:
            await closed_loop(gateway.address, [Post(chat())] * 10, 1)
            descriptors = gateway.descriptors()
            for first in range(0, times, AT_ONCE):
                await asyncio.gather(*(abort(one, gateway, first + number) for number in range(AT_ONCE)))
            return await _nothing_left(one, gateway, descriptors)

    run.__name__ = name
    return run


@contextlib.asynccontextmanager
async def _full_queue(one: Engine) -> AsyncIterator[None]:
    """Keep the kernel from finishing handshakes with the engine: its queue is short, full, and nobody takes from it."""
    one.leave_in_queue(0)
    fillers: list[socket.socket] = []
    for _ in range(4):
        filler = socket.socket()
        filler.setblocking(False)
        filler.connect_ex(("127.0.0.1", one.port))
        fillers.append(filler)
    await asyncio.sleep(0.05)
    try:
        yield
    finally:
        for filler in fillers:
            filler.close()
        one.listen()


def _not_accepted(name: str, connects: bool) -> Scenario:
    async def run(size: Size) -> Figures:
        """Abort while the engine does not accept: the kernel has taken the connection (`connects`), or has not."""
        times = size.count(50, 500)
        async with (
            engine(_silent) as one,
            serve([one], health={"interval_s": 60}, scrape={"interval_s": 60}) as gateway,
        ):
            await closed_loop(gateway.address, [Post(chat())] * 10, 1)
            one.break_connections()
            await until(lambda: not one.connections, "kept connections to close")
            descriptors = gateway.descriptors()
            for first in range(0, times, AT_ONCE):
                async with contextlib.AsyncExitStack() as stack:
                    if connects:
                        one.leave_in_queue()
                        stack.callback(one.listen)
                    else:
                        await stack.enter_async_context(_full_queue(one))
                    begun = await asyncio.gather(*(_begin(gateway) for _ in range(AT_ONCE)))
                    await asyncio.sleep(0.1)
                    for number, connection in enumerate(begun, first):
                        _leave(connection, number)
                    await asyncio.sleep(0.05)
            return await _nothing_left(one, gateway, descriptors)

    run.__name__ = name
    return run


SCENARIOS: tuple[Scenario, ...] = (
    _not_accepted("aborted_before_the_engine_accepts", connects=True),
    _not_accepted("aborted_while_connecting", connects=False),
    _scenario("aborted_before_headers", _silent, _when_sent),
    _scenario("aborted_in_mid_body", _half, _when_begun),
    _scenario("aborted_while_bytes_flow", _flowing, _when_begun),
    _scenario("aborted_at_the_gateways_own_timeout", _silent, _at_the_timeout),
)
