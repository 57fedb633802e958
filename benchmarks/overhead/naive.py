"""The proxy that most people write first: a FastAPI route, an httpx client, a StreamingResponse. Round robin.

Beyond the habit it is given what it needs to carry 200 streams, a higher limit on httpx's connections, and spared the
access log.
Run: python -m benchmarks.overhead.naive --port 9000 --endpoint http://127.0.0.1:9001
"""

import argparse
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import StreamingResponse
from starlette.background import BackgroundTask

_NOT_FORWARDED = {"host", "content-length", "connection", "transfer-encoding"}


def make_app(endpoints: list[str]) -> FastAPI:
    """Return the proxy in front of `endpoints` (base URLs)."""
    limits = httpx.Limits(max_connections=1000, max_keepalive_connections=20)
    client = httpx.AsyncClient(timeout=None, limits=limits)  # noqa: S113 - a stream may take its time
    turn = itertools.cycle(endpoints)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        await client.aclose()

    app = FastAPI(lifespan=lifespan)

    @app.post("/v1/chat/completions")
    async def chat(request: Request) -> StreamingResponse:
        headers = {name: value for name, value in request.headers.items() if name not in _NOT_FORWARDED}
        outgoing = client.build_request(
            "POST", next(turn) + "/v1/chat/completions", headers=headers, content=await request.body()
        )
        answer = await client.send(outgoing, stream=True)
        kept = {name: value for name, value in answer.headers.items() if name not in _NOT_FORWARDED}
        return StreamingResponse(
            answer.aiter_raw(),
            status_code=answer.status_code,
            headers=kept,
            background=BackgroundTask(answer.aclose),
        )

    return app


def main() -> None:
    """Read the arguments and serve."""
    parser = argparse.ArgumentParser(description="A naive proxy, to compare with.")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--endpoint", action="append", required=True)
    args = parser.parse_args()
    uvicorn.run(make_app(args.endpoint), host="127.0.0.1", port=args.port, access_log=False, log_level="warning")


if __name__ == "__main__":
    main()
