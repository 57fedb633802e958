"""TLS to clients: one context for all that a gateway listens on for inference, whose files can be read again."""

import ssl

from gateway.errors import ConfigError
from gateway.upstream.tls import TlsProblem, TlsSettings, load_files


def listener_context(settings: TlsSettings) -> ssl.SSLContext | None:
    """Return a context, None where no certificate is configured; with a `ca_file` clients need a certificate of it.

    Raises ConfigError where a file cannot be used.
    """
    if settings.cert_file is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    if settings.ca_file is not None:
        context.verify_mode = ssl.CERT_REQUIRED
    read_again(context, settings)
    return context


def read_again(context: ssl.SSLContext, settings: TlsSettings) -> None:
    """Have new connections go by what the files hold now. Raises ConfigError, and then the old ones stay."""
    try:
        load_files(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), settings)
        load_files(context, settings)
    except TlsProblem as problem:
        raise ConfigError(f"tls: {problem}") from problem
