"""Simulated engines as servers: handoffs that go wrong, leases, faults, disconnects, start and stop."""

import asyncio
import json
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from gateway.simulator.server import SimServer
from tests.engines import sim_engine, sim_engines, sim_pair

PLAIN = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # loads no certificates, which would take longer than a test
PREFILL = {"do_remote_decode": True, "do_remote_prefill": False}
STORY = "Tell me about rivers, " + "and then some more, " * 30


@pytest.fixture
async def client() -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(timeout=30, verify=PLAIN) as client:
        yield client


async def chat(client: httpx.AsyncClient, engine: SimServer, **body: Any) -> httpx.Response:
    asked = {"model": "sim", "messages": [{"role": "user", "content": STORY}], "temperature": 0, "max_tokens": 8}
    return await client.post(engine.url + "/v1/chat/completions", json=asked | body)


async def prefill(client: httpx.AsyncClient, engine: SimServer) -> dict[str, Any]:
    answer = await chat(client, engine, max_tokens=1, kv_transfer_params=PREFILL)
    params = answer.json()["kv_transfer_params"]
    assert isinstance(params, dict)
    assert engine.engine.pinned_blocks > 0
    return params


async def until(condition: Any) -> None:
    """Let others run until `condition()` holds; the test's timeout ends a wait in vain."""
    while not condition():
        await asyncio.sleep(0)


def counts(engine: SimServer) -> tuple[int, int]:
    return engine.metrics.failed_transfers, engine.metrics.finished["error"]


WRONG: dict[str, dict[str, Any]] = {
    "engine id": {"remote_engine_id": "00000000-0000-0000-0000-000000000000"},
    "request id": {"remote_request_id": "chatcmpl-never"},
    "blocks": {"remote_block_ids": [[8000 + index for index in range(40)]]},
    "host": {"remote_port": 1},
}


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
async def test_params_that_are_wrong_fail_the_request(client, wrong):
    async with sim_pair() as (prefiller, decoder):
        params = await prefill(client, prefiller) | wrong
        response = await chat(client, decoder, kv_transfer_params=params)
        assert response.status_code == 500
        assert response.json()["error"]["type"] == "InternalServerError"
        assert counts(decoder) == (1, 1)
        assert decoder.engine.usage == 0
        assert prefiller.engine.pinned_blocks > 0


async def test_a_failed_stream_ends_with_an_error_and_done(client):
    async with sim_pair() as (prefiller, decoder):
        params = await prefill(client, prefiller) | WRONG["engine id"]
        response = await chat(client, decoder, kv_transfer_params=params, stream=True)
        *_, error, done = [line for line in response.text.split("\n\n") if line]
        assert response.status_code == 200
        assert error.startswith('data: {"error":')
        assert done == "data: [DONE]"


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
async def test_recompute_answers_all_the_same(client, wrong):
    async with sim_pair(load_failure="recompute") as (prefiller, decoder):
        alone = (await chat(client, prefiller)).json()["choices"][0]["message"]["content"]
        params = await prefill(client, prefiller) | wrong
        response = await chat(client, decoder, kv_transfer_params=params)
        assert response.json()["choices"][0]["message"]["content"] == alone
        assert counts(decoder) == (1, 0)
        assert decoder.engine.totals.external == 0


async def test_blocks_can_be_pulled_once(client):
    async with sim_pair() as (prefiller, decoder), sim_engine() as other:
        params = await prefill(client, prefiller)
        assert (await chat(client, decoder, kv_transfer_params=params)).status_code == 200
        assert (await chat(client, other, kv_transfer_params=params)).status_code == 500


async def test_only_what_decode_lacks_is_pulled(client):
    async with sim_pair() as (prefiller, decoder):
        whole = (await chat(client, decoder)).json()["usage"]["prompt_tokens"]
        answer = await chat(client, decoder, kv_transfer_params=await prefill(client, prefiller))
        assert answer.status_code == 200
        assert 0 < decoder.engine.totals.external <= decoder.engine.profile.block_size
        assert decoder.engine.totals.cached >= whole - decoder.engine.profile.block_size


