"""What is asked, and what must come back: all simulated engines of one model answer the same prompt alike."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import Any

from benchmarks.soak.call import Answer
from benchmarks.soak.fleet import MODEL

ERROR_CODES = {"upstream_failed", "upstream_timeout", "no_endpoint", "queue_full"}
_SIZES = (60, 2_000, 40_000)
_LENGTHS = (3, 40, 200)
_OTHER_ROUTES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("/v1/embeddings", {"input": "what is it worth"}),
    ("/tokenize", {"prompt": "what is it worth"}),
    ("/rerank", {"query": "worth", "documents": ["gold", "tin"]}),
    ("/score", {"text_1": "gold", "text_2": "tin"}),
    ("/pooling", {"input": "what is it worth"}),
    ("/classify", {"input": "what is it worth"}),
)


@dataclass(frozen=True, slots=True)
class Shape:
    """One request; `expected` is the essence of its answer, None until an engine was asked."""

    name: str
    request: bytes
    stream: bool
    expected: Any = None


def shapes(chance: Random) -> Iterator[Shape]:
    """Yield chat and text completions, streamed and plain, short and long, some that one handoff cannot serve."""
    for size in _SIZES:
        for length in _LENGTHS:
            for stream in (False, True):
                words = " ".join(chance.choice(("ox", "barn", "river", "of", "seven")) for _ in range(size // 5))
                options: dict[str, Any] = {"model": MODEL, "max_tokens": length, "temperature": 0, "stream": stream}
                if length == _LENGTHS[0] and size < _SIZES[-1]:
                    options |= {"n": 2, "temperature": 1.0, "seed": 7}
                chat = {**options, "messages": [{"role": "user", "content": words}]}
                suffix = f"{size} bytes, {length} tokens{', stream' if stream else ''}"
                yield Shape(f"chat, {suffix}", request("/v1/chat/completions", chat), stream)
                yield Shape(f"text, {suffix}", request("/v1/completions", {**options, "prompt": words}), stream)


def other_shapes() -> Iterator[Shape]:
    """Yield requests of routes that not every gateway or engine serves."""
    for path, body in _OTHER_ROUTES:
        yield Shape(path, request(path, {"model": MODEL, **body}), stream=False)


def request(path: str, body: Any) -> bytes:
    """Return a whole POST."""
    data = json.dumps(body).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nhost: soak\r\ncontent-type: application/json\r\ncontent-length: {len(data)}\r\n\r\n"
    )
    return head.encode() + data


def essence(answer: Answer, *, stream: bool) -> Any:
    """Return what of a good answer does not vary. Raises ValueError where it is none."""
    if not stream:
        body = json.loads(answer.body)
        for varying in ("id", "created"):
            body.pop(varying, None)
        (body.get("usage") or {}).pop("prompt_tokens_details", None)
        return body
    told = story(answer.body)
    if told.error is not None or not told.done:
        raise ValueError("the stream has no good end")
    return told.texts


@dataclass(frozen=True, slots=True)
class Story:
    """What a stream tells: text and finish reason by choice, the error event if one came, whether [DONE] came."""

    texts: dict[int, tuple[str, str | None]]
    error: Any
    done: bool


def story(body: bytes) -> Story:
    """Read an event stream. Raises ValueError where it is none."""
    texts: dict[int, tuple[str, str | None]] = {}
    error, done = None, False
    for event in body.split(b"\n\n")[:-1]:
        data = event.removeprefix(b"data: ")
        if data == b"[DONE]":
            done = True
            continue
        chunk = json.loads(data)
        error = chunk.get("error", error)
        for choice in chunk.get("choices", ()):
            text, finish = texts.get(choice["index"], ("", None))
            more = choice["delta"].get("content") if "delta" in choice else choice["text"]
            texts[choice["index"]] = (text + (more or ""), choice.get("finish_reason") or finish)
    return Story(texts, error, done)


def verdict(shape: Shape, answer: Answer) -> str:
    """Return "right", "error CODE" for an error of the contract's shape, or "wrong: …"."""
    try:
        if answer.status != 200:
            return _refusal(answer)
        if shape.stream:
            return _streamed(shape, answer)
        if not answer.whole:
            return f"wrong: broken off after {len(answer.body)} bytes"
        found = essence(answer, stream=False)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        return f"wrong: status {answer.status}, {error!r} in {answer.body[-200:]!r}"
    return "right" if found == shape.expected else f"wrong: {str(found)[:300]} instead of {str(shape.expected)[:300]}"


def _refusal(answer: Answer) -> str:
    error = json.loads(answer.body)["error"]
    code = error["code"]
    known = code in ERROR_CODES or code == answer.status
    if answer.whole and known and answer.status in (429, 500, 502, 503, 504) and {"message", "type"} <= error.keys():
        return f"error {code}"
    return f"wrong: status {answer.status}, {answer.body[:300]!r}"


def _streamed(shape: Shape, answer: Answer) -> str:
    told = story(answer.body)
    if told.error is None:
        if not answer.whole or not told.done:
            return f"wrong: a stream broke off without an error event: {answer.body[-200:]!r}"
        return "right" if told.texts == shape.expected else f"wrong: {str(told.texts)[:300]}"
    for index, (text, _) in told.texts.items():
        if not shape.expected[index][0].startswith(text):
            return f"wrong: before its error event a stream said {text[-100:]!r}"
    return f"error in stream {told.error['code']}"
