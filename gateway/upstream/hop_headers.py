"""Which headers cross from one side to the other.

Sources: RFC 9110 section 7.6.1 (hop-by-hop); the routing headers that only a gateway may set.
"""

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
_NOT_TO_ENGINE = HOP_BY_HOP | ROUTING | {b"host", b"content-length", b"expect", b"x-request-id"}
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

    Host and content-length are the caller's to add. `x-request-id` is `engine_request_id`.
    """
    dropped = _NOT_TO_ENGINE
    lines = [b"x-request-id: ", engine_request_id, b"\r\n"]
    for name, value in headers:
        if name in dropped:
            if name == b"connection" and value.lower() not in _ORDINARY_CONNECTION:
                dropped = dropped | _named_by_connection(headers)
                return _lines_without(headers, dropped, engine_request_id)
            continue
        lines += (name, b": ", value, b"\r\n")
    return b"".join(lines)


def _lines_without(headers: Headers, dropped: frozenset[bytes], engine_request_id: bytes) -> bytes:
    kept = b"".join(b"%b: %b\r\n" % header for header in headers if header[0] not in dropped)
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
        if name == b"content-type" and value.startswith(b"text/event-stream"):
            events = True
        lines += (name, b": ", value, b"\r\n")
    lines += (b"x-request-id: ", request_id, b"\r\n")
    for name, value in extra:
        lines += (name, b": ", value, b"\r\n")
    return AnswerHead(b"".join(lines), length, events)
