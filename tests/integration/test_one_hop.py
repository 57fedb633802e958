"""One hop: bytes through unchanged, errors in the shape of the contract, time limits."""

import asyncio
import json

import httpx
import pytest

from tests.fakes.engine import Call, fake_engine
from tests.gateways import run_gateway

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
EVENTS = [b"data: one\r\n\r\n", b': ping\n\ndata:{"x":1}\n', b"\ndata: [DONE]\n\n"]


async def stream_events(call: Call) -> None:
    call.start_stream()
    for event in EVENTS:
        call.chunk(event)
        await call.writer.drain()
    call.end_stream()


async def test_plain_answer_and_request_pass_unchanged():
    body = b'{"id": "x", "choices":[ ],  "usage": {"prompt_tokens": 3, "completion_tokens": 2}}'

    async def answer(call: Call) -> None:
        call.answer(200, body, "x-engine: 1\r\n")

    sent = b'{ "model":"m",\n "messages":[{"role":"user","content":"h\\u00e9"}], "unknown": [1, 2.50] }'
    async with fake_engine(answer) as engine, run_gateway([engine.url]) as gateway:
        reply = await gateway.client.post(
            "/v1/chat/completions?x=1", content=sent, headers={"authorization": "Bearer k", "x-request-id": "abc"}
        )
        metrics = await gateway.metrics()
    call = engine.calls[0]
    assert reply.content == body
    assert reply.headers["x-engine"] == "1"
    assert reply.headers["x-request-id"] == "abc"
    assert call.body == sent
    assert call.path == "/v1/chat/completions?x=1"
    assert call.header("authorization") == "Bearer k"
    assert (call.header("x-request-id") or "").startswith("abc-")
    assert 'twohop_prompt_tokens_total{model="m"} 3.0' in metrics
    assert 'twohop_output_tokens_total{model="m"} 2.0' in metrics
    assert 'twohop_requests_total{code="200",model="m",route="single"} 1.0' in metrics


async def test_stream_passes_byte_for_byte_and_the_connection_is_kept():
    async with fake_engine(stream_events) as engine, run_gateway([engine.url]) as gateway:
        for _ in range(3):
            reply = await gateway.client.post("/v1/chat/completions", json={**CHAT, "stream": True})
            assert reply.content == b"".join(EVENTS)
        await gateway.until_idle()
        assert gateway.parts.engines.counts() == {engine.url.removeprefix("http://"): (1, 1)}


async def test_chunks_come_when_the_engine_sends_them():
    go_on = asyncio.Event()

    async def answer(call: Call) -> None:
        call.start_stream()
        call.chunk(b"data: 1\n\n")
        await go_on.wait()
        call.chunk(b"data: 2\n\n")
        call.end_stream()

    async with fake_engine(answer) as engine, run_gateway([engine.url]) as gateway:
        async with gateway.client.stream("POST", "/v1/completions", json={"model": "m", "prompt": "x"}) as reply:
            chunks = reply.aiter_raw()
            assert await anext(chunks) == b"data: 1\n\n"
            go_on.set()
            assert await anext(chunks) == b"data: 2\n\n"


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b"", 400, "invalid_request"),
        (b"{", 400, "invalid_request"),
        (b"[1]", 400, "invalid_request"),
        (b'{"messages": []}', 400, "invalid_request"),
        (b'{"model": 5}', 400, "invalid_request"),
        (b'{"model": "other"}', 404, "model_not_found"),
        (b'{"model": "m", "x": "' + b"y" * 3000 + b'"}', 413, "body_too_large"),
    ],
)
async def test_bad_input_is_a_clear_error_and_nothing_reaches_an_engine(body, status, code):
    async with fake_engine() as engine, run_gateway([engine.url], limits={"body_bytes": 2000}) as gateway:
        reply = await gateway.client.post("/v1/chat/completions", content=body)
        assert reply.status_code == status
        error = reply.json()["error"]
        assert error["code"] == code
        assert set(error) == {"message", "type", "param", "code"}
        assert reply.headers["content-type"] == "application/json"
        assert engine.calls == []
        assert (await gateway.client.post("/v1/chat/completions", json=CHAT)).status_code == 200


