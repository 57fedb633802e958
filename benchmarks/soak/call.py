"""One HTTP/1.1 call on a connection of its own or a kept one, which may be left at any stage and in any way."""

import asyncio
import socket
import struct
from dataclasses import dataclass
from typing import Literal

Stage = Literal["connected", "head", "body", "sent", "answer", "chunk"]
Way = Literal["reset", "close", "half-close"]
STAGES: tuple[Stage, ...] = ("connected", "head", "body", "sent", "answer", "chunk")
WAYS: tuple[Way, ...] = ("reset", "close", "half-close")
_HALF_CLOSED_S = 10.0


class Left(Exception):
    """The call was left, as it was asked to be."""


@dataclass(frozen=True, slots=True)
class Leave:
    """Where a client leaves, how, and after how many chunks or seconds at that stage."""

    stage: Stage
    way: Way
    chunks: int = 1
    delay_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Answer:
    """What came: `whole` is False where the connection ended before the answer did."""

    status: int
    body: bytes
    whole: bool


class Connection:
    """One client connection; closed by `end`, or where a call was left or broke."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self.usable = True

    @classmethod
    async def open(cls, port: int) -> "Connection":
        """Connect. Raises OSError."""
        return cls(*await asyncio.open_connection("127.0.0.1", port))

    async def call(self, request: bytes, leave: Leave | None = None, pause_s: float = 0.0) -> Answer:
        """Send `request` and return the answer; `pause_s` is slept before each of the first chunks is read.

        Raises Left where `leave` says so, OSError or asyncio.IncompleteReadError where no answer came at all.
        """
        try:
            await self._send(request, leave)
            return await self._answer(leave, pause_s)
        except BaseException:
            self.usable = False
            raise

    async def _send(self, request: bytes, leave: Leave | None) -> None:
        head = request.index(b"\r\n\r\n") + 4
        stops = {"connected": 0, "head": head // 2, "body": (head + len(request)) // 2, "sent": len(request)}
        stop = stops.get(leave.stage) if leave is not None else None
        self._writer.write(request[:stop])
        await self._writer.drain()
        if leave is not None and stop is not None:
            await self._leave(leave)

    async def _answer(self, leave: Leave | None, pause_s: float) -> Answer:
        reader = self._reader
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        status = int(head.split(b" ", 2)[1])
        if leave is not None and leave.stage == "answer":
            await self._leave(leave)
        if b"\r\nconnection: close" in head:
            self.usable = False
        body = bytearray()
        try:
            if b"\r\ntransfer-encoding: chunked" in head:
                await self._chunks(body, leave, pause_s)
            else:
                length = head.partition(b"\r\ncontent-length:")[2].partition(b"\r\n")[0]
                body += await reader.readexactly(int(length or 0))
        except (OSError, asyncio.IncompleteReadError):
            self.usable = False
            return Answer(status, bytes(body), whole=False)
        if leave is not None:  # over before it could be left where it was to be
            await self._leave(leave)
        return Answer(status, bytes(body), whole=True)

    async def _chunks(self, body: bytearray, leave: Leave | None, pause_s: float) -> None:
        seen = 0
        while True:
            size = int((await self._reader.readuntil(b"\r\n")).split(b";")[0], 16)
            body += (await self._reader.readexactly(size + 2))[:-2]
            if not size:
                return
            seen += 1
            if leave is not None and leave.stage == "chunk" and seen >= leave.chunks:
                await self._leave(leave)
            if pause_s and seen <= 5:
                await asyncio.sleep(pause_s)

    async def _leave(self, leave: Leave) -> None:
        await asyncio.sleep(leave.delay_s)
        writer = self._writer
        if leave.way == "reset":
            linger = struct.pack("ii", 1, 0)
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            writer.transport.abort()
        elif leave.way == "half-close":
            writer.write_eof()
            try:
                async with asyncio.timeout(_HALF_CLOSED_S):
                    while await self._reader.read(65536):
                        pass
            except (OSError, TimeoutError):
                pass
        writer.close()
        raise Left

    def end(self) -> None:
        """Close the connection."""
        self.usable = False
        self._writer.close()
