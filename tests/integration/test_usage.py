"""Tokens are counted for every stream, and a client that did not ask for usage sees none (cases A12, A26)."""

import asyncio
import json
import re
from collections.abc import Awaitable, Callable
from itertools import pairwise, product
from typing import Any

import pytest

from tests.engines import sim_engine, sim_pair
from tests.fakes.engine import Call, fake_engine
from tests.gateways import Running, run_gateway

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hello"}], "stream": True}
ASKED = {**CHAT, "stream_options": {"include_usage": True}}
HEAD = b'data: {"id":"c","object":"chat.completion.chunk","choices":['
CONTENT = HEAD + b'{"index":0,"delta":{"content":"h\xc3\xa9"},"finish_reason":null}]}\n\n'
USAGE = HEAD + b'],"usage":{"prompt_tokens":21,"total_tokens":55,"completion_tokens":34}}\n\n'
PACKED = CONTENT.replace(b"]}\n", b'],"usage":{"prompt_tokens":21,"completion_tokens":34}}\n')
DONE = b"data: [DONE]\n\n"

TOLD = re.compile(r'twohop_(prompt|output)_tokens_total\{model="[^"]*"\} ([\d.]+)')


async def counted(gateway: Running) -> dict[str, float]:
    """Return the counters of tokens."""
    return {name: float(count) for name, count in TOLD.findall(await gateway.metrics())}


def writes(pieces: list[bytes]) -> Callable[[Call], Awaitable[None]]:
    """Return a handler that sends each piece as a chunk of its own."""

    async def handler(call: Call) -> None:
        call.start_stream()
        for piece in pieces:
            call.chunk(piece)
            await call.writer.drain()
        call.end_stream()

    return handler


def cut(stream: bytes, *places: int) -> list[bytes]:
    """Cut a stream at these places."""
    marks = [0, *places, len(stream)]
    return [stream[start:end] for start, end in pairwise(marks)]


WHOLE = CONTENT + USAGE + DONE
MIDDLE = len(CONTENT) + USAGE.index(b'"usage"') + 4
VARIANTS = {
    "alone": [CONTENT, USAGE, DONE],
    "glued": [CONTENT + USAGE, DONE],
    "in front of the end": [CONTENT, USAGE + DONE],
    "in one": [WHOLE],
    "cut in two": cut(WHOLE, MIDDLE),
    "cut in three": cut(WHOLE, MIDDLE, MIDDLE + 20, len(WHOLE) - len(DONE)),
    "cut in a character": cut(WHOLE, CONTENT.index(b"\xc3") + 1),
    "byte by byte": [bytes((byte,)) for byte in WHOLE],
    "no blank line": [CONTENT, USAGE[:-2]],
    "one line end": [CONTENT, USAGE[:-1]],
    "CRLF": [part.replace(b"\n", b"\r\n") for part in (CONTENT, USAGE, DONE)],
}


@pytest.mark.parametrize("name", VARIANTS)
async def test_every_variant_counts_once_and_shows_what_was_asked(name):
    pieces = VARIANTS[name]
    stream = b"".join(pieces)
    event = USAGE.replace(b"\n", b"\r\n") if name == "CRLF" else USAGE
    without = stream.replace(event, b"").replace(event.rstrip(b"\n"), b"")
    if name == "one line end":
        without = CONTENT
    async with fake_engine(writes(pieces)) as engine, run_gateway([engine.url]) as gateway:
        for times, (body, seen) in enumerate(((CHAT, without), (ASKED, stream)), 1):
            reply = await gateway.client.post("/v1/chat/completions", json=body)
            assert reply.content == seen
            assert await counted(gateway) == {"prompt": 21 * times, "output": 34 * times}
        assert [call.json for call in engine.calls] == [ASKED, ASKED]


async def test_the_engine_gets_the_clients_own_bytes_but_for_the_one_member():
    first = b'{"stream_options":{"include_usage":true},'
    spaced = b' "model": "m", "prompt" : "x",\n"stream":true }'
    broken = b'"model":"m","prompt":"\\ud800","stream":true}'
    stream = b'"model":"m","stream":true,'
    bodies = [
        (b"{" + spaced, first + spaced),
        (b"{" + broken, first + broken),
        (b"{" + stream + b'"stream_options":null}', b"{" + stream + b'"stream_options":{"include_usage":true}}'),
        (b"{" + stream + b'"kv_transfer_params":{"x":1},"n":1}', first + stream + b'"n":1}'),
        (b'{"model":"m","stream":false,"x": 1}', None),
        (b"{" + stream + b'"stream_options":{"include_usage": true}}', None),
    ]
    async with fake_engine(writes([CONTENT, DONE])) as engine, run_gateway([engine.url]) as gateway:
        for sent, wanted in bodies:
            reply = await gateway.client.post("/v1/completions", content=sent, headers={"accept-encoding": "gzip"})
            assert reply.status_code == 200
            call = engine.calls[-1]
            assert call.body == (wanted or sent)
            # What is packed could not be taken out of.
            assert (call.header("accept-encoding") is None) is (wanted is not None)


async def test_usage_beside_the_last_token_stays_and_counts():
    async with fake_engine(writes([CONTENT, PACKED, DONE])) as engine, run_gateway([engine.url]) as gateway:
        reply = await gateway.client.post("/v1/chat/completions", json=CHAT)
        assert reply.content == CONTENT + PACKED + DONE
        assert await counted(gateway) == {"prompt": 21, "output": 34}


