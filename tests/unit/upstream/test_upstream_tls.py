"""Engines behind TLS: a private authority, client certificates, names; what fails says why, without addresses."""

import asyncio
import shutil
import socket
import ssl
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import uvloop
from pydantic import ValidationError

from gateway.config_tls import UpstreamTlsConfig
from gateway.errors import UpstreamFailed
from gateway.upstream.client import ConnectFailed, Leg
from gateway.upstream.pool import ConnectionPool
from gateway.upstream.reasons import in_words
from gateway.upstream.tls import Tls, TlsProblem, TlsSettings, make_context
from tests.certificates import Authority, authority, openssl
from tests.unit.upstream.scripted import BODY, HEAD, OK, PATIENT

LOCAL = "IP:127.0.0.1,DNS:localhost"


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return authority(tmp_path_factory.mktemp("ours"))


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return authority(tmp_path_factory.mktemp("theirs"))


@pytest.fixture(scope="module")
def local(ours: Authority) -> tuple[str, str]:
    return ours.certificate("local", LOCAL)


@asynccontextmanager
async def engine(context: ssl.SSLContext | None, settings: TlsSettings, host: str = "127.0.0.1"):
    """Run an engine that answers every request, and yield a pool of connections to it under `settings`."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                await reader.readexactly(len(HEAD + BODY))
                writer.write(OK)
        except (asyncio.IncompleteReadError, OSError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, host, 0, ssl=context)
    pool = ConnectionPool(host, server.sockets[0].getsockname()[1], asyncio.get_running_loop(), tls=Tls(settings))
    async with server:
        yield pool
        pool.close()
        async with asyncio.timeout(5):
            while pool.open_count:
                await asyncio.sleep(0.001)


async def ask(pool: ConnectionPool) -> bytes:
    leg = Leg("e", pool, PATIENT, asyncio.get_running_loop())
    await leg.open(HEAD, BODY)
    return await leg.read(10)


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
@pytest.mark.parametrize("wants", [False, True], ids=["any client", "clients with a certificate"])
def test_an_engine_of_a_private_authority_is_spoken_to_over_kept_connections(loop, wants, ours, theirs, local):
    async def twice() -> None:
        settings = TlsSettings(ours.ca_file, *(theirs.certificate("us", LOCAL) if wants else (None, None)))
        async with engine(ours.server(local, theirs if wants else None), settings) as pool:
            assert [await ask(pool), await ask(pool), pool.open_count] == [b"ok", b"ok", 1]
            connection = pool.take()
            assert connection is not None
            assert connection.transport is not None
            assert connection.transport.get_extra_info("cipher")
            connection.abort()

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(twice())


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"ca_file": None}, "its certificate is refused: unable to get local issuer certificate"),
        ({"server_name": "engine.example"}, "its certificate is refused: it is for another name"),
        ({"server_name": "127.0.0.2"}, "its certificate is refused: it is for another name"),
    ],
)
async def test_a_certificate_that_does_not_hold_is_no_connection(change, why, ours, local):
    async with engine(ours.server(local), replace(TlsSettings(ours.ca_file), **change)) as pool:
        with pytest.raises(ConnectFailed) as caught:
            await ask(pool)
        assert caught.value.message == f"endpoint e: {why}"


async def test_the_wrong_authority_is_no_connection(ours, theirs, local):
    async with engine(ours.server(local), TlsSettings(theirs.ca_file)) as pool:
        for _ in range(3):  # and its place comes back
            with pytest.raises(ConnectFailed, match="endpoint e: its certificate is refused: "):
                await ask(pool)


async def test_a_name_of_the_configuration_stands_for_the_hosts_own(ours):
    named = ours.certificate("named", "DNS:engine.example")
    async with engine(ours.server(named), TlsSettings(ours.ca_file, server_name="engine.example")) as pool:
        assert await ask(pool) == b"ok"


async def test_without_verification_any_certificate_will_do(theirs):
    named = theirs.certificate("any", "DNS:elsewhere")
    async with engine(theirs.server(named), TlsSettings(verify=False)) as pool:
        assert await ask(pool) == b"ok"


async def test_an_engine_that_wants_a_certificate_and_gets_none_answers_nothing(ours, theirs, local):
    async with engine(ours.server(local, theirs), TlsSettings(ours.ca_file)) as pool:
        # Some servers say why before they close, this one does not.
        with pytest.raises(UpstreamFailed, match=r"endpoint e: (TLS failed: |Connection reset|the engine closed)"):
            await ask(pool)


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ConnectionRefusedError(111, "Connect call failed ('10.0.0.1', 1)"), "Connection refused"),
        (socket.gaierror(-2, "Name or service not known"), "Name or service not known"),
        (OSError("Multiple exceptions: [Errno 111] ('::1', 1), [Errno 111] ('127.0.0.1', 1)"), "none of its addresses"),
        (ssl.SSLError(1, "[SSL: X] x (_ssl.c:1006)"), "TLS failed: no reason told"),
        (TimeoutError(), "TimeoutError"),
    ],
)
def test_what_failed_is_told_in_words_without_addresses(error, words):
    assert in_words(error).startswith(words)
    assert "1" not in in_words(error)


async def test_an_engine_without_tls_is_no_connection(ours):
    async with engine(None, TlsSettings(ours.ca_file)) as pool:
        with pytest.raises(ConnectFailed, match=r"endpoint e: (TLS failed: |no connection within)"):
            await Leg("e", pool, replace(PATIENT, connect_s=0.2), asyncio.get_running_loop()).open(HEAD, BODY)


async def test_files_that_are_gone_since_the_start_are_no_connection(ours, local):
    gone = replace(TlsSettings(ours.ca_file), ca_file=ours.ca_file + ".gone")
    async with engine(ours.server(local), gone) as pool:
        for _ in range(2):
            with pytest.raises(ConnectFailed, match="endpoint e: TLS cannot be set up, see upstream_tls"):
                await ask(pool)


def test_by_default_the_systems_authorities_are_trusted_and_names_are_checked():
    context = make_context(TlsSettings())
    assert (context.verify_mode, context.check_hostname) == (ssl.CERT_REQUIRED, True)
    assert context.minimum_version >= ssl.TLSVersion.TLSv1_2


def test_files_are_checked_with_the_configuration(ours, theirs, local, tmp_path: Path):
    cert, key = local
    junk, locked = tmp_path / "junk", str(tmp_path / "locked.key")
    junk.write_text("no PEM", encoding="ascii")
    openssl("ec", "-in", key, "-aes128", "-passout", "pass:secret", "-out", locked)
    whole = UpstreamTlsConfig(ca_file=ours.ca_file, cert_file=cert, key_file=key)
    assert whole.settings == TlsSettings(ours.ca_file, cert, key)
    for given, why in [
        ({"ca_file": str(tmp_path / "none")}, r"ca_file: .* cannot be read: No such file"),
        ({"ca_file": "a\x00b"}, r"ca_file: .* cannot be read: embedded null"),
        ({"ca_file": str(junk)}, r"ca_file: .* holds no certificate in PEM"),
        ({"key_file": key}, r"name that too, as cert_file"),
        ({"cert_file": cert}, r"no certificate and its key in PEM"),
        ({"cert_file": cert, "key_file": locked}, r"locked by a password"),
        ({"cert_file": cert, "key_file": theirs.certificate("x", LOCAL)[1]}, r"is the key of another certificate"),
    ]:
        with pytest.raises(ValidationError, match=why):
            UpstreamTlsConfig.model_validate(given)


async def test_the_context_is_made_once_and_again_after_it_failed(ours, tmp_path: Path):
    late = str(tmp_path / "ca.pem")
    tls = Tls(TlsSettings(late))
    with pytest.raises(TlsProblem, match="ca_file"):
        await tls.context_for("h")
    shutil.copy(ours.ca_file, late)
    (one, name), (two, _) = await asyncio.gather(tls.context_for("h"), tls.context_for("h"))
    assert (one is two, name) == (True, "h")