async def test_chunked_body_over_the_limit_is_refused_before_its_end():
    async with fake_engine() as engine, run_gateway([engine.url], limits={"body_bytes": 2000}) as gateway:
        reader, writer = await asyncio.open_connection(*gateway.address)
        writer.write(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n")
        writer.write(b"1000\r\n" + b"x" * 4096 + b"\r\n")
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 413")
        writer.close()
        assert engine.calls == []


async def test_unknown_model_names_never_become_labels():
    async with fake_engine() as engine, run_gateway([engine.url]) as gateway:
        for number in range(20):
            reply = await gateway.client.post("/v1/completions", json={"model": f'no"\n{number}', "prompt": ""})
            assert reply.status_code == 404
            assert "served: m" in reply.json()["error"]["message"]
        metrics = await gateway.metrics()
        await gateway.client.post("/v1/completions", json={"model": "x" * 100_000, "prompt": ""})
    assert 'twohop_requests_total{code="404",model="unknown",route="none"} 20.0' in metrics
    assert all(len(receipt.model) <= 101 for receipt in gateway.parts.receipts.latest(21))  # nor fill the memory


async def test_an_engine_lost_in_mid_stream_ends_it_with_one_error_event():
    async def break_off(call: Call) -> None:
        call.start_stream()
        call.chunk(b"data: 1\n\n")
        call.chunk(b"data: 2")
        await call.writer.drain()
        call.writer.close()

    async with fake_engine(break_off) as engine, run_gateway([engine.url]) as gateway:
        asks = {"stream_options": {"include_usage": True}}
        reply = await gateway.client.post("/v1/chat/completions", json={**CHAT, "stream": True, **asks})
        assert reply.content.startswith(b"data: 1\n\ndata: 2\n\ndata: {")
        assert json.loads(reply.content.split(b"\n\n")[2][6:])["error"]["code"] == "upstream_failed"
        assert reply.content.count(b'"error":') == 1
        assert b"[DONE]" not in reply.content
        await gateway.until_idle()


@pytest.mark.parametrize("streamed", [False, True])
async def test_timeouts(streamed):
    async def hang(call: Call) -> None:
        if streamed:
            call.start_stream()
        await call.gone()

    async with fake_engine(hang) as engine, run_gateway([engine.url], timeouts={"first_byte_s": 0.2}) as gateway:
        reply = await gateway.client.post("/v1/chat/completions", json=CHAT)
        assert (reply.status_code, reply.json()["error"]["code"]) == (504, "upstream_timeout")
        assert "retry-after" not in reply.headers
        await gateway.until_idle()
        assert gateway.parts.engines.counts()[engine.url.removeprefix("http://")] == (0, 0)


async def test_a_silent_stream_is_ended():
    async def stall(call: Call) -> None:
        call.start_stream()
        call.chunk(b"data: 1\n\n")
        await call.gone()

    async with fake_engine(stall) as engine, run_gateway([engine.url], timeouts={"idle_s": 0.2}) as gateway:
        reply = await gateway.client.post("/v1/chat/completions", json={**CHAT, "stream": True})
        assert b"upstream_timeout" in reply.content
        await gateway.until_idle()


async def test_headers_that_are_not_the_clients_to_send():
    async with fake_engine() as engine, run_gateway([engine.url]) as gateway:
        await gateway.client.post(
            "/v1/chat/completions",
            json={**CHAT, "kv_transfer_params": {"remote_host": "evil"}},
            headers={
                "x-prefiller-host-port": "127.0.0.1:9",
                "x-gateway-destination-endpoint": "127.0.0.1:9",
                "x-data-parallel-rank": "3",
                "connection": "keep-alive, x-foo",
                "x-foo": "1",
                "te": "trailers",
                "proxy-authorization": "x",
                "x-bar": "2",
            },
        )
    names = {name.lower() for name, _ in engine.calls[0].headers}
    assert "x-bar" in names
    assert not names & {
        "x-prefiller-host-port",
        "x-gateway-destination-endpoint",
        "x-data-parallel-rank",
        "x-foo",
        "te",
    }
    assert not names & {"connection", "proxy-authorization"}
    assert engine.calls[0].json == CHAT


async def test_lone_surrogates_pass_as_they_came():
    sent = b'{"model":"m","prompt":"\\ud800 \\u0000 \\ud83d\\ude00"}'
    async with fake_engine() as engine, run_gateway([engine.url]) as gateway:
        assert (await gateway.client.post("/v1/completions", content=sent)).status_code == 200
    assert engine.calls[0].body == sent


async def test_unusable_request_ids_are_replaced():
    async with fake_engine() as engine, run_gateway([engine.url]) as gateway:
        reply = await gateway.client.post("/v1/completions", json={"model": "m"}, headers={"x-request-id": "x" * 129})
        assert len(reply.headers["x-request-id"]) == 32
        assert (engine.calls[0].header("x-request-id") or "").startswith(reply.headers["x-request-id"])


async def test_receipts_and_receipt_headers():
    endpoints = [{"url": "", "name": "a"}]
    async with fake_engine() as engine:
        endpoints[0]["url"] = engine.url
        async with run_gateway(endpoints, routing={"receipt_headers": True}) as gateway, httpx.AsyncClient() as admin:
            reply = await gateway.client.post("/v1/chat/completions", json=CHAT, headers={"x-request-id": "r/1"})
            assert reply.headers["x-twohop-endpoint"] == "a"
            assert reply.headers["x-twohop-route"] == "single"
            assert reply.headers["x-twohop-reason"] == "no_pair"
            receipt = (await admin.get(f"{gateway.admin_url}/admin/decisions/r%2F1")).json()
            assert receipt["endpoint"] == "a"
            assert receipt["decisions"][0]["picked"] == "a"
            latest = (await admin.get(f"{gateway.admin_url}/admin/decisions?limit=1")).json()["decisions"]
            assert latest == [receipt]
            listed = (await admin.get(f"{gateway.admin_url}/admin/endpoints")).json()["endpoints"]
            assert (listed[0]["name"], listed[0]["ready"]) == ("a", True)
            assert (await admin.get(f"{gateway.admin_url}/admin/decisions/none")).status_code == 404


async def test_models_and_health():
    async with (
        fake_engine(models=["m", "org/name"]) as one,
        fake_engine(models=["m", "z"]) as two,
        run_gateway([one.url, two.url]) as gateway,
    ):
        listed = (await gateway.client.get("/v1/models")).json()
        assert [entry["id"] for entry in listed["data"]] == ["m", "org/name", "z"]
        assert (await gateway.client.get("/v1/models/org/name")).json()["id"] == "org/name"
        assert (await gateway.client.get("/v1/models/org%2Fname")).json()["id"] == "org/name"
        missing = await gateway.client.get("/v1/models/none")
        assert (missing.status_code, missing.json()["error"]["code"]) == (404, "model_not_found")
        for path in ("/healthz", "/readyz", "/health"):
            assert (await gateway.client.get(path)).status_code == 200
        wrong = await gateway.client.get("/v1/chat/completions")
        assert (wrong.status_code, wrong.headers["allow"]) == (405, "POST")
        assert wrong.json()["error"]["code"] == "invalid_request"
        nothing = await gateway.client.get("/nothing")
        assert (nothing.status_code, nothing.json()["error"]["code"]) == (404, "not_found")


async def test_without_a_ready_endpoint_a_request_waits_then_gets_503():
    async with fake_engine() as engine:
        url = engine.url
    async with run_gateway([url], ready=0, flow_control={"max_queue_wait_s": 0.2}) as gateway:
        assert (await gateway.client.get("/readyz")).status_code == 503
        reply = await gateway.client.post("/v1/chat/completions", json=CHAT)
        assert (reply.status_code, reply.json()["error"]["code"]) == (503, "no_endpoint")
        assert int(reply.headers["retry-after"]) >= 1


async def test_a_full_endpoint_queues_and_a_full_queue_refuses():
    release = asyncio.Event()

    async def wait(call: Call) -> None:
        await release.wait()
        call.answer()

    flow = {"max_in_flight_per_endpoint": 1, "max_queue": 1, "max_queue_wait_s": 10}
    async with fake_engine(wait) as engine, run_gateway([engine.url], flow_control=flow) as gateway:
        first = asyncio.ensure_future(gateway.client.post("/v1/chat/completions", json=CHAT))
        await gateway.until(lambda: len(engine.calls) == 1, "the first to arrive")
        second = asyncio.ensure_future(gateway.client.post("/v1/chat/completions", json=CHAT))
        await gateway.until(lambda: gateway.parts.admission.waiting == 1, "the second to wait")
        refused = await gateway.client.post("/v1/chat/completions", json=CHAT)
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "queue_full")
        assert int(refused.headers["retry-after"]) >= 1
        release.set()
        assert [(await one).status_code for one in (first, second)] == [200, 200]
        assert gateway.parts.admission.waiting == 0


