"""Errors, small routes, metrics and aborts of an engine, simulated or real."""

import pytest

MESSAGES = [{"role": "user", "content": "Hello"}]
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}

REFUSED_CHATS = {
    "no messages": {"messages": None},
    "messages of a wrong type": {"messages": "hello"},
    "max_tokens of a wrong type": {"max_tokens": "many"},
    "max_tokens of zero": {"max_tokens": 0},
    "min_tokens over max_tokens": {"max_tokens": 4, "min_tokens": 5},
    "stream_options without stream": {"stream_options": {"include_usage": True}},
    "more tokens than the model takes": {"max_tokens": 10_000_000},
    "top_logprobs without logprobs": {"top_logprobs": 2},
    "a negative temperature": {"temperature": -1},
    "top_p over one": {"top_p": 1.5},
    "no choices": {"n": 0},
    "tool_choice without tools": {"tool_choice": "required"},
    "an unknown tool": {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "g"}}},
    "no tools in tools": {"tools": []},
    "several choices of greedy sampling": {"n": 2, "temperature": 0},
    "an empty stop string": {"stop": [""]},
}


def assert_refused(response, status):
    assert response.status_code == status
    error = response.json()["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert error["code"] == status
    assert error["message"]


@pytest.mark.parametrize("body", REFUSED_CHATS.values(), ids=REFUSED_CHATS)
async def test_bad_chat_is_refused(engine, body):
    assert_refused(await engine.post("/v1/chat/completions", **({"messages": MESSAGES} | body)), 400)


@pytest.mark.parametrize("prompt", [[], 7, {"text": "x"}, [1, "x"]], ids=str)
async def test_bad_prompt_is_refused(engine, prompt):
    assert_refused(await engine.complete(prompt), 400)


async def test_a_prompt_longer_than_the_model_takes_is_refused(engine):
    limit = (await engine.post("/tokenize", prompt="x")).json()["max_model_len"]
    assert_refused(await engine.complete([7] * (limit + 1), max_tokens=1), 400)


async def test_unknown_model_is_not_found(engine):
    for path in ("/v1/chat/completions", "/v1/completions"):
        response = await engine.post(path, model="no-such-model", messages=MESSAGES, prompt="x")
        assert_refused(response, 404)
        assert response.json()["error"]["type"] == "NotFoundError"
        assert "no-such-model" in response.json()["error"]["message"]


async def test_not_json_is_refused(engine):
    headers = {"content-type": "application/json"}
    response = await engine.client.post(engine.url + "/v1/chat/completions", content=b"{not json", headers=headers)
    assert_refused(response, 400)


async def test_small_routes(engine):
    get, url = engine.client.get, engine.url
    assert (await get(url + "/health")).status_code == 200
    assert "version" in (await get(url + "/version")).json()
    assert "server_load" in (await get(url + "/load")).json()
    models = (await get(url + "/v1/models")).json()
    assert models["object"] == "list"
    assert models["data"][0].keys() >= {"id", "object", "created", "owned_by", "max_model_len"}
    assert (await get(url + "/no-such-path")).status_code == 404


async def test_tokenize_and_back(engine):
    answer = (await engine.post("/tokenize", prompt="Hello there, world", add_special_tokens=False)).json()
    assert answer["count"] == len(answer["tokens"])
    assert answer["max_model_len"] > 0
    back = (await engine.post("/detokenize", tokens=answer["tokens"])).json()
    assert back["prompt"] == "Hello there, world"
    chat = (await engine.post("/tokenize", messages=MESSAGES)).json()
    whole = (await engine.post("/v1/chat/completions", messages=MESSAGES, max_tokens=1)).json()
    assert chat["count"] == whole["usage"]["prompt_tokens"]


GAUGES = ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc")
COUNTERS = (
    "vllm:prefix_cache_queries_total",
    "vllm:prefix_cache_hits_total",
    "vllm:external_prefix_cache_queries_total",
    "vllm:num_preemptions_total",
    "vllm:prompt_tokens_total",
    "vllm:generation_tokens_total",
)
LABELLED = (
    ("vllm:num_requests_waiting_by_reason", 'reason="capacity"'),
    ("vllm:num_requests_waiting_by_reason", 'reason="deferred"'),
    ("vllm:prompt_tokens_by_source_total", 'source="local_compute"'),
    ("vllm:prompt_tokens_by_source_total", 'source="local_cache_hit"'),
    ("vllm:prompt_tokens_by_source_total", 'source="external_kv_transfer"'),
    ("vllm:request_success_total", 'finished_reason="stop"'),
    ("vllm:request_success_total", 'finished_reason="length"'),
    ("vllm:request_success_total", 'finished_reason="abort"'),
    ("vllm:request_success_total", 'finished_reason="error"'),
    ("vllm:engine_sleep_state", 'sleep_state="awake"'),
)
HISTOGRAMS = (
    "vllm:time_to_first_token_seconds",
    "vllm:inter_token_latency_seconds",
    "vllm:request_time_per_output_token_seconds",
    "vllm:e2e_request_latency_seconds",
    "vllm:request_queue_time_seconds",
    "vllm:request_inference_time_seconds",
    "vllm:request_prefill_time_seconds",
    "vllm:request_decode_time_seconds",
    "vllm:request_prompt_tokens",
    "vllm:request_generation_tokens",
)


async def test_metric_names_and_labels(engine):
    await engine.chat(max_tokens=3, ignore_eos=True)
    text = (await engine.client.get(engine.url + "/metrics")).text
    samples = [line for line in text.splitlines() if line.startswith("vllm:")]

    def found(name: str, label: str = 'engine="0"') -> bool:
        return any(line.startswith(name + "{") and label in line for line in samples)

    names = [*GAUGES, *COUNTERS, *(f"{name}_{end}" for name in HISTOGRAMS for end in ("count", "sum", "bucket"))]
    assert [name for name in names if not found(name)] == []
    assert [pair for pair in LABELLED if not found(*pair)] == []
    (info,) = [line for line in samples if line.startswith("vllm:cache_config_info{")]
    assert 'block_size="' in info
    assert 'num_gpu_blocks="' in info
    assert f'model_name="{engine.model}"' in next(line for line in samples if line.startswith(GAUGES[0]))


async def test_counters_grow_by_what_was_asked(engine):
    async def counters():
        names = ("vllm:prompt_tokens_total", "vllm:generation_tokens_total", "vllm:prefix_cache_queries_total")
        finished = await engine.metric("vllm:request_success_total", finished_reason="length")
        return [*[await engine.metric(name) for name in names], finished]

    before = await counters()
    usage = (await engine.complete("Count me in, please", max_tokens=7, ignore_eos=True)).json()["usage"]
    after = await counters()
    expected = [usage["prompt_tokens"], 7, usage["prompt_tokens"], 1]
    assert [new - old for new, old in zip(after, before, strict=True)] == expected


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_ends_its_request(engine, stream):
    body = {"model": engine.model, "prompt": "Go on and on", "max_tokens": 2000, "ignore_eos": True, "stream": stream}
    request = engine.client.build_request("POST", engine.url + "/v1/completions", json=body)
    if stream:
        response = await engine.client.send(request, stream=True)
        await anext(response.aiter_raw())
        await response.aclose()
    else:
        await leave_while_running(engine, request)
    while await engine.metric("vllm:num_requests_running") or await engine.metric("vllm:num_requests_waiting"):
        pass
    while await engine.metric("vllm:kv_cache_usage_perc"):
        pass


async def leave_while_running(engine, request):
    """Send `request` and close its connection once the engine works on it."""
    import asyncio

    sending = asyncio.get_running_loop().create_task(engine.client.send(request))
    while not await engine.metric("vllm:num_requests_running"):
        pass
    sending.cancel()
    await asyncio.wait([sending])
