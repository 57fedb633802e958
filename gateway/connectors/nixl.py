"""NIXL pull: the decode engine fetches the blocks that the prefill engine holds under a lease.

Wire: vLLM's NixlConnector. The prefill request asks for a remote decode; the answer's top-level `kv_transfer_params`
goes into the decode request whole, unknown members included.
"""

import msgspec

from gateway.connectors import Handoff
from gateway.wire import json_object
from gateway.wire.json_object import Members

_ASK = (
    b'{"do_remote_decode":true,"do_remote_prefill":false,"remote_engine_id":null,'
    b'"remote_block_ids":null,"remote_host":null,"remote_port":null}'
)
_NEEDED = ("remote_engine_id", "remote_block_ids", "remote_host", "remote_port")
# The limits of the output are replaced by "one token"; what makes no sense for one token goes.
_NOT_IN_PREFILL = frozenset(
    {"stream", "stream_options", "max_tokens", "max_completion_tokens", "min_tokens", "kv_transfer_params"}
)


def prefill_body(members: Members) -> bytes:
    """Return the same request with one output token and no stream."""
    kept: dict[str, msgspec.Raw | bytes] = {
        name: value for name, value in members.items() if name not in _NOT_IN_PREFILL
    }
    kept["max_tokens"] = b"1"
    if "max_completion_tokens" in members:
        kept["max_completion_tokens"] = b"1"
    kept["stream"] = b"false"
    kept["kv_transfer_params"] = _ASK
    return json_object.build(kept)


def decode_body(members: Members, handoff: Handoff) -> bytes:
    """Return the client's own request with the handoff's params."""
    kept: dict[str, msgspec.Raw | bytes] = dict(members)
    kept["kv_transfer_params"] = handoff.params
    return json_object.build(kept)


def read_handoff(answer: bytes) -> Handoff | str:
    """Return the params of a prefill answer, or `not_json`, `no_params`, `empty_params`, `wrong_params`."""
    try:
        members = json_object.parse(answer)
    except ValueError:
        return "not_json"
    raw = members.get("kv_transfer_params")
    if raw is None or json_object.is_absent(raw):
        return "no_params"
    try:
        params = json_object.parse(bytes(raw))
    except ValueError:
        return "wrong_params"
    if not params:
        return "empty_params"
    if any(json_object.is_absent(params.get(name)) for name in _NEEDED):
        return "wrong_params"
    return Handoff(bytes(raw), _cached_tokens(members.get("usage")))


def _cached_tokens(usage: msgspec.Raw | None) -> int | None:
    if usage is None:
        return None
    try:
        details = json_object.parse(bytes(usage)).get("prompt_tokens_details")
        return json_object.integer(json_object.parse(bytes(details)).get("cached_tokens")) if details else None
    except ValueError:
        return None
