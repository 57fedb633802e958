"""Two hops: what each leg gets, what is handed over, and every way back to one hop."""

import asyncio
import json
from contextlib import asynccontextmanager

import pytest

from tests.engines import sim_engine, sim_pair
from tests.fakes.engine import Call, FakeEngine, fake_engine
from tests.gateways import run_gateway

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
PARAMS = (
    '{"do_remote_prefill":true,"do_remote_decode":false,"remote_engine_id":"e","remote_block_ids":[[1,2]],'
    '"remote_host":"127.0.0.1","remote_port":5600, "x_unknown":7}'
)
USAGE = '"usage":{"prompt_tokens":9,"completion_tokens":1,"prompt_tokens_details":{"cached_tokens":%d}}'


def prefill_answer(params: str | None = PARAMS, cached: int = 4) -> bytes:
    """Return a prefill engine's answer."""
    tail = "" if params is None else f',"kv_transfer_params":{params}'
    return f'{{"id":"p","choices":[],{USAGE % cached}{tail}}}'.encode()


async def hand_over(call: Call) -> None:
    call.answer(200, prefill_answer())


async def decode(call: Call) -> None:
    if call.json.get("stream"):
        call.start_stream()
        call.chunk(b'data: {"choices":[{"delta":{"content":"hi"}}]}\n\n')
        call.chunk(f'data: {{"choices":[],{USAGE % 8}}}\n\n'.encode())
        call.chunk(b"data: [DONE]\n\n")
        call.end_stream()
    else:
        call.answer(200, f'{{"id":"d",{USAGE % 8}}}'.encode())


@asynccontextmanager
async def pair(prefill=hand_over, decoder=decode, **sections):
    """Run one prefill and one decode engine with a gateway before them."""
    async with fake_engine(prefill) as one, fake_engine(decoder) as two:
        endpoints = [
            {"url": one.url, "name": "p", "role": "prefill"},
            {"url": two.url, "name": "d", "role": "decode"},
        ]
        async with run_gateway(endpoints, routing={"receipt_headers": True}, **sections) as gateway:
            yield one, two, gateway


def ids(engine: FakeEngine) -> list[str | None]:
    return [call.header("x-request-id") for call in engine.calls]


async def test_each_leg_gets_what_it_needs():
    sent = {
        **CHAT,
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_tokens": 500,
        "max_completion_tokens": 400,
        "min_tokens": 100,
        "seed": 9007199254740993,
        "kv_transfer_params": {"remote_host": "evil"},
    }
    async with pair() as (prefill, decoder, gateway):
        reply = await gateway.client.post("/v1/chat/completions", json=sent)
        metrics = await gateway.metrics()
    first, second = prefill.calls[0].json, decoder.calls[0].json
    assert first["stream"] is False
    assert first["max_tokens"] == first["max_completion_tokens"] == 1
    assert not first.keys() & {"stream_options", "min_tokens"}
    assert first["seed"] == 9007199254740993
    assert first["kv_transfer_params"] == {
        "do_remote_decode": True,
        "do_remote_prefill": False,
        "remote_engine_id": None,
        "remote_block_ids": None,
        "remote_host": None,
        "remote_port": None,
    }
    assert second == {**sent, "kv_transfer_params": json.loads(PARAMS)}
    assert decoder.calls[0].body.count(PARAMS.encode()) == 1
    assert ids(prefill) == ids(decoder)
    assert b'"content":"hi"' in reply.content
    assert b'"cached_tokens":4' in reply.content
    assert b'"cached_tokens":8' not in reply.content
    assert reply.headers["x-twohop-route"] == "two_hop"
    assert (reply.headers["x-twohop-prefill"], reply.headers["x-twohop-endpoint"]) == ("p", "d")
    assert 'twohop_two_hop_total{outcome="ok"} 1.0' in metrics


