"""No engine sees two requests for one, nor one that RFC 9112 does not see; everything ends in bounded time."""

import asyncio
import contextlib
import re

import pytest

from tests.fakes.recorder import Recorder, recorder
from tests.gateways import Running, run_gateway
from tests.integration.smuggling import CHAT, EVIL, GOOD, LIMIT, TABLES, Input, post

ENDS_WITHIN_S = 2.0
TIMEOUTS = {"header_s": 0.3, "body_s": 0.5}
ORIGIN = re.compile(rb"/v1/[\x21-\x7e]*")


async def answers(gateway: Running, data: bytes, piece: int) -> tuple[list[int], str | None]:
    """Send `data` in pieces; return the statuses of the answers, and what was wrong with how it ended."""
    reader, writer = await asyncio.open_connection(*gateway.address)
    came = bytearray()
    reading = asyncio.ensure_future(read_into(came, reader))
    with contextlib.suppress(ConnectionError):
        for start in range(0, len(data), piece):
            if reading.done():
                break
            writer.write(data[start : start + piece])
            await asyncio.sleep(0)
    try:
        await asyncio.wait_for(reading, ENDS_WITHIN_S)
    except TimeoutError:
        return [], f"no end within {ENDS_WITHIN_S:g} s, answers {statuses(bytes(came))[0]}"
    finally:
        writer.transport.abort()
    return statuses(bytes(came))


async def read_into(came: bytearray, reader: asyncio.StreamReader) -> None:
    """Read until the connection ends, be it by a reset."""
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(65536):
            came += data


def statuses(data: bytes) -> tuple[list[int], str | None]:
    """Return the statuses of whole answers with a length; what is left over is wrong."""
    found: list[int] = []
    while data:
        head, ends, rest = data.partition(b"\r\n\r\n")
        if ends and head.startswith(b"HTTP/1.1 100 "):
            data = rest
            continue
        length = re.search(rb"(?i)\r\ncontent-length: (\d+)", head)
        if not ends or not re.match(rb"HTTP/1\.[01] \d{3} ", head) or length is None:
            return found, f"no answer: {data[:80]!r}"
        found.append(int(head[9:12]))
        data = rest[int(length[1]) :]
    return found, None


def wrong_with(case: Input, engine: Recorder, told: list[int], ended: str | None) -> str | None:
    """Return what must not be, in words, or None."""
    bodies = tuple(one.body for one in engine.seen)
    targets = [one.target for one in engine.seen if not ORIGIN.fullmatch(one.target)]
    refusal = case.allowed == ((),) and case.status is None
    judgements = (
        (ended is not None, ended),
        (engine.wrong, f"the engine saw {engine.wrong[:1]}"),
        (bodies not in case.allowed, f"the engine saw {bodies}, answers {told}"),
        (targets, f"the engine saw the target {targets[:1]}"),
        (case.status is not None and told[:1] != [case.status], f"answers {told}, not {case.status} first"),
        (refusal and any(one < 400 for one in told), f"answers {told}, none of which may be a success"),
    )
    return next((words for wrong, words in judgements if wrong), None)


@pytest.mark.parametrize("piece", [1 << 20, 1], ids=["whole", "bytewise"])
@pytest.mark.parametrize("table", TABLES)
async def test_an_engine_sees_what_the_book_sees(table, piece):
    async with (
        recorder() as engine,
        run_gateway([engine.url], limits={"body_bytes": LIMIT, "header_bytes": 8000}, timeouts=TIMEOUTS) as gateway,
    ):
        wrong = []
        for case in TABLES[table]:
            engine.seen.clear()
            engine.wrong.clear()
            told, ended = await answers(gateway, case.data, piece)
            await gateway.until_idle()
            if found := wrong_with(case, engine, told, ended):
                wrong.append(f"{case.name}: {found}")
        assert not wrong, "\n".join(wrong)


async def test_headers_of_framing_and_trailers_never_cross():
    trailers = b"content-length: 5\r\nauthorization: evil\r\nhost: evil\r\nx-prefiller-host-port: evil:1\r\n"
    body = b"d\r\n%b\r\n0\r\n%b\r\n" % (GOOD, trailers)
    data = post(b"transfer-encoding: chunked", b"connection: x-mine", b"x-mine: 1", b"te: trailers", body=body)
    async with recorder() as engine, run_gateway([engine.url], timeouts=TIMEOUTS) as gateway:
        await answers(gateway, data + post(b"content-length: 13", b"connection: close"), 1 << 20)
        assert [one.body for one in engine.seen] in ([GOOD, GOOD], [])
        for one in engine.seen:
            assert one.values(b"content-length") == [b"13"]
            assert one.values(b"host") == [engine.url.removeprefix("http://").encode()]
            for name in (
                b"transfer-encoding",
                b"te",
                b"trailer",
                b"authorization",
                b"x-mine",
                b"x-prefiller-host-port",
            ):
                assert one.values(name) == []
    assert engine.wrong == []


async def test_the_judge_itself_sees_two_requests_where_there_are_two():
    async with recorder() as engine:
        host, port = engine.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(post(b"content-length: 13") + EVIL + post(b"x y: z"))
        assert (await reader.read(-1)).count(b"HTTP/1.1 200") == 2
        writer.close()
        assert [one.target for one in engine.seen] == [CHAT.split(b" ")[1], b"/v1/completions"]
        assert len(engine.wrong) == 1
