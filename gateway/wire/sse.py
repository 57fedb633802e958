"""The lines of server-sent events. Source: the HTML standard, section 9.2.6: a line ends with CR, LF or CRLF."""

import re

# The end of an event: the end of its last line, and an empty line.
BLANK_LINE = re.compile(rb"\n(?:\r\n?|\n)|\r(?:\n(?:\r\n?|\n)|\r\n?)")
# How much of it the next read may complete.
BLANK_LINE_BYTES = 3


def data_of(event: bytes) -> bytes | None:
    """Return an event's data, or None where it has none."""
    data = [line[5:].rstrip(b"\r\n") for line in event.splitlines(keepends=True) if line.startswith(b"data:")]
    return b"\n".join(data) if data else None
