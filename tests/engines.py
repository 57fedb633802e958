"""Simulated engines for tests: real servers on free ports, in the test's own event loop."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from gateway.simulator.server import Options, SimServer


@asynccontextmanager
async def sim_engine(**options: Any) -> AsyncIterator[SimServer]:
    """Run one engine; `options` are those of `gateway.simulator.server.Options`, with the profile `fast`."""
    server = SimServer(Options(**({"profile": "fast"} | options)))
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


@asynccontextmanager
async def sim_engines(count: int, **options: Any) -> AsyncIterator[list[SimServer]]:
    """Run `count` engines with the same options."""
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(sim_engine(**options)) for _ in range(count)]


@asynccontextmanager
async def sim_pair(**options: Any) -> AsyncIterator[tuple[SimServer, SimServer]]:
    """Run one prefill and one decode engine with the same options."""
    async with sim_engine(role="prefill", **options) as prefill, sim_engine(role="decode", **options) as decode:
        yield prefill, decode
