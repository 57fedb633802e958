"""Every route of the inference API: the same admission, limits, receipts and metrics, and bytes as they came."""

import asyncio
import json
from typing import Any

import httpx
import pytest

from gateway.api.routes import POSTED
from tests.fakes.engine import Call, fake_engine
from tests.gateways import Running, run_gateway

OTHERS = ["/v1/x", "/v1/audio/speech", "/v1/chat/completions/render", "/v1/images/edits"]
PATHS = [*POSTED, *OTHERS]
FORMS = [path for path in PATHS if "/audio/tran" in path or path == "/v1/images/edits"]
ANTHROPIC = {"/v1/messages", "/v1/messages/count_tokens"}
FORM = {"content-type": 'multipart/form-data; boundary="--=x y"'}
ANSWER = b'{"id": "x",  "usage": {"prompt_tokens": 3, "completion_tokens": 2}}'


def body_of(path: str, model: str = "m", filler: bytes = b"") -> tuple[bytes, dict[str, str]]:
    """Return a body for `path` that no serializer would write, and its headers."""
    if path in FORMS:
        file = b'Content-Disposition: form-data; name="file"; filename="a.wav"\r\nContent-Type: audio/wav\r\n\r\n'
        parts = [
            file + b"\x00\xff\r\n--\r\n" + filler,
            b'content-disposition: form-data; name="model"\r\n\r\n' + model.encode(),
        ]
        return b"".join(b"----=x y\r\n%b\r\n" % one for one in parts) + b"----=x y--\r\n", FORM
    sent = b'{ "model" :"%b",\n "input": [1, 2.50, "h\\u00e9"], "x": "%b"}' % (model.encode(), filler)
    return sent, {"content-type": "application/json"}


async def post(gateway: Running, path: str, query: str = "", **options: Any) -> httpx.Response:
    content, headers = body_of(path, **options)
    return await gateway.client.post(path + query, content=content, headers=headers)


async def receipt(gateway: Running) -> dict[str, Any]:
    """Return the newest receipt."""
    async with httpx.AsyncClient(base_url=gateway.admin_url) as admin:
        return (await admin.get("/admin/decisions?limit=1")).json()["decisions"][0]  # type: ignore[no-any-return]


def told(reply: httpx.Response, path: str) -> dict[str, Any]:
    """Return the error in an answer, its shape being that of the path."""
    body: dict[str, Any] = reply.json()
    assert reply.headers["content-type"] == "application/json"
    assert set(body) == ({"type", "error"} if path in ANTHROPIC else {"error"})
    assert set(body["error"]) == {"message", "type", "param", "code"}
    return dict(body["error"])


async def answer(call: Call) -> None:
    call.answer(200, ANSWER)


@pytest.mark.parametrize("path", PATHS)
async def test_every_route_passes_its_bytes_and_is_counted(path):
    async with fake_engine(answer) as engine, run_gateway([engine.url]) as gateway:
        reply = await post(gateway, path, query="?a=%2F&b")
        sent, headers = body_of(path)
        assert (reply.status_code, reply.content) == (200, ANSWER)
        call = engine.calls[0]
        assert (call.path, call.body) == (f"{path}?a=%2F&b", sent)
        assert call.header("content-type") == headers["content-type"]
        await gateway.until_idle()
        written = await receipt(gateway)
        metrics = await gateway.metrics()
    assert (written["model"], written["route"], written["status"]) == ("m", "single", 200)
    assert written["kind"] == (POSTED[path].kind if path in POSTED else "other")
    assert written["attempts"] == [{"endpoint": engine.url.removeprefix("http://"), "outcome": "200"}]
    assert len(written["decisions"]) == 1
    assert 'twohop_requests_total{code="200",model="m",route="single"} 1.0' in metrics
    assert 'twohop_prompt_tokens_total{model="m"} 3.0' in metrics
    assert 'twohop_queue_seconds_count{band="standard"} 1.0' in metrics


