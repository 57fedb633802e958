"""A JSON object as its top-level members, each kept as the bytes it came in.

A 400 KB prompt is walked over once, in C, and never turned into Python strings; a changed member costs one join.
Sources: RFC 8259; of a repeated name the last counts, as in Python's own parser, which the engines use.
"""

import re
from collections.abc import Mapping

import msgspec

Members = dict[str, msgspec.Raw]

_decoder = msgspec.json.Decoder(Members)
_encode = msgspec.json.encode
# A backslash escape at a time: a surrogate pair or any other escape ("other"), else a lone surrogate.
_ESCAPE = re.compile(
    rb"\\(?:(?P<other>u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|u(?![dD][89a-fA-F])|[^u])"
    rb"|u[dD][89a-fA-F][0-9a-fA-F]{2})",
    re.DOTALL,
)


def parse(body: bytes | bytearray) -> Members:
    """Return the members of the object in `body`, values as raw bytes. Raises ValueError with the reason."""
    try:
        return _decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(str(error)) from error


def without_lone_surrogates(body: bytes | bytearray) -> bytes | None:
    r"""Return `body` with each unpaired surrogate escape as `\\ufffd`, same length; None where there is none.

    Python's parser, and so the engine, takes such escapes; ours refuses them. The result is for reading only.
    """
    if b"\\ud" not in body and b"\\uD" not in body:
        return None
    replaced = _ESCAPE.sub(lambda match: match[0] if match["other"] else b"\\ufffd", body)
    return bytes(replaced) if replaced != body else None


def build(members: Mapping[str, msgspec.Raw | bytes]) -> bytes:
    """Return the object with these members, in their order."""
    parts = [b"{"]
    for name, value in members.items():
        parts += (_encode(name), b":", bytes(value) if isinstance(value, msgspec.Raw) else value, b",")
    if len(parts) > 1:
        parts.pop()
    parts.append(b"}")
    return b"".join(parts)


def text(raw: msgspec.Raw | None) -> str | None:
    """Return the string in `raw`, or None where it is absent or no string."""
    value = _decoded(raw)
    return value if isinstance(value, str) else None


def integer(raw: msgspec.Raw | None) -> int | None:
    """Return the integer in `raw`, or None where it is absent or no integer."""
    value = _decoded(raw)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def names(raw: msgspec.Raw) -> frozenset[str]:
    """Return the member names of the object in `raw`; none where it is no object."""
    value = _decoded(raw)
    return frozenset(value) if isinstance(value, dict) else frozenset()


def _decoded(raw: msgspec.Raw | None) -> object:
    if raw is None:
        return None
    try:
        return msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def is_absent(raw: msgspec.Raw | None) -> bool:
    """Whether `raw` is missing or `null`."""
    return raw is None or bytes(raw) == b"null"
