"""A client may leave at any moment: nothing stays leased, connected or pinned, and the engines hear of it at once."""

import asyncio
import json
import socket
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.engines import sim_engine
from tests.fakes.engine import Call, fake_engine
from tests.gateways import Running, run_gateway

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
LEASE_S = 1.0


async def send(gateway: Running, body: Any) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Send a request on a connection of its own."""
    reader, writer = await asyncio.open_connection(*gateway.address)
    data = json.dumps(body).encode()
    writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%b" % (len(data), data))
    return reader, writer


@pytest.mark.parametrize("prompt_bytes", [10, 400_000])
@pytest.mark.parametrize("moment", ["before the head", "in mid-stream"])
async def test_the_engine_hears_of_it_at_once(moment, prompt_bytes):
    heard = asyncio.Event()

    async def watch(call: Call) -> None:
        if moment == "in mid-stream":
            call.start_stream()
            call.chunk(b"data: 1\n\n")
        await call.gone()
        heard.set()

    async with fake_engine(watch) as engine, run_gateway([engine.url]) as gateway:
        body = {**CHAT, "stream": True, "messages": [{"role": "user", "content": "x" * prompt_bytes}]}
        reader, writer = await send(gateway, body)
        if moment == "in mid-stream":
            await reader.readuntil(b"data: 1")
        else:
            await gateway.until(lambda: bool(engine.calls), "the request to arrive")
        writer.transport.abort()
        async with asyncio.timeout(2):
            await heard.wait()
        await gateway.until_idle()
        assert gateway.parts.engines.counts()[engine.url.removeprefix("http://")] == (0, 0)
        assert "twohop_client_disconnects_total 1.0" in await gateway.metrics()
        assert all(endpoint.ready for endpoint in gateway.parts.pool)


async def test_while_it_waits_for_its_turn():
    release = asyncio.Event()

    async def wait(call: Call) -> None:
        await release.wait()
        call.answer()

    flow = {"max_in_flight_per_endpoint": 1}
    async with fake_engine(wait) as engine, run_gateway([engine.url], flow_control=flow) as gateway:
        first = asyncio.ensure_future(gateway.client.post("/v1/chat/completions", json=CHAT))
        await gateway.until(lambda: len(engine.calls) == 1, "the first to arrive")
        _, leaving = await send(gateway, CHAT)
        await gateway.until(lambda: gateway.parts.admission.waiting == 1, "the second to wait")
        third = asyncio.ensure_future(gateway.client.post("/v1/chat/completions", json=CHAT))
        await gateway.until(lambda: gateway.parts.admission.waiting == 2, "the third to wait")
        leaving.transport.abort()
        await gateway.until(lambda: gateway.parts.admission.waiting == 1, "the second to leave the queue")
        release.set()
        assert [(await one).status_code for one in (first, third)] == [200, 200]
        assert len(engine.calls) == 2


async def test_in_the_middle_of_its_body():
    async with fake_engine() as engine, run_gateway([engine.url]) as gateway:
        _, writer = await asyncio.open_connection(*gateway.address)
        writer.write(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{")
        await writer.drain()
        writer.transport.abort()
        await gateway.until(lambda: len(gateway.parts.receipts) == 1, "the receipt")
        assert engine.calls == []


@pytest.mark.parametrize("kind", ["stream", "sized", "a stream that ends"])
async def test_a_client_that_takes_nothing_is_dropped_after_the_total_time(kind):
    piece = b"data: " + b"x" * 50_000 + b"\n\n"

    async def answer(call: Call) -> None:
        if kind == "sized":
            call.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % (400 * len(piece)))
        else:
            call.start_stream()
        for _ in range(400):
            call.write(piece) if kind == "sized" else call.chunk(piece)
            await call.writer.drain()
        if kind == "a stream that ends":
            call.end_stream()
        await call.gone()

    async with fake_engine(answer) as engine, run_gateway([engine.url], timeouts={"total_s": 0.5}) as gateway:
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.connect(gateway.address)
            data = json.dumps({**CHAT, "stream": True}).encode()
            client.sendall(
                b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(data) + data
            )
            await gateway.until(lambda: len(gateway.parts.receipts) == 1, "the request to be over")
            await gateway.until_idle()
        receipt = gateway.parts.receipts.latest(1)[0]
        assert (receipt.status, receipt.total_s is not None and 0.4 < receipt.total_s < 2) == (499, True)
        assert "twohop_client_disconnects_total 1.0" in await gateway.metrics()


@asynccontextmanager
async def pools(**sections):
    """Run two prefill and two decode engines with a short lease, and a gateway before them."""
    options = {"models": ["m"], "lease_s": LEASE_S, "speed": 0.2}
    async with (
        sim_engine(role="prefill", **options) as p0,
        sim_engine(role="prefill", **options) as p1,
        sim_engine(role="decode", **options) as d0,
        sim_engine(role="decode", **options) as d1,
    ):
        engines = {"p0": p0, "p1": p1, "d0": d0, "d1": d1}
        roles = {"p": "prefill", "d": "decode"}
        endpoints = [{"url": one.url, "name": name, "role": roles[name[0]]} for name, one in engines.items()]
        async with run_gateway(endpoints, **sections) as gateway:
            yield engines, gateway


async def figures(gateway: Running, url: str) -> dict[str, float]:
    """Return an engine's metrics by name, labels dropped, summed."""
    found: dict[str, float] = {}
    for line in (await gateway.client.get(f"{url}/metrics")).text.splitlines():
        if line and not line.startswith("#"):
            name, value = line.split("{")[0].split(" ")[0], float(line.split(" ")[-1])
            found[name] = found.get(name, 0.0) + value
    return found