async def test_a_lease_that_ends_frees_the_blocks_and_fails_the_pull(client):
    async with sim_engine(lease_s=0.05) as prefiller, sim_engine() as decoder:
        params = await prefill(client, prefiller)
        await until(lambda: not prefiller.engine.pins)
        assert prefiller.metrics.expired == 1
        assert prefiller.engine.usage == 0
        assert (await chat(client, decoder, kv_transfer_params=params)).status_code == 500


async def test_engines_of_different_block_sizes_do_not_hand_over(client):
    async with sim_engine(block_size=32) as prefiller, sim_engine() as decoder:
        params = await prefill(client, prefiller)
        assert (await chat(client, decoder, kv_transfer_params=params)).status_code == 500


async def test_a_decode_that_is_aborted_before_the_pull_frees_the_prefill(client):
    async with sim_engine() as prefiller, sim_engine(num_blocks=64, block_size=16) as decoder:
        hog = asyncio.get_running_loop().create_task(
            chat(
                client, decoder, messages=[{"role": "user", "content": "word " * 850}], max_tokens=150, ignore_eos=True
            )
        )
        await until(lambda: decoder.engine.running)
        params = await prefill(client, prefiller)
        waiting = asyncio.get_running_loop().create_task(chat(client, decoder, kv_transfer_params=params))
        await until(lambda: decoder.engine.waiting)
        waiting.cancel()
        await until(lambda: not prefiller.engine.pins)
        assert prefiller.metrics.expired == 0
        hog.cancel()
        await asyncio.wait([hog, waiting])


async def test_a_decode_that_is_aborted_during_the_pull_frees_both(client):
    async with sim_engine() as prefiller, sim_engine(bandwidth=1000.0) as decoder:
        params = await prefill(client, prefiller)
        pulling = asyncio.get_running_loop().create_task(chat(client, decoder, kv_transfer_params=params))
        await until(lambda: decoder.engine.loading)
        text = (await client.get(decoder.url + "/metrics")).text
        assert 'reason="deferred"} 1.0' in text
        pulling.cancel()
        await until(lambda: not decoder.engine.jobs and not prefiller.engine.pins)
        assert decoder.engine.usage == prefiller.engine.usage == 0
        await asyncio.wait([pulling])


async def test_a_prefill_that_dies_during_the_pull_fails_the_decode(client):
    async with sim_engine(bandwidth=1000.0) as decoder:
        async with sim_engine() as prefiller:
            params = await prefill(client, prefiller)
            pulling = asyncio.get_running_loop().create_task(chat(client, decoder, kv_transfer_params=params))
            await until(lambda: decoder.engine.loading)
        assert (await pulling).status_code == 500
        assert counts(decoder) == (1, 1)


async def test_a_lease_does_not_end_while_blocks_are_read(client):
    async with sim_engine(lease_s=0.05) as prefiller, sim_engine(bandwidth=1e6) as decoder:
        params = await prefill(client, prefiller)
        assert (await chat(client, decoder, kv_transfer_params=params)).status_code == 200
        assert prefiller.metrics.expired == 0


async def test_a_decode_that_waits_for_its_turn_keeps_the_lease_alive(client):
    async with sim_engine(lease_s=0.05) as prefiller, sim_engine(num_blocks=64, heartbeat_s=0.01) as decoder:
        hog = asyncio.get_running_loop().create_task(
            chat(
                client, decoder, messages=[{"role": "user", "content": "word " * 850}], max_tokens=150, ignore_eos=True
            )
        )
        await until(lambda: decoder.engine.running)
        params = await prefill(client, prefiller)
        assert (await chat(client, decoder, kv_transfer_params=params)).status_code == 200
        assert decoder.engine.totals.external > 0
        assert prefiller.metrics.expired == 0
        assert (await hog).status_code == 200


