"""An answer to a client that has just gone: the engine was done in the same turn of the loop."""

import asyncio
import socket
from typing import Any

import pytest
import uvloop

from gateway.api.request import ClientRequest


class Line(asyncio.Protocol):
    """A connection that is already lost."""

    writing_paused = False
    transport: Any

    def __init__(self) -> None:
        self.lost = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def connection_lost(self, _: Exception | None) -> None:
        self.lost.set()


async def lost_line() -> Line:
    ours, theirs = socket.socketpair()
    _, line = await asyncio.get_running_loop().create_connection(Line, sock=ours)
    theirs.close()
    line.transport.abort()
    await line.lost.wait()
    with pytest.raises(RuntimeError):
        line.transport.write(b"what uvloop does not take")
    return line


def test_what_is_written_to_a_client_that_has_gone_goes_nowhere():
    async def answer() -> tuple[ClientRequest, ClientRequest]:
        line = await lost_line()
        streamed = ClientRequest(line, "POST", b"/", [], modern=True, keep_alive=True)
        whole = ClientRequest(line, "POST", b"/", [], modern=True, keep_alive=True)
        streamed.gone = whole.gone = True
        streamed.start(200, b"")
        streamed.write(b"piece")
        streamed.finish(b"last", [(b"trailer", b"1")])
        whole.respond(502, b"", b"{}")
        return streamed, whole

    streamed, whole = uvloop.run(answer())
    assert (streamed.status, streamed.finished) == (200, True)
    assert (whole.status, whole.finished) == (502, True)
