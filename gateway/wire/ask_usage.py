"""Ask an engine for the usage of a stream whose client did not: one member of the request, no other byte."""

import msgspec

from gateway.wire import json_object
from gateway.wire.json_object import Members

PATHS = frozenset({"/v1/chat/completions", "/v1/completions"})
_ASKED = b'{"include_usage":true}'
_FIRST_MEMBER = b'{"stream_options":' + _ASKED + b","
# Without the usage it does nothing; with ours it would put a usage into every chunk.
_NOT_WITH_OURS = "continuous_usage_stats"


def asked_options(members: Members) -> bytes | None:
    """Return the `stream_options` that ask for what the client did not ask for, or None where nothing is to ask.

    Only what is surely a stream is asked: an engine refuses the options without one. A client that wrote anything but
    `false` or null has asked, or made a mistake that the engine shall tell.
    """
    stream = members.get("stream")
    if stream is None or bytes(stream) != b"true":
        return None
    raw = members.get("stream_options")
    if raw is None or json_object.is_absent(raw):
        return _ASKED
    try:
        options = json_object.parse(bytes(raw))
    except ValueError:
        return None
    include = options.get("include_usage")
    if not (json_object.is_absent(include) or bytes(include or b"") == b"false"):
        return None
    options.pop(_NOT_WITH_OURS, None)
    return json_object.build({**options, "include_usage": b"true"})


def ask(body: bytes | bytearray, members: Members, *, whole: bool = True) -> bytes | bytearray | None:
    """Return `body` with the usage asked for, and put the same into `members`; None where nothing is to ask.

    `members` are those of `body`; unless they are `whole`, they tell less than the body and it cannot be built from
    them, so that nothing but a new member can be put in.
    """
    options = asked_options(members)
    if options is None:
        return None
    if "stream_options" in members:
        if not whole:
            return None
        members["stream_options"] = msgspec.Raw(options)
        return json_object.build(members)
    members["stream_options"] = msgspec.Raw(options)
    return b"".join((_FIRST_MEMBER, memoryview(body)[body.index(b"{") + 1 :]))
