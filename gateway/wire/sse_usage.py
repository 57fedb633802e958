"""The usage in a stream of server-sent events: counted however it is cut, and taken out where the gateway asked for it.

Invariant: what goes out is what came in, without the usage event (and, if so told, without the `"usage":null` members
of a stream whose first choices have one beside them), whatever the reads. Of a whole event nothing is held back.

A usage event is one whose JSON has no choices and counts tokens. Usage packed into an event with choices stays there:
the text beside it is the client's, and an engine that packs does so unasked. Comments around a usage event stay too.
Sources: the HTML standard, section 9.2.6 (a line ends with CR, LF or CRLF, an event with an empty line); the OpenAI API
(`stream_options`).
"""

import re

import msgspec

from gateway.wire.sse import BLANK_LINE, BLANK_LINE_BYTES, data_of
from gateway.wire.usage import USAGE_BYTES, CachedTokensCorrection, Counts, Usage, add_counts, usage_of

# Of an event that does not end no more than this is held back or kept; no usage event is so long.
HELD_BYTES = 65536
# Found in every usage of every format, and in an event's JSON nowhere else but in such names.
_COUNTS_MARK = b'_tokens"'
# In every usage of a completion; being long it is looked for faster.
_OUTPUT_MARK = b'"completion_tokens"'
_USAGE_MARK = b'"usage"'
_ENDS = (b"\n\n", b"\r\n\r\n")
_BEFORE_EVENT = re.compile(rb"(?:(?::[^\r\n]*)?(?:\r\n?|\n))+")
# With this in it an event is no usage event. Space is bounded, so that what is looked at again for it is.
_HAS_CHOICE = re.compile(rb'"choices"\s{0,8}:\s{0,8}\[\s{0,8}\{')
_CHOICE_BYTES = 64
_TORN_USAGE = re.compile(rb'"choices"\s*:\s*\[\s*\]\s*,\s*"usage"\s*:\s*\{')
_NULL = re.compile(rb',\s{0,8}"usage"\s{0,8}:\s{0,8}null(?=\s{0,8}[,}])')
_NULL_SO_FAR = re.compile(
    rb',\s{0,8}(?:"(?:u|us|usa|usag|usage|usage"\s{0,8}(?::\s{0,8}(?:n|nu|nul|null\s{0,8})?)?)?)?'
)


class _Chunk(msgspec.Struct):
    """What tells a usage event of a completion from its other events."""

    choices: list[msgspec.Raw]
    usage: msgspec.Raw


_decoder = msgspec.json.Decoder(_Chunk)


