"""The engine's answer to the client: bytes through, with times and token counts.

A stream's bytes go from the engine's socket to the client's inside one callback; while the client is slow, nothing is
read from the engine.
"""

import asyncio
from collections.abc import Callable
from itertools import pairwise

from gateway.api.request import NO_BODY, ClientRequest
from gateway.clock import monotonic_s
from gateway.dataplane.records import Exchange, GoesOn
from gateway.errors import ClientGone, EngineError, GatewayError, ShuttingDown, UpstreamFailed
from gateway.upstream.client import Leg
from gateway.upstream.hop_headers import AnswerHead, to_client, trailers_to_client
from gateway.upstream.protocol import Headers
from gateway.wire import usage
from gateway.wire.chunked import frame, payload_start
from gateway.wire.continuation import Seam
from gateway.wire.sse_usage import UsageTap
from gateway.wire.usage import CachedTokensCorrection

CHAT = "/v1/chat/completions"
_TIMES_KEPT = 256


async def relay(
    exchange: Exchange,
    leg: Leg,
    extra: Headers,
    observe_gap: Callable[[float], None],
    continuation: GoesOn | None = None,
) -> None:
    """Send the answer on `leg` to the client, with `extra` headers; `observe_gap` gets each gap between two chunks.

    Raises ClientGone. An engine that fails in mid-answer ends it here: an event stream by one error event, anything
    else by closing the client's connection. A server that cancels this request ends it in the same way, and the
    CancelledError goes on.
    """
    head = to_client(leg.headers, exchange.request_id, extra)
    exchange.receipt.status = leg.status
    if leg.complete:
        _whole(exchange, leg, head)
        await exchange.taken()
        return
    client = exchange.client
    continuation = continuation if head.events else None
    tap = _tap(exchange, head, whole=continuation is not None)
    passage = Passage(tap, observe_gap)
    exchange.wait_for(leg)
    length = None if tap.changes else head.length
    # In an answer of a stated length an error event would pass for what is missing, and the next answer for its rest.
    tells = head.events and length is None
    client.start(leg.status, head.lines, length)
    try:
        last = await _stream(exchange, leg, passage, continuation)
        client.finish(tap.flush(), trailers_to_client(last.trailers))
        await exchange.taken()
    except EngineError as error:
        exchange.outcome = exchange.outcome and error.code
        _break_off(exchange, error, tap.mid_event, tells)
        await exchange.taken()
    except asyncio.CancelledError:
        leg.abort(ClientGone())  # no byte of it may follow the last one
        # This is the end of the process: what would wait for a slow client is not said.
        if not client.finished:
            stopped = ShuttingDown("this gateway has stopped")
            _break_off(exchange, stopped, tap.mid_event, tells and not client.behind)
        raise
    finally:
        exchange.streaming = None
        passage.tell_gaps()
        exchange.usage = tap.usage


class Passage:
    """What is done to every chunk on its way: its time noted, its tokens counted.

    `chunks` is how many have passed: about the tokens of an answer that ends before it has told its usage.
    """

    def __init__(self, tap: UsageTap, observe_gap: Callable[[float], None]) -> None:
        self.tap, self._observe_gap = tap, observe_gap
        self._told = 0
        self._times: list[float] = []

    @property
    def chunks(self) -> int:
        """The chunks that have passed so far."""
        return self._told + len(self._times)

    def take(self, chunk: bytes) -> bytes:
        """Return what of `chunk` goes on now; may be empty."""
        self._times.append(monotonic_s())
        if len(self._times) == _TIMES_KEPT:
            self.tell_gaps()
        return self.tap.feed(chunk)

    def frames_to(self, write: Callable[[bytes], None]) -> Callable[[bytes], None]:
        """Return a function that passes one framed chunk to `write`: `take` in one call, mostly without a copy."""
        tap, times, note, quick = self.tap, self._times, self._times.append, self.tap.quick

        def pass_on(framed: bytes) -> None:
            note(monotonic_s())
            if len(times) == _TIMES_KEPT:
                self.tell_gaps()
            if quick(framed):
                write(framed)
                return
            payload = framed[payload_start(framed) : -2]
            chunk = tap.feed(payload)
            if chunk:
                write(framed if chunk == payload else frame(chunk))

        return pass_on

    def tell_gaps(self) -> None:
        """Hand over the gaps between the times noted; many at once cost a fraction of one by one."""
        times, observe_gap = self._times, self._observe_gap
        for before_s, after_s in pairwise(times):
            observe_gap(after_s - before_s)
        self._told += max(0, len(times) - 1)
        del times[:-1]


async def _stream(exchange: Exchange, leg: Leg, passage: Passage, continuation: GoesOn | None) -> Leg:
    """Pass the body on, and where its engine is lost and it can be, the rest from another; return the last leg."""
    sink, frames = _sinks(exchange.client, passage)
    if continuation is None:
        exchange.streaming = leg
        await leg.relay(sink, frames)
        return leg
    through, seam = _kept(sink, continuation), None
    while True:
        exchange.streaming = leg
        try:
            await leg.relay(through)
            break
        except UpstreamFailed as error:
            if passage.tap.mid_event:
                raise
            await exchange.taken()  # a client that is behind could not make the next engine wait
            leg, seam = await continuation.go_on(error)
            passage.tap.drop_half()
            through = _rewritten(_kept(sink, continuation), seam)
    if seam is not None:
        sink(seam.flush())
    return leg


def _kept(sink: Callable[[bytes], None], continuation: GoesOn) -> Callable[[bytes], None]:
    def keep(chunk: bytes) -> None:
        continuation.keep(chunk)
        sink(chunk)

    return keep


def _rewritten(sink: Callable[[bytes], None], seam: Seam) -> Callable[[bytes], None]:
    def rewrite(chunk: bytes) -> None:
        chunk = seam.feed(chunk)
        if chunk:
            sink(chunk)

    return rewrite


def _tap(exchange: Exchange, head: AnswerHead, whole: bool = False) -> UsageTap:
    """Return what counts this answer's usage, and takes out what the client did not ask for."""
    # Of a stream that is packed nothing can be taken out, and none of it may wait.
    remove = exchange.usage_asked and head.events and b"content-encoding: " not in head.lines
    nulls = remove and exchange.client.path == CHAT
    return UsageTap(remove=remove, nulls=nulls, cached_tokens=exchange.cached_tokens, whole=whole)


def _whole(exchange: Exchange, leg: Leg, head: AnswerHead) -> None:
    body = b"".join(leg.early)
    if head.events:
        tap = _tap(exchange, head)
        body = tap.feed(body) + tap.flush()
        exchange.usage = tap.usage
    else:
        if exchange.cached_tokens is not None:
            correction = CachedTokensCorrection(exchange.cached_tokens)
            body = correction.feed(body) + correction.flush()
        exchange.usage = usage.find(body)
    client = exchange.client
    if head.length is not None or leg.status in NO_BODY:
        client.respond(leg.status, head.lines, body)
    else:  # framed as the engine framed it, as far as the client's version can
        client.start(leg.status, head.lines)
        client.finish(body, trailers_to_client(leg.trailers))


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
    return framed, passage.frames_to(write)


def _break_off(exchange: Exchange, error: GatewayError, mid_event: bool, tells: bool) -> None:
    """End an answer that has begun: by an error event where it can tell one, else by closing the connection."""
    if tells:
        exchange.client.finish((b"\n\n" if mid_event else b"") + error.event(exchange.route.style))
    else:
        exchange.client.drop()