async def test_null_usages_that_a_chat_engine_adds_because_it_was_asked_go_with_the_event():
    asked = CONTENT.replace(b"}]}", b'}],"usage":null}')
    async with fake_engine(writes([asked, asked[:90], asked[90:] + USAGE, DONE])) as engine:
        async with run_gateway([engine.url]) as gateway:
            assert (await gateway.client.post("/v1/chat/completions", json=CHAT)).content == CONTENT + CONTENT + DONE
            reply = await gateway.client.post("/v1/completions", json={**CHAT, "prompt": "x"})
            assert reply.content == asked + asked + DONE


async def test_a_stream_of_stated_length_states_the_length_that_is_left():
    async def sized(call: Call) -> None:
        head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: {}\r\n\r\n"
        call.write(head.format(len(WHOLE)).encode() + WHOLE)

    async with fake_engine(sized) as engine, run_gateway([engine.url]) as gateway:
        assert (await gateway.client.post("/v1/chat/completions", json=CHAT)).content == CONTENT + DONE
        assert (await gateway.client.post("/v1/chat/completions", json=ASKED)).content == WHOLE


async def test_a_client_that_leaves_in_mid_stream_has_no_usage_but_the_next_has():
    async def first(call: Call) -> None:
        call.start_stream()
        call.chunk(CONTENT)
        if len(engine.calls) == 1:
            await call.gone()
        call.chunk(USAGE)
        call.end_stream()

    async with fake_engine(first) as engine, run_gateway([engine.url]) as gateway:
        async with gateway.client.stream("POST", "/v1/chat/completions", json=CHAT) as reply:
            await anext(reply.aiter_raw())
        await gateway.until_idle()
        assert (await gateway.client.post("/v1/chat/completions", json=CHAT)).content == CONTENT
        assert await counted(gateway) == {"prompt": 21, "output": 34}


async def test_other_formats_are_counted_as_they_pass():
    details = {"cached_tokens": 1}
    answers = [
        ({"input_tokens": 3, "output_tokens": 4, "input_tokens_details": details}, (3, 4)),
        ({"prompt_tokens": 5, "total_tokens": 5, "completion_tokens": 0, "prompt_tokens_details": None}, (5, 0)),
        ({"total_tokens": 7}, (7, 0)),
        ({"input_tokens": 2, "cache_read_input_tokens": 6, "output_tokens": 1}, (8, 1)),
    ]

    async def answer(call: Call) -> None:
        call.answer(200, {"id": "r", "usage": answers[len(engine.calls) - 1][0]})

    prompt = output = 0
    async with fake_engine(answer) as engine, run_gateway([engine.url]) as gateway:
        for _, (one, other) in answers:
            await gateway.client.post("/v1/chat/completions", json={**CHAT, "stream": False})
            prompt, output = prompt + one, output + other
            assert await counted(gateway) == {"prompt": prompt, "output": output}


def texts(stream: bytes) -> list[Any]:
    """Return the choices of each event of a stream."""
    events = [event[6:] for event in stream.decode().split("\n\n") if event]
    return [event if event == "[DONE]" else json.loads(event)["choices"] for event in events]


@pytest.mark.parametrize(("chat", "two_hops"), list(product([True, False], [True, False])))
async def test_a_simulated_engine_answers_as_without_the_gateway_and_is_counted(chat, two_hops):
    path = "/v1/chat/completions" if chat else "/v1/completions"
    body = {
        "model": "sim",
        "stream": True,
        "max_tokens": 9,
        "temperature": 0,
        "messages": CHAT["messages"],
        "prompt": "x",
    }
    body.pop("prompt" if chat else "messages")
    async with sim_engine() as alone, run_gateway([alone.url]) as gateway:
        direct = texts((await gateway.client.post(f"{alone.url}{path}", json=body)).content)
    async with sim_pair() as (prefill, decode):
        roles = ("prefill", "decode") if two_hops else ("both", "both")
        listed = [{"url": one.url, "role": role} for one, role in zip((prefill, decode), roles, strict=True)]
        async with run_gateway(listed if two_hops else listed[1:]) as gateway:
            reply = await gateway.client.post(path, json=body)
            assert texts(reply.content) == direct
            assert b'"usage"' not in reply.content
            told = await counted(gateway)
            assert told["output"] == 9
            [receipt] = gateway.parts.receipts.latest(1)
            assert (receipt.route == "two_hop", receipt.prompt_tokens) == (two_hops, told["prompt"])


async def test_a_stream_that_is_packed_all_the_same_passes_at_once():
    packed = bytes(range(128, 192)) * 4  # no event ends in it

    async def handler(call: Call) -> None:
        call.start_stream("content-encoding: br\r\n")
        call.chunk(packed)
        await call.gone()

    async with fake_engine(handler) as engine, run_gateway([engine.url]) as gateway, asyncio.timeout(5):
        async with gateway.client.stream("POST", "/v1/chat/completions", json=CHAT) as reply:
            got = b""
            async for piece in reply.aiter_raw():
                got += piece
                if len(got) >= len(packed):
                    break
        assert got == packed