@pytest.mark.parametrize("pieces", [1, 5])
@pytest.mark.parametrize("streamed", [False, True])
async def test_a_usage_is_found_that_much_follows(streamed, pieces):
    usage = {"prompt_tokens": 3000, "completion_tokens": 7, "prompt_tokens_details": {"cached_tokens": 5}}
    data = json.dumps({"choices": [], "usage": usage, "prompt_token_ids": [12345] * 9000}).encode()
    assert 60_000 < len(data) < 65_536

    async def answer(call: Call) -> None:
        if not streamed:
            call.answer(200, data)
            return
        call.start_stream()
        for _ in range(100):
            call.chunk(b"data: {}\n\n")
            await call.writer.drain()
        event = b"data: " + data + b"\n\n"
        size = len(event) // pieces + 1
        for start in range(0, len(event), size):
            call.chunk(event[start : start + size])
            await asyncio.sleep(0.001)
        call.chunk(b"data: [DONE]\n\n")
        call.end_stream()

    async with fake_engine(answer) as engine, run_gateway([engine.url]) as gateway:
        await gateway.client.post("/v1/chat/completions", json={**CHAT, "stream": streamed})
        await gateway.until(lambda: gateway.parts.receipts.latest(1), "the receipt")
        receipt = gateway.parts.receipts.latest(1)[0]
    assert (receipt.prompt_tokens, receipt.output_tokens, receipt.cached_tokens) == (3000, 7, 5)


@pytest.mark.parametrize("streamed", [False, True])
async def test_the_total_time_bounds_every_kind_of_answer(streamed):
    async def drip(call: Call) -> None:
        if streamed:
            call.start_stream()
            while not call.writer.is_closing():
                call.chunk(b"data: 1\n\n")
                await asyncio.sleep(0.02)
        await call.gone()

    async with fake_engine(drip) as engine, run_gateway([engine.url], timeouts={"total_s": 0.3}) as gateway:
        reply = await gateway.client.post("/v1/chat/completions", json={**CHAT, "stream": streamed})
        assert b"upstream_timeout" in reply.content
        assert "not done within 0.3 s" in reply.text
        await gateway.until_idle()


async def test_a_fault_of_ours_is_an_error_of_the_usual_shape(caplog):
    async with fake_engine() as engine, run_gateway([engine.url]) as gateway:
        object.__setattr__(gateway.parts.data_plane, "forwarder", None)
        reply = await gateway.client.post("/v1/chat/completions", json=CHAT)
        assert (reply.status_code, reply.json()["error"]["code"]) == (500, "internal_error")
        await gateway.until_idle()
        assert 'code="500"' in await gateway.metrics()
        assert "AttributeError" in caplog.text
