"""A fake vLLM engine that answers at once: N endpoints, one process, as little CPU as Python allows.

It parses no JSON and keeps no state but counters. `GET /counts` on any port tells what each endpoint has seen.
Run: python -m benchmarks.overhead.engine --endpoints 4 --events 100 --interval 0.05; it prints its ports as JSON.
"""

import argparse
import asyncio
import json
from dataclasses import asdict, dataclass
from functools import partial
from typing import cast

import httptools
import uvloop

from benchmarks.overhead.payloads import DONE_EVENT, MODEL, PLAIN_ANSWER, USAGE_EVENT, chunk_frame, stream_events

_STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\nserver: uvicorn\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
    b"transfer-encoding: chunked\r\n\r\n"
)
_LAST_CHUNK = b"0\r\n\r\n"
_LABELS = f'{{engine="0",model_name="{MODEL}"}}'
_METRICS = f"""\
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{_LABELS} 2.0
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{_LABELS} 0.0
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{_LABELS} 0.1
# TYPE vllm:prefix_cache_queries counter
vllm:prefix_cache_queries_total{_LABELS} 1000.0
# TYPE vllm:prefix_cache_hits counter
vllm:prefix_cache_hits_total{_LABELS} 500.0
# TYPE vllm:cache_config_info gauge
vllm:cache_config_info{{block_size="16",engine="0",num_gpu_blocks="20000"}} 1.0
"""
_MODELS = {
    "object": "list",
    "data": [{"id": MODEL, "object": "model", "created": 1764547200, "owned_by": "vllm", "max_model_len": 1_000_000}],
}


def _answer(body: bytes, status: bytes = b"200 OK", kind: bytes = b"application/json") -> bytes:
    return b"HTTP/1.1 %b\r\nserver: uvicorn\r\ncontent-type: %b\r\ncontent-length: %d\r\n\r\n%b" % (
        status,
        kind,
        len(body),
        body,
    )


_PLAIN = _answer(PLAIN_ANSWER)
_NOT_FOUND = _answer(b'{"detail":"Not Found"}', b"404 Not Found")
_FIXED = {
    b"/health": _answer(b""),
    b"/v1/models": _answer(json.dumps(_MODELS).encode()),
    b"/version": _answer(b'{"version":"0.11.2"}'),
    b"/metrics": _answer(_METRICS.encode(), kind=b"text/plain; version=0.0.4; charset=utf-8"),
}


@dataclass
class Counts:
    """What one endpoint has seen of chat requests, and the events it has written."""

    requests: int = 0
    body_bytes: int = 0
    events: int = 0


class Engine:
    """The endpoints of this process: their counters and the frames that every stream is made of."""

    def __init__(self, endpoints: int, events: int, interval_s: float) -> None:
        self.counts = [Counts() for _ in range(endpoints)]
        self.frames = [chunk_frame(event) for event in stream_events(events)]
        self.interval_s = interval_s

    def report(self) -> bytes:
        """Return all counters as a whole HTTP answer."""
        return _answer(json.dumps([asdict(counts) for counts in self.counts]).encode())


class EngineConnection(asyncio.Protocol):
    """One connection to one endpoint."""

    def __init__(self, engine: Engine, endpoint: int) -> None:
        self.engine, self.counts = engine, engine.counts[endpoint]
        self.loop = asyncio.get_running_loop()
        self.parser = httptools.HttpRequestParser(self)
        self.timer: asyncio.TimerHandle | None = None
        self.url, self.pieces = b"", list[bytes]()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport to write to."""
        self.transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio passes it
        """Stop the stream that nobody reads any more."""
        if self.timer is not None:
            self.timer.cancel()

    def data_received(self, data: bytes) -> None:
        """Feed the parser; what is not HTTP ends the connection."""
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserError:
            self.transport.close()

    def on_message_begin(self) -> None:
        """Forget the request before."""
        self.url, self.pieces = b"", []

    def on_url(self, url: bytes) -> None:
        """Collect the path, which may come in pieces."""
        self.url += url

    def on_body(self, body: bytes) -> None:
        """Collect the body."""
        self.pieces.append(body)

    def on_message_complete(self) -> None:
        """Answer at once, or begin a stream."""
        if self.url != b"/v1/chat/completions":
            self.transport.write(self.engine.report() if self.url == b"/counts" else _FIXED.get(self.url, _NOT_FOUND))
            return
        body = self.pieces[0] if len(self.pieces) == 1 else b"".join(self.pieces)
        self.counts.requests += 1
        self.counts.body_bytes += len(body)
        if b'"stream":true' in body or b'"stream": true' in body:
            self.transport.write(_STREAM_HEAD)
            self.begun_s, self.sent, self.with_usage = self.loop.time(), 0, b'"include_usage"' in body
            self.tick()
        else:
            self.transport.write(_PLAIN)

    def tick(self) -> None:
        """Write the next event and set the clock for the one after; a late tick does not delay those that follow."""
        frames = self.engine.frames
        self.transport.write(frames[self.sent])
        self.sent += 1
        self.counts.events += 1
        if self.sent < len(frames):
            self.timer = self.loop.call_at(self.begun_s + self.sent * self.engine.interval_s, self.tick)
            return
        self.timer = None
        if self.with_usage:
            self.transport.write(chunk_frame(USAGE_EVENT))
        self.transport.write(chunk_frame(DONE_EVENT))
        self.transport.write(_LAST_CHUNK)


async def serve(endpoints: int, events: int, interval_s: float) -> None:
    """Listen on `endpoints` free ports, print them as one JSON line, serve until the process ends."""
    loop = asyncio.get_running_loop()
    engine = Engine(endpoints, events, interval_s)
    servers = [
        await loop.create_server(partial(EngineConnection, engine, number), "127.0.0.1", 0, backlog=1024)
        for number in range(endpoints)
    ]
    print(json.dumps([server.sockets[0].getsockname()[1] for server in servers]), flush=True)
    await asyncio.gather(*(server.serve_forever() for server in servers))


def main() -> None:
    """Read the arguments and serve."""
    parser = argparse.ArgumentParser(description="A fake vLLM engine that answers at once.")
    parser.add_argument("--endpoints", type=int, default=4)
    parser.add_argument("--events", type=int, default=100, help="events of a stream, [DONE] not counted")
    parser.add_argument("--interval", type=float, default=0.05, help="seconds between the events of a stream")
    args = parser.parse_args()
    uvloop.run(serve(args.endpoints, args.events, args.interval))


if __name__ == "__main__":
    main()
