"""The sockets that a gateway listens on, whichever process then serves on them."""

import logging
import socket
import sys

from gateway.config import Config
from gateway.config_types import split_address
from gateway.errors import ConfigError

logger = logging.getLogger("twohop")

BACKLOG = 2048

BALANCED = sys.platform == "linux"
"""Whether the kernel spreads connections over the sockets of one address; elsewhere processes share one socket."""

Sockets = tuple[socket.socket, socket.socket | None]
"""What a gateway listens on: for the inference API, and for the admin API where there is one."""


def log_addresses(address: tuple[str, int] | None, admin: tuple[str, int] | None) -> None:
    """Log where the gateway listens."""
    if address is not None:
        logger.info("listening on %s", _url(*address))
    if admin is not None:
        logger.info("admin API on %s", _url(*admin))


def _url(host: str, port: int) -> str:
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def listen(config: Config) -> Sockets:
    """Return sockets that listen where `config` says; raise ConfigError where they cannot."""
    return _both(config, _listen(config.listen, "listen"))


def reserve(config: Config) -> Sockets:
    """Return the same for several processes: the first only holds the address, for `another` to listen on."""
    with _listen(config.listen, "listen") as alone:  # fails where somebody listens, which a shared socket would not
        where = alone.getsockname()
    reserved = _socket(alone.family)
    try:
        if BALANCED:
            reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        reserved.bind(where)
    except OSError as error:
        reserved.close()
        raise _refused(config.listen, "listen", error) from error
    return _both(config, reserved)


def another(reserved: socket.socket) -> socket.socket:
    """Return one more socket at the address of `reserved`; it gets its share of connections once it listens."""
    if not BALANCED:
        return reserved.dup()
    one = _socket(reserved.family)
    try:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        one.bind(reserved.getsockname())
    except OSError:
        one.close()
        raise
    return one


def _both(config: Config, listener: socket.socket) -> Sockets:
    admin = config.admin.listen
    try:
        return listener, None if admin is None else _listen(admin, "admin.listen")
    except ConfigError:
        listener.close()
        raise


def _listen(address: str, key: str) -> socket.socket:
    host, port = split_address(address)
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        # Of a name with both kinds of address, such as localhost, the one that every client tries.
        family, _, _, _, where = min(found, key=lambda one: one[0] != socket.AF_INET)
        listener = _socket(family)
    except OSError as error:
        raise ConfigError(f"{key}: {address}: {error}") from error
    try:
        listener.bind(where)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise _refused(address, key, error) from error
    return listener


def _socket(family: int) -> socket.socket:
    made = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    made.setblocking(False)
    return made


def _refused(address: str, key: str, error: OSError) -> ConfigError:
    how = "--listen HOST:PORT" if key == "listen" else "TWOHOP_ADMIN__LISTEN=HOST:PORT, or null for none"
    return ConfigError(f"{key}: cannot listen on {address}: {error.strerror}; choose another: {how}")