async def test_plain_answers_show_the_prefill_legs_cached_tokens():
    async with pair() as (_, _, gateway):
        reply = await gateway.client.post("/v1/chat/completions", json=CHAT)
        assert reply.json()["usage"]["prompt_tokens_details"] == {"cached_tokens": 4}
        assert int(reply.headers["content-length"]) == len(reply.content)


@pytest.mark.parametrize(
    ("params", "reason"),
    [
        (None, "prefill_no_params"),
        ("null", "prefill_no_params"),
        ("{}", "prefill_empty_params"),
        ("[1]", "prefill_wrong_params"),
        ('"x"', "prefill_wrong_params"),
        ('{"remote_engine_id":"e"}', "prefill_wrong_params"),
    ],
)
async def test_an_answer_without_usable_params_means_one_hop(params, reason):
    async def answer(call: Call) -> None:
        call.answer(200, prefill_answer(params))

    async with pair(answer) as (_, decoder, gateway):
        reply = await gateway.client.post("/v1/chat/completions", json=CHAT)
        metrics = await gateway.metrics()
    assert reply.json()["usage"]["prompt_tokens_details"] == {"cached_tokens": 8}
    assert decoder.calls[0].json == CHAT
    assert (reply.headers["x-twohop-route"], reply.headers["x-twohop-reason"]) == ("single", reason)
    assert f'twohop_two_hop_total{{outcome="{reason}"}} 1.0' in metrics


@pytest.mark.parametrize("how", ["500", "400", "cut", "garbage", "truncated", "hang"])
async def test_a_failed_prefill_means_one_hop(how):
    async def fail(call: Call) -> None:
        if how.isdigit():
            call.answer(int(how), {"error": {"message": "no"}})
        elif how == "cut":
            call.cut()
        elif how == "garbage":
            call.write(b"hello\r\n\r\n")
        elif how == "truncated":
            call.write(b'HTTP/1.1 200 OK\r\ncontent-length: 900\r\n\r\n{"kv_transfer')
            await call.writer.drain()
            call.writer.close()
        else:
            await call.gone()

    async with pair(fail, timeouts={"prefill_s": 0.2}) as (_, decoder, gateway):
        reply = await gateway.client.post("/v1/chat/completions", json=CHAT)
        assert reply.status_code == 200
        assert decoder.calls[0].json == CHAT
        assert reply.headers["x-twohop-reason"].startswith("prefill_")
        await gateway.until_idle()


async def test_a_prefill_engine_that_refuses_connections_means_one_hop():
    async with fake_engine(hand_over) as prefill, fake_engine(decode) as decoder:
        endpoints = [{"url": prefill.url, "role": "prefill"}, {"url": decoder.url, "role": "decode"}]
        async with run_gateway(endpoints, routing={"receipt_headers": True}) as gateway:
            prefill.stop_listening()
            reply = await gateway.client.post("/v1/chat/completions", json=CHAT)
            assert (reply.status_code, reply.headers["x-twohop-reason"]) == (200, "prefill_connect")


async def test_a_decode_engine_that_fails_is_left_and_the_handoff_is_not_used_twice():
    async def fail(call: Call) -> None:
        call.answer(500, {"error": {"message": "kv load failed"}})

    async with fake_engine(hand_over) as prefill, fake_engine(fail) as bad, fake_engine(decode) as good:
        endpoints = [
            {"url": prefill.url, "role": "prefill"},
            {"url": bad.url, "role": "decode"},
            {"url": good.url, "role": "decode"},
        ]
        async with run_gateway(endpoints) as gateway:
            while not bad.calls:
                good.calls.clear()
                reply = await gateway.client.post("/v1/chat/completions", json=CHAT)
                assert reply.status_code == 200
            assert bad.calls[0].json["kv_transfer_params"]
            assert good.calls[0].json == CHAT
            assert 'outcome="decode_failed"' in await gateway.metrics()
            await gateway.until_idle()


