"""Token counts in an engine's answer, read and corrected as bytes.

Inside a JSON string a quote is always escaped, so the bytes `"cached_tokens":` can only be a member's name; no event
needs to be parsed. The same holds for the other names here.
"""

import re
from dataclasses import dataclass

# Digits are bounded: no engine writes more, and int() refuses thousands of them. A number counts where its end is seen.
_PROMPT = re.compile(rb'"prompt_tokens"\s*:\s*(\d{1,19})\s*[,}]')
_OUTPUT = re.compile(rb'"completion_tokens"\s*:\s*(\d{1,19})\s*[,}]')
_CACHED = re.compile(rb'"cached_tokens"\s*:\s*(\d{1,19})\s*[,}]')
# A usage is some hundred bytes; what follows it may be a megabyte of token ids, which is not searched for more.
_USAGE_BYTES = 4096
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


def find(tail: bytes) -> Usage | None:
    """Return the last usage in `tail`, an answer's body or its end, or None.

    Of the members called so the last few are looked at: a later one may be null.
    """
    start = len(tail)
    for _ in range(_TRIES):
        start = tail.rfind(b'"usage"', 0, start)
        if start < 0:
            return None
        end = start + _USAGE_BYTES
        prompt = _PROMPT.search(tail, start, end)
        if prompt is not None:
            output, cached = _OUTPUT.search(tail, start, end), _CACHED.search(tail, start, end)
            return Usage(int(prompt[1]), int(output[1]) if output else 0, int(cached[1]) if cached else None)
    return None


class CachedTokensCorrection:
    """Puts one number into every `cached_tokens` of a body that comes in pieces.

    Bytes that may be the beginning of such a member are held back until the next piece, at most a few dozen.
    """

    def __init__(self, cached_tokens: int) -> None:
        self._name_and_number = b'"cached_tokens":%d' % cached_tokens
        self._details = b'"prompt_tokens_details":{"cached_tokens":%d}' % cached_tokens
        self._held = b""

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
