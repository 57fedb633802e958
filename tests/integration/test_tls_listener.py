"""The inference API behind TLS: streams, strangers, client certificates, and a certificate that is renewed."""

import asyncio
import logging
import shutil
import ssl

import httpx
import pytest

from gateway.config import Config
from gateway.errors import ConfigError
from gateway.reload import Reload
from tests.certificates import Authority, authority
from tests.fakes.engine import Call, fake_engine
from tests.gateways import PLAIN, run_gateway

BODY = {"model": "m", "prompt": "x", "stream": True}


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return authority(tmp_path_factory.mktemp("ours"))


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return authority(tmp_path_factory.mktemp("theirs"))


async def stream(call: Call) -> None:
    call.start_stream()
    for number in range(3):
        call.chunk(b"data: %d\n\n" % number)
        await call.writer.drain()
    call.end_stream()


def client(url: str, trusted: Authority, certificate: tuple[str, str] | None = None) -> httpx.AsyncClient:
    context = ssl.create_default_context(cafile=trusted.ca_file)
    if certificate is not None:
        context.load_cert_chain(*certificate)
    return httpx.AsyncClient(base_url=url.replace("http:", "https:"), verify=context, timeout=10)


async def test_streams_pass_and_strangers_are_turned_away_without_a_word(ours, theirs, caplog):
    cert, key = ours.certificate("gateway", "IP:127.0.0.1")
    tls = {"cert_file": cert, "key_file": key}
    async with fake_engine(stream) as engine, run_gateway([engine.url], tls=tls) as gateway:
        async with client(gateway.url, ours) as known:
            reply = await known.post("/v1/completions", json=BODY)
            assert (reply.status_code, reply.content) == (200, b"data: 0\n\ndata: 1\n\ndata: 2\n\n")
            assert (await known.get("/readyz")).status_code == 200
        async with client(gateway.url, theirs) as stranger:
            with pytest.raises(httpx.ConnectError):
                await stranger.get("/readyz")
        async with httpx.AsyncClient(verify=PLAIN) as plain:
            with pytest.raises(httpx.TransportError):
                await plain.get(f"{gateway.url}/readyz")
        await gateway.until_idle()
    assert [one.getMessage() for one in caplog.records if one.levelno >= logging.WARNING] == []


async def test_clients_need_a_certificate_where_an_authority_is_named(ours, theirs):
    cert, key = ours.certificate("gateway", "IP:127.0.0.1")
    tls = {"cert_file": cert, "key_file": key, "ca_file": theirs.ca_file}
    async with fake_engine(stream) as engine, run_gateway([engine.url], tls=tls) as gateway:
        async with client(gateway.url, ours, theirs.certificate("client", "DNS:client")) as known:
            assert (await known.post("/v1/completions", json=BODY)).status_code == 200
        async with client(gateway.url, ours) as unknown:
            with pytest.raises(httpx.TransportError):
                await unknown.get("/readyz")


async def test_a_renewed_certificate_is_taken_on_by_a_reload(ours, theirs, tmp_path):
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"

    def issue(by: Authority) -> None:
        for made, place in zip(by.certificate("gateway", "IP:127.0.0.1"), (cert, key), strict=True):
            shutil.copy(made, place)

    issue(ours)
    tls = {"cert_file": str(cert), "key_file": str(key)}
    async with fake_engine(stream) as engine, run_gateway([engine.url], tls=tls) as gateway:
        issue(theirs)
        gateway.gateway.reconfigure(gateway.gateway.config)
        async with client(gateway.url, theirs) as renewed:
            assert (await renewed.get("/readyz")).status_code == 200
        cert.write_text("no certificate")
        with pytest.raises(ConfigError, match="tls: cert_file"):
            gateway.gateway.reconfigure(gateway.gateway.config)
        async with client(gateway.url, theirs) as still:
            assert (await still.get("/readyz")).status_code == 200


async def test_a_reload_says_that_tls_needs_a_restart(ours, caplog):
    cert, key = ours.certificate("gateway", "IP:127.0.0.1")
    holds = Config()
    told = Config.model_validate({"tls": {"cert_file": cert, "key_file": key}})
    applied: list[Config] = []
    with caplog.at_level(logging.INFO):
        Reload(None, lambda: holds, lambda _, new: applied.append(new)).take(told)
    assert applied == [holds]
    assert "needs a restart" in caplog.text
    await asyncio.sleep(0)
