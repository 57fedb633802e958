"""Several processes on one port act as one gateway."""

import asyncio
import logging
import os
import signal
import sys
from argparse import Namespace
from pathlib import Path

import httpx
import pytest

from gateway.config import Config
from gateway.listening import reserve
from gateway.workers.supervisor import Supervisor
from tests.fakes.engine import Call, fake_engine
from tests.gateways import PLAIN, settings
from tests.workers import SERVES, Workers, run_workers, until

BODY = {"model": "m", "prompt": "x"}
COUNTED = ("twohop_requests_total", "twohop_request_seconds")
GAUGES = ("twohop_in_flight", "twohop_queue_depth")


async def mixed(call: Call) -> None:
    """Answer 40 in 100 with an error of the caller."""
    call.answer(400 if "bad" in call.json["prompt"] else 200)


async def send(workers: Workers, prompts: list[str], connections: int) -> list[int]:
    """POST each prompt over so many connections; return the statuses."""
    statuses = []

    async def one(mine: list[str]) -> None:
        async with httpx.AsyncClient(base_url=workers.url, timeout=30, verify=PLAIN) as client:
            for prompt in mine:
                answer = await client.post("/v1/completions", json={**BODY, "prompt": prompt})
                statuses.append(answer.status_code)

    await asyncio.gather(*(one(prompts[number::connections]) for number in range(connections)))
    return statuses


def totals(lines: list[str]) -> dict[str, float]:
    """Return requests by code."""
    found: dict[str, float] = {}
    for line in lines:
        if line.startswith("twohop_requests_total{"):
            code = line.split('code="')[1].split('"')[0]
            found[code] = found.get(code, 0) + float(line.split()[-1])
    return found


@pytest.mark.slow
@pytest.mark.timeout(150)
async def test_a15_every_scrape_covers_all_workers_and_outlives_one():
    async with fake_engine(mixed) as engine, run_workers(4, engine.url) as workers:
        prompts = ["good"] * 60 + ["bad"] * 40
        assert sorted(await send(workers, prompts, 20)) == [200] * 60 + [400] * 40
        first = await workers.series(*COUNTED)
        assert totals(first) == {"200": 60, "400": 40}
        assert "twohop_request_seconds_count 100.0" in first
        for _ in range(19):
            assert await workers.series(*COUNTED) == first
        assert {line.split()[-1] for line in await workers.series(*GAUGES)} == {"0.0"}

        victim = workers.pids()[2]
        os.kill(victim, signal.SIGKILL)
        async with run_workers(2, engine.url) as other:
            assert await other.series("twohop_requests_total{") == []
            for _ in range(5):
                assert await workers.series(*COUNTED) == first
            await send(other, ["good"] * 3, 3)
            assert totals(await other.series(*COUNTED)) == {"200": 3}
        await until(lambda: workers.pids()[2] != victim, "another in its place")
        assert workers.wrote(f"worker 2 (pid {victim}) ended with SIGKILL")
        assert await workers.series(*COUNTED) == first
        await send(workers, prompts, 20)
        assert totals(await workers.series(*COUNTED)) == {"200": 120, "400": 80}


@pytest.mark.slow
async def test_a_death_costs_its_own_streams_alone_and_its_leases_vanish():
    go_on = asyncio.Event()

    async def stream(call: Call) -> None:
        call.start_stream()
        call.chunk(b"data: 1\n\n")
        await go_on.wait()
        call.chunk(b"data: 2\n\n")
        call.end_stream()

    async def read(client: httpx.AsyncClient, begun: asyncio.Semaphore) -> bytes:
        data = b""
        try:
            async with client.stream("POST", "/v1/completions", json={**BODY, "stream": True}) as answer:
                async for chunk in answer.aiter_raw():
                    data += chunk
                    if data == b"data: 1\n\n":
                        begun.release()
        except httpx.TransportError:
            return b"lost"
        return data

    async with fake_engine(stream) as engine, run_workers(2, engine.url) as workers, workers.client() as client:
        begun = asyncio.Semaphore(0)
        streams = [asyncio.ensure_future(read(client, begun)) for _ in range(24)]
        for _ in streams:
            await begun.acquire()
        [endpoint] = (await workers.admin("/admin/endpoints"))["endpoints"]
        held = {one["worker"]: one["in_flight"] for one in endpoint["workers"]}
        assert endpoint["in_flight"] == sum(held.values()) == 24
        assert all(held.values()), f"one worker took every connection: {held}"
        assert (await workers.series("twohop_in_flight"))[0].endswith(" 24.0")

        os.kill(workers.pids()[1], signal.SIGKILL)

        async def only_the_others_are_held() -> bool:
            return (await workers.series("twohop_in_flight"))[0].endswith(f" {held[2]:.1f}")

        await until(only_the_others_are_held, "the dead one's leases to vanish")
        go_on.set()
        answers = await asyncio.gather(*streams)
        assert answers.count(b"lost") == held[1]
        assert answers.count(b"data: 1\n\ndata: 2\n\n") == held[2]

        async def nothing_is_held() -> bool:
            return {line.split()[-1] for line in await workers.series(*GAUGES)} == {"0.0"}

        await until(nothing_is_held, "gauges to return to 0")


