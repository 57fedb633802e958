"""Request ids: the client's own where it is sane, else one that we make."""

from gateway.clock import chance_bits
from gateway.upstream.protocol import Headers

REQUEST_ID_CHARS = 128


def request_id_of(headers: Headers) -> str:
    """Return the client's `x-request-id` if it is 1 to 128 printable ASCII characters, else a new one of 32."""
    for name, value in headers:
        if name == b"x-request-id":
            if 0 < len(value) <= REQUEST_ID_CHARS and value.isascii():
                text = value.decode("ascii")
                if text.isprintable():
                    return text
            break
    return f"{chance_bits(128):032x}"


def engine_id_of(request_id: str) -> bytes:
    """Return the id that engines get: unique, so that two requests of one id never meet in an engine."""
    return b"%b-%08x" % (request_id.encode("ascii"), chance_bits(32))
