"""Addresses on this machine: read, pick, and refuse those that are taken."""

import os
import socket
from itertools import count

from gateway.up.processes import UpError

# Below the range that Linux, macOS and Windows hand out for port 0, so that nobody gets a picked port before its user.
FIRST_PORT, PORTS = 20000, 10000

ADMIN_VARIABLE = "TWOHOP_ADMIN__LISTEN"

_steps = count(os.getpid() * 37)


def split_address(address: str) -> tuple[str, int]:
    """Split `HOST:PORT` (IPv6 in brackets) into host and port; raises UpError where it is neither."""
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isdecimal() or int(port) > 65535:
        raise UpError(f"{address!r} is no HOST:PORT, such as 127.0.0.1:8000")
    return host.strip("[]"), int(port)


def why_not(host: str, port: int) -> str | None:
    """Return why nothing can listen on this address now, None where it is free."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
            probe.listen(1)
        except OSError as error:
            return error.strerror or str(error)
    return None


def free_port(host: str = "127.0.0.1") -> int:
    """Pick a port that nothing listens on; no two calls in this process pick the same one soon."""
    for step in count():
        port = FIRST_PORT + next(_steps) % PORTS
        if why_not(host, port) is None:
            return port
        if step > PORTS:
            raise UpError(f"no free port between {FIRST_PORT} and {FIRST_PORT + PORTS} on {host}")
    raise AssertionError("unreachable")


def settle_address(address: str, purpose: str, fix: str) -> str:
    """Return `address` with port 0 replaced by a free one; raises UpError, with the fix, where it is taken."""
    host, port = split_address(address)
    if port == 0:
        return f"{address.rpartition(':')[0]}:{free_port(host)}"
    if reason := why_not(host, port):
        raise UpError(f"{purpose} cannot listen on {address}: {reason}; {fix}")
    return address


def settle_admin_address() -> str | None:
    """Return where the gateway's admin API will listen: what the environment says, or the default; None: nowhere."""
    address = os.environ.get(ADMIN_VARIABLE, "127.0.0.1:8001")
    if address.lower() in {"null", ""}:
        return None
    return settle_address(address, "the admin API", f"set {ADMIN_VARIABLE} to another HOST:PORT, or to null for none")


def visit_url(address: str) -> str:
    """Return the URL under which a program on this machine reaches a server that listens on `address`."""
    host, port = split_address(address)
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - compared, not bound
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
