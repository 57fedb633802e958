"""A real HTTP server on a free port that answers as an engine's health, models and metrics do."""

import asyncio
import json
from collections import Counter
from types import TracebackType
from typing import Self

from tests.fakes.exposition import exposition

HANG = (0, b"")
BROKEN = (-1, b"no HTTP\r\n\r\n")


def models_body(*ids: str, root: str | None = None) -> bytes:
    """Return the body of `/v1/models` that lists `ids`."""
    entries = [{"id": one, "object": "model", "root": root or one, "parent": None} for one in ids]
    return json.dumps({"object": "list", "data": entries}).encode()


class EngineStub:
    """Answers GET by path from `answers` (status and body), and counts what was asked.

    The answer `HANG` never comes, `BROKEN` is nonsense.
    """

    def __init__(self, port: int = 0, models: tuple[str, ...] = ("tiny",)) -> None:
        self.port = port
        self.answers: dict[str, tuple[int, bytes]] = {
            "/health": (200, b""),
            "/v1/models": (200, models_body(*models)),
            "/metrics": (200, exposition()),
        }
        self.asked: Counter[str] = Counter()
        self._news = asyncio.Event()
        self._open: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def start(self) -> None:
        """Listen, on the same port as before where there was one."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Refuse connections and break the open ones."""
        assert self._server is not None
        self._server.close()
        for writer in self._open:
            writer.transport.abort()
        await self._server.wait_closed()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def asked_more(self, path: str, times: int = 2) -> None:
        """Wait for `times` more questions; when the second comes, the answer to the first has been taken in."""
        wanted = self.asked[path] + times
        async with asyncio.timeout(5):
            while self.asked[path] < wanted:
                self._news.clear()
                await self._news.wait()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                path = head.split(b" ", 2)[1].decode()
                self.asked[path] += 1
                self._news.set()
                status, body = self.answers.get(path, (404, b""))
                if (status, body) == HANG:
                    await reader.read()
                    return
                if (status, body) == BROKEN:
                    writer.write(body)
                    return
                writer.write(b"HTTP/1.1 %d X\r\ncontent-length: %d\r\n\r\n%b" % (status, len(body), body))
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            return
        finally:
            self._open.discard(writer)
            writer.close()
