"""The official `openai` client, unchanged, through the gateway to simulated engines: one hop and two."""

from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest

from tests.engines import sim_engine, sim_pair
from tests.gateways import Running, run_gateway

MESSAGES: Any = [{"role": "user", "content": "Name three colours, please, and say why."}]
TOOLS: Any = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "Tell the weather",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        },
    }
]


@pytest.fixture(params=["single", "two_hop"])
async def gateway(request: pytest.FixtureRequest) -> AsyncIterator[Running]:
    if request.param == "single":
        async with sim_engine(models=["sim"]) as engine, run_gateway([engine.url]) as running:
            yield running
    else:
        async with sim_pair(models=["sim"]) as (prefill, decode):
            endpoints = [{"url": prefill.url, "role": "prefill"}, {"url": decode.url, "role": "decode"}]
            async with run_gateway(endpoints) as running:
                yield running


@pytest.fixture
async def client(gateway: Running) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0) as made:
        yield made


async def test_chat(client):
    answer = await client.chat.completions.create(model="sim", messages=MESSAGES, max_tokens=8)
    assert answer.choices[0].message.content
    assert answer.usage.completion_tokens == 8


async def test_chat_stream_with_usage(client):
    whole = await client.chat.completions.create(model="sim", messages=MESSAGES, max_tokens=8, temperature=0)
    stream = await client.chat.completions.create(
        model="sim", messages=MESSAGES, max_tokens=8, temperature=0, stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == 8
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "length"


async def test_stream_without_usage(client):
    stream = await client.chat.completions.create(model="sim", messages=MESSAGES, max_tokens=3, stream=True)
    assert all(chunk.usage is None for chunk in [chunk async for chunk in stream])


async def test_completions(client):
    answer = await client.completions.create(model="sim", prompt="Once upon a time", max_tokens=5, temperature=0)
    stream = await client.completions.create(
        model="sim", prompt="Once upon a time", max_tokens=5, temperature=0, stream=True
    )
    assert "".join([chunk.choices[0].text async for chunk in stream]) == answer.choices[0].text


async def test_several_choices(client):
    answer = await client.chat.completions.create(model="sim", messages=MESSAGES, max_tokens=5, n=2)
    assert sorted(choice.index for choice in answer.choices) == [0, 1]
    stream = await client.chat.completions.create(model="sim", messages=MESSAGES, max_tokens=5, n=2, stream=True)
    assert {chunk.choices[0].index async for chunk in stream if chunk.choices} == {0, 1}
    listed = await client.completions.create(model="sim", prompt=["a b c", "d e f"], max_tokens=2)
    assert [choice.index for choice in listed.choices] == [0, 1]


async def test_logprobs(client):
    answer = await client.chat.completions.create(
        model="sim", messages=MESSAGES, max_tokens=4, logprobs=True, top_logprobs=2
    )
    tokens = answer.choices[0].logprobs.content
    assert len(tokens) == 4
    assert all(len(token.top_logprobs) == 2 and token.logprob <= 0 for token in tokens)
    stream = await client.chat.completions.create(
        model="sim", messages=MESSAGES, max_tokens=4, logprobs=True, top_logprobs=2, stream=True
    )
    streamed = [chunk.choices[0].logprobs async for chunk in stream if chunk.choices]
    assert sum(len(one.content) for one in streamed if one and one.content) == 4


async def test_tools(client):
    choice = {"type": "function", "function": {"name": "weather"}}
    answer = await client.chat.completions.create(
        model="sim", messages=MESSAGES, tools=TOOLS, tool_choice=choice, max_tokens=200
    )
    (call,) = answer.choices[0].message.tool_calls
    assert call.function.name == "weather"
    stream = await client.chat.completions.create(
        model="sim", messages=MESSAGES, tools=TOOLS, tool_choice=choice, max_tokens=200, stream=True
    )
    deltas = [chunk.choices[0].delta.tool_calls async for chunk in stream if chunk.choices]
    arguments = "".join(delta[0].function.arguments or "" for delta in deltas if delta)
    assert arguments == call.function.arguments


async def test_models(client):
    assert [model.id async for model in client.models.list()] == ["sim"]
    assert (await client.models.retrieve("sim")).id == "sim"
    with pytest.raises(openai.NotFoundError) as raised:
        await client.models.retrieve("none")
    assert raised.value.code == "model_not_found"


async def test_errors_are_the_clients_own_classes(client, gateway):
    with pytest.raises(openai.NotFoundError) as not_found:
        await client.chat.completions.create(model="none", messages=MESSAGES)
    assert (not_found.value.code, not_found.value.param) == ("model_not_found", "model")
    with pytest.raises(openai.BadRequestError):
        await client.chat.completions.create(model="sim", messages=MESSAGES, max_tokens=1, extra_body={"min_tokens": 9})
    with pytest.raises(openai.BadRequestError) as bad:
        await client.post("/chat/completions", cast_to=object, body={"messages": MESSAGES})
    assert bad.value.code == "invalid_request"
    for endpoint in gateway.parts.pool:
        endpoint.drain()
    object.__setattr__(gateway.parts.admission, "max_wait_s", 0.05)
    with pytest.raises(openai.InternalServerError) as unavailable:
        await client.chat.completions.create(model="sim", messages=MESSAGES)
    assert unavailable.value.code == "no_endpoint"
