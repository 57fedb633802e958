"""A26: the usage event is counted, once, however it is cut, glued or ended."""

from benchmarks.field_reports.case import Figures, Scenario, Size, expect
from benchmarks.field_reports.engine import Call, engine
from benchmarks.field_reports.gateway import serve
from benchmarks.field_reports.streams import DONE, TOKENS, USAGE_EVENT, Script, content, counted, cut, passes

BEFORE = [content("one"), content("two")]
LONG = [content("word " * 40) for _ in range(40)]


async def cut_into_pieces(size: Size) -> Figures:
    """The usage event in two to many writes, [DONE] in another; LF and CRLF."""
    script = Script()
    counts = (2, 3, 5, 8, 9, 12, 30) if not size.full else tuple(range(1, len(USAGE_EVENT) + 1))
    async with engine(script) as one, serve([one]) as gateway:
        for ends in (b"\n", b"\r\n"):
            before = [piece.replace(b"\n", ends) for piece in BEFORE]
            usage, done = USAGE_EVENT.replace(b"\n", ends), DONE.replace(b"\n", ends)
            for pieces in counts:
                await passes(gateway, script, f"cut into {pieces}", [*before, *cut(usage, pieces), done])
                tail = [*before, *cut(usage + done, pieces)]
                await passes(gateway, script, f"usage and [DONE] cut into {pieces}", tail)
        return {"cuts": len(counts)}


async def cut_at_every_place(size: Size) -> Figures:
    """The usage event in two writes, cut at each byte; to the connection's end too."""
    script = Script()
    step = size.count(9, 1)
    async with engine(script) as one, serve([one]) as gateway:
        for at in range(1, len(USAGE_EVENT), step):
            halves = [USAGE_EVENT[:at], USAGE_EVENT[at:]]
            for chunked in (True, False):
                await passes(gateway, script, f"cut at {at}", [*BEFORE, *halves, DONE], chunked)
        return {"places": len(USAGE_EVENT) // step}


async def glued_and_unended(_: Size) -> Figures:
    """The usage event glued to its neighbours, and at the end without its blank line or any line end."""
    script = Script()
    variants = {
        "glued behind content": [BEFORE[0], BEFORE[1] + USAGE_EVENT, DONE],
        "glued to content's half": [
            BEFORE[0],
            BEFORE[1][:40],
            BEFORE[1][40:] + USAGE_EVENT[:50],
            USAGE_EVENT[50:] + DONE,
        ],
        "all glued": [b"".join(BEFORE) + USAGE_EVENT + DONE],
        "no blank line": [*BEFORE, USAGE_EVENT[:-1]],
        "no line end": [*BEFORE, USAGE_EVENT[:-2]],
        "no line end, cut": [*BEFORE, USAGE_EVENT[:60], USAGE_EVENT[60:-2]],
        "CRLF, no blank line": [*BEFORE, USAGE_EVENT[:-2] + b"\r\n"],
        "behind much text in one write": [b"".join(LONG) + USAGE_EVENT + DONE],
        "behind much text, cut": [*LONG, *cut(USAGE_EVENT, 3), DONE],
        "twice the same": [*BEFORE, USAGE_EVENT, USAGE_EVENT, DONE],
        "slow comments between": [*BEFORE, *cut(USAGE_EVENT, 2), *[b": ping\n\n"] * 12, DONE],
    }
    async with engine(script) as one, serve([one]) as gateway:
        for name, pieces in variants.items():
            for chunked in (True, False):
                await passes(gateway, script, name, pieces, chunked)
        return {"variants": len(variants) * 2}


async def not_asked_for(size: Size) -> Figures:
    """The client does not ask for usage: the tokens are counted all the same, and it sees none."""
    pieces: list[bytes] = []

    async def honest(call: Call) -> None:
        """Send usage where it is asked for, and only there."""
        asked = (call.json.get("stream_options") or {}).get("include_usage")
        await Script([*BEFORE, *(pieces if asked else ()), DONE])(call)

    async with engine(honest) as one, serve([one]) as gateway:
        for count in range(1, 40) if size.full else (1, 2, 12):
            pieces[:] = cut(USAGE_EVENT, count)
            answer, tokens = await counted(gateway, ask_usage=False)
            expect(
                answer.body == b"".join(BEFORE) + DONE,
                f"the client got {answer.body[-300:]!r}, usage in {count} pieces",
            )
            expect(tokens == TOKENS, f"counted {tokens} for {TOKENS}, usage in {count} pieces")
        return {}


SCENARIOS: tuple[Scenario, ...] = (cut_into_pieces, cut_at_every_place, glued_and_unended, not_asked_for)
