"""A real gateway in the test's own event loop, on free ports."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx

from gateway.app import Gateway, Parts
from gateway.config import Config

PLAIN = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # loads no certificates, which would take longer than a test


@asynccontextmanager
async def run_gateway(
    endpoints: list[Any], ready: int | None = None, reread: Callable[[], Config] | None = None, **sections: Any
) -> AsyncIterator["Running"]:
    """Run a gateway before `endpoints` (URLs, or mappings as in the configuration) until `ready` (all) are ready.

    `reread` gives the configuration that a reload finds.
    """
    listed = [one if isinstance(one, dict) else {"url": one} for one in endpoints]
    gateway = Gateway(Config.model_validate(settings(listed, **sections)), reread)
    task = asyncio.get_running_loop().create_task(gateway.run())
    try:
        starting = asyncio.ensure_future(gateway.started.wait())
        await asyncio.wait({task, starting}, timeout=10, return_when=asyncio.FIRST_COMPLETED)
        starting.cancel()
        if task.done():
            await task
        running = Running(gateway)
        await running.until_ready(len(listed) if ready is None else ready)
        async with running.client:
            yield running
    finally:
        gateway.stop()
        gateway.stop()
        await asyncio.wait_for(task, 20)


def settings(endpoints: list[dict[str, Any]], **sections: Any) -> dict[str, Any]:
    """Return the configuration of a gateway for tests before `endpoints`."""
    return {
        "listen": "127.0.0.1:0",
        "admin": {"listen": "127.0.0.1:0"},
        "discovery": {"static": {"endpoints": endpoints}},
        "drain": {"grace_s": 1.0},
        **sections,
    }


class Running:
    """A gateway that serves, and a client of it."""

    def __init__(self, gateway: Gateway) -> None:
        assert gateway.address is not None
        assert gateway.admin_address is not None
        assert gateway.parts is not None
        self.gateway = gateway
        self.address = gateway.address
        self.url = "http://{}:{}".format(*gateway.address)
        self.admin_url = "http://{}:{}".format(*gateway.admin_address)
        self.client = httpx.AsyncClient(base_url=self.url, timeout=30, verify=PLAIN)

    @property
    def parts(self) -> Parts:
        """What the gateway is made of now."""
        assert self.gateway.parts is not None
        return self.gateway.parts

    async def until_ready(self, count: int) -> None:
        """Wait until `count` endpoints are ready."""
        await self.until(lambda: sum(one.ready for one in self.parts.pool) >= count, "endpoints to be ready")

    async def until(self, condition: Any, what: str) -> None:
        """Wait until `condition()` holds; fail after 10 s."""
        try:
            async with asyncio.timeout(10):
                while not condition():
                    await asyncio.sleep(0.005)
        except TimeoutError:
            raise AssertionError(f"waited 10 s for {what}") from None

    async def until_idle(self) -> None:
        """Wait until nothing is leased and no engine connection is busy."""
        await self.until(lambda: not any(one.in_flight for one in self.parts.pool), "leases to come back")
        await self.until(
            lambda: all(opened == idle for opened, idle in self.parts.engines.counts().values()), "connections to end"
        )

    async def metrics(self) -> str:
        """Return the exposition text."""
        return (await self.client.get("/metrics")).text
