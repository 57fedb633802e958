"""Why a connection to an engine failed, in words that may go to a client: no address, no path, no line of a C file."""

import os
import socket
import ssl

from gateway.upstream.tls import TlsProblem

# OpenSSL's words for these hold the name or address that was expected. Source: openssl/x509_vfy.h.
_WRONG_NAME = frozenset({62, 63, 64})


def in_words(error: BaseException) -> str:
    """Return what `error`, met while connecting or on an open connection, means."""
    if isinstance(error, ssl.SSLError | TlsProblem):
        return _of_tls(error)
    if isinstance(error, socket.gaierror):
        return error.strerror or "its name is not known"
    if isinstance(error, OSError) and error.errno:
        return os.strerror(error.errno)
    if type(error) is OSError:  # what the event loop raises when several addresses have failed
        return "none of its addresses could be connected to"
    return type(error).__name__


def _of_tls(error: ssl.SSLError | TlsProblem) -> str:
    if isinstance(error, TlsProblem):
        return "TLS cannot be set up, see upstream_tls"
    if isinstance(error, ssl.SSLCertVerificationError):
        named_wrong = error.verify_code in _WRONG_NAME
        return f"its certificate is refused: {'it is for another name' if named_wrong else error.verify_message}"
    return f"TLS failed: {(getattr(error, 'reason', None) or 'no reason told').replace('_', ' ').lower()}"
