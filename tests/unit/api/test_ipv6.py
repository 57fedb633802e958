"""The gateway at an address of IPv6: where it says that it listens, and what the edges hear of the client."""

import logging
import socket

import httpx
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from gateway.api.asgi import Bridge
from gateway.api.bounds import Bounds
from gateway.api.server import Server
from gateway.listening import log_addresses


def test_an_address_of_ipv6_is_logged_as_one_can_use_it(caplog):
    with caplog.at_level(logging.INFO, "twohop"):
        log_addresses(("::1", 8000), ("127.0.0.1", 8001))
    assert caplog.messages == ["listening on http://[::1]:8000", "admin API on http://127.0.0.1:8001"]


async def test_an_application_hears_of_a_client_over_ipv6():
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        assert request.client is not None
        await JSONResponse([request.client.host, scope["server"][0]])(scope, receive, send)

    try:
        listener = socket.create_server(("::1", 0), family=socket.AF_INET6)
    except OSError:
        return  # this machine has none
    server = Server(Bridge(app), Bounds())
    with listener:
        await server.listen(listener)
        async with httpx.AsyncClient() as client:
            answer = await client.get(f"http://[::1]:{listener.getsockname()[1]}/")
        assert answer.json() == ["::1", "::1"]
        await server.close()
