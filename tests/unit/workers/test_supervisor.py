"""The supervisor where a worker cannot even be started."""

import argparse
import asyncio
import socket
from pathlib import Path

from gateway.config import Config
from gateway.workers.supervisor import Supervisor
from tests.gateways import settings


def open_descriptors() -> int:
    return len(list(Path("/dev/fd").iterdir()))


async def test_a_start_that_fails_leaves_no_descriptor(caplog):
    closed = socket.socket()
    closed.close()
    before = open_descriptors()
    supervisor = Supervisor(Config.model_validate({**settings([]), "workers": 2}), (closed, None), argparse.Namespace())
    running = asyncio.ensure_future(supervisor.run())
    async with asyncio.timeout(10):
        while len([one for one in caplog.messages if one.endswith("cannot be started")]) < 2:
            await asyncio.sleep(0)
    supervisor.stop()
    assert await running == 0
    assert open_descriptors() == before
