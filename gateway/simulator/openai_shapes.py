"""Bodies and chunks as vLLM 0.32 writes them: the same fields, the same order, null where it says null."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from gateway.simulator.asked import Asked
from gateway.simulator.choice import Choice
from gateway.simulator.refusal import Refusal
from gateway.simulator.tokens import logprobs_of, token_bytes

Json = dict[str, Any]
encode = msgspec.json.encode
DONE = b"data: [DONE]\n\n"
FINGERPRINT = "vllm-0.32.0-51317517"


def event(value: object) -> bytes:
    """Return one server-sent event."""
    return b"data: " + encode(value) + b"\n\n"


def error_body(refusal: Refusal) -> Json:
    """Return the body of an answer that is an error."""
    return {
        "error": {
            "message": refusal.message,
            "type": refusal.type,
            "param": refusal.param,
            "code": refusal.status,
        }
    }


@dataclass(frozen=True, slots=True)
class Cache:
    """Prompt tokens that came from the cache, and those that went into it (None: not told)."""

    cached: int
    created: int | None


def usage(prompt: int, completion: int, cache: Cache, *, nulls: bool) -> Json:
    """Return a usage object; `nulls` keeps absent fields as null."""
    counted: Json = {"prompt_tokens": prompt, "total_tokens": prompt + completion, "completion_tokens": completion}
    details = {"cached_tokens": cache.cached, "created_cache_tokens": cache.created, "multimodal_tokens": None}
    if not nulls:
        details = {name: value for name, value in details.items() if value is not None}
    counted["prompt_tokens_details"] = details
    if nulls:
        counted["completion_tokens_details"] = None
    return counted


def chat_logprobs(tokens: Sequence[int], top: int) -> Json:
    """Return `logprobs` of a chat choice for `tokens` with `top` alternatives each."""

    def entry(token: int, logprob: float) -> Json:
        data = token_bytes(token)
        return {"token": data.decode("utf-8", "replace"), "logprob": logprob, "bytes": list(data)}

    content = []
    previous = 0
    for token in tokens:
        pairs = logprobs_of(token, previous, top)
        alternatives = [entry(*pair) for pair in pairs[:top]]
        content.append({**entry(*pairs[0]), "top_logprobs": alternatives})
        previous = token
    return {"content": content}


def completion_logprobs(tokens: Sequence[int], top: int, offset: int) -> Json:
    """Return `logprobs` of a text choice for `tokens`, the first of which begins at character `offset`."""
    shape: Json = {"text_offset": [], "token_logprobs": [], "tokens": [], "top_logprobs": []}
    previous = 0
    for token in tokens:
        pairs = logprobs_of(token, previous, top)
        text = token_bytes(token).decode("utf-8", "replace")
        shape["text_offset"].append(offset)
        shape["token_logprobs"].append(pairs[0][1])
        shape["tokens"].append(text)
        likely = {token_bytes(each).decode("utf-8", "replace"): logprob for each, logprob in pairs[: max(top, 1)]}
        shape["top_logprobs"].append(likely)
        offset += len(text)
        previous = token
    return shape


class Answer:
    """Builds the body or the chunks of one answer."""

    def __init__(self, asked: Asked, answer_id: str, created_s: int, prompt_tokens: int) -> None:
        self.asked = asked
        self.prompt_tokens = prompt_tokens
        self._head: Json = {
            "id": answer_id,
            "object": ("chat.completion" if asked.chat else "text_completion"),
            "created": created_s,
            "model": asked.model,
        }
        self._chunk_head = self._head | ({"object": "chat.completion.chunk"} if asked.chat else {})
        opening = encode(self._chunk_head | {"choices": []})[:-2]
        body = b'"delta":{"content":"' if asked.chat else b'"text":"'
        self._fast = [b"data: " + opening + b'{"index":%d,' % i + body for i in range(asked.n * len(asked.prompts))]
        between = b"}" if asked.chat else b""
        more = b"" if asked.chat else b'"stop_reason":null,"prompt_token_ids":null,'
        self._tail = b'"' + between + b',"logprobs":null,"finish_reason":null,' + more + b'"token_ids":null}]}\n\n'
        self._plain = asked.top_logprobs is None and not asked.return_token_ids and not asked.continuous_usage
        self._offsets: dict[int, int] = {}

    def opening(self, choice: Choice) -> bytes:
        """Return a chat stream's first chunk of a choice: the role, no text."""
        shape = {"index": choice.index, "delta": {"role": "assistant", "content": ""}, "logprobs": None}
        prompt = list(choice.job.prompt) if self.asked.return_token_ids else None
        chunk = self._with_usage(self._chunk_head | {"choices": [shape | {"finish_reason": None}]}, choice, 0)
        return event(chunk | {"prompt_token_ids": prompt, "prompt_text": None})

    def chunk(self, choice: Choice) -> bytes:
        """Return the chunk for what `choice` has to show now, empty if that is nothing."""
        text = "" if self.asked.prompt_only else choice.delta()
        tokens = choice.take_tokens()
        if not text and not tokens and choice.finish_reason is None:
            return b""
        if self._plain and choice.finish_reason is None and self.asked.call is None and not self._echo(choice):
            return self._fast[choice.index] + encode(text)[1:-1] + self._tail
        shape: Json = {"index": choice.index}
        if self.asked.chat:
            shape["delta"] = self._delta(choice, text)
            shape["logprobs"] = self._logprobs(choice, tokens)
            shape["finish_reason"] = self.finish_reason(choice)
            if choice.finish_reason is not None:
                shape["stop_reason"] = choice.stop
        else:
            first = self._echo(choice)
            shape["text"] = self.asked.texts[choice.index // self.asked.n] + text if first and self.asked.echo else text
            shape["logprobs"] = self._logprobs(choice, tokens)
            shape |= {"finish_reason": choice.finish_reason, "stop_reason": choice.stop}
            shape["prompt_token_ids"] = list(choice.job.prompt) if first and self.asked.return_token_ids else None
        self._offsets[choice.index] = self._offsets.get(choice.index, 0) + len(text)
        shape["token_ids"] = tokens if self.asked.return_token_ids else None
        chunk = self._with_usage(self._chunk_head | {"choices": [shape]}, choice, choice.said)
        if choice.finish_reason is not None and not self.asked.include_usage:
            chunk["system_fingerprint"] = FINGERPRINT
        return event(chunk)

    def usage_chunk(self, choices: Iterable[Choice], cache: Cache) -> bytes:
        """Return the chunk with the usage of the whole answer."""
        said = sum(choice.said for choice in choices)
        counted = usage(self.prompt_tokens, said, cache, nulls=False)
        return event(self._chunk_head | {"choices": [], "usage": counted, "system_fingerprint": FINGERPRINT})

    def body(self, choices: Sequence[Choice], cache: Cache, kv: Json | None) -> Json:
        """Return the whole answer of a request that does not stream."""
        counted = usage(self.prompt_tokens, sum(choice.said for choice in choices), cache, nulls=True)
        head = self._head | {
            "choices": [self._chat_choice(c) if self.asked.chat else self._text_choice(c) for c in choices],
            "service_tier": None,
            "system_fingerprint": FINGERPRINT,
            "usage": counted,
        }
        if self.asked.chat:
            prompt = list(choices[0].job.prompt) if self.asked.return_token_ids else None
            head |= {"prompt_logprobs": None, "prompt_token_ids": prompt, "prompt_text": None}
        return head | {"kv_transfer_params": kv, "ec_transfer_params": None, "metrics": None}

    def finish_reason(self, choice: Choice) -> str | None:
        """Return the reason a client is told: an unforced tool call that is complete ends as "tool_calls"."""
        call = self.asked.call
        if call is not None and not call.named and choice.finish_reason == "stop":
            return "tool_calls"
        return choice.finish_reason

    def _chat_choice(self, choice: Choice) -> Json:
        call = self.asked.call
        message: Json = {"role": "assistant", "content": choice.text if call is None else None}
        message |= {"refusal": None, "annotations": None, "audio": None, "function_call": None}
        if call is not None:
            message["content"] = "" if call.named else None
            message["tool_calls"] = [
                {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": choice.text}}
            ]
        tokens = choice.take_tokens()
        return {
            "index": choice.index,
            "message": message | {"reasoning": None},
            "logprobs": self._logprobs(choice, tokens),
            "finish_reason": self.finish_reason(choice),
            "stop_reason": choice.stop,
            "token_ids": tokens if self.asked.return_token_ids else None,
            "routed_experts": None,
        }

    def _text_choice(self, choice: Choice) -> Json:
        tokens = choice.take_tokens()
        echoed = self.asked.texts[choice.index // self.asked.n] if self.asked.echo else ""
        return {
            "index": choice.index,
            "text": echoed if self.asked.prompt_only else echoed + choice.text,
            "logprobs": self._logprobs(choice, tokens),
            "finish_reason": choice.finish_reason,
            "stop_reason": choice.stop,
            "token_ids": tokens if self.asked.return_token_ids else None,
            "prompt_logprobs": None,
            "prompt_token_ids": list(choice.job.prompt) if self.asked.return_token_ids else None,
            "routed_experts": None,
        }

    def _delta(self, choice: Choice, text: str) -> Json:
        call = self.asked.call
        if call is None:
            return {"content": text}
        if choice.index in self._offsets:
            return {"tool_calls": [{"index": 0, "function": {"arguments": text}}]} if text else {"content": ""}
        function = {"name": call.name, "arguments": text}
        return {"tool_calls": [{"id": call.id, "type": "function", "index": 0, "function": function}]}

    def _echo(self, choice: Choice) -> bool:
        return (self.asked.echo or self.asked.return_token_ids) and choice.index not in self._offsets

    def _logprobs(self, choice: Choice, tokens: Sequence[int]) -> Json | None:
        top = self.asked.top_logprobs
        if top is None:
            return None
        if self.asked.chat:
            return chat_logprobs(tokens, top)
        return completion_logprobs(tokens, top, self._offsets.get(choice.index, 0))

    def _with_usage(self, chunk: Json, choice: Choice, said: int) -> Json:
        if self.asked.continuous_usage:
            prompt = len(choice.job.prompt)
            chunk["usage"] = {"prompt_tokens": prompt, "total_tokens": prompt + said, "completion_tokens": said}
            if self.asked.chat:
                chunk["usage"]["completion_tokens_details"] = None
        return chunk
