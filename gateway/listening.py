"""The sockets that a gateway listens on, whichever process then serves on them."""

import logging
import socket

from gateway.config import Config, split_address
from gateway.errors import ConfigError

logger = logging.getLogger("twohop")

Sockets = tuple[socket.socket, socket.socket | None]
"""What a gateway listens on: for the inference API, and for the admin API where there is one."""


def log_addresses(address: tuple[str, int] | None, admin: tuple[str, int] | None) -> None:
    """Log where the gateway listens."""
    logger.info("listening on http://%s:%d", *address or ())
    if admin is not None:
        logger.info("admin API on http://%s:%d", *admin)


def listen(config: Config) -> Sockets:
    """Return sockets that listen where `config` says; raise ConfigError where they cannot."""
    listener = _listen(config.listen, "listen")
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
        family, kind, protocol, _, where = min(found, key=lambda one: one[0] != socket.AF_INET)
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise ConfigError(f"{key}: {address}: {error}") from error
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(where)
        listener.listen(2048)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        how = "--listen HOST:PORT" if key == "listen" else "TWOHOP_ADMIN__LISTEN=HOST:PORT, or null for none"
        raise ConfigError(f"{key}: cannot listen on {address}: {error.strerror}; choose another: {how}") from error
    return listener
