"""A gateway that stops: what its health says, what it still serves, and when it is gone."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx

from tests.fakes.engine import Call, fake_engine
from tests.gateways import PLAIN, Running, run_gateway

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
PATH = "/v1/chat/completions"


class Tap:
    """An engine's handler: streams give one chunk at once and end when `open` is set; the rest is answered at once."""

    def __init__(self) -> None:
        self.open = asyncio.Event()

    async def __call__(self, call: Call) -> None:
        if not call.json.get("stream"):
            call.answer()
            return
        call.start_stream()
        call.chunk(b"data: 1\n\n")
        await self.open.wait()
        call.chunk(b"data: 2\n\n")
        call.end_stream()


@asynccontextmanager
async def streaming(gateway: Running) -> AsyncIterator[tuple[httpx.Response, AsyncIterator[bytes]]]:
    """Have a stream under way whose first chunk has come."""
    async with gateway.client.stream("POST", PATH, json={**CHAT, "stream": True}) as reply:
        chunks = reply.aiter_raw()
        assert await anext(chunks) == b"data: 1\n\n"
        yield reply, chunks


async def refuses(gateway: Running) -> bool:
    try:
        _, writer = await asyncio.open_connection(*gateway.address)
    except ConnectionRefusedError:
        return True
    writer.close()
    return False


async def until_gone(gateway: Running, within_s: float = 5.0) -> float:
    """Return after how many seconds connections were refused."""
    loop = asyncio.get_running_loop()
    started_s = loop.time()
    async with asyncio.timeout(within_s):
        while not await refuses(gateway):
            await asyncio.sleep(0.01)
    return loop.time() - started_s


async def fresh(gateway: Running, method: str, path: str, **options: Any) -> httpx.Response:
    """Send a request on a connection of its own."""
    async with httpx.AsyncClient(base_url=gateway.url, verify=PLAIN, timeout=10) as client:
        return await client.request(method, path, **options)


async def test_health_says_no_at_once_while_a_stream_runs_to_its_end():
    tap = Tap()
    async with fake_engine(tap) as engine, run_gateway([engine.url], drain={"grace_s": 20}) as gateway:
        async with streaming(gateway) as (_, chunks):
            gateway.gateway.stop()
            for path in ("/readyz", "/health"):
                assert (await fresh(gateway, "GET", path)).status_code == 503
            assert (await fresh(gateway, "GET", "/healthz")).status_code == 200
            assert "twohop_in_flight" in (await fresh(gateway, "GET", "/metrics")).text
            listed = await gateway.client.get(f"{gateway.admin_url}/admin/endpoints")
            assert listed.json()["endpoints"][0]["in_flight"] == 1
            refused = await fresh(gateway, "POST", PATH, json=CHAT)
            assert (refused.status_code, refused.json()["error"]["code"]) == (503, "shutting_down")
            assert int(refused.headers["retry-after"]) >= 1
            assert refused.headers["connection"] == "close"
            assert len(engine.calls) == 1
            tap.open.set()
            assert b"".join([chunk async for chunk in chunks]) == b"data: 2\n\n"
        assert await until_gone(gateway) < 2
        assert gateway.parts.receipts.latest(1)[0].status == 200


async def test_during_the_delay_new_requests_are_served_and_then_no_longer():
    tap = Tap()
    drain = {"grace_s": 20, "delay_s": 0.4}
    async with fake_engine(tap) as engine, run_gateway([engine.url], drain=drain) as gateway:
        gateway.gateway.stop()
        assert (await fresh(gateway, "GET", "/readyz")).status_code == 503
        reply = await gateway.client.post(PATH, json=CHAT)
        assert (reply.status_code, "connection" in reply.headers) == (200, False)
        async with streaming(gateway) as (_, chunks):  # begun in the delay, ends long after it
            await gateway.until(lambda: gateway.parts.data_plane.stopping(), "the delay to be over")
            assert (await fresh(gateway, "POST", PATH, json=CHAT)).json()["error"]["code"] == "shutting_down"
            tap.open.set()
            assert b"".join([chunk async for chunk in chunks]) == b"data: 2\n\n"
        assert await until_gone(gateway) < 2


async def test_with_nothing_in_flight_and_no_delay_it_ends_at_once(caplog):
    async with fake_engine() as engine, run_gateway([engine.url], drain={"grace_s": 20}) as gateway:
        await gateway.client.get("/healthz")  # leaves a kept-alive connection behind
        gateway.gateway.stop()
        assert await until_gone(gateway) < 1
    assert "Traceback" not in caplog.text


async def test_a_second_signal_ends_the_delay_too():
    tap = Tap()
    drain = {"grace_s": 20, "delay_s": 20}
    async with fake_engine(tap) as engine, run_gateway([engine.url], drain=drain) as gateway:
        async with streaming(gateway) as (_, chunks):
            gateway.gateway.stop()
            assert (await gateway.client.post(PATH, json=CHAT)).status_code == 200
            gateway.gateway.stop()
            assert b'"code":"shutting_down"' in b"".join([chunk async for chunk in chunks])
        assert await until_gone(gateway) < 2


async def test_connections_end_with_their_answers():
    tap = Tap()
    async with fake_engine(tap) as engine, run_gateway([engine.url], drain={"grace_s": 20}) as gateway:
        idle_reader, idle_writer = await asyncio.open_connection(*gateway.address)
        idle_writer.write(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n")
        await idle_reader.readuntil(b"}")
        reader, writer = await asyncio.open_connection(*gateway.address)
        body = b'{"model": "m", "prompt": "x", "stream": true}'
        writer.write(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body))
        await reader.readuntil(b"data: 1\n\n\r\n")
        async with streaming(gateway) as (_, chunks):
            gateway.gateway.stop()
            assert await idle_reader.read() == b""
            tap.open.set()
            assert (await reader.read()).endswith(b"data: 2\n\n\r\n0\r\n\r\n")  # and then its end
            assert b"".join([chunk async for chunk in chunks]) == b"data: 2\n\n"
        idle_writer.close()
        writer.close()


async def test_a_request_that_waits_for_its_turn_is_in_flight():
    let = asyncio.Event()

    async def wait(call: Call) -> None:
        await let.wait()
        call.answer()

    limits: dict[str, Any] = {"flow_control": {"max_in_flight_per_endpoint": 1}, "drain": {"grace_s": 20}}
    async with fake_engine(wait) as engine, run_gateway([engine.url], **limits) as gateway:
        asked = [asyncio.ensure_future(gateway.client.post(PATH, json=CHAT)) for _ in range(3)]
        await gateway.until(lambda: gateway.parts.admission.waiting == 2, "two to wait")
        gateway.gateway.stop()
        assert (await fresh(gateway, "POST", PATH, json=CHAT)).status_code == 503
        let.set()
        assert [(await one).status_code for one in asked] == [200] * 3
        assert await until_gone(gateway) < 2


async def test_a_reload_changes_the_grace_of_a_later_stop(caplog):
    caplog.set_level("INFO")

    async with fake_engine() as engine:

        def reread() -> Any:
            config = gateway.gateway.config
            return config.model_copy(update={"drain": config.drain.model_copy(update={"grace_s": 7.0})})

        async with run_gateway([engine.url], reread=reread) as gateway:
            gateway.gateway.reload()
            await gateway.until(lambda: "1 changed" in caplog.text, "the reload")
            gateway.gateway.stop()
            await gateway.until(lambda: "up to 7 s for them" in caplog.text, "the stop to be logged")
