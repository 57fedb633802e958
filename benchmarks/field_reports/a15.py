"""A15: with several processes every scrape tells of all of them, and goes on doing so when one dies."""

import asyncio
import os
import signal
from collections.abc import Callable

from benchmarks.field_reports.case import Figures, Scenario, Size, expect, until
from benchmarks.field_reports.client import CHAT, BadAnswer, Connection, Post, chat, closed_loop, head, statuses
from benchmarks.field_reports.engine import Call, engine
from benchmarks.field_reports.gateway import Gateway, serve
from benchmarks.field_reports.sockets import server_process
from benchmarks.overhead.proxies import free_port

PROCESSES = 4
GOOD, BAD, CONNECTIONS = 60, 40, 20
STREAM = chat(stream=True)


def _held(opened: list[Call]) -> Callable[[Call], object]:
    async def handle(call: Call) -> None:
        """Answer; a stream stays open."""
        if not call.json.get("stream"):
            call.answer()
            return
        opened.append(call)
        call.start_stream()
        await call.piece(b'data: {"choices":[]}\n\n')
        await call.gone()

    return handle


async def _scrapes(gateway: Gateway, times: int, good: float, bad: float) -> None:
    """Check that each of many scrapes, on connections of their own, tells the same."""
    for number in range(times):
        told = await gateway.metrics()
        seen = (told.value("twohop_requests_total", code="200"), told.value("twohop_requests_total", code="404"))
        expect(seen == (good, bad), f"scrape {number} told {seen} for {(good, bad)}")
        seconds = told.value("twohop_request_seconds_count")
        expect(seconds == good + bad, f"scrape {number}: twohop_request_seconds counts {seconds} of {good + bad}")
        ready = told.value("twohop_endpoint_ready")
        expect(ready == 1, f"scrape {number}: twohop_endpoint_ready adds up to {ready} for one endpoint")


async def _requests(gateway: Gateway) -> None:
    posts = [Post(chat())] * GOOD + [Post(chat(model="made up"))] * BAD
    answers = await closed_loop(gateway.address, posts, CONNECTIONS)
    expect(statuses(answers) == {200: GOOD, 404: BAD}, f"clients got {statuses(answers)}")


async def _open(gateway: Gateway, count: int) -> list[Connection]:
    opened = []
    for _ in range(count):
        connection = await Connection.to(gateway.address)
        connection.send(head("POST", CHAT, (), len(STREAM)) + STREAM)
        await connection.reader.readuntil(b"data: ")
        opened.append(connection)
    return opened


async def _until_in_flight(gateway: Gateway, count: int) -> None:
    last = 0.0

    async def reached() -> bool:
        nonlocal last
        try:
            last = await gateway.value("twohop_in_flight")
        except (OSError, BadAnswer):  # a connection that a dying process had not taken yet
            return False
        return last == count

    await until(reached, f"twohop_in_flight to be {count}, last {last:g}")


async def every_scrape_tells_of_all_processes(size: Size) -> Figures:
    """100 requests on 20 connections, 20 scrapes; gauges add up; a process is killed; a second gateway starts."""
    opened: list[Call] = []
    scrapes = size.count(8, 20)
    listen = f"127.0.0.1:{free_port()}"
    async with engine(_held(opened)) as one, serve([one], workers=PROCESSES, listen=listen) as gateway:  # type: ignore[arg-type]
        await _requests(gateway)
        await _scrapes(gateway, scrapes, GOOD, BAD)
        streams = await _open(gateway, 12)
        holders = [server_process(stream, gateway.pid) for stream in streams]
        expect(len(set(holders)) > 1, "12 connections went to one process of four")
        await _until_in_flight(gateway, len(streams))
        lost = [stream for stream, holder in zip(streams, holders, strict=True) if holder == holders[0]]
        kept = [stream for stream in streams if stream not in lost]
        os.kill(holders[0] or 0, signal.SIGKILL)
        await _until_in_flight(gateway, len(kept))
        expect(not any(stream.reader.at_eof() for stream in kept), "the death of one process ended another's stream")
        await _scrapes(gateway, scrapes, GOOD, BAD)
        async with serve([one], workers=2, listen=f"127.0.0.1:{free_port()}") as other:
            await _scrapes(other, scrapes, 0, 0)
            await _scrapes(gateway, scrapes, GOOD, BAD)
            answers = await closed_loop(other.address, [Post(chat())] * 10, 5)
            expect(statuses(answers) == {200: 10}, f"the second gateway gave {statuses(answers)}")
            await _scrapes(other, scrapes, 10, 0)
        for stream in streams:
            stream.reset()
        await _until_in_flight(gateway, 0)
        alone = await gateway.value("twohop_requests_total", code="499")
        expect(alone == len(kept), f"{len(kept)} clients left, {alone:g} counted")
        return {"processes": len(set(holders)), "lost_streams": len(lost)}


async def a_dead_process_comes_back(size: Size) -> Figures:
    """Each process is killed in turn; requests go on, nothing that was counted is lost."""
    listen = f"127.0.0.1:{free_port()}"
    async with engine() as one, serve([one], workers=PROCESSES, listen=listen) as gateway:
        killed: set[int] = set()
        counted = 0.0
        for _ in range(size.count(2, 8)):
            connection = await Connection.to(gateway.address)
            expect((await connection.ask("POST", CHAT, chat())).status == 200, "a request failed")
            counted += 1
            await _scrapes(gateway, 2, counted, 0)
            pid = server_process(connection, gateway.pid)
            expect(pid is not None and pid not in killed, f"process {pid} still serves after its death")
            os.kill(pid or 0, signal.SIGKILL)
            killed.add(pid or 0)
            connection.close()

            async def serves() -> bool:
                try:
                    return all([(await gateway.get("/healthz")).status == 200 for _ in range(8)])
                except (OSError, BadAnswer):  # a connection that the dying process had not taken yet
                    return False

            await until(serves, "the gateway to serve again after a process has died")
            await asyncio.sleep(0.1)
        return {"killed": len(killed)}


SCENARIOS: tuple[Scenario, ...] = (every_scrape_tells_of_all_processes, a_dead_process_comes_back)
