"""The engines a case is held to: simulated ones in this process; with `--vllm`, real ones."""

import ssl
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from tests.engines import sim_engine, sim_pair

# A handoff on real engines now and then stalls for its lease; no case is about that time.
PATIENCE_S = 120.0

PLAIN = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # loads no certificates, which would take longer than a test


@dataclass(frozen=True)
class Endpoint:
    """One engine: requests to it, and its counters."""

    url: str
    model: str
    client: httpx.AsyncClient

    async def post(self, path: str, **body: Any) -> httpx.Response:
        return await self.client.post(self.url + path, json={"model": self.model, "temperature": 0} | body)

    async def chat(self, content: str = "Say something.", **body: Any) -> httpx.Response:
        return await self.post("/v1/chat/completions", messages=[{"role": "user", "content": content}], **body)

    async def complete(self, prompt: Any = "Once upon a time", **body: Any) -> httpx.Response:
        return await self.post("/v1/completions", prompt=prompt, **body)

    async def metric(self, name: str, **labels: str) -> float:
        """Return the sum of the samples of `name` that carry `labels`."""
        text = (await self.client.get(self.url + "/metrics")).text
        total = 0.0
        for line in text.splitlines():
            sample, _, value = line.rpartition(" ")
            if sample.partition("{")[0] == name and all(f'{key}="{each}"' in sample for key, each in labels.items()):
                total += float(value)
        return total


@dataclass(frozen=True)
class Pair:
    """A prefill and a decode engine that can hand KV over."""

    prefill: Endpoint
    decode: Endpoint


async def _endpoint(url: str, client: httpx.AsyncClient) -> Endpoint:
    models = (await client.get(url + "/v1/models")).json()
    return Endpoint(url, models["data"][0]["id"], client)


@pytest.fixture
async def client() -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(timeout=PATIENCE_S, verify=PLAIN) as client:
        yield client


@pytest.fixture
async def engine(request: pytest.FixtureRequest, client: httpx.AsyncClient) -> AsyncIterator[Endpoint]:
    if request.config.getoption("--vllm"):
        yield await _endpoint(request.getfixturevalue("vllm_pair").decode.url, client)
        return
    async with sim_engine() as sim:
        yield await _endpoint(sim.url, client)


@pytest.fixture
async def pair(request: pytest.FixtureRequest, client: httpx.AsyncClient) -> AsyncIterator[Pair]:
    if request.config.getoption("--vllm"):
        real = request.getfixturevalue("vllm_pair")
        yield Pair(await _endpoint(real.prefill.url, client), await _endpoint(real.decode.url, client))
        return
    async with sim_pair() as (prefill_sim, decode_sim):
        yield Pair(await _endpoint(prefill_sim.url, client), await _endpoint(decode_sim.url, client))
