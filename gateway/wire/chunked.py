"""HTTP/1.1 chunked framing, as far as a relay needs it. Source: RFC 9112 section 7.1."""

import re

# Strict: hexadecimal digits and CRLF, no extension, no sign. What differs goes the long way, through the parser.
_SIZE_LINE = re.compile(rb"([0-9a-fA-F]{1,8})\r\n").match


def payload_start(data: bytes) -> int:
    """Return where the payload begins if `data` is exactly one whole chunk that is not the last one, else 0."""
    line = _SIZE_LINE(data)
    if line is None:
        return 0
    start = line.end()
    size = int(line[1], 16)
    return start if size and start + size + 2 == len(data) and data.endswith(b"\r\n") else 0


def frame(payload: bytes) -> bytes:
    """Return `payload`, not empty, as one chunk."""
    return b"%x\r\n%b\r\n" % (len(payload), payload)
