"""What a client asked a simulated engine for: bodies checked as vLLM checks them and turned into plain values."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gateway.simulator.refusal import Refusal, malformed
from gateway.simulator.template import chat_text
from gateway.simulator.tokens import ID_LIMIT, encode, seed_of
from gateway.simulator.tools import Call, forced_answer

Body = Mapping[str, Any]

INTEGERS = (
    "max_tokens", "max_completion_tokens", "min_tokens", "n", "seed", "top_logprobs", "top_k", "priority",
)  # fmt: skip
NUMBERS = ("temperature", "top_p", "frequency_penalty", "presence_penalty", "repetition_penalty", "min_p")
FLAGS = (
    "stream",
    "ignore_eos",
    "echo",
    "return_token_ids",
    "include_stop_str_in_output",
    "add_generation_prompt",
    "continue_final_message",
)


@dataclass(slots=True)
class Asked:
    """One inference request. `prompts` holds token ids per prompt; every prompt is answered `n` times.

    `top_logprobs` is None where no log probabilities were asked for. `keys` has one sampling key per choice of a
    prompt, None for greedy decoding. `call` is the forced tool call, `kv` the kv_transfer_params;
    with `prompt_only` the answer is the echoed prompt alone.
    """

    chat: bool
    model: str
    prompts: list[list[int]]
    texts: list[str]
    n: int
    max_tokens: int
    min_tokens: int
    ignore_eos: bool
    keys: list[int | None]
    stream: bool
    include_usage: bool
    continuous_usage: bool
    top_logprobs: int | None
    stop: list[str]
    stop_tokens: frozenset[int]
    keep_stop: bool
    echo: bool
    return_token_ids: bool
    salt: int
    forced: list[int] = field(default_factory=list)
    call: Call | None = None
    kv: Body | None = None
    prompt_only: bool = False


def chat_request(body: Body, models: tuple[str, ...], max_model_len: int) -> Asked:
    """Check a chat completion request. Raises Refusal."""
    _check_types(body)
    model = _model(body, models)
    messages = body.get("messages")
    if not isinstance(messages, list):
        raise malformed("messages: a list is required", "messages")
    top = None
    if body.get("logprobs"):
        top = int(body.get("top_logprobs") or 0)
    elif body.get("top_logprobs"):
        raise malformed("top_logprobs needs logprobs to be true", "top_logprobs")
    prompt, continues = body.get("add_generation_prompt", True) is True, body.get("continue_final_message") is True
    if prompt and continues:
        raise malformed("add_generation_prompt and continue_final_message exclude each other", "add_generation_prompt")
    text = chat_text(messages, body.get("tools"), generation_prompt=prompt, continues=continues)
    limit = body.get("max_completion_tokens")
    limit = body.get("max_tokens") if limit is None else limit
    asked = _asked(body, True, model, [encode(text)], [text], limit, top, max_model_len)
    said, asked.call = forced_answer(body, seed_of(text))
    if said is not None:
        asked.forced = encode(said)
    return asked


def completion_request(body: Body, models: tuple[str, ...], max_model_len: int) -> Asked:
    """Check a text completion request. Raises Refusal."""
    _check_types(body)
    model = _model(body, models)
    top = body.get("logprobs")
    if top is not None and (not isinstance(top, int) or isinstance(top, bool) or top < 0):
        raise malformed("logprobs: a number of alternatives from 0 is required", "logprobs")
    prompts, texts = _prompts(body.get("prompt"))
    limit = body.get("max_tokens", 16)
    prompt_only = body.get("echo") is True and limit == 0
    asked = _asked(body, False, model, prompts, texts, 1 if prompt_only else limit, top, max_model_len)
    asked.prompt_only = prompt_only
    return asked


def tokenize_request(body: Body, models: tuple[str, ...]) -> list[int]:
    """Return the token ids a /tokenize body asks for. Raises Refusal."""
    _model(body, models)
    if isinstance(body.get("messages"), list):
        prompt = body.get("add_generation_prompt", True) is True
        return encode(chat_text(body["messages"], body.get("tools"), generation_prompt=prompt))
    if not isinstance(body.get("prompt"), str):
        raise malformed("prompt: a string is required", "prompt")
    return encode(body["prompt"])


def _asked(
    body: Body, chat: bool, model: str, prompts: list[list[int]], texts: list[str],
    limit: Any, top: int | None, max_model_len: int,
) -> Asked:  # fmt: skip
    stream = body.get("stream") is True
    options = body.get("stream_options")
    if options and not stream:
        raise malformed("stream_options needs stream to be true", "stream_options")
    if options is not None and not isinstance(options, Mapping):
        raise malformed("stream_options: an object is required", "stream_options")
    options = options or {}
    longest = max(map(len, prompts))
    max_tokens = _max_tokens(limit, longest, max_model_len, "max_completion_tokens" if chat else "max_tokens")
    min_tokens = body.get("min_tokens") or 0
    if min_tokens < 0 or min_tokens > max_tokens:
        raise Refusal(400, f"min_tokens must be between 0 and max_tokens={max_tokens}, got {min_tokens}")
    count = 1 if body.get("n") is None else body["n"]
    if count < 1:
        raise Refusal(400, f"n must be at least 1, got {count}", param="n")
    keys = _keys(body, count)
    if count > 1 and None in keys:
        raise Refusal(400, f"greedy sampling gives one choice; n must be 1, got {count}")
    _check_ranges(body)
    kv = body.get("kv_transfer_params")
    if kv is not None and not isinstance(kv, Mapping):
        raise malformed("kv_transfer_params: an object is required", "kv_transfer_params")
    stop_tokens = body.get("stop_token_ids") or []
    return Asked(
        chat=chat, model=model, prompts=prompts, texts=texts, n=count, max_tokens=max_tokens, min_tokens=min_tokens,
        ignore_eos=body.get("ignore_eos") is True, keys=keys, stream=stream,
        include_usage=options.get("include_usage") is True,
        continuous_usage=options.get("include_usage") is True and options.get("continuous_usage_stats") is True,
        top_logprobs=top, stop=_stop(body.get("stop")), stop_tokens=frozenset(stop_tokens),
        keep_stop=body.get("include_stop_str_in_output") is True, echo=body.get("echo") is True,
        return_token_ids=body.get("return_token_ids") is True, salt=seed_of(model, body.get("cache_salt") or ""), kv=kv,
    )  # fmt: skip


def _check_types(body: Body) -> None:
    for name in INTEGERS:
        value = body.get(name)
        if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
            raise malformed(f"{name}: an integer is required", name)
    for name in NUMBERS:
        value = body.get(name)
        if value is not None and (not isinstance(value, int | float) or isinstance(value, bool)):
            raise malformed(f"{name}: a number is required", name)
    for name in FLAGS:
        value = body.get(name)
        if value is not None and not isinstance(value, bool):
            raise malformed(f"{name}: true or false is required", name)


def _check_ranges(body: Body) -> None:
    temperature = body.get("temperature")
    if temperature is not None and temperature < 0:
        raise Refusal(400, f"temperature must not be negative, got {temperature}", param="temperature")
    top_p = body.get("top_p")
    if top_p is not None and not 0 < top_p <= 1:
        raise Refusal(400, f"top_p must be above 0 and at most 1, got {top_p}", param="top_p")


def _model(body: Body, models: tuple[str, ...]) -> str:
    model = body.get("model")
    if model is None:
        return models[0]
    if not isinstance(model, str):
        raise malformed("model: a string is required", "model")
    if model not in models:
        raise Refusal(404, f"The model `{model}` does not exist.", "NotFoundError", "model")
    return model


def _max_tokens(limit: Any, prompt_tokens: int, max_model_len: int, param: str) -> int:
    if prompt_tokens >= max_model_len:
        raise Refusal(
            400,
            f"the prompt has {prompt_tokens} tokens; this model takes fewer than {max_model_len}, output included",
            param="input_tokens",
        )
    if limit is None:
        return max_model_len - prompt_tokens
    if limit < 1:
        raise Refusal(400, f"{param} must be at least 1, got {limit}", param=param)
    if prompt_tokens + limit > max_model_len:
        raise Refusal(
            400,
            f"the prompt has {prompt_tokens} tokens and {limit} more are asked for; "
            f"the maximum context length is {max_model_len} tokens",
            param="input_tokens",
        )
    return int(limit)


def _keys(body: Body, count: int) -> list[int | None]:
    temperature = body.get("temperature")
    if temperature is not None and temperature < 1e-5:
        return [None] * count
    seed = body.get("seed") or 0
    return [seed_of("sample", seed + index) for index in range(count)]


def _stop(stop: Any) -> list[str]:
    stops = [stop] if isinstance(stop, str) else stop or []
    if not isinstance(stops, list) or not all(isinstance(each, str) for each in stops):
        raise malformed("stop: a string or a list of strings is required", "stop")
    if not all(stops):
        raise Refusal(400, "stop cannot hold an empty string")
    return stops


def _prompts(prompt: Any) -> tuple[list[list[int]], list[str]]:
    if isinstance(prompt, str) or (isinstance(prompt, list) and prompt and all(map(is_token, prompt))):
        prompt = [prompt]
    if not isinstance(prompt, list):
        raise malformed("prompt: a string, a list of strings, or token ids are required", "prompt")
    if not prompt:
        raise Refusal(400, "at least one prompt is required")
    prompts = []
    for each in prompt:
        if isinstance(each, str) and each:
            prompts.append(encode(each))
        elif isinstance(each, list) and each and all(map(is_token, each)):
            prompts.append(each)
        else:
            raise malformed("prompt: a non-empty string or list of token ids is required", "prompt")
    return prompts, [each if isinstance(each, str) else "" for each in prompt]


def is_token(value: Any) -> bool:
    """Tell whether `value` can be a token id."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < ID_LIMIT
