"""The pair alone: a handoff by hand gives the text of one engine, and the engines count where tokens came from."""

from typing import Any

import httpx
import pytest

from tests.vllm.engines import HANDED_OVER, SOURCE, VllmPair, ask, counter, prompt_of, text_of

pytestmark = pytest.mark.vllm

PREFILL_PARAMS = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}


def body_for(path: str, model: str, prompt: str) -> dict[str, Any]:
    """Return a greedy request of 24 output tokens for a chat or text completion."""
    always = {"model": model, "temperature": 0, "max_tokens": 24, "ignore_eos": True}
    if path == "/v1/completions":
        return {**always, "prompt": prompt}
    return {**always, "messages": [{"role": "user", "content": prompt}]}


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
@pytest.mark.parametrize("words", [30, 700])
def test_a_handoff_by_hand_gives_the_text_of_one_engine(vllm_pair: VllmPair, path: str, words: int) -> None:
    prefill, decode = vllm_pair
    body = body_for(path, prefill.model, prompt_of(1 + len(path), words))
    computed = counter(prefill.url, SOURCE, source="local_compute")
    handed_over = counter(decode.url, SOURCE, source=HANDED_OVER)

    first = ask(prefill.url, path, {**body, "max_tokens": 1, "kv_transfer_params": PREFILL_PARAMS})
    params = first["kv_transfer_params"]
    second = ask(decode.url, path, {**body, "kv_transfer_params": params})

    prompt_tokens = second["usage"]["prompt_tokens"]
    assert params["do_remote_prefill"] is True
    assert first["usage"]["prompt_tokens"] == prompt_tokens
    assert second["usage"]["completion_tokens"] == 24
    assert text_of(second) == text_of(ask(prefill.url, path, body))
    assert counter(prefill.url, SOURCE, source="local_compute") - computed >= prompt_tokens - prefill.block_size
    assert counter(decode.url, SOURCE, source=HANDED_OVER) - handed_over >= prompt_tokens - decode.block_size


def test_nothing_failed_on_the_way(vllm_pair: VllmPair) -> None:
    for name in ("vllm:nixl_num_failed_transfers", "vllm:nixl_num_kv_expired_reqs"):
        assert counter(vllm_pair.decode.url, name) == 0


def test_both_are_healthy_and_serve_the_model(vllm_pair: VllmPair) -> None:
    for engine in vllm_pair:
        assert httpx.get(f"{engine.url}/health", timeout=30).status_code == 200
        models = httpx.get(f"{engine.url}/v1/models", timeout=30).json()["data"]
        assert [model["id"] for model in models] == [engine.model]
