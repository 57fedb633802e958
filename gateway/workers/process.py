"""The program of one worker: `python -m gateway.workers.process LINK LISTEN ADMIN`, started by the supervisor.

LINK, LISTEN and ADMIN are inherited sockets by number (ADMIN 0: none). The configuration that holds comes over the
link first, so that a file that has changed meanwhile changes nothing before a reload.
"""

import os
import signal
import socket
import sys
from argparse import Namespace
from functools import partial
from typing import Any

import msgspec

from gateway.config import Config
from gateway.errors import ConfigError
from gateway.observability.logs import set_up_logs
from gateway.state.frames import LENGTH_BYTES, Frame


class Start(Frame, tag="start"):
    """What a worker is told before anything else: its number, the configuration as JSON, and `twohop serve`'s flags."""

    number: int
    config: bytes
    flags: dict[str, Any]


def main() -> int:
    """Serve as one worker until the supervisor says so or is gone; return the exit status."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # one that still starts is not to be ended by it
    link, listener, admin = (_inherited(int(text)) for text in sys.argv[1:4])
    if link is None or listener is None:
        sys.stderr.write("this is a part of `twohop serve --workers N`, which starts it\n")
        return 2
    start = read_start(link)
    if start is None:  # the supervisor has ended meanwhile
        return 0
    config = Config.model_validate_json(start.config)
    set_up_logs(config.log_level, who=f"worker {start.number}")
    from gateway.app import run_until_signal
    from gateway.commands.serve import freeze, read
    from gateway.state.local import LinkedState

    freeze()
    try:
        run_until_signal(
            config, partial(read, Namespace(**start.flags)), (listener, admin), LinkedState(link, start.number)
        )
    except ConfigError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    return 0


def read_start(link: socket.socket) -> Start | None:
    """Read the first frame, waiting for it; None where the link ends before it is whole."""
    length = _read(link, LENGTH_BYTES)
    payload = None if length is None else _read(link, int.from_bytes(length, "big"))
    return None if payload is None else msgspec.msgpack.decode(payload, type=Start)


def _read(link: socket.socket, size: int) -> bytes | None:
    data = bytearray()
    while len(data) < size:
        part = link.recv(size - len(data))
        if not part:
            return None
        data += part
    return bytes(data)


def _inherited(number: int) -> socket.socket | None:
    if not number:
        return None
    os.set_inheritable(number, False)  # this process's own children, if ever there are any, get none of them
    return socket.socket(fileno=number)


if __name__ == "__main__":
    sys.exit(main())
