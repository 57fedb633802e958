"""A stream whose engine is lost goes on elsewhere without a seam, where that is switched on and may be."""

import json
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import httpx
import pytest

from tests.engines import sim_engines
from tests.fakes.engine import Call, fake_engine
from tests.gateways import run_gateway

TEXT = {"model": "m", "prompt": "Once", "stream": True, "max_tokens": 10}
CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "stream": True, "max_tokens": 10}
PATHS = {"/v1/completions": TEXT, "/v1/chat/completions": CHAT}
USAGE = {"prompt_tokens": 7, "completion_tokens": 2, "total_tokens": 9}
DONE = b"data: [DONE]\n\n"


def event(path: str, id_: str, text: str, **more: Any) -> bytes:
    """Return one event of a stream."""
    chat = path.endswith("chat/completions")
    said = {"delta": {"content": text, **({"role": "assistant"} if "role" in more else {})}} if chat else {"text": text}
    choice = {"index": 0, **said, "finish_reason": more.get("finish")}
    created = 1 if id_ == "first" else 2
    return (
        b"data: "
        + json.dumps({"id": id_, "created": created, "choices": [choice]}, separators=(",", ":")).encode()
        + b"\n\n"
    )


def breaks(path: str) -> Callable[[Call], Awaitable[None]]:
    """Return an engine that says two tokens and a half, and is lost; asked to go on, it says two more."""

    async def handler(call: Call) -> None:
        call.start_stream()
        body = call.json
        goes_on = body.get("continue_final_message") or body.get("prompt") == "Once upon a"
        if path.endswith("chat/completions"):
            call.chunk(event(path, "second" if goes_on else "first", "", role=True))
        if goes_on:
            call.chunk(event(path, "second", " time") + event(path, "second", ".", finish="stop"))
            call.chunk(
                b'data: {"id":"second","created":2,"choices":[],"usage":%b}\n\n' % json.dumps(USAGE).encode() + DONE
            )
            call.end_stream()
            return
        call.chunk(event(path, "first", " upon"))
        call.chunk(event(path, "first", " a") + event(path, "first", " lost")[:-20])
        await call.writer.drain()
        call.writer.close()

    return handler


def expected(path: str) -> bytes:
    """Return the whole stream as one engine would have said it."""
    opening = event(path, "first", "", role=True) if path.endswith("chat/completions") else b""
    words = b"".join(event(path, "first", word) for word in (" upon", " a", " time"))
    return opening + words + event(path, "first", ".", finish="stop")


@pytest.mark.parametrize("asked", [True, False])
@pytest.mark.parametrize("path", PATHS)
async def test_another_engine_says_the_rest(path, asked):
    body = PATHS[path] | ({"stream_options": {"include_usage": True}} if asked else {})
    async with (
        fake_engine(breaks(path)) as one,
        fake_engine(breaks(path)) as other,
        run_gateway([one.url, other.url], continuation=True) as gateway,
    ):
        reply = await gateway.client.post(path, json=body)
        # The second engine counts what was said before as prompt; for the client it is output.
        usage = {"prompt_tokens": 5, "completion_tokens": 4, "total_tokens": 9}
        told = (
            b'data: {"id":"first","created":1,"choices":[],"usage":%b}\n\n'
            % json.dumps(usage, separators=(",", ":")).encode()
        )
        assert reply.content == expected(path) + (told if asked else b"") + DONE
        [second] = [call.json for call in one.calls + other.calls if call.json["max_tokens"] != 10]
        assert second["max_tokens"] == 8
        [receipt] = gateway.parts.receipts.latest(1)
        assert (receipt.prompt_tokens, receipt.output_tokens, receipt.status) == (5, 4, 200)
        assert [outcome for _, outcome in receipt.attempts] == ["200", "200"]
        assert 'twohop_retries_total{reason="continued"} 1' in await gateway.metrics()
        await gateway.until_idle()


