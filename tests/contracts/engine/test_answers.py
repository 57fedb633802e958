"""Answers, chunks and usage of an engine, simulated or real."""

import asyncio
import json
from typing import Any

import httpx
import pytest

CHOICE = {"index", "message", "logprobs", "finish_reason", "stop_reason", "token_ids"}


def events(response: httpx.Response) -> list[dict[str, Any]]:
    """Return the chunks of a stream; it must end with [DONE]."""
    assert response.headers["content-type"].startswith("text/event-stream")
    lines = [line.removeprefix("data: ") for line in response.text.split("\n\n") if line]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


async def test_chat_answer(engine):
    answer = (await engine.chat(max_tokens=5, ignore_eos=True)).json()
    assert answer["object"] == "chat.completion"
    assert answer["id"].startswith("chatcmpl-")
    assert answer["model"] == engine.model
    assert answer["kv_transfer_params"] is None
    (choice,) = answer["choices"]
    assert choice.keys() >= CHOICE
    assert choice["finish_reason"] == "length"
    assert choice["message"]["role"] == "assistant"
    assert isinstance(choice["message"]["content"], str)
    usage = answer["usage"]
    assert usage["completion_tokens"] == 5
    assert usage["total_tokens"] == usage["prompt_tokens"] + 5
    assert usage["prompt_tokens_details"]["cached_tokens"] >= 0


async def test_chat_stream_says_what_the_whole_answer_says(engine):
    asked = {"max_tokens": 6, "ignore_eos": True}
    whole = (await engine.chat(**asked)).json()["choices"][0]["message"]["content"]
    chunks = events(await engine.chat(**asked, stream=True, stream_options={"include_usage": True}))
    first, *middle, last, usage = chunks
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert {chunk["id"] for chunk in chunks} == {first["id"]}
    assert all(chunk["choices"][0]["finish_reason"] is None for chunk in middle)
    assert last["choices"][0]["finish_reason"] == "length"
    assert "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks[:-1]) == whole
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] == 6
    assert "cached_tokens" in usage["usage"]["prompt_tokens_details"]


async def test_stream_without_usage_tells_none(engine):
    chunks = events(await engine.chat(max_tokens=3, ignore_eos=True, stream=True))
    assert all(chunk["choices"] for chunk in chunks)
    assert all(chunk.get("usage") is None for chunk in chunks)


async def test_continuous_usage_counts_up(engine):
    options = {"include_usage": True, "continuous_usage_stats": True}
    chunks = events(await engine.chat(max_tokens=3, ignore_eos=True, stream=True, stream_options=options))
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert counts == sorted(counts)
    assert (counts[0], counts[-1]) == (0, 3)


async def test_completion_answer(engine):
    answer = (await engine.complete(max_tokens=4, ignore_eos=True)).json()
    assert answer["object"] == "text_completion"
    assert answer["id"].startswith("cmpl-")
    (choice,) = answer["choices"]
    assert choice.keys() >= {"index", "text", "logprobs", "finish_reason", "stop_reason"}
    assert choice["finish_reason"] == "length"
    assert answer["usage"]["completion_tokens"] == 4


async def test_completion_stream_says_what_the_whole_answer_says(engine):
    asked = {"max_tokens": 6, "ignore_eos": True}
    whole = (await engine.complete(**asked)).json()["choices"][0]["text"]
    chunks = events(await engine.complete(**asked, stream=True))
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == whole
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks][-1] == "length"


async def test_max_tokens_defaults_to_16_for_text(engine):
    answer = (await engine.complete(ignore_eos=True)).json()
    assert answer["usage"]["completion_tokens"] == 16


async def test_max_completion_tokens_wins(engine):
    answer = (await engine.chat(max_completion_tokens=3, max_tokens=7, ignore_eos=True)).json()
    assert answer["usage"]["completion_tokens"] == 3


@pytest.mark.parametrize("stream", [False, True])
async def test_several_choices(engine, stream):
    asked = {"n": 3, "max_tokens": 4, "ignore_eos": True, "temperature": 1, "seed": 5}
    response = await engine.chat(**asked, stream=stream)
    answers = events(response) if stream else [response.json()]
    ends = [choice["index"] for answer in answers for choice in answer["choices"] if choice["finish_reason"]]
    assert sorted(ends) == [0, 1, 2]


async def test_several_prompts_times_several_choices(engine):
    prompts = ["One two", "Three four five"]
    answer = (await engine.complete(prompts, n=2, temperature=1, max_tokens=2, ignore_eos=True)).json()
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
    assert answer["usage"]["completion_tokens"] == 8


async def test_token_ids_are_the_same_prompt_as_their_text(engine):
    text = "The quick brown fox"
    tokens = (await engine.post("/tokenize", prompt=text)).json()["tokens"]
    from_text = (await engine.complete(text, max_tokens=5, ignore_eos=True)).json()
    from_ids = (await engine.complete(tokens, max_tokens=5, ignore_eos=True)).json()
    both = (await engine.complete([tokens, tokens], max_tokens=5, ignore_eos=True)).json()
    assert from_ids["choices"][0]["text"] == from_text["choices"][0]["text"]
    assert [choice["text"] for choice in both["choices"]] == [from_text["choices"][0]["text"]] * 2
    assert from_ids["usage"]["prompt_tokens"] == len(tokens)