async def test_decisions_are_found_whichever_worker_made_them_and_is_asked():
    async with fake_engine() as engine, run_workers(2, engine.url) as workers, workers.client() as client:
        for number in range(12):
            await client.post("/v1/completions", json=BODY, headers={"x-request-id": f"trial-{number}"})
        for _ in range(4):
            told = await workers.admin("/admin/decisions?limit=10")
            assert [one["request_id"] for one in told["decisions"]] == [f"trial-{n}" for n in range(11, 1, -1)]
            assert "missing_workers" not in told
        for number in range(12):
            assert (await workers.admin(f"/admin/decisions/trial-{number}"))["status"] == 200


async def test_the_limit_of_an_endpoint_counts_every_workers_requests():
    go_on = asyncio.Event()
    most = now = 0

    async def hold(call: Call) -> None:
        nonlocal most, now
        now += 1
        most = max(most, now)
        await go_on.wait()
        now -= 1
        call.answer()

    async with (
        fake_engine(hold) as engine,
        run_workers(2, engine.url, TWOHOP_FLOW_CONTROL__MAX_IN_FLIGHT_PER_ENDPOINT="4") as workers,
        workers.client() as client,
    ):
        asked = []
        for _ in range(12):  # one after the other, so that each worker has heard of the one before
            asked.append(asyncio.ensure_future(client.post("/v1/completions", json=BODY)))
            await asyncio.sleep(0.06)

        async def the_rest_waits() -> bool:
            return (await workers.series("twohop_queue_depth"))[0].endswith(" 8.0")

        await until(the_rest_waits, "the rest to wait")
        assert now == 4
        go_on.set()
        assert {answer.status_code for answer in await asyncio.gather(*asked)} == {200}


async def test_a22_a_burst_over_two_workers_spreads():
    async with (
        fake_engine() as a,
        fake_engine() as b,
        fake_engine() as c,
        fake_engine() as d,
        run_workers(2, a.url, b.url, c.url, d.url, TWOHOP_SCRAPE__INTERVAL_S="5") as workers,
        workers.client() as client,
    ):
        go_on = asyncio.Event()

        async def hold(call: Call) -> None:
            await go_on.wait()
            call.answer()

        for engine in (a, b, c, d):
            engine.handler = hold
        asked = [
            asyncio.ensure_future(client.post("/v1/completions", json={**BODY, "prompt": f"{n} " * 300}))
            for n in range(100)
        ]
        await until(lambda: sum(len(engine.calls) for engine in (a, b, c, d)) == 100, "all to be sent")
        counts = [len(engine.calls) for engine in (a, b, c, d)]
        go_on.set()
        await asyncio.gather(*asked)
    assert all(25 - 12 <= calls <= 40 for calls in counts), counts


async def test_a_stop_lets_streams_finish_and_ends_every_process():
    go_on = asyncio.Event()

    async def stream(call: Call) -> None:
        call.start_stream()
        call.chunk(b"data: 1\n\n")
        await go_on.wait()
        call.end_stream()

    async with fake_engine(stream) as engine, run_workers(2, engine.url, TWOHOP_DRAIN__GRACE_S="30") as workers:
        async with workers.client() as client:
            async with client.stream("POST", "/v1/completions", json={**BODY, "stream": True}) as answer:
                chunks = answer.aiter_raw()
                assert await anext(chunks) == b"data: 1\n\n"
                workers.process.send_signal(signal.SIGTERM)

                await until(lambda: workers.wrote("twohop: stopping"), "it to begin to stop")
                go_on.set()
                assert [chunk async for chunk in chunks] == []
        async with asyncio.timeout(20):
            assert await workers.process.wait() == 0
        assert not any(alive(pid) for pid in workers.pids().values())


@pytest.mark.slow
async def test_a_second_signal_ends_it_now():
    async def hang(call: Call) -> None:
        await call.gone()

    async with fake_engine(hang) as engine, run_workers(2, engine.url, TWOHOP_DRAIN__GRACE_S="30") as workers:
        async with workers.client() as client:
            asked = asyncio.ensure_future(client.post("/v1/completions", json=BODY))
            await until(lambda: len(engine.calls) == 1, "the request to arrive")
            workers.process.send_signal(signal.SIGINT)
            await until(lambda: workers.wrote("stopping: 1 requests in flight"), "it to begin to stop")
            workers.process.send_signal(signal.SIGTERM)
            assert (await asked).status_code == 503
        async with asyncio.timeout(15):
            assert await workers.process.wait() == 0