async def test_nonsense_on_the_side_channel_harms_nobody(client):
    async with sim_pair() as (prefiller, decoder):
        params = await prefill(client, prefiller)
        for line in (b"nonsense\n", b"[1]\n", b'{"op": "explode"}\n'):
            reader, writer = await asyncio.open_connection(params["remote_host"], params["remote_port"])
            writer.write(line)
            answer = await reader.readline()
            assert answer == b"" or b'"ok":false' in answer
            writer.close()
        assert (await chat(client, decoder, kv_transfer_params=params)).status_code == 200


FAULTY: dict[str, tuple[str, dict[str, Any], int]] = {
    "error": ("error=429", {}, 429),
    "prefill-error": ("prefill-error=502", {"kv_transfer_params": PREFILL}, 502),
    "prefill-error spares others": ("prefill-error=502", {}, 200),
    "decode-error": ("decode-error=503", {"kv_transfer_params": {"do_remote_prefill": True}}, 503),
    "health-error": ("health-error", {}, 200),
}


@pytest.mark.parametrize(("fault", "body", "status"), FAULTY.values(), ids=FAULTY)
async def test_a_fault_changes_the_status(client, fault, body, status):
    async with sim_engine(faults=(fault,)) as engine:
        assert (await chat(client, engine, **body)).status_code == status


@pytest.mark.parametrize("fault", ["reset", "reset-mid-stream=2"])
async def test_a_fault_cuts_the_connection(client, fault):
    async with sim_engine(faults=(fault,)) as engine:
        with pytest.raises(httpx.TransportError):
            await chat(client, engine, stream=True)
        await until(lambda: not engine.engine.jobs)


async def test_a_stream_can_end_too_early(client):
    async with sim_engine(faults=("truncate=2",)) as engine:
        response = await chat(client, engine, stream=True, max_tokens=200, ignore_eos=True)
        assert "[DONE]" not in response.text
        assert not engine.engine.jobs


async def test_a_body_can_be_broken_and_params_missing(client):
    async with sim_engine(faults=("broken-json",)) as engine:
        response = await chat(client, engine)
        assert response.status_code == 200
        with pytest.raises(ValueError, match=r"JSON|Unterminated|delimiter|Expecting"):
            response.json()
        engine.faults.clear("broken-json")
        engine.faults.add("prefill-no-params")
        assert (await chat(client, engine, kv_transfer_params=PREFILL)).json()["kv_transfer_params"] is None
        assert engine.engine.pinned_blocks == 0


async def test_a_hanging_request_ends_with_its_client(client):
    async with sim_engine(faults=("hang",)) as engine:
        with pytest.raises(httpx.ReadTimeout):
            await client.post(engine.url + "/v1/completions", json={"prompt": "x"}, timeout=0.05)
        await until(lambda: not engine.connections)


async def test_reads_can_be_refused(client):
    async with sim_pair() as (prefiller, decoder):
        prefiller.faults.add("pull-refused")
        response = await chat(client, decoder, kv_transfer_params=await prefill(client, prefiller))
        assert response.status_code == 500


async def test_metrics_and_health_can_fail(client):
    async with sim_engine(faults=("metrics-missing", "metrics-slow=0.01")) as engine:
        text = (await client.get(engine.url + "/metrics")).text
        assert "\nvllm:num_requests_waiting{" not in text
        assert "\nvllm:num_requests_running{" in text
        engine.faults.add("metrics-error=500")
        engine.faults.add("health-error")
        assert (await client.get(engine.url + "/metrics")).status_code == 500
        assert (await client.get(engine.url + "/health")).status_code == 503


async def test_engines_of_one_model_say_the_same(client):
    async with sim_engines(3) as engines:
        texts = [(await chat(client, engine)).json()["choices"][0]["message"]["content"] for engine in engines]
        assert len(set(texts)) == 1
        assert len({engine.engine_id for engine in engines}) == 3


async def test_a_decode_that_is_refused_frees_the_prefill(client):
    async with sim_pair() as (prefiller, decoder):
        params = await prefill(client, prefiller)
        assert (await chat(client, decoder, kv_transfer_params=params, n=0)).status_code == 400
        await until(lambda: not prefiller.engine.pins)
        assert prefiller.metrics.expired == 0


