"""Bytes to `InferenceRequest`: reads only what routing needs, keeps the bytes."""

import asyncio

import msgspec

from gateway.api.routes import Route
from gateway.dataplane.records import InferenceRequest
from gateway.errors import InvalidRequest
from gateway.prefix.blocks import block_keys, seed_of
from gateway.wire import json_object, multipart
from gateway.wire.json_object import Members

_OUTPUT_LIMITS = ("max_tokens", "max_completion_tokens")
# Two hops only where these are absent, null or exactly so: an engine's lax parser takes "2", 2.0 or "true" as well.
_HARMLESS = {"n": b"1", "best_of": b"1", "echo": b"false", "use_beam_search": b"false"}
_NONE_ALLOWED = ("prompt_logprobs", "prompt_embeds")
_LOOKED_AT = frozenset({*_HARMLESS, *_NONE_ALLOWED, *_OUTPUT_LIMITS})
# Seeds of requests of which only the model counts, the most common ones: `_SEEDS_KEPT` at most.
_seeds: dict[tuple[int, bytes], int] = {}
_SEEDS_KEPT = 1000
_LIST_START_BYTES = 256


def parse(body: bytes | bytearray, route: Route) -> InferenceRequest:
    """Return what routing needs of `body`, a JSON object. Raises InvalidRequest."""
    if not body.isascii():
        _check_utf8(body)
    members, one_hop_reason = _members(body)
    model = json_object.text(members.get("model"))
    if not model:
        raise InvalidRequest('the body names no model: add a string member "model"', param="model")
    if "kv_transfer_params" in members:  # never taken from a client: it names engines and blocks
        if one_hop_reason is not None:
            raise InvalidRequest(
                "kv_transfer_params is not taken from clients, and cannot be cut out of a body with half a surrogate"
                " pair: leave it out",
                param="kv_transfer_params",
            )
        del members["kv_transfer_params"]
        body = json_object.build(members)
    if "vllm_xargs" in members:
        _check_extra_arguments(members["vllm_xargs"])
    prompt: memoryview | bytes = b""
    for name in route.prompt:
        if name in members:
            prompt = memoryview(members[name])  # a long prompt is not copied
            break
    if route.front:
        prompt = b"".join([bytes(members[name]) for name in route.front if name in members]) + bytes(prompt)
    keys = block_keys(_seed(route, members), prompt)
    return InferenceRequest(
        body, members, model, len(prompt), keys, one_hop_reason or _one_hop_reason(route, members, prompt)
    )


def _seed(route: Route, members: Members) -> int:
    """Return the seed of the prompt's blocks: what must agree before any of its bytes counts."""
    if not members.keys().isdisjoint(route.seed[1:]):
        return seed_of(*[bytes(members[name]) if name in members else b"" for name in route.seed])
    kind = len(route.seed), bytes(members["model"])
    seed = _seeds.get(kind)
    if seed is None:
        seed = seed_of(kind[1], *[b""] * (kind[0] - 1))
        if len(_seeds) >= _SEEDS_KEPT:
            _seeds.clear()
        if len(kind[1]) < _LIST_START_BYTES:
            _seeds[kind] = seed
    return seed


async def parse_form(body: bytes | bytearray, route: Route, content_type: bytes | None) -> InferenceRequest:
    """Return what routing needs of a body that may be multipart/form-data, as `content_type` and `route` say.

    Of a form that is the model; a file's bytes are neither copied nor decoded, and others have their turn between
    stretches of a long one. Raises InvalidRequest.
    """
    if route.model_in != "form" and not multipart.is_form(content_type):
        return parse(body, route)
    walk = multipart.find_text(body, content_type or b"", b"model")
    model = None
    try:
        while True:
            next(walk)
            await asyncio.sleep(0)
    except StopIteration as end:
        model = end.value
    except multipart.BadForm as error:
        raise InvalidRequest(f"the body is no form: {error}") from error
    if not model:
        raise InvalidRequest('the form names no model: add a field "model"', param="model")
    return InferenceRequest(body=body, members={}, model=model, prompt_bytes=0, keys=[], one_hop_reason="route")


def _check_extra_arguments(raw: msgspec.Raw) -> None:
    """Refuse a handoff in `vllm_xargs`: vLLM takes what is there for its own `kv_transfer_params`."""
    if "kv_transfer_params" in json_object.names(raw):
        raise InvalidRequest("kv_transfer_params is not taken from clients, in vllm_xargs neither", param="vllm_xargs")


def _check_utf8(body: bytes | bytearray) -> None:
    try:
        body.decode()
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"the body is no UTF-8: {error.reason} at byte {error.start}") from error


def _members(body: bytes | bytearray) -> tuple[Members, str | None]:
    try:
        return json_object.parse(body), None
    except ValueError as error:
        readable = json_object.without_lone_surrogates(body)
        if readable is None:
            raise InvalidRequest(f"the body is no JSON object: {error}") from error
    try:
        return json_object.parse(readable), "lone_surrogates"
    except ValueError as error:
        raise InvalidRequest(f"the body is no JSON object: {error}") from error


def _one_hop_reason(route: Route, members: Members, prompt: memoryview | bytes) -> str | None:
    """Return why this request takes one hop whatever the pool is, or None.

    One handoff holds the blocks of one prompt and is pulled once: several prompts or several answers to one prompt
    cannot share it, and embeddings are prompts beside the text's. Log-probabilities of the prompt are computed where
    the prompt is, so not on the decode engine.
    """
    if not route.two_hop:
        return "route"
    if prompt[:1] == b"[" and route.kind == "completions" and _many_prompts(prompt):
        return "many_prompts"
    if members.keys().isdisjoint(_LOOKED_AT):
        return None
    for name, harmless in _HARMLESS.items():
        raw = members.get(name)
        if raw is not None and not json_object.is_absent(raw) and bytes(raw) != harmless:
            return name
    for name in _NONE_ALLOWED:
        if not json_object.is_absent(members.get(name)):
            return name
    return None if all(_can_limit(members.get(name)) for name in _OUTPUT_LIMITS) else "max_tokens"


def _can_limit(raw: msgspec.Raw | None) -> bool:
    """Whether an engine takes this as a limit: the prefill leg asks for one token, and would hide that it does not."""
    return json_object.is_absent(raw) or (json_object.integer(raw) or 0) >= 1


def _many_prompts(prompt: memoryview | bytes) -> bool:
    """Whether a list is one of prompts (strings or lists), not of token ids; one that begins with long space may be."""
    return bytes(prompt[1:_LIST_START_BYTES]).lstrip()[:1] in (b'"', b"[", b"")
