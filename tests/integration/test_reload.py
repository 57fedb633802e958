"""A running gateway that reads its configuration again: what changes, what stays, and that nothing is dropped."""

import asyncio
import logging
import os
import pty
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from gateway.config_plugins import plugin_problems
from gateway.config_source import load
from tests.fakes.engine import Call, fake_engine
from tests.gateways import PLAIN, Running, run_gateway, settings
from tests.integration.test_serve_command import listening, serve

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
PATH = "/v1/chat/completions"


class Reloaded(Running):
    """A running gateway whose configuration is a file; `reload` writes it anew and waits for what is logged last."""

    def __init__(self, running: Running, file: Path, caplog: Any) -> None:
        self.__dict__ = running.__dict__  # the same gateway and the same client
        self.file, self.caplog = file, caplog

    async def reload(self, text: str | dict[str, Any]) -> list[str]:
        """Return the lines that the reload logged."""
        self.file.write_text(text if isinstance(text, str) else yaml.safe_dump(text), encoding="utf-8")
        self.caplog.clear()
        self.gateway.reload()
        ends = ("changed", "as it was")
        await self.until(lambda: any(line.endswith(ends) for line in self.lines()), "the end of the reload")
        return self.lines()

    def lines(self) -> list[str]:
        """Return what reloads have logged."""
        return [one.getMessage() for one in self.caplog.records if one.name == "gateway.reload"]


@pytest.fixture
def start(tmp_path, caplog):
    caplog.set_level(logging.INFO)

    @asynccontextmanager
    async def start(*endpoints: dict[str, Any], **sections: Any) -> AsyncIterator[Reloaded]:
        file = tmp_path / "gateway.yaml"

        def reread():
            return load(file, {}, None, plugin_problems)

        async with run_gateway(list(endpoints), reread=reread, **sections) as running:
            yield Reloaded(running, file, caplog)

    return start


async def test_endpoints_come_go_and_stay_while_streams_run_on(start):
    go_on = asyncio.Event()

    async def stream(call: Call) -> None:
        if not call.json.get("stream"):
            call.answer()
            return
        call.start_stream()
        call.chunk(b"data: 1\n\n")
        await go_on.wait()
        call.chunk(b"data: 2\n\n")
        call.end_stream()

    async with fake_engine(stream) as one, fake_engine(stream) as two, fake_engine(stream) as three:
        a, b, c = ({"url": engine.url, "name": name} for engine, name in ((one, "a"), (two, "b"), (three, "c")))
        async with start(a, b) as gateway:
            kept = gateway.parts.pool.get("b")
            streams = [
                await gateway.client.send(
                    gateway.client.build_request("POST", PATH, json={**CHAT, "stream": True}), stream=True
                )
                for _ in range(2)
            ]
            chunks = [reply.aiter_raw() for reply in streams]
            assert [await anext(one) for one in chunks] == [b"data: 1\n\n"] * 2
            assert len(one.calls) == len(two.calls) == 1
            told = await gateway.reload(
                settings([{**b, "labels": {"zone": "z"}}, c], routing={"receipt_headers": True})
            )
            assert f'reload: discovery.static.endpoints[a]: removed: {{"url": "{one.url}", "name": "a"}}' in told
            assert 'reload: discovery.static.endpoints[b].labels.zone: added: "z"' in told
            assert "reload: routing.receipt_headers: false → true" in told
            assert told[-1] == "reload: 4 changed"
            await gateway.until(lambda: [one.name for one in gateway.parts.pool] == ["b", "c"], "the new endpoints")
            await gateway.until_ready(2)
            assert gateway.parts.pool.get("b") is kept
            assert kept.in_flight == 1
            assert kept.spec.labels == {"zone": "z"}
            assert kept.identity_changes == 0
            replies = [await gateway.client.post(PATH, json=CHAT) for _ in range(4)]
            assert {reply.headers["x-twohop-endpoint"] for reply in replies} <= {"b", "c"}
            assert len(one.calls) == 1
            go_on.set()
            for reply, rest in zip(streams, chunks, strict=True):
                assert b"".join([chunk async for chunk in rest]) == b"data: 2\n\n"
                assert "x-twohop-endpoint" not in reply.headers
            await gateway.until_idle()
            assert "b" in gateway.parts.engines.counts()


