"""An engine that answers in raw bytes as a test scripts it, and the client's side of it."""

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from gateway.upstream.client import Leg, LegTimeouts
from gateway.upstream.pool import ConnectionPool

HEAD = b"POST /v1/completions HTTP/1.1\r\nhost: e\r\ncontent-length: 2\r\n\r\n"
BODY = b"{}"
OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
UNSIZED = b"HTTP/1.1 200 OK\r\n\r\n"
CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
PATIENT = LegTimeouts(connect_s=5.0, first_byte_s=5.0, idle_s=5.0, total_s=20.0)


class Talk:
    """One connection as the engine sees it."""

    def __init__(self, number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.number, self.reader, self.writer = number, reader, writer

    async def request(self) -> bytes:
        """Return the next request, head and body; raises IncompleteReadError when the client is gone."""
        head = await self.reader.readuntil(b"\r\n\r\n")
        return head + await self.reader.readexactly(len(BODY))

    def write(self, data: bytes) -> None:
        self.writer.write(data)

    async def gone(self) -> None:
        """Return when the client has closed."""
        while await self.reader.read(65536):
            pass

    def reset(self) -> None:
        """Close so that the client sees a reset."""
        sock = self.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()


Script = Callable[[Talk], Awaitable[None]]


class Engine:
    """The scripted engine's port, how many connections it got, and a pool of connections to it."""

    def __init__(self) -> None:
        self.connections = 0
        self.pool = ConnectionPool("127.0.0.1", 0, asyncio.get_running_loop())

    def leg(self, timeouts: LegTimeouts = PATIENT) -> Leg:
        return Leg("e", self.pool, timeouts, asyncio.get_running_loop())

    async def opened(self, timeouts: LegTimeouts = PATIENT) -> Leg:
        leg = self.leg(timeouts)
        await leg.open(HEAD, BODY)
        return leg

    async def whole(self, timeouts: LegTimeouts = PATIENT) -> bytes:
        """Return the body of one request's answer."""
        return await (await self.opened(timeouts)).read(1 << 24)

    async def at_rest(self) -> tuple[int, int]:
        """Return (open, idle) once no connection is busy or closing."""
        async with asyncio.timeout(5):
            while self.pool.open_count != self.pool.idle_count:
                await asyncio.sleep(0)
        return self.pool.open_count, self.pool.idle_count


@asynccontextmanager
async def scripted(script: Script) -> AsyncIterator[Engine]:
    """Run `script` on each connection, then close it; at the end no connection may be left busy."""
    engine = Engine()
    talks: set[asyncio.Task[None] | None] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        engine.connections += 1
        talks.add(asyncio.current_task())
        try:
            await script(Talk(engine.connections, reader, writer))
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    engine.pool = ConnectionPool("127.0.0.1", server.sockets[0].getsockname()[1], asyncio.get_running_loop())
    async with server:
        yield engine
        await engine.at_rest()
        engine.pool.close()
        async with asyncio.timeout(5):  # each sees its client go
            await asyncio.gather(*(talk for talk in talks if talk is not None))


def always(answer: bytes) -> Script:
    """Return a script that answers every request with the same bytes."""

    async def script(talk: Talk) -> None:
        while True:
            await talk.request()
            talk.write(answer)

    return script


def once(answer: bytes) -> Script:
    """Return a script that answers one request and closes."""

    async def script(talk: Talk) -> None:
        await talk.request()
        talk.write(answer)

    return script


async def ticks(count: int = 20) -> None:
    """Let the loop go round."""
    for _ in range(count):
        await asyncio.sleep(0)