@pytest.mark.slow
async def test_an_order_reaches_every_worker_and_the_one_that_replaces_another():
    async with fake_engine() as a, fake_engine() as b, run_workers(2, a.url) as workers:
        async with httpx.AsyncClient(base_url=workers.admin_url, verify=PLAIN) as admin:
            added = await admin.post("/admin/endpoints", json={"url": b.url, "name": "b"})
            assert added.status_code == 201
            assert (await admin.post("/admin/endpoints", json={"url": b.url, "name": "b"})).status_code == 409
            name = a.url.removeprefix("http://")
            assert (await admin.post(f"/admin/endpoints/{name}/drain")).status_code == 200
        victim = workers.pids()[1]
        os.kill(victim, signal.SIGKILL)
        await until(lambda: workers.pids()[1] != victim, "another in its place")

        async def all_agree() -> bool:
            told = (await workers.admin("/admin/endpoints"))["endpoints"]
            states = {one["name"]: {each["state"] for each in one.get("workers", [])} for one in told}
            return states == {name: {"draining"}, "b": {"ready"}}

        await until(all_agree, "both workers to agree")
        async with workers.client() as client:
            for _ in range(8):
                assert (await client.post("/v1/completions", json=BODY)).status_code == 200
        assert (len(a.calls), len(b.calls)) == (0, 8)


@pytest.mark.slow
async def test_a_reload_reaches_every_worker_and_a_wrong_file_none(tmp_path):
    file = tmp_path / "gateway.yaml"
    file.write_text("routing: {receipt_headers: false}")

    async def headers(workers: Workers) -> set[bool]:
        async with workers.client() as client:
            answers = [await client.post("/v1/completions", json=BODY) for _ in range(8)]
        return {"x-twohop-endpoint" in answer.headers for answer in answers}

    async with fake_engine() as engine, run_workers(2, engine.url, file=file) as workers:
        assert await headers(workers) == {False}
        file.write_text("routing: {receipt_headers: true}\nworkers: 7")
        workers.process.send_signal(signal.SIGHUP)
        await until(lambda: sum("reload: 1 changed" in line for line in workers.lines) == 2, "both to reload")
        assert await headers(workers) == {True}
        file.write_text("routin: {}")
        workers.process.send_signal(signal.SIGHUP)
        await until(lambda: workers.wrote("reload refused"), "the refusal")
        os.kill(workers.pids()[1], signal.SIGKILL)
        await until(lambda: sum("worker 1 (pid" in line and "serves" in line for line in workers.lines) == 2, "another")
        assert await headers(workers) == {True}


async def test_workers_end_with_a_supervisor_that_is_killed():
    async with fake_engine() as engine, run_workers(2, engine.url) as workers:
        pids = workers.pids()
        workers.process.kill()
        await until(lambda: not any(alive(pid) for pid in pids.values()), "the workers to end")
        assert workers.wrote("the supervisor is gone")


async def test_one_that_hangs_is_named_and_holds_nobody_up():
    async with fake_engine() as engine, run_workers(2, engine.url) as workers:
        os.kill(workers.pids()[1], signal.SIGSTOP)
        try:
            async with asyncio.timeout(10):
                told = await workers.admin("/admin/endpoints")  # whoever is free takes the admin API's connections
            assert told["missing_workers"] == [1]
            assert [one["name"] for one in told["endpoints"]] == [engine.url.removeprefix("http://")]
        finally:
            os.kill(workers.pids()[1], signal.SIGCONT)

        async def nobody_is_missing() -> bool:
            return "missing_workers" not in await workers.admin("/admin/endpoints")

        await until(nobody_is_missing, "it to answer again")


async def test_one_that_stays_stuck_is_replaced(caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.INFO)
    async with fake_engine() as engine:
        args = Namespace(config=None, listen="127.0.0.1:0", endpoint=[engine.url], log_level=None, workers=1)
        config = Config.model_validate(settings([{"url": engine.url}]))
        sockets = reserve(config)
        supervisor = Supervisor(config, sockets, args, stuck_s=2.0)
        running = asyncio.get_running_loop().create_task(supervisor.run())
        try:
            await until(lambda: len(SERVES.findall(caplog.text)) == 1, "the first to serve")
            victim = int(SERVES.findall(caplog.text)[0][1])
            os.kill(victim, signal.SIGSTOP)
            await until(lambda: len(SERVES.findall(caplog.text)) == 2, "another in its place")
            assert "worker 1 has told nothing for 2 s, and is killed" in caplog.text
            assert not alive(victim)
        finally:
            supervisor.stop()
            assert await running == 0


async def test_a_worker_that_cannot_start_ends_the_command():
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "gateway.workers.process", "0", "0", "0"), stderr=asyncio.subprocess.PIPE
    )
    _, errors = await process.communicate()
    assert process.returncode == 2
    assert b"twohop serve --workers" in errors


def alive(pid: int) -> bool:
    """Whether the process is there and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
