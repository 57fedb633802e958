"""The gateway towards its engines: https, IPv6, closing keep-alive connections, early refusals, traces, trailers."""

import asyncio
import socket
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.certificates import Authority, authority
from tests.fakes.engine import Call, FakeEngine, fake_engine, ok
from tests.gateways import run_gateway

BODY = {"model": "m", "prompt": "p"}


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return authority(tmp_path_factory.mktemp("ours"))


@asynccontextmanager
async def engine_at(handler=ok, host: str = "127.0.0.1", context=None):
    """Run a fake engine on `host`, behind TLS with a `context`, and yield it with its URL."""
    engine = FakeEngine(handler)
    server = await asyncio.start_server(engine.serve, host, 0, ssl=context)
    engine.server, engine.port = server, server.sockets[0].getsockname()[1]
    name = f"[{host}]" if ":" in host else host
    try:
        yield engine, f"http{'s' if context else ''}://{name}:{engine.port}"
    finally:
        engine.stop_listening()
        await server.wait_closed()


async def test_an_https_engine_is_probed_scraped_and_asked_with_our_certificate(ours):
    cert, key = ours.certificate("us", "DNS:gateway")
    context = ours.server(ours.certificate("engine", "IP:127.0.0.1"), clients=ours)
    tls = {"ca_file": ours.ca_file, "cert_file": cert, "key_file": key}
    async with engine_at(context=context) as (engine, url), run_gateway([url], upstream_tls=tls) as running:
        for _ in range(2):
            assert (await running.client.post("/v1/completions", json=BODY)).json() == {"ok": True}
        await running.until(lambda: all(one.load is not None for one in running.parts.pool), "a scrape")
        assert len(engine.calls) == 2
        assert [opened for opened, _ in running.parts.engines.counts().values()] == [1]
        assert running.parts.engines.stirred(f"127.0.0.1:{engine.port}")
        assert not running.parts.engines.stirred(f"127.0.0.1:{engine.port}")
        assert not running.parts.engines.stirred("nobody")


async def test_an_https_engine_of_another_authority_is_not_ready_and_says_why(ours, tmp_path):
    context = ours.server(ours.certificate("engine", "IP:127.0.0.1"))
    tls = {"ca_file": authority(tmp_path).ca_file}
    async with engine_at(context=context) as (_, url), run_gateway([url], ready=0, upstream_tls=tls) as running:
        (endpoint,) = running.parts.pool
        refused = "cannot connect: its certificate is refused: "
        await running.until(lambda: (endpoint.why_not_ready or "").startswith(refused), "a probe that is refused")


async def test_an_engine_on_ipv6(ours):
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return  # this machine has none
    for context in (None, ours.server(ours.certificate("six", "IP:::1"))):
        tls = {"ca_file": ours.ca_file}
        async with engine_at(host="::1", context=context) as (engine, url):
            async with run_gateway([url], upstream_tls=tls) as running:
                assert (await running.client.post("/v1/completions", json=BODY)).status_code == 200
                assert engine.calls[0].header("host") == f"[::1]:{engine.port}"


async def test_two_hundred_requests_find_closed_connections_after_a_pause_and_none_fails():
    processed = 0

    async def close_soon(call: Call) -> None:
        nonlocal processed
        if call.writer.is_closing():  # it came too late to be taken
            return
        processed += 1
        call.answer()
        asyncio.get_running_loop().call_later(0.05, call.writer.close)

    async with fake_engine(close_soon) as engine, run_gateway([engine.url]) as running:
        for _ in range(2):
            posts = (running.client.post("/v1/completions", json=BODY) for _ in range(200))
            assert {answer.status_code for answer in await asyncio.gather(*posts)} == {200}
            await asyncio.sleep(0.05)
        assert processed == 400


