"""One prefill and one decode engine of real vLLM with NIXL for a whole test session, and what tests ask of them."""

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from gateway.up import vllm_cpu
from gateway.up.processes import Children
from gateway.up.running import RunningEngine

# A handoff takes milliseconds, and now and then tens of seconds on a small machine: no test depends on that time.
PATIENCE_S = 600.0
SOURCE = "vllm:prompt_tokens_by_source"
HANDED_OVER = "external_kv_transfer"


class Log:
    """A file that child processes' lines go to, from any thread."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()

    def __call__(self, line: str) -> None:
        """Add a line."""
        with self._lock, self.path.open("a") as file:
            file.write(line + "\n")


@dataclass(frozen=True)
class VllmPair:
    """A prefill and a decode engine; each has `url`, `model`, `block_size` (tokens) and `pid` (its process group)."""

    prefill: RunningEngine
    decode: RunningEngine

    def __iter__(self) -> Iterator[RunningEngine]:
        return iter((self.prefill, self.decode))


@pytest.fixture(scope="session")
def vllm_log(tmp_path_factory: pytest.TempPathFactory) -> Log:
    """Where the output of every child process goes."""
    return Log(tmp_path_factory.getbasetemp() / "vllm.log")


@pytest.fixture(scope="session")
def vllm_pair(vllm_log: Log) -> Iterator[VllmPair]:
    """Start both engines, at the first test that asks for them, and end them after the last."""
    with Children(vllm_log) as children:
        prefill, decode = vllm_cpu.start_engines(children, [("prefill-0", "prefill"), ("decode-0", "decode")])
        yield VllmPair(prefill, decode)


def ask(url: str, path: str, body: dict[str, Any]) -> dict[str, Any]:
    """POST a body, without a stream, and return the answer's JSON; raises httpx.HTTPStatusError where it is no 200."""
    answer = httpx.post(f"{url}{path}", json=body, timeout=PATIENCE_S)
    answer.raise_for_status()
    parsed: dict[str, Any] = answer.json()
    return parsed


def text_of(answer: dict[str, Any]) -> str:
    """Return the text of the only choice of a chat or text completion."""
    (choice,) = answer["choices"]
    return str(choice["message"]["content"] if "message" in choice else choice["text"])


def counter(url: str, name: str, **labels: str) -> float:
    """Return a counter of an engine, summed over all series that carry these labels (`name` without `_total`)."""
    families = text_string_to_metric_families(httpx.get(f"{url}/metrics", timeout=PATIENCE_S).text)
    return sum(
        sample.value
        for family in families
        for sample in family.samples
        if sample.name == f"{name}_total" and labels.items() <= sample.labels.items()
    )


def prompt_of(number: int, words: int) -> str:
    """Return a prompt of so many words that shares no block with the prompt of any other number."""
    vocabulary = [
        "import",
        "class",
        "return",
        "yield",
        "buffer",
        "socket",
        "frame",
        "token",
        "parser",
        "value",
        "index",
        "thread",
    ]
    chosen = (vocabulary[(number * 31 + place * place + place // 7) % len(vocabulary)] for place in range(words))
    return f"{number} of {words}: " + " ".join(chosen)