@pytest.mark.parametrize(
    "more", [{"n": 2}, {"tools": [{"type": "function"}]}, {"logprobs": True}, {"presence_penalty": 0.5}]
)
async def test_what_cannot_be_continued_ends_in_one_error(more):
    path = "/v1/chat/completions"
    async with (
        fake_engine(breaks(path)) as one,
        fake_engine(breaks(path)) as other,
        run_gateway([one.url, other.url], continuation=True) as gateway,
    ):
        reply = await gateway.client.post(path, json=CHAT | more)
        assert b'"code":"upstream_failed"' in reply.content
        assert DONE not in reply.content
        assert len(one.calls + other.calls) == 1


@pytest.mark.parametrize("settings", [{}, {"continuation": False}])
async def test_it_is_off_by_default(settings):
    path = "/v1/completions"
    async with (
        fake_engine(breaks(path)) as one,
        fake_engine(breaks(path)) as other,
        run_gateway([one.url, other.url], **settings) as gateway,
    ):
        reply = await gateway.client.post(path, json=TEXT)
        assert b'"code":"upstream_failed"' in reply.content
        assert len(one.calls + other.calls) == 1


async def test_with_nobody_left_the_failure_is_told():
    path = "/v1/completions"
    async with fake_engine(breaks(path)) as one, run_gateway([one.url], continuation=True) as gateway:
        reply = await gateway.client.post(path, json=TEXT)
        assert reply.content.startswith(event(path, "first", " upon") + event(path, "first", " a") + b'data: {"error"')
        assert reply.content.count(b'"error"') == 1
        await gateway.until_idle()


def said(stream: bytes, chat: bool) -> str:
    """Return the text of a stream."""
    events = [json.loads(one[6:]) for one in stream.decode().split("\n\n") if one.startswith("data: {")]
    assert len({one["id"] for one in events}) == 1
    choices = [choice for one in events for choice in one["choices"]]
    return "".join(choice["delta"].get("content") or "" if chat else choice["text"] for choice in choices)


@pytest.mark.parametrize("path", PATHS)
async def test_simulated_engines_say_the_same_as_one_that_is_not_lost(path):
    chat = path.endswith("chat/completions")
    body = PATHS[path] | {"model": "sim", "temperature": 0, "max_tokens": 40}

    async def cut_after(call: Call) -> None:
        """Pass on what the first engine says, up to a few events, and break off."""
        async with (
            httpx.AsyncClient() as client,
            client.stream("POST", f"{sims[0].url}{path}", content=call.body) as reply,
        ):
            call.start_stream()
            passed = b""
            async for piece in reply.aiter_raw():
                passed += piece
                if passed.count(b"\n\n") > 7:
                    break
            call.chunk(passed[: passed.rindex(b"\n\n") - 30])
            await call.writer.drain()
        call.cut()

    async with AsyncExitStack() as stack:
        sims = await stack.enter_async_context(sim_engines(2))
        broken = await stack.enter_async_context(fake_engine(cut_after, models=["sim"]))
        first = {"url": broken.url, "name": "broken"}
        gateway = await stack.enter_async_context(run_gateway([first], continuation=True))
        direct = (await gateway.client.post(f"{sims[1].url}{path}", json=body)).content
        lost = (await gateway.client.post(path, json=body)).content
        assert said(lost.partition(b'data: {"error"')[0], chat) != said(direct, chat)
        pair = await stack.enter_async_context(
            run_gateway(
                [first, {"url": sims[1].url, "name": "sim"}],
                continuation=True,
                routing={"scorers": {"queue_depth": 1.0}},
            )
        )
        for _ in range(6):
            reply = await pair.client.post(path, json=body)
            assert said(reply.content, chat) == said(direct, chat)
            assert reply.content.endswith(DONE)
            if any(name == "broken" for name, _ in pair.parts.receipts.latest(1)[0].attempts):
                break
        else:
            pytest.fail("the engine that breaks was never asked first")
        [receipt] = pair.parts.receipts.latest(1)
        assert receipt.output_tokens == 40
