"""One text field of a multipart/form-data body, found without copying or decoding the parts beside it.

Invariant: what could be read in two ways is refused, so that the engine's own parser finds the same value: a field
given twice, names in more than one notation, headers that are folded or repeated, a charset other than UTF-8.
Sources: RFC 7578; RFC 2046, section 5.1.
"""

import re
from collections.abc import Generator

MAX_PARTS = 1000
STEP_BYTES = 1 << 20
MAX_PART_HEAD_BYTES = 8192
MAX_VALUE_BYTES = 8192
MAX_BOUNDARY_BYTES = 200

FORM = b"multipart/form-data"
_PARAMETERS = re.compile(rb'\s*;\s*([!#$%&\'*+.^_`|~0-9A-Za-z-]+)=(?:"((?:[^"\\\r\n]|\\.)*)"|([^\s;"]+))')


class BadForm(ValueError):
    """The body is no form to believe; the message says what is wrong with it."""


def is_form(content_type: bytes | None) -> bool:
    """Whether a content type says multipart/form-data."""
    return content_type is not None and content_type.partition(b";")[0].strip().lower() == FORM


def boundary_of(content_type: bytes) -> bytes:
    """Return the boundary, quoted or not. Raises BadForm."""
    if not is_form(content_type):
        raise BadForm("the content type is not multipart/form-data")
    parameters = _parameters(content_type[len(content_type.partition(b";")[0]) :], "the content type")
    boundary = parameters.get(b"boundary", b"")
    if not 0 < len(boundary) <= MAX_BOUNDARY_BYTES:
        raise BadForm(f"the content type names no boundary of 1 to {MAX_BOUNDARY_BYTES} bytes")
    if parameters.get(b"charset", b"utf-8").lower() not in {b"utf-8", b"utf8"}:
        raise BadForm("the content type names a charset other than utf-8")
    return boundary


def find_text(body: bytes | bytearray, content_type: bytes, name: bytes) -> Generator[None, None, str | None]:
    """Return the value of the field `name`, None where there is none. Raises BadForm.

    The walk is one search for the boundary through the whole body, and yields after each MiB of it: a MiB made to be
    slow takes some milliseconds.
    """
    delimiter = b"\r\n--" + boundary_of(content_type)
    at = len(delimiter) - 2
    if not body.startswith(delimiter[2:]):
        raise BadForm("the body does not begin with the boundary of the content type")
    value: str | None = None
    for _ in range(MAX_PARTS):
        if body.startswith(b"--", at):
            return value
        if not body.startswith(b"\r\n", at):
            raise BadForm("a boundary is not followed by a line's end")
        head_end = body.find(b"\r\n\r\n", at, at + MAX_PART_HEAD_BYTES)
        if head_end < 0:
            raise BadForm(f"the head of a part does not end within {MAX_PART_HEAD_BYTES} bytes")
        start = head_end + 2  # the part may be empty, its head's last line end the delimiter's
        while (end := body.find(delimiter, start, start + STEP_BYTES + len(delimiter) - 1)) < 0:
            start += STEP_BYTES
            if start >= len(body):
                raise BadForm("the body does not end with the closing boundary")
            yield
        found, is_file = _name(bytes(body[at + 2 : head_end]))
        if found == name:
            if value is not None or is_file:
                raise BadForm(f"the field {name.decode()!r} is {'a file' if is_file else 'given twice'}")
            value = _value(bytes(body[head_end + 4 : min(end, head_end + 5 + MAX_VALUE_BYTES)]), name)
        at = end + len(delimiter)
    raise BadForm(f"the body has over {MAX_PARTS} parts")


def _name(head: bytes) -> tuple[bytes, bool]:
    """Return a part's name, and whether it is a file."""
    disposition: bytes | None = None
    for line in head.split(b"\r\n"):
        field, colon, value = line.partition(b":")
        if not colon or field != field.strip() or b"\n" in line or b"\r" in line:
            raise BadForm("a part has a header line that is none")
        if field.lower() == b"content-disposition":
            if disposition is not None:
                raise BadForm("a part has two content-disposition headers")
            disposition = value.strip()
    if disposition is None or disposition.partition(b";")[0].strip().lower() != b"form-data":
        raise BadForm("a part has no content-disposition of form-data")
    parameters = _parameters(disposition[len(disposition.partition(b";")[0]) :], "a part's content-disposition")
    name = parameters.get(b"name")
    if name is None or b"name*" in parameters or b"\\" in name:
        raise BadForm("a part's content-disposition has no plain name")
    return name, b"filename" in parameters or b"filename*" in parameters


def _value(value: bytes, name: bytes) -> str:
    if len(value) > MAX_VALUE_BYTES:
        raise BadForm(f"the field {name.decode()!r} is over {MAX_VALUE_BYTES} bytes")
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise BadForm(f"the field {name.decode()!r} is no UTF-8") from None


def _parameters(text: bytes, where: str) -> dict[bytes, bytes]:
    """Return the parameters of a header value by lower-case name; escapes in quoted values stay."""
    found: dict[bytes, bytes] = {}
    at = 0
    text = text.rstrip(b" \t;")
    while at < len(text):
        match = _PARAMETERS.match(text, at)
        if match is None:
            raise BadForm(f"{where} cannot be read")
        name = match[1].lower()
        if name in found:
            raise BadForm(f"{where} has {name.decode()!r} twice")
        found[name] = match[3] if match[2] is None else match[2]
        at = match.end()
    return found