async def test_echo_repeats_the_prompt(engine):
    answer = (await engine.complete("Echo this", echo=True, max_tokens=2, ignore_eos=True)).json()
    assert answer["choices"][0]["text"].startswith("Echo this")


async def test_echo_without_new_tokens_is_the_prompt(engine):
    answer = (await engine.complete("Echo this", echo=True, max_tokens=0)).json()
    assert answer["choices"][0]["text"] == "Echo this"


async def test_chat_logprobs(engine):
    answer = (await engine.chat(logprobs=True, top_logprobs=2, max_tokens=3, ignore_eos=True)).json()
    content = answer["choices"][0]["logprobs"]["content"]
    assert len(content) == 3
    for entry in content:
        assert entry.keys() >= {"token", "logprob", "bytes", "top_logprobs"}
        assert entry["logprob"] <= 0
        assert len(entry["top_logprobs"]) == 2


async def test_streamed_chat_logprobs_cover_every_token(engine):
    chunks = events(await engine.chat(logprobs=True, max_tokens=4, ignore_eos=True, stream=True))
    seen = [chunk["choices"][0]["logprobs"]["content"] for chunk in chunks[1:] if chunk["choices"][0]["logprobs"]]
    assert sum(map(len, seen)) == 4


async def test_completion_logprobs(engine):
    answer = (await engine.complete(logprobs=1, max_tokens=3, ignore_eos=True)).json()
    logprobs = answer["choices"][0]["logprobs"]
    assert logprobs.keys() == {"text_offset", "token_logprobs", "tokens", "top_logprobs"}
    assert len(logprobs["tokens"]) == len(logprobs["token_logprobs"]) == 3
    assert logprobs["text_offset"][0] == 0


async def test_stop_string_ends_and_is_left_out(engine):
    whole = (await engine.complete(max_tokens=24, ignore_eos=True)).json()["choices"][0]["text"]
    stop = whole[6:9]
    answer = (await engine.complete(max_tokens=24, ignore_eos=True, stop=stop)).json()["choices"][0]
    assert answer["text"] == whole[: whole.index(stop)]
    assert answer["finish_reason"] == "stop"
    assert answer["stop_reason"] == stop
    streamed = events(await engine.complete(max_tokens=24, ignore_eos=True, stop=[stop], stream=True))
    assert "".join(chunk["choices"][0]["text"] for chunk in streamed) == answer["text"]


async def test_stop_token_ends(engine):
    asked = {"max_tokens": 8, "ignore_eos": True}
    tokens = (await engine.complete(**asked, return_token_ids=True)).json()["choices"][0]["token_ids"]
    answer = (await engine.complete(**asked, stop_token_ids=[tokens[3]])).json()
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert answer["choices"][0]["stop_reason"] == tokens[3]
    assert answer["usage"]["completion_tokens"] == tokens.index(tokens[3]) + 1


async def test_the_fingerprint_is_in_the_last_chunk_alone(engine):
    for options in ({}, {"stream_options": {"include_usage": True}}):
        chunks = events(await engine.chat(max_tokens=3, stream=True, **options))
        told = [chunk.get("system_fingerprint") for chunk in chunks]
        assert told[-1]
        assert not any(told[:-1])


async def test_a_priority_is_taken(engine):
    assert (await engine.chat(max_tokens=1, priority=1)).status_code == 200


async def test_a_longer_conversation_hits_the_cache_of_the_shorter(engine):
    messages = [{"role": "user", "content": "A story about " + "ships and " * 120}]
    first = (await engine.post("/v1/chat/completions", messages=messages, max_tokens=8, ignore_eos=True)).json()
    reply = first["choices"][0]["message"]["content"]
    messages += [{"role": "assistant", "content": reply}, {"role": "user", "content": "Go on."}]
    second = (await engine.post("/v1/chat/completions", messages=messages, max_tokens=2, ignore_eos=True)).json()
    cached = second["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert cached >= first["usage"]["prompt_tokens"] - 64
    assert cached < second["usage"]["prompt_tokens"]


async def test_the_same_greedy_question_has_the_same_answer(engine):
    first, second = [(await engine.chat(max_tokens=12)).json() for _ in range(2)]
    assert first["choices"][0]["message"]["content"] == second["choices"][0]["message"]["content"]


async def test_prompts_that_arrive_together_share_what_they_have_in_common(engine):
    hits, queries = "vllm:prefix_cache_hits_total", "vllm:prefix_cache_queries_total"
    before = await engine.metric(hits), await engine.metric(queries)
    shared = " ".join(f"together{number}" for number in range(60))
    prompts = [f"{shared} {number}" for number in range(4)]
    await asyncio.gather(*[engine.complete(prompt, max_tokens=1) for prompt in prompts])
    hit, queried = await engine.metric(hits) - before[0], await engine.metric(queries) - before[1]
    # All but the first find it, whether they ran in one step of the engine or one after the other.
    assert hit >= 0.6 * queried
