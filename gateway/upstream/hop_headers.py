"""Which headers cross from one side to the other.

Sources: RFC 9110 section 7.6.1 (hop-by-hop) and 6.5.1 (trailers); W3C Trace Context, level 1, for `traceparent`; the
routing headers that only a gateway may set.
"""

import re
import secrets
from collections.abc import Iterable
from typing import NamedTuple

from gateway.upstream.protocol import Headers

HOP_BY_HOP = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)
ROUTING = frozenset(
    {
        b"x-prefiller-host-port",
        b"x-encoder-hosts-ports",
        b"x-kv-cache-source-host-port",
        b"x-data-parallel-host-port",
        b"x-gateway-destination-endpoint",
        b"x-gateway-destination-endpoint-served",
        b"x-gateway-destination-endpoint-subset",
        b"x-data-parallel-rank",
    }
)
_NOT_TO_ENGINE = HOP_BY_HOP | ROUTING | {b"host", b"content-length", b"expect", b"x-request-id", b"traceparent"}
# What frames, routes, authenticates or describes an answer belongs into its head; a trailer that says it is too late.
_NOT_IN_TRAILERS = HOP_BY_HOP | {
    b"age",
    b"cache-control",
    b"content-encoding",
    b"content-length",
    b"content-range",
    b"content-type",
    b"date",
    b"host",
    b"location",
    b"retry-after",
    b"set-cookie",
    b"vary",
    b"www-authenticate",
    b"x-request-id",
}
_TRACEPARENT = re.compile(rb"00-(?!0{32})([0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-([0-9a-f]{2})")
_NOT_TO_CLIENT = HOP_BY_HOP | {b"x-request-id", b"content-length"}
_ORDINARY_CONNECTION = frozenset({b"keep-alive", b"close", b""})


def _named_by_connection(headers: Headers) -> frozenset[bytes]:
    named: set[bytes] = set()
    for name, value in headers:
        if name == b"connection":
            named.update(token.strip().lower() for token in value.split(b","))
    return frozenset(named - _ORDINARY_CONNECTION)


def to_engine(headers: Headers, engine_request_id: bytes) -> bytes:
    """Return the header lines (each with its CRLF) that an engine gets for a client's `headers`.

    Host and content-length are the caller's to add. `x-request-id` is `engine_request_id`. A `traceparent` keeps its
    trace id and flags and gets a parent id of its own with each call; one that is not valid goes, and `tracestate` too.
    """
    lines = [b"x-request-id: ", engine_request_id, b"\r\n"]
    for name, value in headers:
        if name in _NOT_TO_ENGINE:
            if name == b"traceparent" or (name == b"connection" and value.lower() not in _ORDINARY_CONNECTION):
                return _lines_one_by_one(headers, engine_request_id)
            continue
        lines += (name, b": ", value, b"\r\n")
    return b"".join(lines)


def _lines_one_by_one(headers: Headers, engine_request_id: bytes) -> bytes:
    dropped = _NOT_TO_ENGINE | _named_by_connection(headers)
    kept = b""
    traces = [value for name, value in headers if name == b"traceparent"]
    if traces:
        trace = _TRACEPARENT.fullmatch(traces[0]) if len(traces) == 1 else None
        if trace is None:
            dropped |= {b"tracestate"}
        elif b"traceparent" not in _named_by_connection(headers):
            parent = secrets.token_hex(8).encode("ascii")
            kept = b"traceparent: 00-%b-%b-%b\r\n" % (trace[1], parent, trace[2])
    kept += b"".join(b"%b: %b\r\n" % header for header in headers if header[0] not in dropped)
    return b"x-request-id: %b\r\n%b" % (engine_request_id, kept)


class AnswerHead(NamedTuple):
    """An answer's head for the client: header lines, each with its CRLF, none about framing; the length that the engine
    stated, or None; whether it is an event stream."""

    lines: bytes
    length: int | None
    events: bool


def to_client(headers: Headers, request_id: bytes, extra: Headers) -> AnswerHead:
    """Return the head for the client: the engine's headers less hop-by-hop ones, then ours."""
    dropped = _NOT_TO_CLIENT
    length, events = None, False
    lines: list[bytes] = []
    for name, value in headers:
        if name in dropped:
            if name == b"content-length":
                length = int(value)
            elif name == b"connection" and value.lower() not in _ORDINARY_CONNECTION:
                named = _named_by_connection(headers)
                return to_client([header for header in headers if header[0] not in named | {name}], request_id, extra)
            continue
        if name == b"content-type" and value[:17].lower() == b"text/event-stream":
            events = True
        lines += (name, b": ", value, b"\r\n")
    lines += (b"x-request-id: ", request_id, b"\r\n")
    for name, value in extra:
        lines += (name, b": ", value, b"\r\n")
    return AnswerHead(b"".join(lines), length, events)


def trailers_to_client(trailers: Iterable[tuple[bytes, bytes]]) -> Headers:
    """Return those of an answer's trailers that may go to the client."""
    return [trailer for trailer in trailers if trailer[0] not in _NOT_IN_TRAILERS]
