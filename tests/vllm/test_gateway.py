"""The real gateway before real engines: two hops change no text, the cache travels, a dead engine costs no answer."""

import asyncio
import json
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from gateway.commands.up import start_gateway
from gateway.up import vllm_cpu
from gateway.up.ports import free_port
from gateway.up.processes import Children
from gateway.up.running import RunningEngine
from tests.vllm.engines import HANDED_OVER, PATIENCE_S, SOURCE, Log, VllmPair, counter, prompt_of

pytestmark = pytest.mark.vllm

OUTPUT_TOKENS = 24
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
PATIENT = {
    "TWOHOP_DISAGGREGATION__MODE": "always",
    "TWOHOP_TIMEOUTS__FIRST_BYTE_S": str(PATIENCE_S),
    "TWOHOP_TIMEOUTS__PREFILL_S": str(PATIENCE_S),
    "TWOHOP_TIMEOUTS__IDLE_S": str(PATIENCE_S),
}


@dataclass(frozen=True)
class Case:
    """One prompt and the way in which it is sent."""

    number: int
    words: int
    path: str
    stream: bool

    def body(self, model: str) -> dict[str, Any]:
        """Return the greedy request, with usage in a stream too."""
        prompt = prompt_of(self.number, self.words)
        always = {"model": model, "temperature": 0, "max_tokens": OUTPUT_TOKENS, "ignore_eos": True}
        options = {"stream": True, "stream_options": {"include_usage": True}} if self.stream else {}
        asked = {"prompt": prompt} if self.path == TEXT else {"messages": [{"role": "user", "content": prompt}]}
        return {**always, **options, **asked}


@dataclass(frozen=True)
class Answer:
    """What came back: the text, and the engine's own count of the prompt's and the output's tokens."""

    text: str
    prompt_tokens: int
    output_tokens: int


# Every combination of path and stream five times, from 1 to about 40 blocks of prompt.
CASES = [
    Case(number, 25 + 60 * (number - 200), (CHAT, TEXT)[number % 2], stream=number // 2 % 2 == 0)
    for number in range(200, 220)
]


async def send(client: httpx.AsyncClient, url: str, model: str, case: Case) -> Answer:
    """Send a case and read the whole answer; an error status or an error in the stream fails the test."""
    response = await client.post(f"{url}{case.path}", json=case.body(model))
    assert response.status_code == 200, response.text
    if not case.stream:
        answer = response.json()
        return Answer(piece(answer["choices"], "message"), *tokens(answer["usage"]))
    events = [line.removeprefix("data: ") for line in response.text.splitlines() if line.startswith("data: ")]
    assert events[-1] == "[DONE]", response.text
    chunks = [json.loads(event) for event in events[:-1]]
    assert all("error" not in chunk for chunk in chunks), response.text
    return Answer("".join(piece(chunk["choices"], "delta") for chunk in chunks), *tokens(chunks[-1]["usage"]))


def piece(choices: list[dict[str, Any]], chat_field: str) -> str:
    """Return the text in an answer's or a chunk's choices; the chunk with the usage has none."""
    return "".join(
        choice["text"] if "text" in choice else choice[chat_field].get("content") or "" for choice in choices
    )


def tokens(usage: dict[str, Any]) -> tuple[int, int]:
    """Return the tokens of prompt and output."""
    return usage["prompt_tokens"], usage["completion_tokens"]


@contextmanager
def gateway_in_front(log: Log, *engines: RunningEngine) -> Iterator[str]:
    """Run `twohop serve` in front of these engines, always two hops where it can, and yield its URL."""
    listen = f"127.0.0.1:{free_port()}"
    with Children(log) as children:
        start_gateway(children, engines, listen, None, PATIENT)
        yield f"http://{listen}"


@pytest.fixture(scope="module")
def gateway_url(vllm_log: Log, vllm_pair: VllmPair) -> Iterator[str]:
    """A gateway in front of the pair."""
    with gateway_in_front(vllm_log, *vllm_pair) as url:
        yield url


async def test_every_text_equals_the_engines_own_and_the_cache_travels(gateway_url: str, vllm_pair: VllmPair) -> None:
    prefill, decode = vllm_pair
    before = counter(decode.url, SOURCE, source=HANDED_OVER)

    async with httpx.AsyncClient(timeout=PATIENCE_S) as client:
        through = [await send(client, gateway_url, prefill.model, case) for case in CASES]
        travelled = counter(decode.url, SOURCE, source=HANDED_OVER) - before
        alone = [await send(client, prefill.url, prefill.model, case) for case in CASES]

    assert {(case.path, case.stream) for case in CASES} == {(p, s) for p in (CHAT, TEXT) for s in (True, False)}
    assert through == alone
    assert len({answer.text for answer in alone}) == len(CASES)
    assert {answer.output_tokens for answer in alone} == {OUTPUT_TOKENS}
    assert travelled >= sum(answer.prompt_tokens - decode.block_size for answer in alone)


async def test_killing_the_prefill_engine_half_way_costs_no_answer(vllm_log: Log, vllm_pair: VllmPair) -> None:
    decode = vllm_pair.decode
    cases = [Case(case.number + 100, case.words, case.path, case.stream) for case in CASES]
    places = asyncio.Semaphore(3)
    answered: list[Case] = []

    with Children(vllm_log) as children:
        (doomed,) = vllm_cpu.start_engines(children, [("prefill-doomed", "prefill")])
        with gateway_in_front(vllm_log, doomed, decode) as url:
            before = counter(decode.url, SOURCE, source=HANDED_OVER)
            async with httpx.AsyncClient(timeout=PATIENCE_S) as client:

                async def send_in_turn(case: Case) -> Answer:
                    async with places:
                        answer = await send(client, url, decode.model, case)
                    answered.append(case)
                    if len(answered) == len(cases) // 2:
                        doomed.child.signal(signal.SIGKILL)
                    return answer

                through = await asyncio.gather(*(send_in_turn(case) for case in cases))
                assert counter(decode.url, SOURCE, source=HANDED_OVER) > before
                alone = [await send(client, decode.url, decode.model, case) for case in cases]

    assert doomed.child.status == -signal.SIGKILL
    assert through == alone
    assert {answer.output_tokens for answer in through} == {OUTPUT_TOKENS}