async def test_a_chat_without_a_word_is_refused(client):
    async with sim_engine() as engine:
        response = await chat(client, engine, messages=[], add_generation_prompt=False)
        assert response.status_code == 400


async def test_a_client_that_leaves_within_its_body_leaves_nothing():
    async with sim_engine() as engine:
        host, _, port = engine.url.removeprefix("http://").partition(":")
        _, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{")
        await until(lambda: engine.connections)
        writer.close()
        await until(lambda: not engine.connections)


async def test_streams_can_tell_token_ids_and_tool_calls(client):
    tool = {"type": "function", "function": {"name": "f", "parameters": {"properties": {"a": {"type": "integer"}}}}}
    async with sim_engine() as engine:
        response = await chat(client, engine, stream=True, tools=[tool], max_tokens=40, return_token_ids=True)
        chunks = [json.loads(line[6:]) for line in response.text.split("\n\n") if line.startswith("data: {")]
        assert chunks[0]["prompt_token_ids"]
        calls = [chunk["choices"][0]["delta"].get("tool_calls", [{}])[0] for chunk in chunks]
        assert [call["function"]["name"] for call in calls if call.get("id")] == ["f"]
        assert json.loads("".join(call.get("function", {}).get("arguments", "") for call in calls)).keys() == {"a"}
        assert chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"
        assert sum(len(chunk["choices"][0].get("token_ids") or []) for chunk in chunks) > len(calls) - 3
        whole = (await chat(client, engine, tools=[tool], max_tokens=40)).json()["choices"][0]
        assert whole["finish_reason"] == "tool_calls"
        choice = {"type": "function", "function": {"name": "f"}}
        named = (await chat(client, engine, tools=[tool], tool_choice=choice, max_tokens=40)).json()["choices"][0]
        assert named["finish_reason"] == "stop"
        assert named["message"]["tool_calls"] == whole["message"]["tool_calls"]


async def test_many_streams_in_one_batch_say_what_they_say_alone(client):
    async with sim_engine() as engine:
        one = await chat(client, engine, max_tokens=40, ignore_eos=True)
        asked = [chat(client, engine, max_tokens=40, ignore_eos=True, stream=True) for _ in range(40)]
        texts = set()
        for response in await asyncio.gather(*asked):
            deltas = [line.partition('"content":"')[2].partition('"')[0] for line in response.text.split("\n\n")]
            texts.add("".join(deltas))
        assert texts == {one.json()["choices"][0]["message"]["content"]}


async def test_wrong_method_and_wrong_path(client):
    async with sim_engine() as engine:
        assert (await client.get(engine.url + "/v1/completions")).status_code == 405
        assert (await client.get(engine.url + "/nowhere")).status_code == 404


async def test_several_models_are_served(client):
    async with sim_engine(models=("a", "b/c")) as engine:
        cards = (await client.get(engine.url + "/v1/models")).json()["data"]
        assert [card["id"] for card in cards] == ["a", "b/c"]
        answers = [await client.post(engine.url + "/v1/completions", json={"model": m, "prompt": "x"}) for m in "ab"]
        assert [answer.status_code for answer in answers] == [200, 404]


def test_the_command_says_where_it_listens_and_ends_on_sigterm():
    command = [sys.executable, "-m", "gateway", "engine", "--listen", "127.0.0.1:0", "--profile", "fast"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        url = line.removeprefix("listening on ").strip()
        assert httpx.get(url + "/health", verify=PLAIN).status_code == 200
        process.terminate()
        assert process.wait(timeout=10) == 0


@pytest.mark.parametrize("flags", [["--fault", "nonsense"], ["--num-blocks", "10", "--max-model-len", "1000"]])
def test_the_command_refuses_flags_that_make_no_sense(flags):
    command = [sys.executable, "-m", "gateway", "engine", "--listen", "127.0.0.1:0", *flags]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("twohop engine: ")