@pytest.mark.parametrize("path", PATHS)
async def test_every_route_is_refused_under_the_same_limits(path):
    async with fake_engine() as engine, run_gateway([engine.url], limits={"body_bytes": 2000}) as gateway:
        large = await post(gateway, path, filler=b"z" * 2000)
        assert (large.status_code, told(large, path)["code"]) == (413, "body_too_large")
        unknown = await post(gateway, path, model="other")
        assert (unknown.status_code, told(unknown, path)["code"]) == (404, "model_not_found")
        nameless = await post(gateway, path, model="")
        assert (nameless.status_code, told(nameless, path)["code"]) == (400, "invalid_request")
        broken = await gateway.client.post(path, content=b"--", headers=body_of(path)[1])
        assert (broken.status_code, told(broken, path)["code"]) == (400, "invalid_request")
        metrics = await gateway.metrics()
        if path not in OTHERS:
            wrong = await gateway.client.put(path)
            assert (wrong.status_code, wrong.headers["allow"]) == (405, "POST")
            assert told(wrong, path)["code"] == "invalid_request"
        assert engine.calls == []
    assert 'twohop_requests_total{code="404",model="unknown",route="none"} 1.0' in metrics


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/audio/transcriptions", "/tokenize", "/v1/x"])
async def test_every_route_waits_in_the_same_line(path):
    free = asyncio.Event()

    async def slow(call: Call) -> None:
        await free.wait()
        call.answer(200, ANSWER)

    flow = {"max_in_flight_per_endpoint": 1, "max_queue": 1}
    async with fake_engine(slow) as engine, run_gateway([engine.url], flow_control=flow) as gateway:
        first = asyncio.ensure_future(post(gateway, "/v1/completions"))
        await gateway.until(lambda: engine.calls, "the first")
        second = asyncio.ensure_future(post(gateway, path))
        await gateway.until(lambda: gateway.parts.admission.waiting, "the second to wait")
        third = await post(gateway, path)
        assert (third.status_code, told(third, path)["code"]) == (429, "queue_full")
        assert int(third.headers["retry-after"]) >= 1
        free.set()
        assert [(await one).status_code for one in (first, second)] == [200, 200]


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/messages", "/v1/audio/transcriptions", "/v1/x"])
async def test_every_routes_stream_passes_byte_for_byte(path):
    events = [
        b'event: response.created\r\ndata: {"response":{"id":"resp_1"}}\r\n\r\n',
        b": ping\n\nda",
        b'ta:{"x":"\xe6',
        b'\xbc\xa2"}\n\nevent: message_stop\ndata: {}\n\n',
    ]

    async def stream(call: Call) -> None:
        call.start_stream()
        for event in events:
            call.chunk(event)
            await call.writer.drain()
        call.end_stream()

    async with fake_engine(stream) as engine, run_gateway([engine.url]) as gateway:
        reply = await post(gateway, path)
        assert reply.content == b"".join(events)
        assert reply.headers["content-type"] == "text/event-stream"


async def test_a_large_upload_passes_as_it_came():
    async with fake_engine(answer) as engine, run_gateway([engine.url]) as gateway:
        filler = bytes(range(256)) * 40_000
        assert (await post(gateway, FORMS[0], filler=filler)).status_code == 200
        assert engine.calls[0].body == body_of(FORMS[0], filler=filler)[0]


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/responses"])
async def test_a_stream_that_breaks_ends_with_an_error_of_the_routes_shape(path):
    async def break_off(call: Call) -> None:
        call.start_stream()
        call.chunk(b"data: 1\n\n")
        await call.writer.drain()
        call.writer.close()

    async with fake_engine(break_off) as engine, run_gateway([engine.url]) as gateway:
        last = (await post(gateway, path)).content.removeprefix(b"data: 1\n\n")
    if path in ANTHROPIC:
        assert last.startswith(b"event: error\ndata: ")
        assert json.loads(last.split(b"data: ")[1])["type"] == "error"
    else:
        assert last.startswith(b'data: {"error":')
    assert json.loads(last.split(b"data: ")[1])["error"]["code"] == "upstream_failed"


