"""`twohop serve` as a process: what it refuses to start with, and how it stops."""

import asyncio
import json
import os
import signal
import socket
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest

from tests.fakes.engine import Call, fake_engine


@asynccontextmanager
async def serve(*arguments: str, **environment: str) -> AsyncIterator[Process]:
    """Run the command; kill it at the end if it still runs."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "gateway", "serve", *arguments, stderr=PIPE, env={**os.environ, **environment}
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def listening(process: Process) -> str:
    """Return the URL that the process says it listens on."""
    assert process.stderr is not None
    while line := await process.stderr.readline():
        if b"listening on http://" in line:
            return line.split()[-1].decode()
    raise AssertionError("it never listened")


async def until_it_is_not_ready(url: str) -> None:
    """Wait until health checks hear that the gateway is stopping; it answers them while requests are in flight."""
    async with asyncio.timeout(10), httpx.AsyncClient() as client:
        while (await client.get(f"{url}/readyz")).status_code != 503:
            await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    ("arguments", "environment", "said"),
    [
        ([], {}, "--endpoint"),
        (["--endpoint", "http://127.0.0.1:1,role=prefil"], {}, "prefill"),
        (["--endpoint", "ftp://127.0.0.1:1"], {}, "http"),
        (["--endpoint", "http://127.0.0.1:1"], {"TWOHOP_ROUTING__SCORER": "{}"}, "scorers"),
        (["--endpoint", "http://127.0.0.1:1"], {"TWOHOP_ROUTING__SCORERS": "{queue_dept: 1}"}, "queue_depth"),
        (["--endpoint", "http://127.0.0.1:1"], {"TWOHOP_DISAGGREGATION__CONNECTOR": "nxil"}, "did you mean 'nixl'?"),
        (["--endpoint", "http://127.0.0.1:1"], {"TWOHOP_ADMIN__LISTEN": "0.0.0.0:0"}, "token"),
        (["--endpoint", "http://127.0.0.1:1", "--workers", "0"], {}, "--workers: workers: must be"),
        (["--endpoint", "http://127.0.0.1:1"], {"TWOHOP_WORKERS": "many"}, "TWOHOP_WORKERS"),
    ],
)
async def test_a_wrong_configuration_is_refused_with_the_fix(arguments, environment, said):
    async with serve(*arguments, **environment) as process:
        _, errors = await process.communicate()
        assert process.returncode == 2
        assert said in errors.decode()
        assert "Traceback" not in errors.decode()


async def test_an_unknown_key_names_file_line_and_the_nearest_name(tmp_path):
    file = tmp_path / "gateway.yaml"
    file.write_text("listen: 127.0.0.1:0\nroutin:\n  picker: max_score\n")
    async with serve("--config", str(file), "--endpoint", "http://127.0.0.1:1") as process:
        _, errors = await process.communicate()
    assert process.returncode == 2
    assert f"{file}:2" in errors.decode()
    assert "'routing'" in errors.decode()


@pytest.mark.parametrize("count", ["1", "2"])
async def test_a_port_in_use_is_said_so(count: str):
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)  # as the workers of another gateway have it
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        async with serve("--listen", address, "--endpoint", "http://127.0.0.1:1", "--workers", count) as process:
            _, errors = await process.communicate()
    assert process.returncode == 2
    assert f"cannot listen on {address}" in errors.decode()


async def test_a_second_signal_ends_every_request_in_its_own_way_without_a_traceback():
    async def hang(call: Call) -> None:
        if call.json.get("stream"):
            call.start_stream()
            call.chunk(b"data: 1\n\n")
        await call.gone()

    async with fake_engine(hang) as engine:
        arguments = ("--listen", "127.0.0.1:0", "--endpoint", engine.url)
        async with serve(*arguments, TWOHOP_ADMIN__LISTEN="null") as process, httpx.AsyncClient(timeout=20) as client:
            url = await listening(process)
            body = {"model": "m", "prompt": "x"}
            plain = asyncio.ensure_future(client.post(f"{url}/v1/completions", json=body))
            async with client.stream("POST", f"{url}/v1/completions", json={**body, "stream": True}) as reply:
                chunks = reply.aiter_raw()
                assert await anext(chunks) == b"data: 1\n\n"
                process.send_signal(signal.SIGINT)
                await until_it_is_not_ready(url)
                process.send_signal(signal.SIGINT)
                _, errors = await asyncio.wait_for(process.communicate(), 20)
                rest = b"".join([chunk async for chunk in chunks])
            assert rest.startswith(b'data: {"error":')
            assert rest.endswith(b'"code":"shutting_down"}}\n\n')
            refused = await plain
            assert (refused.status_code, refused.json()["error"]["code"]) == (503, "shutting_down")
            assert int(refused.headers["retry-after"]) >= 1
            assert process.returncode == 0
            assert "Traceback" not in errors.decode()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_it_stops_when_asked_and_lets_a_stream_finish(number):
    go_on = asyncio.Event()

    async def stream(call: Call) -> None:
        call.start_stream()
        call.chunk(b"data: 1\n\n")
        await go_on.wait()
        call.chunk(b"data: 2\n\n")
        call.end_stream()

    async with fake_engine(stream) as engine:
        arguments = ("--listen", "127.0.0.1:0", "--endpoint", engine.url)
        async with serve(*arguments, TWOHOP_ADMIN__LISTEN="null") as process, httpx.AsyncClient(timeout=20) as client:
            url = await listening(process)
            body = json.dumps({"model": "m", "prompt": "x", "stream": True})
            async with client.stream("POST", f"{url}/v1/completions", content=body) as reply:
                chunks = reply.aiter_raw()
                assert await anext(chunks) == b"data: 1\n\n"
                process.send_signal(number)
                await until_it_is_not_ready(url)
                go_on.set()
                assert await anext(chunks) == b"data: 2\n\n"
            async with asyncio.timeout(20):
                assert await process.wait() == 0


async def test_a_stop_says_what_it_waits_for_and_when_it_is_over():
    async with fake_engine() as engine:
        arguments = ("--listen", "127.0.0.1:0", "--endpoint", engine.url)
        async with serve(*arguments, TWOHOP_ADMIN__LISTEN="null") as process:
            await listening(process)
            process.send_signal(signal.SIGTERM)
            _, errors = await process.communicate()
    assert "stopping: 0 requests in flight, up to 60 s" in errors.decode()
    assert errors.decode().splitlines()[-1].endswith("stopped")


async def test_ctrl_c_before_it_listens_ends_it_without_a_traceback(tmp_path):
    file = tmp_path / "gateway.yaml"
    os.mkfifo(file)
    async with serve("--config", str(file)) as process, asyncio.timeout(20):
        writing = await asyncio.to_thread(os.open, file, os.O_WRONLY)  # it is reading its configuration from now on
        process.send_signal(signal.SIGINT)
        _, said = await process.communicate()
        os.close(writing)
    assert (process.returncode, said) == (130, b"")