async def until_nothing_is_held(gateway: Running, url: str) -> None:
    """Wait until an engine runs no request and pins no block; fail soon after the lease."""
    async with asyncio.timeout(LEASE_S + 4):
        while True:
            now = await figures(gateway, url)
            if not now["vllm:num_requests_running"] + now["sim:kv_blocks_pinned"]:
                return
            await asyncio.sleep(0.05)


async def test_at_any_moment_of_two_hops_nothing_stays():
    """Cut 60 clients at moments spread over the life of a two-hop stream; then count everything."""
    async with pools() as (engines, gateway):
        body = {**CHAT, "stream": True, "max_tokens": 40}

        async def whole() -> float:
            started = asyncio.get_running_loop().time()
            reply = await gateway.client.post("/v1/chat/completions", json=body)
            assert reply.content.endswith(b"data: [DONE]\n\n")
            return asyncio.get_running_loop().time() - started

        await whole()
        life_s = await whole()

        async def cut(number: int) -> None:
            text = f"{number} " + "word " * 300
            _, writer = await send(gateway, {**body, "messages": [{"role": "user", "content": text}]})
            await asyncio.sleep(life_s * 4 * number / 60)
            writer.transport.abort()

        # Legs done when the client left: none (in prefill), one (in decode, before its head), two (in mid-stream).
        stages: set[int] = set()
        for sent in range(62, 302, 60):
            await asyncio.gather(*[cut(number) for number in range(60)])
            await gateway.until_idle()
            assert len(gateway.parts.receipts) == sent
            left = [receipt for receipt in gateway.parts.receipts.latest(300) if receipt.status == 499]
            stages |= {len(receipt.attempts) for receipt in left}
            if stages == {0, 1, 2}:
                break
            life_s *= 2  # a busy machine: sixty at once live longer than one alone
        assert stages == {0, 1, 2}
        async with asyncio.timeout(LEASE_S + 4):
            for engine in engines.values():
                while (now := await figures(gateway, engine.url))["vllm:num_requests_running"] or now[
                    "sim:kv_blocks_pinned"
                ]:
                    await asyncio.sleep(0.05)
        metrics = await gateway.metrics()
        assert all(f'twohop_in_flight{{endpoint="{name}"}} 0.0' in metrics for name in engines)
        await whole()