@pytest.mark.parametrize(
    "opening", [b'event: error\ndata: {"type":"error","error":{"type":"api_error"}}\n\n', b'data: {"error":{}}\n\n']
)
async def test_a_stream_that_begins_with_an_error_is_tried_elsewhere(opening):
    async def fail(call: Call) -> None:
        call.start_stream()
        call.chunk(opening)
        call.end_stream()

    async with (
        fake_engine(fail) as bad,
        fake_engine(answer, waiting=100) as good,
        run_gateway([bad.url, good.url]) as gateway,
    ):
        await gateway.until(lambda: all(one.load for one in gateway.parts.pool), "scrapes")
        reply = await post(gateway, "/v1/messages")
        assert (reply.status_code, reply.content) == (200, ANSWER)
        assert len(bad.calls) == 1


@pytest.mark.parametrize(
    "target",
    [
        "/v1/load_lora_adapter",
        "/v1/unload_lora_adapter",
        "/v1/load_lora_adapter/",
        "/v1//load_lora_adapter",
        "//v1/load_lora_adapter",
        "/v1/%6coad_lora_adapter",
        "/v1/%256coad_lora_adapter",
        "/v1/x/../load_lora_adapter",
        "/v1/x/%2e%2e/load_lora_adapter",
        "/v1/x%2f..%2fload_lora_adapter",
        "/v1%2fload_lora_adapter",
        "/%76%31/load_lora_adapter",
        "/v1/LOAD_LORA_ADAPTER",
        "/v1/load_lora_adapter%00",
        "/v1/load_lora_adapter;a=b",
        "/v1/load_lora_adapter?x=1",
        "/sleep",
        "/v2/x",
        "/v1/x/",
    ],
)
async def test_no_spelling_of_what_only_operators_may_do_reaches_an_engine(target):
    async with fake_engine(answer) as engine, run_gateway([engine.url]) as gateway:
        reader, writer = await asyncio.open_connection(*gateway.address)
        head = f"POST {target} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: 13\r\n\r\n"
        writer.write(head.encode() + b'{"model":"m"}')
        reply = await reader.read()
        writer.close()
        assert reply.startswith(b"HTTP/1.1 404"), reply
        assert b'"code":"not_found"' in reply
        assert engine.calls == []


async def test_model_ids_with_slashes_are_found_in_every_spelling():
    """A19."""
    names = ["org/name-7b", "/models/x", "plain", "a/b/c"]
    async with fake_engine(answer, models=names) as engine, run_gateway([engine.url]) as gateway:
        listed = (await gateway.client.get("/v1/models")).json()["data"]
        assert [entry["id"] for entry in listed] == names
        for name in names:
            for spelled in (name, name.replace("/", "%2F"), name.replace("/", "%2f")):
                reply = await gateway.client.get(f"/v1/models/{spelled}")
                assert (reply.status_code, reply.json()["id"]) == (200, name)
            assert (await post(gateway, "/v1/chat/completions", model=name)).status_code == 200
        for unknown in ("org/other", "org%2Fother", "org", "name-7b", "/plain/", "models/x"):
            reply = await gateway.client.get(f"/v1/models/{unknown}")
            assert (reply.status_code, told(reply, "")["code"]) == (404, "model_not_found")
        metrics = await gateway.metrics()
    for name in names:
        assert f'twohop_requests_total{{code="200",model="{name}",route="single"}} 1.0' in metrics


async def test_other_methods_are_told_what_is_allowed():
    async with fake_engine(answer) as engine, run_gateway([engine.url]) as gateway:
        for path in ("/v1/models", "/v1/models/m", "/healthz", "/readyz", "/metrics"):
            shown = await gateway.client.head(path)
            assert (shown.status_code, shown.content) == (200, b"")
            for method in ("POST", "OPTIONS", "DELETE"):
                reply = await gateway.client.request(method, path, json={"model": "m"})
                assert reply.status_code == 405
                assert set(reply.headers["allow"].split(", ")) == {"GET", "HEAD"}
        options = await gateway.client.options("/v1/chat/completions")
        assert (options.status_code, options.headers["allow"]) == (405, "POST")
        absent = await gateway.client.get("/v1/messages/none")
        assert told(absent, "/v1/messages")["code"] == "not_found"
        assert engine.calls == []