async def test_a_wrong_file_is_refused_with_all_its_errors_and_the_old_one_stays(start):
    async with fake_engine() as engine, start({"url": engine.url}) as gateway:
        config, plane = gateway.gateway.config, gateway.parts.data_plane
        told = await gateway.reload(
            "timeouts:\n  first_bite_s: 3\nrouting:\n  scorers: {queue_depth: x}\ndrain: {grace_s: -1}\n"
        )
        wrong = f"reload refused: {gateway.file}:2: timeouts.first_bite_s: unknown key; did you mean 'first_byte_s'?"
        assert wrong in told
        assert any(f"{gateway.file}:5: drain.grace_s" in line for line in told)
        assert told[-1] == "reload refused: the configuration is as it was"
        told = await gateway.reload(settings([{"url": engine.url}], routing={"picker": "max_scor"}))
        assert any("did you mean 'max_score'?" in line for line in told)
        told = await gateway.reload("a: &a [*a]")
        gateway.file.unlink()
        assert (gateway.gateway.config, gateway.parts.data_plane) == (config, plane)
        assert (await gateway.client.post(PATH, json=CHAT)).status_code == 200


async def test_a_fault_of_ours_in_a_reload_ends_no_gateway(caplog):
    def reread():
        raise RecursionError("too deep")

    async with fake_engine() as engine, run_gateway([engine.url], reread=reread) as gateway:
        gateway.gateway.reload()
        await gateway.until(lambda: "reload failed" in caplog.text, "the reload to fail")
        assert (await gateway.client.post(PATH, json=CHAT)).status_code == 200


async def test_what_cannot_change_is_said_and_the_rest_is_applied(start):
    async with fake_engine() as engine, start({"url": engine.url}) as gateway:
        told = await gateway.reload(
            settings([{"url": engine.url}], listen="127.0.0.1:1", admin={"listen": None}, limits={"body_bytes": 10})
        )
        assert [line.partition(":")[2].split(":")[0].strip() for line in told if "needs a restart" in line] == [
            "listen",
            "admin.listen",
        ]
        assert gateway.gateway.config.listen == "127.0.0.1:0"
        assert (await gateway.client.post(PATH, json=CHAT)).status_code == 413
        assert (await gateway.client.get(f"{gateway.admin_url}/admin/endpoints")).status_code == 200


async def test_the_same_again_changes_nothing(start):
    async with fake_engine() as engine, start({"url": engine.url}) as gateway:
        plane = gateway.parts.data_plane
        same = settings([{"url": engine.url}])
        assert await gateway.reload(same) == ["reload: nothing has changed"]
        assert gateway.parts.data_plane is plane


async def test_a_configuration_that_somebody_else_read_is_taken():
    async with fake_engine() as engine, run_gateway([engine.url]) as gateway:
        config = gateway.gateway.config
        gateway.gateway.reconfigure(
            config.model_copy(update={"limits": config.limits.model_copy(update={"body_bytes": 9})})
        )
        assert (await gateway.client.post(PATH, json=CHAT)).status_code == 413


async def test_requests_that_wait_keep_their_places_and_go_by_the_new_limit(start):
    let = asyncio.Event()
    order = []

    async def wait(call: Call) -> None:
        order.append(call.json["user"])
        await let.wait()
        call.answer()

    async with fake_engine(wait) as engine:
        endpoint = {"url": engine.url}
        async with start(endpoint, flow_control={"max_in_flight_per_endpoint": 1}) as gateway:
            asked = []
            for number in range(4):
                asked.append(asyncio.ensure_future(gateway.client.post(PATH, json={**CHAT, "user": str(number)})))
                await gateway.until(
                    lambda number=number: len(engine.calls) + gateway.parts.admission.waiting == number + 1, "a place"
                )
            assert (order, gateway.parts.admission.waiting) == (["0"], 3)
            await gateway.reload(settings([endpoint], flow_control={"max_in_flight_per_endpoint": 3}))
            await gateway.until(lambda: len(order) == 3, "two more to go")
            assert (order, gateway.parts.admission.waiting) == (["0", "1", "2"], 1)
            let.set()
            assert [(await one).status_code for one in asked] == [200] * 4
            assert order == ["0", "1", "2", "3"]


async def test_time_limits_hold_for_new_requests_alone(start):
    let = asyncio.Event()

    async def wait(call: Call) -> None:
        await let.wait()
        call.answer()

    async with fake_engine(wait) as engine, start({"url": engine.url}) as gateway:
        before = asyncio.ensure_future(gateway.client.post(PATH, json=CHAT))
        await gateway.until(lambda: engine.calls, "the request to arrive")
        await gateway.reload(settings([{"url": engine.url}], timeouts={"first_byte_s": 0.05}))
        assert (await gateway.client.post(PATH, json=CHAT)).status_code == 504
        let.set()
        assert (await before).status_code == 200


async def test_probes_and_scrapes_follow_new_intervals_at_once(start):
    async with fake_engine() as engine:
        slow = {"scrape": {"interval_s": 3600}, "health": {"interval_s": 3600}}
        async with start({"url": engine.url}, **slow) as gateway:
            engine.running = 7
            fast = {"scrape": {"interval_s": 0.05}, "health": {"interval_s": 0.05, "unhealthy_after": 1}}
            await gateway.reload(settings([{"url": engine.url}], **fast))
            endpoint = next(iter(gateway.parts.pool))
            await gateway.until(lambda: endpoint.load is not None and endpoint.load.running == 7, "a scrape")
            engine.stop_listening()
            await gateway.until(lambda: not endpoint.ready, "one failed probe to count")