class UsageTap:
    """Counts the usage in one stream. `remove` takes its event out; that is for completions alone.

    `nulls`, with `remove`, says that a `"usage":null` beside the first choices is there because the gateway asked: then
    it is taken out of every event. `cached_tokens` is what every `cached_tokens` is set to, None where the engine's own
    stands. `whole` holds every event back until it has ended, so that no half has gone out when an engine is lost.

    `changes`: other bytes may go out than came in. `clear`: an event begins and nothing is held back; then a chunk of
    whole events without `mark` needs no `feed`.
    """

    def __init__(
        self, *, remove: bool = False, nulls: bool = False, cached_tokens: int | None = None, whole: bool = False
    ) -> None:
        self._remove, self._nulls, self._holds_all = remove, nulls, whole
        self._undecided = nulls
        self.changes = remove or cached_tokens is not None
        self.clear = not nulls
        self.mark = _OUTPUT_MARK if remove else _COUNTS_MARK
        self._correction = None if cached_tokens is None else CachedTokensCorrection(cached_tokens)
        self._counts: Counts = {}
        # The event that has begun, and how much of it has gone out. If not all, the rest of it may have to go.
        self._event = bytearray()
        self._sent = 0
        self._after_cr = False

    @property
    def usage(self) -> Usage | None:
        """The token counts so far."""
        counts = dict(self._counts)
        event = bytes(self._event)
        add_counts(counts, data_of(event) or event)
        return usage_of(counts)

    @property
    def mid_event(self) -> bool:
        """Whether the beginning of an event has gone out, but not its end."""
        return self._sent > 0

    def quick(self, framed: bytes) -> bool:
        """Whether `framed`, one chunk of HTTP/1.1 with its framing, may pass as it is, without `feed`."""
        return (
            self.clear
            and (framed[-4:] == b"\n\n\r\n" or framed[-6:] == b"\r\n\r\n\r\n")
            and framed.rfind(self.mark) < 0
        )

    def feed(self, chunk: bytes) -> bytes:
        """Return what goes out now of the stream up to the end of `chunk`; may be empty."""
        if self.clear and chunk.endswith(_ENDS) and chunk.rfind(self.mark) < 0:
            return chunk
        if self._correction is not None:
            chunk = self._correction.feed(chunk)
        out = self._pass(chunk)
        held = self._event or self._after_cr or (self._correction is not None and self._correction.holds)
        self.clear = not (held or self._undecided)
        return out

    def flush(self) -> bytes:
        """Return what goes out of what was held back; call at the stream's end."""
        out = self._pass(self._correction.flush()) if self._correction is not None else b""
        event, sent = bytes(self._event), self._sent
        self._event, self._sent = bytearray(), 0
        return out + self._whole(event, sent, torn=True)

    def drop_half(self) -> None:
        """Forget an event that has begun and of which nothing has gone out: another stream goes on from here."""
        if self._correction is not None:
            self._correction.flush()
        self._event, self._after_cr = bytearray(), False
        self.clear = not self._undecided

    def _pass(self, chunk: bytes) -> bytes:
        if self._after_cr and chunk:  # the line end behind a usage event was cut: its second half goes with the first
            chunk, self._after_cr = chunk.removeprefix(b"\n"), False
        event = self._event
        known = len(event)
        out: list[bytes] = []
        if not known and not self._undecided and chunk.rfind(self.mark) < 0:
            whole = max(chunk.rfind(b"\n\n") + 2, chunk.rfind(b"\r\n\r\n") + 4)
            if whole > 3:  # else there is no blank line, or a blank line alone
                out.append(chunk[:whole])
                chunk = chunk[whole:]
        event += chunk
        start = 0
        for end in [blank.end() for blank in BLANK_LINE.finditer(event, max(0, known - BLANK_LINE_BYTES))]:
            out.append(self._whole(bytes(event[start:end]), self._sent))
            start, self._sent = end, 0
        if start:
            del event[:start]
            known = 0
            self._after_cr = self._after_cr and not event
        if event:
            out.append(self._begun(known))
        return out[0] if len(out) == 1 else b"".join(out)

    def _whole(self, event: bytes, sent: int, torn: bool = False) -> bytes:
        """Count an event that is whole, or `torn` by the stream's end; return what goes out behind its `sent` bytes."""
        self._after_cr = False
        if _COUNTS_MARK in event:
            data = data_of(event) or event
            add_counts(self._counts, data)
            if self._remove and not sent and (_is_usage(data) or (torn and _TORN_USAGE.search(data))):
                self._after_cr = event.endswith(b"\r")
                return _beside(event)
        if self._undecided and b'"choices"' in event:
            self._undecided, self._nulls = False, _NULL.search(event) is not None
            self.mark = _USAGE_MARK if self._nulls else _OUTPUT_MARK
        return self._without_nulls(event[sent:])

    def _begun(self, known: int) -> bytes:
        """Return what can go out of an event that has begun; of its bytes the first `known` have been looked at."""
        event = self._event
        if not (self._remove or self._holds_all):
            return self._release(len(event))
        out = b""
        if not self._sent:
            before = _BEFORE_EVENT.match(event)
            if before is not None:
                out = before[0]
                del event[: before.end()]
                known = 0
            if len(event) < HELD_BYTES and (
                self._holds_all or not _HAS_CHOICE.search(event, max(0, known - _CHOICE_BYTES))
            ):
                return out
        end = len(event)
        if self._nulls and end < HELD_BYTES:
            comma = event.rfind(b",", self._sent)
            if comma >= 0 and _NULL_SO_FAR.fullmatch(event, comma):
                end = comma
        return out + self._release(end)

    def _release(self, end: int) -> bytes:
        """Return the bytes of the event up to `end` that have not gone out."""
        event = self._event
        # The byte behind them says whether a null that they end with is a whole value.
        out = self._without_nulls(bytes(event[self._sent : end + 1]))
        if end < len(event):
            out = out[:-1]
        self._sent = end
        if len(event) >= HELD_BYTES:
            add_counts(self._counts, event)
            gone = end - USAGE_BYTES
            del event[:gone]
            self._sent -= gone
        return out

    def _without_nulls(self, part: bytes) -> bytes:
        return _NULL.sub(b"", part) if self._nulls and _USAGE_MARK in part else part


def _beside(event: bytes) -> bytes:
    """Return what is no part of an event: the comments in it, and the lines before it."""
    kept: list[bytes] = []
    begun = False
    for line in event.splitlines(keepends=True):
        if line[:1] == b":" or (not begun and not line.strip(b"\r\n")):
            kept.append(line)
        else:
            begun = True
    return b"".join(kept)


def _is_usage(data: bytes) -> bool:
    """Whether an event of a completion with this data is its usage event."""
    try:
        chunk = _decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return not chunk.choices and _OUTPUT_MARK in bytes(chunk.usage)