async def test_a_decode_4xx_passes_and_prefill_runs_once():
    async def refuse(call: Call) -> None:
        call.answer(400, {"error": {"message": "no"}})

    async with pair(decoder=refuse) as (prefill, decoder, gateway):
        reply = await gateway.client.post("/v1/chat/completions", json=CHAT)
        assert (reply.status_code, reply.json()) == (400, {"error": {"message": "no"}})
        assert (len(prefill.calls), len(decoder.calls)) == (1, 1)
        metrics = await gateway.metrics()
        assert 'twohop_two_hop_total{outcome="decode_400"} 1.0' in metrics
        assert "twohop_handoff_orphaned_total 1.0" in metrics


@pytest.mark.parametrize(
    ("path", "extra"),
    [
        ("/v1/completions", {"prompt": ["aaa", "bbb"]}),
        ("/v1/completions", {"prompt": [[1, 2], [3]]}),
        ("/v1/completions", {"prompt": "a", "echo": True}),
        ("/v1/completions", {"prompt": "a", "prompt_embeds": "QUJD"}),
        ("/v1/completions", {"prompt": "a", "best_of": 2}),
        ("/v1/chat/completions", {"messages": [], "n": 2}),
        ("/v1/chat/completions", {"messages": [], "prompt_logprobs": 1}),
    ],
)
async def test_what_one_handoff_cannot_serve_takes_one_hop(path, extra):
    async with pair() as (prefill, decoder, gateway):
        sent = {"model": "m", **extra}
        assert (await gateway.client.post(path, json=sent)).status_code == 200
        assert prefill.calls == []
        assert decoder.calls[0].json == sent


@pytest.mark.parametrize("prompt", ["aaa", [1, 2, 3], []])
async def test_one_prompt_in_any_shape_takes_two_hops(prompt):
    async with pair() as (prefill, decoder, gateway):
        await gateway.client.post("/v1/completions", json={"model": "m", "prompt": prompt})
        assert len(prefill.calls) == len(decoder.calls) == 1


async def test_mode_never_takes_one_hop():
    async with pair(disaggregation={"mode": "never"}) as (prefill, _, gateway):
        reply = await gateway.client.post("/v1/chat/completions", json=CHAT)
        assert (prefill.calls, reply.headers["x-twohop-reason"]) == ([], "mode_never")


async def test_endpoints_of_role_both_pair_only_with_an_explicit_role():
    async with fake_engine(decode) as one, fake_engine(decode) as two, run_gateway([one.url, two.url]) as gateway:
        await gateway.client.post("/v1/chat/completions", json=CHAT)
        assert len(one.calls) + len(two.calls) == 1
    async with fake_engine(hand_over) as prefill, fake_engine(decode) as both:
        async with run_gateway([{"url": prefill.url, "role": "prefill"}, both.url]) as gateway:
            await gateway.client.post("/v1/chat/completions", json=CHAT)
            assert (len(prefill.calls), len(both.calls)) == (1, 1)
    async with fake_engine(hand_over) as both, fake_engine(decode) as decoder:
        async with run_gateway([both.url, {"url": decoder.url, "role": "decode"}]) as gateway:
            for _ in range(4):
                both.calls.clear()
                decoder.calls.clear()
                await gateway.client.post("/v1/chat/completions", json=CHAT)
                assert (len(both.calls), len(decoder.calls)) == (1, 1)


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
async def test_on_simulated_engines_two_hops_give_the_text_of_one(path, streamed):
    body = {"model": "sim", "max_tokens": 12, "temperature": 0, "stream": streamed}
    text = "the quick brown fox jumps over the lazy dog " * 12
    body |= {"prompt": text} if path == "/v1/completions" else {"messages": [{"role": "user", "content": text}]}
    async with sim_pair(models=["sim"]) as (prefill, decoder), sim_engine(models=["sim"]) as alone:
        endpoints = [{"url": prefill.url, "role": "prefill"}, {"url": decoder.url, "role": "decode"}]
        async with run_gateway(endpoints) as gateway, run_gateway([alone.url]) as single:
            two = await gateway.client.post(path, json=body)
            one = await single.client.post(path, json=body)
            assert two.status_code == one.status_code == 200
            assert _texts(two.content, streamed) == _texts(one.content, streamed) != ""
            counted = (await gateway.client.get(f"{decoder.url}/metrics")).text
    (pulled,) = [float(line.split()[-1]) for line in counted.splitlines() if 'source="external_kv_transfer"' in line]
    assert pulled > 50