async def test_the_log_level_and_the_admin_token_change(start):
    level = logging.getLogger().level
    try:
        async with fake_engine() as engine, start({"url": engine.url}) as gateway:
            same = [{"url": engine.url}]
            admin = {"listen": "127.0.0.1:0", "token": "s3cret"}
            told = await gateway.reload(settings(same, admin=admin, log_level="error"))
            assert not any("s3cret" in line for line in told)
            assert logging.getLogger().level == logging.ERROR
            url = f"{gateway.admin_url}/admin/endpoints"
            assert (await gateway.client.get(url)).status_code == 401
            assert (await gateway.client.get(url, headers={"authorization": "Bearer s3cret"})).status_code == 200
    finally:
        logging.getLogger().setLevel(level)


async def test_what_the_admin_said_outlives_a_reload(start):
    async with fake_engine() as one, fake_engine() as two, fake_engine() as three:
        a, b = {"url": one.url, "name": "a"}, {"url": two.url, "name": "b"}
        async with start(a, b) as gateway:
            admin = f"{gateway.admin_url}/admin/endpoints"
            assert (await gateway.client.delete(f"{admin}/a")).status_code == 200
            assert (await gateway.client.post(admin, json={"url": three.url, "name": "c"})).status_code == 201
            assert (await gateway.client.post(f"{admin}/b/drain")).status_code == 200
            await gateway.reload(settings([a, b], retries={"max_attempts": 1}))
            assert [(one.name, one.draining) for one in gateway.parts.pool] == [("b", True), ("c", False)]
            await gateway.reload(settings([{**a, "role": "decode"}, b]))
            await gateway.until(lambda: gateway.parts.pool.get("a") is not None, "the file's new word on a")
            assert gateway.parts.pool.get("c") is not None


async def test_another_connector_and_mode_are_taken(start):
    async with fake_engine() as one, fake_engine() as two:
        pair = [{"url": one.url, "role": "prefill"}, {"url": two.url, "role": "decode"}]
        async with start(*pair, disaggregation={"mode": "always"}) as gateway:
            await gateway.reload(settings(pair, disaggregation={"mode": "never"}))
            assert (await gateway.client.post(PATH, json=CHAT)).status_code == 200
            assert (len(one.calls), len(two.calls)) == (0, 1)


async def test_sighup_has_the_command_read_its_file_again(tmp_path):
    async with fake_engine() as engine:
        file = tmp_path / "gateway.yaml"
        file.write_text("listen: 127.0.0.1:0\nadmin: {listen: null}\nlimits: {body_bytes: 1000}\n", encoding="utf-8")
        async with serve("--config", str(file), "--endpoint", engine.url) as process:
            url = await listening(process)

            async def hang_up_until(said: bytes) -> bytes:
                process.send_signal(signal.SIGHUP)
                assert process.stderr is not None
                while line := await process.stderr.readline():
                    if said in line:
                        return line
                raise AssertionError("it never said so")

            file.write_text("listen: 127.0.0.1:0\nadmin: {listen: null}\nlimits: {body_bytes: 5}\n", encoding="utf-8")
            assert b"1000" in await hang_up_until(b"limits.body_bytes")
            async with httpx.AsyncClient(verify=PLAIN) as client:
                assert (await client.post(f"{url}{PATH}", json=CHAT)).status_code == 413
            file.write_text("limits: {body_bites: 5}\n", encoding="utf-8")
            await hang_up_until(f"{file}:1: limits.body_bites".encode())
            os.kill(process.pid, signal.SIGTERM)
            assert await asyncio.wait_for(process.wait(), 20) == 0


async def test_a_terminal_that_is_closed_ends_the_command():
    ours, theirs = pty.openpty()
    async with fake_engine() as engine:
        command = ("-m", "gateway", "serve", "--listen", "127.0.0.1:0", "--endpoint", engine.url)
        environment = {**os.environ, "TWOHOP_ADMIN__LISTEN": "null"}
        process = await asyncio.create_subprocess_exec(
            sys.executable, *command, stdin=theirs, stderr=subprocess.PIPE, env=environment
        )
        try:
            os.close(theirs)
            await listening(process)
            process.send_signal(signal.SIGHUP)
            assert process.stderr is not None
            while b"reload: nothing has changed" not in (line := await process.stderr.readline()):
                assert line
            os.close(ours)
            process.send_signal(signal.SIGHUP)
            _, errors = await asyncio.wait_for(process.communicate(), 20)
            assert process.returncode == 0
            assert errors.splitlines()[-1].endswith(b"stopped")
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
