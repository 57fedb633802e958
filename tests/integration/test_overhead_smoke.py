"""The overhead benchmark runs: engine, proxy, client, measurement, table; and a proxy that lies does not look fast."""

import asyncio
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.overhead.engine import Engine, EngineConnection
from benchmarks.overhead.load import WrongAnswer, closed_loop, paced_streams
from benchmarks.overhead.payloads import PLAIN_ANSWER, chat_body, chat_request
from benchmarks.overhead.processes import PinnedGroup, group_members
from benchmarks.overhead.report import REQUIRED

ROOT = Path(__file__).parents[2]
USAGE = b',"stream_options":{"include_usage":true}}'


async def listen(engine: Engine) -> tuple[asyncio.Server, int]:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: EngineConnection(engine, 0), "127.0.0.1", 0)
    return server, server.sockets[0].getsockname()[1]


def requests(count: int, *, stream: bool = False) -> list[bytes]:
    return [chat_request(chat_body(number, 4, 1000, stream=stream)) for number in range(count)]


async def test_a_closed_loop_sends_every_request_once():
    engine = Engine(1, 5, 0.001)
    server, port = await listen(engine)
    async with server:
        clock = iter([1.0, 3.5])
        cost = await closed_loop(port, requests(50), PLAIN_ANSWER, connections=8, limit_s=10.0, cpu=lambda: next(clock))
    assert (cost.units, cost.cpu_s) == (50, 2.5)
    assert engine.counts[0].requests == 50


async def test_an_answer_with_other_bytes_ends_the_phase():
    server, port = await listen(Engine(1, 5, 0.001))
    async with server:
        with pytest.raises(WrongAnswer, match="where 3 must be"):
            await closed_loop(port, requests(4), b"abc", connections=2, limit_s=10.0, cpu=lambda: 0.0)


async def test_streams_are_counted_in_the_window_and_compared_whole():
    engine = Engine(1, 100, 0.01)
    server, port = await listen(engine)
    async with server:
        cost = await paced_streams(
            port, requests(5, stream=True), events=100, interval_s=0.01, window_s=0.2, cpu=lambda: 0.0
        )
    assert 0 < cost.units <= cost.frames
    assert cost.units < 5 * 100
    assert cost.due == pytest.approx(5 * cost.elapsed_s / 0.01)
    assert engine.counts[0].events == 5 * 100


async def test_a_stream_that_differs_from_what_was_due_is_refused():
    server, port = await listen(Engine(1, 60, 0.01))
    with_usage = [chat_request(chat_body(number, 4, 1000, stream=True)[:-1] + USAGE) for number in range(3)]
    async with server:
        with pytest.raises(WrongAnswer, match="must be"):
            await paced_streams(port, with_usage, events=60, interval_s=0.01, window_s=0.1, cpu=lambda: 0.0)


def test_a_group_is_measured_and_ended_with_its_children(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as server:
        child = (
            "import socket, time; sum(range(2_000_000)); "
            f"line = socket.create_connection(('127.0.0.1', {server.getsockname()[1]})); time.sleep(60)"
        )
        parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
        group = PinnedGroup([sys.executable, "-c", parent], min(os.sched_getaffinity(0)), tmp_path / "log")
        try:
            server.settimeout(20.0)
            line, _ = server.accept()
            assert len(group_members(group.pid)) == 2
            assert 0.01 < group.cpu_s() < 20.0
            assert group.rss_mb() > 5.0
        finally:
            group.end()
        assert line.recv(1) == b""
        line.close()
    assert group_members(group.pid) == []
    assert not group.running


@pytest.mark.slow
def test_the_command_measures_a_proxy_and_does_not_call_it_a_pass(tmp_path):
    out = tmp_path / "overhead.json"
    command = [sys.executable, "-m", "benchmarks.overhead", "--quick", "--streams", "16", "--endpoints", "2"]
    command += ["--proxies", "naive,smg:cache_aware", "--peers", str(tmp_path), "--json", str(out)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=50, check=False)
    assert done.returncode == 2, done.stdout + done.stderr
    assert "NOT MEASURED  smg:cache_aware: needs sglang-router==" in done.stdout
    document = json.loads(out.read_text())
    (sample,) = document["samples"]["naive"]
    assert sample["plain_us"] > 0
    assert sample["chunk_us"] > 0
    assert sample["long_us"] > 0
    assert [line["held"] for line in document["required"]] == [False] * len(REQUIRED)