def _texts(content: bytes, streamed: bool) -> str:
    if not streamed:
        events = [json.loads(content)]
    else:
        events = [json.loads(line[6:]) for line in content.split(b"\n\n") if line.startswith(b"data: {")]
    choices = [choice for event in events for choice in event["choices"]]
    return "".join(
        choice.get("text") or (choice.get("delta") or choice.get("message") or {}).get("content") or ""
        for choice in choices
    )


async def test_no_decode_leg_after_a_client_that_left_between_the_legs():
    arrived, left = asyncio.Event(), asyncio.Event()

    async def slow(call: Call) -> None:
        arrived.set()
        await left.wait()
        call.answer(200, prefill_answer())

    async with pair(slow) as (_, decoder, gateway):
        task = asyncio.ensure_future(gateway.client.post("/v1/chat/completions", json=CHAT))
        await arrived.wait()
        task.cancel()
        await asyncio.wait([task])
        await gateway.until_idle()
        left.set()
        await gateway.client.get("/healthz")
        assert decoder.calls == []
        metrics = await gateway.metrics()
        assert "twohop_client_disconnects_total 1.0" in metrics
        assert 'twohop_two_hop_total{outcome="client_left"} 1.0' in metrics


async def test_a_decode_that_never_answers_is_no_good_outcome():
    async def hang(call: Call) -> None:
        await call.gone()

    async with pair(decoder=hang, timeouts={"first_byte_s": 0.2}) as (_, _, gateway):
        reply = await gateway.client.post("/v1/chat/completions", json=CHAT)
        assert reply.status_code == 504
        metrics = await gateway.metrics()
        assert 'twohop_two_hop_total{outcome="upstream_timeout"} 1.0' in metrics
        assert "twohop_handoff_orphaned_total 1.0" in metrics


async def test_full_decode_engines_make_a_request_wait_not_run_on_a_prefill_engine():
    release = asyncio.Event()

    async def slow(call: Call) -> None:
        await release.wait()
        await decode(call)

    async with pair(decoder=slow, flow_control={"max_in_flight_per_endpoint": 1}) as (prefill, decoder, gateway):
        first = asyncio.ensure_future(gateway.client.post("/v1/chat/completions", json=CHAT))
        await gateway.until(lambda: len(decoder.calls) == 1, "the first to be decoded")
        second = asyncio.ensure_future(gateway.client.post("/v1/chat/completions", json=CHAT))
        await gateway.until(lambda: gateway.parts.admission.waiting == 1, "the second to wait")
        assert len(prefill.calls) == 1
        release.set()
        assert [(await one).headers["x-twohop-route"] for one in (first, second)] == ["two_hop", "two_hop"]


async def test_a_prefill_engine_serves_alone_when_nothing_else_is_left():
    async with fake_engine(decode) as prefill, run_gateway([{"url": prefill.url, "role": "prefill"}]) as gateway:
        assert (await gateway.client.post("/v1/chat/completions", json=CHAT)).status_code == 200


async def test_without_any_decode_engine_a_prefill_engine_does_the_whole_work():
    served: list[Call] = []

    async def both_ways(call: Call) -> None:
        served.append(call)
        await (hand_over if "kv_transfer_params" in call.json else decode)(call)

    async with pair(both_ways) as (_, decoder, gateway):
        decoder.stop_listening()
        reply = await gateway.client.post("/v1/chat/completions", json=CHAT)
        assert (reply.status_code, reply.headers["x-twohop-endpoint"]) == (200, "p")
        assert reply.headers["x-twohop-reason"] == "decode_failed"
        assert served[-1].json == CHAT
        await gateway.until_idle()