async def test_a_refusal_of_a_long_prompt_reaches_the_client_before_it_has_been_read():
    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        if head.startswith(b"GET"):
            listed = b'{"data":[{"id":"m"}]}' if b"/v1/models" in head else b""
            writer.write(
                b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%b" % (len(listed), listed)
            )
        else:
            await reader.readexactly(65_536)
            writer.write(b"HTTP/1.1 413 Too Long\r\ncontent-length: 8\r\n\r\ntoo long")
        writer.close()

    server = await asyncio.start_server(refuse, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server, run_gateway([url]) as running:
        for size in (400_000, 20_000_000):
            answer = await running.client.post("/v1/completions", json={"model": "m", "prompt": "x" * size})
            assert (answer.status_code, answer.text) == (413, "too long")
        await running.until_idle()


async def test_requests_of_one_trace_reach_engines_as_spans_of_their_own():
    trace = "0af7651916cd43dd8448eb211c80319c"
    headers = {"traceparent": f"00-{trace}-b7ad6b7169203331-01", "tracestate": "a=1", "x-request-id": "same"}
    async with fake_engine() as engine, run_gateway([engine.url]) as running:
        posts = (running.client.post("/v1/completions", json=BODY, headers=headers) for _ in range(2))
        answers = await asyncio.gather(*posts)
        assert [answer.headers["x-request-id"] for answer in answers] == ["same", "same"]
        parents = [call.header("traceparent") for call in engine.calls]
        assert [parent.split("-")[1] for parent in parents if parent] == [trace, trace]
        assert len({*parents, headers["traceparent"]}) == 3
        assert [call.header("tracestate") for call in engine.calls] == ["a=1", "a=1"]
        assert len({call.header("x-request-id") for call in engine.calls}) == 2


async def test_a_limit_of_connections_below_that_of_requests_is_refused_with_the_configuration():
    with pytest.raises(ValueError, match=r"upstream.max_connections: 5 is less than"):
        async with run_gateway([], upstream={"max_connections": 5}):
            pass


async def test_as_many_connections_as_requests_are_enough():
    go = asyncio.Event()

    async def wait(call: Call) -> None:
        await go.wait()
        call.answer()

    limits: dict[str, Any] = {"flow_control": {"max_in_flight_per_endpoint": 4}, "upstream": {"max_connections": 4}}
    async with fake_engine(wait) as engine, run_gateway([engine.url], **limits) as running:
        posts = [asyncio.ensure_future(running.client.post("/v1/completions", json=BODY)) for _ in range(12)]
        await running.until(lambda: len(engine.calls) == 4, "four requests")
        go.set()
        assert [answer.status_code for answer in await asyncio.gather(*posts)] == [200] * 12
        assert running.parts.engines.counts()[f"127.0.0.1:{engine.port}"][0] <= 4


@pytest.mark.parametrize("at_once", [True, False])
@pytest.mark.parametrize(("version", "end"), [(b"1.1", b"\r\n0\r\nx-sum: 7\r\n\r\n"), (b"1.0", b"")])
async def test_trailers_of_an_answer_reach_the_client_but_for_those_that_describe_it(at_once, version, end):
    go = asyncio.Event()

    async def trailed(call: Call) -> None:
        call.start_stream()
        call.chunk(b"data: 1\n\n")
        if not at_once:
            await go.wait()
        call.chunk(b"data: 2\n\n")
        call.write(b"0\r\nX-Sum: 7\r\nage: 9\r\nset-cookie: a=1\r\n\r\n")

    async with fake_engine(trailed) as engine, run_gateway([engine.url]) as running:
        reader, writer = await asyncio.open_connection(*running.address)
        body = b'{"model":"m","prompt":"p","stream":true}'
        head = b"POST /v1/completions HTTP/%b\r\nhost: x\r\nconnection: close\r\ncontent-length: %d\r\n\r\n"
        writer.write(head % (version, len(body)) + body)
        await reader.readuntil(b"data: 1\n\n")
        go.set()
        assert (await reader.read()).endswith(b"data: 2\n\n" + end)
        writer.close()
