"""What the cases of streams share: a stream sent in given pieces, what the client gets, the tokens counted."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from benchmarks.field_reports.case import expect
from benchmarks.field_reports.client import Answer, chat
from benchmarks.field_reports.engine import Call
from benchmarks.field_reports.gateway import Gateway

PROMPT, OUTPUT = "twohop_prompt_tokens_total", "twohop_output_tokens_total"
USAGE = b'{"prompt_tokens":71,"completion_tokens":23,"total_tokens":94}'
USAGE_EVENT = b'data: {"id":"c1","object":"chat.completion.chunk","choices":[],"usage":' + USAGE + b"}\n\n"
DONE = b"data: [DONE]\n\n"
TOKENS = (71, 23)


def content(text: str, usage: bytes | None = None) -> bytes:
    """Return a content event; `usage`: the JSON of its usage member, where it has one."""
    more = b"" if usage is None else b',"usage":' + usage
    delta = b'[{"index":0,"delta":{"content":"' + text.encode() + b'"},"finish_reason":null}]'
    return b'data: {"id":"c1","object":"chat.completion.chunk","choices":' + delta + more + b"}\n\n"


@dataclass
class Script:
    """The next stream that an engine sends: its pieces, one write each, and how it is framed."""

    pieces: Sequence[bytes] = ()
    chunked: bool = True

    async def __call__(self, call: Call) -> None:
        """Answer one call."""
        call.start_stream(self.chunked)
        for piece in self.pieces:
            await call.piece(piece, self.chunked)
        call.end_stream(self.chunked)


def cut(data: bytes, pieces: int) -> list[bytes]:
    """Return `data` in so many pieces of nearly equal length."""
    marks = [len(data) * number // pieces for number in range(pieces + 1)]
    return [data[start:end] for start, end in pairwise(marks)]


async def counted(gateway: Gateway, ask_usage: bool = True) -> tuple[Answer, tuple[float, float]]:
    """Ask for a stream; return its answer and by how much prompt and output tokens have risen."""
    before = await gateway.metrics()
    options: dict[str, Any] = {"stream_options": {"include_usage": True}} if ask_usage else {}
    answer = await gateway.post(chat(stream=True, **options))
    await gateway.until_idle()
    after = await gateway.metrics()
    return answer, (after.value(PROMPT) - before.value(PROMPT), after.value(OUTPUT) - before.value(OUTPUT))


async def passes(gateway: Gateway, script: Script, name: str, pieces: Sequence[bytes], chunked: bool = True) -> None:
    """Check that a stream that the client asked usage of passes unchanged and is counted once, exactly."""
    script.pieces, script.chunked = pieces, chunked
    sent = b"".join(pieces)
    answer, tokens = await counted(gateway)
    expect(answer.status == 200, f"{name}: {answer.told()}")
    expect(answer.body == sent, f"{name}: the client got {answer.body[-300:]!r} for {sent[-300:]!r}")
    expect(tokens == TOKENS, f"{name}: counted {tokens} for {TOKENS}")
