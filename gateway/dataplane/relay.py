"""The engine's answer to the client: bytes through, with times and the tail that holds the usage.

A stream's bytes go from the engine's socket to the client's inside one callback; while the client is slow, nothing is
read from the engine.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from itertools import pairwise

from gateway.api.request import ClientRequest
from gateway.clock import monotonic_s
from gateway.dataplane.records import Exchange
from gateway.errors import ClientGone, EngineError, GatewayError, ShuttingDown
from gateway.upstream.client import Leg
from gateway.upstream.hop_headers import AnswerHead, to_client
from gateway.upstream.protocol import Headers
from gateway.wire import usage
from gateway.wire.chunked import frame, payload_start
from gateway.wire.usage import CachedTokensCorrection, Usage

# What is kept of a stream for its usage: the last reads, so few that the bytes of hundreds of streams stay in the
# processor's cache, and of long reads fewer. A usage event cut into more reads than these is not counted.
_KEPT_READS = 8
_KEPT_BYTES = 65536 + 8192
_LONG_READ_BYTES = _KEPT_BYTES // _KEPT_READS
_TIMES_KEPT = 256


async def relay(exchange: Exchange, leg: Leg, extra: Headers, observe_gap: Callable[[float], None]) -> None:
    """Send the answer on `leg` to the client, with `extra` headers; `observe_gap` gets each gap between two chunks.

    Raises ClientGone. An engine that fails in mid-answer ends it here: an event stream by one error event, anything
    else by closing the client's connection. A server that cancels this request ends it in the same way, and the
    CancelledError goes on.
    """
    head = to_client(leg.headers, exchange.request_id, extra)
    correction = None if exchange.cached_tokens is None else CachedTokensCorrection(exchange.cached_tokens)
    exchange.receipt.status = leg.status
    if leg.complete:
        _whole(exchange, leg, head, correction)
        await exchange.taken()
        return
    client = exchange.client
    passage = Passage(correction, observe_gap)
    exchange.wait_for(leg)
    client.start(leg.status, head.lines, head.length if correction is None else None)
    exchange.streaming = leg
    try:
        await leg.relay(*_sinks(client, passage))
        client.finish(passage.rest())
        await exchange.taken()
    except EngineError as error:
        exchange.outcome = exchange.outcome and error.code
        _break_off(exchange, error, passage.last, head.events)
        await exchange.taken()
    except asyncio.CancelledError:
        leg.abort(ClientGone())  # no byte of it may follow the last one
        # This is the end of the process: what would wait for a slow client is not said.
        if not client.finished:
            stopped = ShuttingDown("this gateway has stopped")
            _break_off(exchange, stopped, passage.last, head.events and not client.behind)
        raise
    finally:
        exchange.streaming = None
        passage.tell_gaps()
        exchange.usage = passage.usage


class Passage:
    """What is done to every chunk on its way: its time noted, its numbers corrected, the last few kept."""

    def __init__(self, correction: CachedTokensCorrection | None, observe_gap: Callable[[float], None]) -> None:
        self.corrects = correction is not None
        self._correction, self._observe_gap = correction, observe_gap
        # Chunks, some with their framing; what is whole framing and what is not can be told apart when it matters.
        self._kept: deque[bytes] = deque(maxlen=_KEPT_READS)
        self._times: list[float] = []

    @property
    def usage(self) -> Usage | None:
        """The usage at the end of what has passed, if there is one."""
        return usage.find(b"".join(map(_payload, self._kept)))

    @property
    def last(self) -> bytes:
        """The last chunk that has passed."""
        return _payload(self._kept[-1]) if self._kept else b""

    def take(self, chunk: bytes) -> bytes:
        """Return what of `chunk` goes on now; may be empty."""
        self._times.append(monotonic_s())
        if len(self._times) == _TIMES_KEPT:
            self.tell_gaps()
        if self._correction is not None:
            chunk = self._correction.feed(chunk)
        if chunk:
            self._keep(chunk)
        return chunk

    def frames_to(self, write: Callable[[bytes], None]) -> Callable[[bytes], None]:
        """Return a function that passes one framed chunk to `write`: `take` without correction, in one call."""
        keep, trim, times, note = self._kept.append, self._trim, self._times, self._times.append

        def pass_on(framed: bytes) -> None:
            note(monotonic_s())
            if len(times) == _TIMES_KEPT:
                self.tell_gaps()
            keep(framed)
            if len(framed) > _LONG_READ_BYTES:
                trim()
            write(framed)

        return pass_on

    def tell_gaps(self) -> None:
        """Hand over the gaps between the times noted; many at once cost a fraction of one by one."""
        times, observe_gap = self._times, self._observe_gap
        for before_s, after_s in pairwise(times):
            observe_gap(after_s - before_s)
        del times[:-1]

    def rest(self) -> bytes:
        """Return what was held back; call at the end."""
        held = self._correction.flush() if self._correction is not None else b""
        if held:
            self._keep(held)
        return held

    def _keep(self, chunk: bytes) -> None:
        self._kept.append(chunk)
        if len(chunk) > _LONG_READ_BYTES:
            self._trim()

    def _trim(self) -> None:
        kept = self._kept
        size = sum(map(len, kept))
        while size - len(kept[0]) >= _KEPT_BYTES:
            size -= len(kept.popleft())


def _payload(chunk: bytes) -> bytes:
    start = payload_start(chunk)
    return chunk[start:-2] if start else chunk


def _whole(exchange: Exchange, leg: Leg, head: AnswerHead, correction: CachedTokensCorrection | None) -> None:
    body = b"".join(leg.early)
    if correction is not None:
        body = correction.feed(body) + correction.flush()
    client = exchange.client
    if head.length is not None:
        client.respond(leg.status, head.lines, body)
    else:  # framed as the engine framed it, as far as the client's version can
        client.start(leg.status, head.lines)
        client.finish(body)
    exchange.usage = usage.find(body)


def _sinks(client: ClientRequest, passage: Passage) -> tuple[Callable[[bytes], None], Callable[[bytes], None] | None]:
    """Return what takes an engine's chunks, and what takes those that come framed as the client wants them."""
    write, take = client.transport.write, passage.take

    def framed(chunk: bytes) -> None:
        chunk = take(chunk)
        if chunk:
            write(frame(chunk))

    def bare(chunk: bytes) -> None:
        chunk = take(chunk)
        if chunk:
            write(chunk)

    if not client.chunked:
        return bare, None
    return framed, None if passage.corrects else passage.frames_to(write)


def _break_off(exchange: Exchange, error: GatewayError, last: bytes, events: bool) -> None:
    """End an answer that has begun: an event stream by an error event, anything else by closing the connection."""
    if events:
        gap = b"" if not last or last.endswith((b"\n\n", b"\r\n\r\n")) else b"\n\n"
        exchange.client.finish(gap + b"data: " + error.body() + b"\n\n")
    else:
        exchange.client.drop()
