"""A05: large bodies pass whole up to the limit; over it 413, early, and the memory is given back."""

import asyncio
import base64
import hashlib
import json
import os
from collections.abc import Iterator

from benchmarks.field_reports.case import Figures, Scenario, Size, expect
from benchmarks.field_reports.client import CHAT, Answer, Connection, head, post
from benchmarks.field_reports.engine import Call, completion, engine
from benchmarks.field_reports.gateway import Gateway, serve

MB = 1 << 20
LEFT_MB = 60.0


async def _hashed(call: Call) -> None:
    """Answer with the digest of the image that came."""
    url = call.json["messages"][0]["content"][1]["image_url"]["url"]
    call.answer(200, completion(digest=hashlib.sha256(url.encode()).hexdigest(), length=len(call.body)))


def _image(size_bytes: int) -> tuple[bytes, str]:
    """Return a chat body of exactly `size_bytes` with an image, and the image's digest."""
    frame = _with_image("")
    room = size_bytes - len(frame)
    url = ("data:image/png;base64," + base64.b64encode(os.urandom(room * 3 // 4 + 3)).decode())[:room]
    return _with_image(url), hashlib.sha256(url.encode()).hexdigest()


def _with_image(url: str) -> bytes:
    content = [{"type": "text", "text": "what?"}, {"type": "image_url", "image_url": {"url": url}}]
    return json.dumps({"model": "m", "messages": [{"role": "user", "content": content}]}).encode()


def _limit(size: Size) -> int:
    return size.count(2 * MB, 32 * MB)


def _chunks(body: bytes, chunk_bytes: int) -> Iterator[bytes]:
    for start in range(0, len(body), chunk_bytes):
        piece = body[start : start + chunk_bytes]
        yield b"%x\r\n%b\r\n" % (len(piece), piece)
    yield b"0\r\n\r\n"


def _checked(answer: Answer, digest: str, length: int) -> None:
    expect(answer.status == 200, f"a body of {length} bytes got {answer.told()}")
    expect(answer.json["digest"] == digest, f"the engine saw another image than was sent, of {length} bytes")
    expect(answer.json["length"] == length, f"the engine saw {answer.json['length']} bytes of {length}")


def _refused(answer: Answer, what: str) -> None:
    expect((answer.status, answer.code) == (413, "body_too_large"), f"{what} got {answer.told()}")
    expect(answer.header("content-type") == "application/json", f"{what}: the error is no JSON")


async def _chunked(gateway: Gateway, body: bytes, chunk_bytes: int) -> Answer:
    connection = await Connection.to(gateway.address)
    connection.send(head("POST", CHAT, [("transfer-encoding", "chunked")], None))
    for chunk in _chunks(body, chunk_bytes):
        connection.send(chunk)
        await connection.writer.drain()
    answer = await connection.answer()
    connection.close()
    return answer


async def bodies_under_the_limit_pass(size: Size) -> Figures:
    """Images of all sizes up to the very limit, of stated length and in chunks of any size."""
    limit = _limit(size)
    lengths = [limit * share // 32 for share in (1, 5, 9, 25)] + [limit]
    async with engine(_hashed) as one, serve([one], limits={"body_bytes": limit}) as gateway:
        for length in lengths:
            body, digest = _image(length)
            _checked(await post(gateway.address, body), digest, length)
            for chunk_bytes in (65536, 65537, length):
                _checked(await _chunked(gateway, body, chunk_bytes), digest, length)
        body, digest = _image(20_000)
        _checked(await _chunked(gateway, body, 1), digest, len(body))
        return {"largest_mb": limit / 1e6}


async def one_byte_over_is_refused_early(size: Size) -> Figures:
    """413 comes when the length is known to be too long, before any of the body; the connection stays in order."""
    limit = _limit(size)
    async with engine(_hashed) as one, serve([one], limits={"body_bytes": limit}) as gateway:
        connection = await Connection.to(gateway.address)
        connection.send(head("POST", CHAT, (), limit + 1))
        _refused(await connection.answer(), "a stated length one byte over, its body not sent,")
        connection.close()
        connection = await Connection.to(gateway.address)
        connection.send(head("POST", CHAT, [("expect", "100-continue")], limit + 1))
        status, _ = await connection.answer_head()
        expect(status == 413, f"with Expect: 100-continue a body over the limit got {status} first")
        connection.close()
        connection = await Connection.to(gateway.address)
        connection.send(head("POST", CHAT, [("transfer-encoding", "chunked")], None))
        for _ in range(limit // 65536 + 1):
            connection.send(b"10000\r\n" + bytes(65536) + b"\r\n")
        _refused(await connection.answer(), "an endless chunked body")
        connection.close()
        expect(not one.calls, "a body over the limit reached an engine")
        body, digest = _image(2000)
        _checked(await post(gateway.address, body), digest, len(body))
        return {}


async def a_client_that_sends_all_before_it_reads_sees_the_413(size: Size) -> Figures:
    """The whole body, over the limit by one byte and by much, is on its way before the client looks for an answer."""
    limit = _limit(size)
    async with engine(_hashed) as one, serve([one], limits={"body_bytes": limit}) as gateway:
        for length in (limit + 1, limit + 3 * MB):
            body = bytes(length)
            for name, data in (
                ("of stated length", head("POST", CHAT, (), length) + body),
                (
                    "chunked",
                    head("POST", CHAT, [("transfer-encoding", "chunked")], None) + b"".join(_chunks(body, 65536)),
                ),
            ):
                connection = await Connection.to(gateway.address)
                # As a client does that only writes: what the gateway says meanwhile waits in the kernel.
                connection.writer.transport.pause_reading()  # type: ignore[attr-defined]
                connection.send(data)
                try:
                    async with asyncio.timeout(10):
                        await connection.writer.drain()
                except (ConnectionError, TimeoutError) as error:
                    expect(False, f"a body over the limit, {name}: {error!r} while the client still sent")
                connection.writer.transport.resume_reading()  # type: ignore[attr-defined]
                _refused(await connection.answer(), f"a body over the limit, {name}, sent whole,")
                connection.close()
        expect(not one.calls, "a body over the limit reached an engine")
        return {}


async def many_large_bodies_at_once_give_their_memory_back(size: Size) -> Figures:
    """8 large bodies together; then as many over the limit, which never cost what they claim."""
    limit = _limit(size)
    length = limit * 25 // 32
    async with engine(_hashed) as one, serve([one], limits={"body_bytes": limit}) as gateway:
        body, digest = _image(length // 25)
        _checked(await post(gateway.address, body), digest, len(body))
        before = gateway.rss_mb()
        images = [_image(length) for _ in range(8)]
        answers = await asyncio.gather(*(post(gateway.address, body) for body, _ in images))
        for answer, (body, digest) in zip(answers, images, strict=True):
            _checked(answer, digest, len(body))
        peak = gateway.peak_mb()
        await gateway.until_idle()
        after = gateway.rss_mb()
        expect(after - before < LEFT_MB, f"RSS {before:.0f} MB before and {after:.0f} MB after 8 bodies")
        return {"before_mb": before, "peak_mb": peak, "after_mb": after, "sent_mb": 8 * length / 1e6}


SCENARIOS: tuple[Scenario, ...] = (
    bodies_under_the_limit_pass,
    one_byte_over_is_refused_early,
    a_client_that_sends_all_before_it_reads_sees_the_413,
    many_large_bodies_at_once_give_their_memory_back,
)
