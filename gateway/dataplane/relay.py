"""The engine's answer to the client: bytes through, with times and the tail that holds the usage.

Where the server gives the client's transport, a stream's bytes go from the engine's socket to the client's inside one
callback; else the same bytes go through ASGI `send`. Both stop reading from the engine while the client is slow.
"""

import asyncio
from collections import deque
from collections.abc import Callable

import msgspec

from gateway.clock import monotonic_s
from gateway.dataplane.records import Exchange
from gateway.errors import EngineError
from gateway.upstream.client import Leg
from gateway.upstream.hop_headers import to_client
from gateway.upstream.protocol import Headers
from gateway.wire.usage import CachedTokensCorrection

_TAIL_CHUNKS = 4
_TAIL_BYTES = 8192


async def relay(exchange: Exchange, leg: Leg, extra: Headers, observe_gap: Callable[[float], None]) -> None:
    """Send the answer on `leg` to the client, with `extra` headers; `observe_gap` gets each gap between two chunks.

    Raises ClientGone. An engine that fails in mid-answer ends it here: a stream by one error event.
    """
    headers = to_client(leg.headers, exchange.request_id, extra)
    correction = None if exchange.cached_tokens is None else CachedTokensCorrection(exchange.cached_tokens)
    if leg.complete:
        await _whole(exchange, leg, headers, correction)
        return
    sized = any(name == b"content-length" for name, _ in headers)
    if sized and correction is not None:
        headers = [header for header in headers if header[0] != b"content-length"]
        sized = False
    exchange.wait_for(leg)
    await exchange.start(leg.status, headers)
    tail: deque[bytes] = deque(maxlen=_TAIL_CHUNKS)
    try:
        if exchange.connection is None or sized:
            await _by_send(exchange, leg, correction, tail, observe_gap)
        else:
            await _by_callback(exchange, leg, correction, tail, observe_gap)
    except EngineError as error:
        exchange.outcome = exchange.outcome and error.code
        await _break_off(exchange, error, tail[-1] if tail else b"", sized)
    finally:
        exchange.streaming = None
        exchange.tail = b"".join(tail)[-_TAIL_BYTES:]


async def _whole(exchange: Exchange, leg: Leg, headers: Headers, correction: CachedTokensCorrection | None) -> None:
    body = b"".join(leg.early)
    if correction is not None:
        body = correction.feed(body) + correction.flush()
        headers = [
            (name, b"%d" % len(body)) if name == b"content-length" else (name, value) for name, value in headers
        ]
    exchange.tail = body[-_TAIL_BYTES:]
    await exchange.start(leg.status, headers)
    await exchange.finish(body)


async def _by_callback(
    exchange: Exchange,
    leg: Leg,
    correction: CachedTokensCorrection | None,
    tail: deque[bytes],
    observe_gap: Callable[[float], None],
) -> None:
    assert exchange.connection is not None
    write, keep = exchange.connection.transport.write, tail.append
    last_s = 0.0

    def sink(chunk: bytes) -> None:
        nonlocal last_s
        now_s = monotonic_s()
        if last_s:
            observe_gap(now_s - last_s)
        last_s = now_s
        if correction is not None:
            chunk = correction.feed(chunk)
            if not chunk:
                return
        keep(chunk)
        write(b"%x\r\n%b\r\n" % (len(chunk), chunk))

    exchange.streaming = leg
    await leg.relay(sink)
    held = correction.flush() if correction is not None else b""
    await exchange.finish(held)


async def _by_send(
    exchange: Exchange,
    leg: Leg,
    correction: CachedTokensCorrection | None,
    tail: deque[bytes],
    observe_gap: Callable[[float], None],
) -> None:
    last_s = 0.0
    while (chunk := await leg.next_chunk()) is not None:
        now_s = monotonic_s()
        if last_s:
            observe_gap(now_s - last_s)
        last_s = now_s
        if correction is not None:
            chunk = correction.feed(chunk)
        if chunk:
            tail.append(chunk)
            await exchange.send({"type": "http.response.body", "body": chunk, "more_body": True})
        if exchange.gone:
            exchange.wait_for(leg)
    await exchange.finish(correction.flush() if correction is not None else b"")


async def _break_off(exchange: Exchange, error: EngineError, last: bytes, sized: bool) -> None:
    """End an answer that has begun: an event stream by an error event, anything else by closing the connection."""
    if not sized and exchange.request is not None and exchange.request.stream:
        event = msgspec.json.encode(
            {"error": {"message": error.message, "type": error.type, "param": None, "code": error.code}}
        )
        gap = b"" if not last or last.endswith((b"\n\n", b"\r\n\r\n")) else b"\n\n"
        await exchange.finish(gap + b"data: " + event + b"\n\n")
        return
    if exchange.connection is not None:
        exchange.connection.transport.abort()
        await asyncio.sleep(0)
        return
    raise error
