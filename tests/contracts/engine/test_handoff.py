"""The handoff of KV blocks from a prefill to a decode engine, simulated or real."""

import pytest

PREFILL = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}
KEYS = {
    "do_remote_prefill",
    "do_remote_decode",
    "remote_block_ids",
    "remote_engine_id",
    "remote_request_id",
    "remote_host",
    "remote_port",
    "tp_size",
    "dcp_size",
    "pp_size",
    "remote_num_tokens",
    "remote_blocks_expiry_time",
    "transfer_mode",
    "remote_prefill_cached_tokens",
}


def story(subject: str) -> str:
    return f"Tell me about {subject}, " + "and then some more about it, " * 20


async def prefill(pair, content):
    answer = (await pair.prefill.chat(content, max_tokens=1, kv_transfer_params=PREFILL)).json()
    return answer, answer["kv_transfer_params"]


async def block_size(endpoint):
    text = (await endpoint.client.get(endpoint.url + "/metrics")).text
    return int(text.partition('block_size="')[2].partition('"')[0])


async def test_prefill_answers_with_params(pair):
    answer, params = await prefill(pair, story("rivers"))
    assert params.keys() == KEYS
    assert params["do_remote_prefill"] is True
    assert params["do_remote_decode"] is False
    assert params["transfer_mode"] == "pull"
    (blocks,) = params["remote_block_ids"]
    assert params["remote_num_tokens"] == answer["usage"]["prompt_tokens"]
    assert len(blocks) == -(-params["remote_num_tokens"] // await block_size(pair.prefill))
    await pair.decode.chat(story("rivers"), max_tokens=1, kv_transfer_params=params)


@pytest.mark.parametrize("stream", [False, True])
async def test_text_after_a_handoff_equals_the_text_of_one_engine(pair, stream):
    subject = f"mountains {stream}"
    alone = (await pair.prefill.chat(story(subject), max_tokens=12)).json()["choices"][0]["message"]["content"]
    _, params = await prefill(pair, story(subject))
    response = await pair.decode.chat(story(subject), max_tokens=12, kv_transfer_params=params, stream=stream)
    assert response.status_code == 200
    if stream:
        import json

        chunks = [json.loads(line[6:]) for line in response.text.split("\n\n") if line.startswith("data: {")]
        text = "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks)
    else:
        text = response.json()["choices"][0]["message"]["content"]
    assert text == alone


async def test_decode_counts_the_prompt_as_transferred(pair):
    name = "vllm:prompt_tokens_by_source_total"
    before = await pair.decode.metric(name, source="external_kv_transfer")
    answer, params = await prefill(pair, story("lakes"))
    await pair.decode.chat(story("lakes"), max_tokens=2, kv_transfer_params=params)
    after = await pair.decode.metric(name, source="external_kv_transfer")
    assert after - before >= answer["usage"]["prompt_tokens"] - await block_size(pair.decode)


async def test_transfers_are_measured(pair):
    before = await pair.decode.metric("vllm:nixl_bytes_transferred_count")
    _, params = await prefill(pair, story("seas"))
    await pair.decode.chat(story("seas"), max_tokens=2, kv_transfer_params=params)
    while await pair.decode.metric("vllm:nixl_bytes_transferred_count") == before:
        pass
    assert await pair.decode.metric("vllm:nixl_xfer_time_seconds_count") == before + 1


async def test_decode_tells_the_prefill_engines_cached_tokens(pair):
    await pair.prefill.chat(story("winds"), max_tokens=1)
    answer, params = await prefill(pair, story("winds"))
    cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert cached > 0
    assert params["remote_prefill_cached_tokens"] == cached
    decoded = (await pair.decode.chat(story("winds"), max_tokens=2, kv_transfer_params=params)).json()
    assert decoded["usage"]["prompt_tokens_details"]["cached_tokens"] == cached


async def test_prefill_frees_its_blocks_after_the_pull(pair):
    expired = await pair.prefill.metric("vllm:nixl_num_kv_expired_reqs_total")
    _, params = await prefill(pair, story("clouds"))
    assert await pair.prefill.metric("vllm:kv_cache_usage_perc") > 0
    await pair.decode.chat(story("clouds"), max_tokens=2, kv_transfer_params=params)
    while await pair.prefill.metric("vllm:kv_cache_usage_perc"):
        pass
    assert await pair.prefill.metric("vllm:nixl_num_kv_expired_reqs_total") == expired


async def test_prefill_params_without_a_handoff_are_null(pair):
    answer = (await pair.decode.chat(story("fire"), max_tokens=1)).json()
    assert answer["kv_transfer_params"] is None
