"""A12: whatever way an engine writes its events, the client gets the same bytes and the tokens are counted."""

from collections.abc import Callable

from benchmarks.field_reports.case import Figures, Scenario, Size
from benchmarks.field_reports.engine import engine
from benchmarks.field_reports.gateway import serve
from benchmarks.field_reports.streams import DONE, USAGE, USAGE_EVENT, Script, content, cut, passes

PACKED = content("bye", USAGE)
MULTI_LINE = b'data: {"id":"c1","choices":[],\ndata: "usage":' + USAGE + b"}\n\n"
BODY = content("Gr\u00fc\u00df dich \U0001f600") + content("two")
MIXED = (
    b": ping\n"
    + content("one").replace(b"\n", b"\r\n")
    + b": ping\r\n\r\n"
    + content("two").replace(b"data: ", b"data:")
    + b"event: message\nid: 7\n"
    + content("three")
    + b'data: {"id":"c1","choices":[]\ndata: }\n\n'
    + b": ping between\n\n"
    + PACKED.replace(b"\n", b"\r\n")
    + b"data: [DONE]\n"
)
STREAMS = {
    "the report's mixture": MIXED,
    "CRLF": (BODY + USAGE_EVENT + DONE).replace(b"\n", b"\r\n"),
    "CR alone": (BODY + USAGE_EVENT + DONE).replace(b"\n", b"\r"),
    "no space behind data:": (BODY + USAGE_EVENT + DONE).replace(b"data: ", b"data:"),
    "two spaces behind data:": (BODY + USAGE_EVENT + DONE).replace(b"data: ", b"data:  "),
    "comments glued to data": b": ping\n" + BODY + b": ping\n" + USAGE_EVENT + b":\n" + DONE,
    "comments after usage": BODY + USAGE_EVENT + b": ping\n\n" * 5 + DONE,
    "event and id lines": BODY + b"event: chunk\nid: 9\nretry: 10\n" + USAGE_EVENT + DONE,
    "id lines behind data": BODY + USAGE_EVENT[:-1] + b"id: 9\n\n" + DONE,
    "an event of several data lines": BODY + MULTI_LINE + DONE,
    "usage in the last content event": BODY + PACKED + DONE,
    "usage in the last content event, CRLF": (BODY + PACKED + DONE).replace(b"\n", b"\r\n"),
    "usage null before": content("x", b"null") + BODY + USAGE_EVENT + DONE,
    "continuous usage": content("x", b'{"prompt_tokens":71,"completion_tokens":1,"total_tokens":72}') + PACKED + DONE,
    "no blank line behind [DONE]": BODY + USAGE_EVENT + b"data: [DONE]\n",
    "no line end behind [DONE]": BODY + USAGE_EVENT + b"data: [DONE]",
    "no [DONE]": BODY + USAGE_EVENT,
    "a byte order mark": b"\xef\xbb\xbf" + BODY + USAGE_EVENT + DONE,
    "white space in the JSON": BODY + USAGE_EVENT.replace(b":", b" : ").replace(b"data :  ", b"data: ") + DONE,
    "text that looks like usage": BODY + USAGE_EVENT + content('\\"usage\\":{\\"prompt_tokens\\":999}') + DONE,
}


def _whole(stream: bytes) -> list[bytes]:
    return [stream]


def _by_byte(stream: bytes) -> list[bytes]:
    return [stream[at : at + 1] for at in range(len(stream))]


def _by_line(stream: bytes) -> list[bytes]:
    return stream.splitlines(keepends=True)


def _in_seven(stream: bytes) -> list[bytes]:
    return cut(stream, 7)


def _scenario(name: str, split: Callable[[bytes], list[bytes]]) -> Scenario:
    async def run(size: Size) -> Figures:
        script = Script()
        async with engine(script) as one, serve([one]) as gateway:
            for _ in range(size.count(1, 5)):
                for told, stream in STREAMS.items():
                    await passes(gateway, script, f"{told}, {name}", split(stream))
                    if split is not _by_byte:
                        await passes(gateway, script, f"{told}, {name}, to the connection's end", split(stream), False)
            return {"streams": len(STREAMS)}

    run.__name__ = name
    return run


SCENARIOS: tuple[Scenario, ...] = (
    _scenario("in_one_piece", _whole),
    _scenario("line_by_line", _by_line),
    _scenario("in_seven_pieces", _in_seven),
    _scenario("byte_by_byte", _by_byte),
)
