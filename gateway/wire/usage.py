"""Token counts in an engine's answer, read and corrected as bytes.

Inside a JSON string a quote is always escaped, so the bytes `"cached_tokens":` can only be a member's name; no event
needs to be parsed. The same holds for the other names here.

Formats: OpenAI (`prompt_tokens`, `completion_tokens`, `cached_tokens`; rerank tells `total_tokens` alone), the
Responses API (`input_tokens`, `output_tokens`, `cached_tokens`) and Anthropic's messages, whose `input_tokens` leave
out what was read from the cache or written to it (`cache_read_input_tokens`, `cache_creation_input_tokens`).
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

# Token counts by their names, as far as an answer told them.
Counts = dict[bytes, int]

# Digits are bounded: no engine writes more, and int() refuses thousands of them. A number counts where its end is seen.
_COUNT = re.compile(
    rb'"((?:prompt|input|completion|output|total|cached|cache_read_input|cache_creation_input)_tokens)"'
    rb"\s*:\s*(\d{1,19})\s*[,}]"
)
_USAGE = re.compile(rb'"usage"\s*:\s*\{')
# A usage is some hundred bytes; what follows it may be a megabyte of token ids, which is not searched for more.
USAGE_BYTES = 4096
_TRIES = 4
# Space is bounded too, so that what must be held back is.
_CORRECTABLE = re.compile(
    rb'"cached_tokens"\s{0,8}:\s{0,8}\d{1,19}(?![\d.eE])|"prompt_tokens_details"\s{0,8}:\s{0,8}null'
)
_LITERALS = (b'"cached_tokens"', b'"prompt_tokens_details"')
_VALUE_SO_FAR = re.compile(rb"\s{0,8}(?::\s{0,8}(?:\d{0,19}|n|nu|nul))?")
_LOOK_BACK = 64


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of one answer; `cached` is None where the engine does not tell."""

    prompt: int
    output: int
    cached: int | None


def find(tail: bytes | bytearray) -> Usage | None:
    """Return the last usage in `tail`, an answer's body or its end, or None.

    Of the members called so the last few are looked at: a later one may be null.
    """
    start = len(tail)
    for _ in range(_TRIES):
        start = tail.rfind(b'"usage"', 0, start)
        if start < 0:
            return None
        found = usage_of(_counts_at(tail, start))
        if found is not None:
            return found
    return None


def add_counts(counts: Counts, events: bytes | bytearray) -> None:
    """Put the counts of every usage in `events` into `counts`; of equal names the last usage counts.

    Anthropic's streams tell the prompt in their first event and the output in one of their last.
    """
    for match in _USAGE.finditer(events):
        counts.update(_counts_at(events, match.start()))


def usage_of(counts: Mapping[bytes, int]) -> Usage | None:
    """Return what `counts` say of an answer, or None where they tell no prompt."""
    read = counts.get(b"cache_read_input_tokens")
    if b"prompt_tokens" in counts:
        prompt = counts[b"prompt_tokens"]
    elif b"input_tokens" in counts:
        prompt = counts[b"input_tokens"] + (read or 0) + counts.get(b"cache_creation_input_tokens", 0)
    elif b"total_tokens" in counts:
        prompt = counts[b"total_tokens"]
    else:
        return None
    output = counts.get(b"completion_tokens", counts.get(b"output_tokens", 0))
    return Usage(prompt, output, counts.get(b"cached_tokens", read))


def _counts_at(data: bytes | bytearray, start: int) -> Counts:
    """Return the counts of the usage that begins at `start`; of equal names the first counts."""
    counts: Counts = {}
    for match in _COUNT.finditer(data, start, start + USAGE_BYTES):
        counts.setdefault(bytes(match[1]), int(match[2]))
    return counts


class CachedTokensCorrection:
    """Puts one number into every `cached_tokens` of a body that comes in pieces.

    Bytes that may be the beginning of such a member are held back until the next piece, at most a few dozen.
    """

    def __init__(self, cached_tokens: int) -> None:
        self._name_and_number = b'"cached_tokens":%d' % cached_tokens
        self._details = b'"prompt_tokens_details":{"cached_tokens":%d}' % cached_tokens
        self._held = b""

    @property
    def holds(self) -> bool:
        """Whether bytes are held back."""
        return bool(self._held)

    def feed(self, chunk: bytes) -> bytes:
        """Return what can go out now."""
        if self._held:
            chunk, self._held = self._held + chunk, b""
        cut = _open_end(chunk)
        if cut is not None:
            chunk, self._held = chunk[:cut], chunk[cut:]
        return self._correct(chunk)

    def flush(self) -> bytes:
        """Return what was held back; call at the body's end."""
        held, self._held = self._held, b""
        return self._correct(held)

    def _correct(self, body: bytes) -> bytes:
        if b"_tokens" not in body:
            return body
        return _CORRECTABLE.sub(self._replacement, body)

    def _replacement(self, match: re.Match[bytes]) -> bytes:
        return self._name_and_number if match[0].startswith(b'"cached') else self._details


def _open_end(chunk: bytes) -> int | None:
    """Return where a correctable member begins that `chunk` cuts off, or None."""
    start = max(0, len(chunk) - _LOOK_BACK)
    quote = chunk.rfind(b'"', start)
    if quote < 0:
        return None
    # A whole name first: its closing quote would pass for the opening one of a name that is cut off.
    for literal in _LITERALS:
        name = chunk.rfind(literal, start)
        if name >= 0 and _VALUE_SO_FAR.fullmatch(chunk, name + len(literal)):
            return name
    return quote if any(literal.startswith(chunk[quote:]) for literal in _LITERALS) else None
