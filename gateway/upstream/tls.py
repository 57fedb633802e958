"""TLS to engines: whom we trust, and who we are. One context for all engines, made when the first one needs it."""

import asyncio
import ssl
from dataclasses import dataclass
from pathlib import Path


class TlsProblem(OSError):
    """A file of `upstream_tls` cannot be used; the message names its key and says why in words."""


@dataclass(frozen=True, slots=True)
class TlsSettings:
    """What `upstream_tls` says: paths of PEM files, or None; `verify`: believe only certificates that hold."""

    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None
    verify: bool = True
    server_name: str | None = None


def check(settings: TlsSettings) -> None:
    """Read the files as a connection would. Raises TlsProblem."""
    load_files(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), settings)


def make_context(settings: TlsSettings) -> ssl.SSLContext:
    """Return a context; without a CA file it trusts the system's, which takes long to load. Raises TlsProblem."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.set_alpn_protocols(["http/1.1"])
    load_files(context, settings)
    if not settings.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    elif settings.ca_file is None:
        context.load_default_certs(ssl.Purpose.SERVER_AUTH)
    return context


def load_files(context: ssl.SSLContext, settings: TlsSettings) -> None:
    """Load the files into `context`, which may be in use: new connections go by them. Raises TlsProblem."""
    for key in ("ca_file", "cert_file", "key_file"):
        path = getattr(settings, key)
        if path is not None:
            _read(key, path)
    if settings.key_file is not None and settings.cert_file is None:
        raise TlsProblem("key_file is the key of a certificate: name that too, as cert_file")
    if settings.ca_file is not None:
        try:
            context.load_verify_locations(settings.ca_file)
        except ssl.SSLError as error:
            raise TlsProblem(f"ca_file: {settings.ca_file!r} holds no certificate in PEM") from error
    if settings.cert_file is not None:
        try:
            # Without a password of our own OpenSSL would ask for one on the terminal.
            context.load_cert_chain(settings.cert_file, settings.key_file, password=str)
        except ssl.SSLError as error:
            raise TlsProblem(_key_problem(settings, error)) from error


def _read(key: str, path: str) -> None:
    try:
        Path(path).read_bytes()
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise TlsProblem(f"{key}: {path!r} cannot be read: {why}") from error


def _key_problem(settings: TlsSettings, error: ssl.SSLError) -> str:
    key_file = settings.key_file or settings.cert_file
    if error.reason == "KEY_VALUES_MISMATCH":
        return f"key_file: {key_file!r} is the key of another certificate than cert_file"
    return (
        f"cert_file: {settings.cert_file!r} and key_file: {key_file!r} are no certificate and its key in PEM,"
        " or the key is locked by a password"
    )


class Tls:
    """The context of `settings`, made once, in a thread: loading certificate authorities would hold up the loop."""

    def __init__(self, settings: TlsSettings | None = None) -> None:
        self._settings = settings or TlsSettings()
        self._context: asyncio.Future[ssl.SSLContext] | None = None

    async def context_for(self, host: str) -> tuple[ssl.SSLContext, str]:
        """Return the context, and the name that the certificate of `host` must have. Raises TlsProblem."""
        if self._context is None or (self._context.done() and self._context.exception() is not None):
            self._context = asyncio.get_running_loop().run_in_executor(None, make_context, self._settings)
        # Shielded: who waits for it may be cancelled, and others wait too.
        return await asyncio.shield(self._context), self._settings.server_name or host
