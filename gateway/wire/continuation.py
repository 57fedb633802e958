"""A broken stream of a plain completion, gone on with by another engine: what was said, what to ask, one stream.

What can be continued is one choice of text: requests with members that are not known here to survive the cut (tools,
log-probabilities, response formats, penalties on the output …) are not. Tokens said so far are counted as the events
that held text: an engine that packs several into one event may write as many tokens more than `max_tokens` asked for.
Sources: the OpenAI API; vLLM (`continue_final_message`, `add_generation_prompt`; 16 tokens where a text completion
names no limit).
"""

from dataclasses import dataclass

import msgspec

from gateway.wire import json_object
from gateway.wire.json_object import Members
from gateway.wire.sse import BLANK_LINE, data_of

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
_DEFAULT_TEXT_TOKENS = 16
_PROMPTS = {CHAT: "messages", TEXT: "prompt"}
_LIMITS = ("max_tokens", "max_completion_tokens", "min_tokens")
# Members that mean the same to the rest of an answer as to the whole of it.
_KEPT = frozenset(
    {"model", "stream", "stream_options", "temperature", "top_p", "top_k", "min_p", "seed", "stop", "stop_token_ids"}
    | {"ignore_eos", "logit_bias", "repetition_penalty", "user", "cache_salt", "priority", "metadata", "messages"}
    | {"prompt", "chat_template", "chat_template_kwargs", "skip_special_tokens", *_LIMITS}
)
_HARMLESS = {
    "n": (b"1",),
    "best_of": (b"1",),
    "echo": (b"false",),
    "logprobs": (b"false",),
    "add_generation_prompt": (b"true",),
    "presence_penalty": (b"0", b"0.0"),
    "frequency_penalty": (b"0", b"0.0"),
}
_encode = msgspec.json.encode


class _Delta(msgspec.Struct, forbid_unknown_fields=True):
    role: str | None = None
    content: str | None = None


class _Choice(msgspec.Struct):
    index: int = 0
    text: str | None = None
    delta: _Delta | None = None
    finish_reason: str | None = None


class _Event(msgspec.Struct):
    id: str
    choices: list[_Choice]
    created: int = 0


_events = msgspec.json.Decoder(_Event)


@dataclass(frozen=True, slots=True)
class Said:
    """What a stream has said: its id and time, its text, the events that held some of it, and the bytes of all."""

    id: str
    created: int
    text: str
    tokens: int
    whole_bytes: int


def may_continue(path: str, members: Members) -> bool:
    """Whether an answer to this request could be gone on with by another engine."""
    if path not in _PROMPTS or bytes(members.get("stream") or b"") != b"true":
        return False
    prompt = bytes(members.get(_PROMPTS[path]) or b"")
    if not prompt.startswith(b"[" if path == CHAT else b'"'):
        return False
    return all(
        name in _KEPT or json_object.is_absent(raw) or bytes(raw) in _HARMLESS.get(name, ())
        for name, raw in members.items()
    )


def said(stream: bytes) -> Said | None:
    """Return what the whole events of `stream` say, or None where it cannot be gone on with.

    That is a stream that has said it is finished, holds what is no text of one choice, or has not begun.
    """
    first: _Event | None = None
    texts: list[str] = []
    start = 0
    for blank in BLANK_LINE.finditer(stream):
        data = data_of(stream[start : blank.end()])
        start = blank.end()
        if data is None:
            continue
        try:
            event = _events.decode(data)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            return None
        first = first or event
        for choice in event.choices:
            if choice.finish_reason is not None or choice.index:
                return None
            texts.append((choice.delta.content if choice.delta is not None else choice.text) or "")
    if first is None:
        return None
    return Said(first.id, first.created, "".join(texts), sum(map(bool, texts)), start)


def follow_up(path: str, members: Members, before: Said) -> bytes:
    """Return the body that asks another engine for the rest of what was `said` of an answer to `members`."""
    changed: dict[str, msgspec.Raw | bytes] = dict(members)
    if before.text and path == TEXT:
        changed["prompt"] = bytes(members["prompt"])[:-1] + _encode(before.text)[1:]
    elif before.text:
        messages = bytes(members["messages"])[:-1].rstrip()
        comma = b"" if messages == b"[" else b","
        spoken = _encode({"role": "assistant", "content": before.text})
        changed["messages"] = messages + comma + spoken + b"]"
        changed["continue_final_message"], changed["add_generation_prompt"] = b"true", b"false"
    if path == TEXT and "max_tokens" not in members:
        changed["max_tokens"] = b"%d" % _left(_DEFAULT_TEXT_TOKENS, before.tokens, 1)
    for name in _LIMITS:
        limit = json_object.integer(members.get(name))
        if limit is not None:
            changed[name] = b"%d" % _left(limit, before.tokens, 0 if name == "min_tokens" else 1)
    return json_object.build(changed)


def _left(limit: int, used: int, least: int) -> int:
    return max(least, limit - used)


class Seam:
    """Makes the events of a second stream look like the rest of the first: its id and time, no second role, one usage.

    A whole event goes out when it has come; `flush` gives what came of one that did not end.
    """

    def __init__(self, before: Said) -> None:
        self._said = before
        self._event = b""

    def feed(self, chunk: bytes) -> bytes:
        """Return what goes out now."""
        data = self._event + chunk
        out: list[bytes] = []
        start = 0
        for blank in BLANK_LINE.finditer(data):
            out.append(self._rewritten(data[start : blank.end()]))
            start = blank.end()
        self._event = data[start:]
        return b"".join(out)

    def flush(self) -> bytes:
        """Return what was held back; call at the stream's end."""
        event, self._event = self._event, b""
        return event

    def _rewritten(self, event: bytes) -> bytes:
        data = data_of(event)
        if data is None:
            return event
        try:
            members = json_object.parse(data)
        except ValueError:
            return event
        if "choices" not in members or self._is_opening(data):
            return event if "choices" not in members else b""
        changed: dict[str, msgspec.Raw | bytes] = dict(members)
        if "id" in members:
            changed["id"] = _encode(self._said.id)
        if "created" in members:
            changed["created"] = b"%d" % self._said.created
        usage = members.get("usage")
        if usage is not None and bytes(usage).startswith(b"{"):
            changed["usage"] = self._usage(json_object.parse(bytes(usage)))
        return b"data: " + json_object.build(changed) + b"\n\n"

    def _is_opening(self, data: bytes) -> bool:
        """Whether this tells a role and nothing else, which the first stream has told already."""
        try:
            event = _events.decode(data)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            return False
        return bool(event.choices) and all(
            one.delta is not None and one.delta.role is not None and not one.delta.content and one.finish_reason is None
            for one in event.choices
        )

    def _usage(self, members: Members) -> bytes:
        """Return a usage whose prompt is without what was said, and whose output is with it."""
        changed: dict[str, msgspec.Raw | bytes] = dict(members)
        for name, sign in (("prompt_tokens", -1), ("completion_tokens", 1)):
            count = json_object.integer(members.get(name))
            if count is not None:
                changed[name] = b"%d" % max(0, count + sign * self._said.tokens)
        return json_object.build(changed)
