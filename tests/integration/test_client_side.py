"""What a client gets whose head is no head, and an operator whose request is no admin request: errors of one shape."""

import asyncio
import json

import httpx
import pytest

from tests.fakes.engine import fake_engine
from tests.gateways import Running, run_gateway


async def answer_to(gateway: Running, data: bytes) -> tuple[bytes, dict[str, object]]:
    """Send raw bytes; return the status line and the JSON error of the answer."""
    reader, writer = await asyncio.open_connection(*gateway.address)
    writer.write(data)
    async with asyncio.timeout(10):
        answer = await reader.read()
    writer.close()
    head, _, body = answer.partition(b"\r\n\r\n")
    return head.split(b"\r\n")[0], json.loads(body)["error"]


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"hello\r\n\r\n", b"HTTP/1.1 400 Bad Request"),
        (b"GET /healthz HTTP/1.1\r\nx: " + b"y" * 9000, b"HTTP/1.1 431 Request Header Fields Too Large"),
        (b"GET /healthz HTTP/1.1\r\nx: y", b"HTTP/1.1 408 Request Timeout"),
    ],
)
async def test_a_head_that_is_none_gets_a_json_error(data, status):
    async with (
        fake_engine() as engine,
        run_gateway([engine.url], limits={"header_bytes": 8000}, timeouts={"header_s": 0.5}) as gateway,
    ):
        line, error = await answer_to(gateway, data)
        assert line == status
        assert error["code"] == "invalid_request"


async def test_admin_errors_have_the_same_shape_and_the_token_is_needed():
    admin = {"listen": "127.0.0.1:0", "token": "sécret"}
    async with (
        fake_engine() as engine,
        run_gateway([engine.url], admin=admin) as gateway,
        httpx.AsyncClient() as client,
    ):
        refused = await client.get(f"{gateway.admin_url}/admin/endpoints")
        assert (refused.status_code, refused.json()["error"]["code"]) == (401, "invalid_api_key")
        assert (await client.get(f"{gateway.admin_url}/openapi.json")).status_code == 404
        client.headers = httpx.Headers({"authorization": "Bearer sécret"}, encoding="utf-8")
        assert (await client.get(f"{gateway.admin_url}/admin/endpoints")).status_code == 200
        wrong = await client.get(f"{gateway.admin_url}/admin/decisions?limit=0")
        assert (wrong.status_code, wrong.json()["error"]["code"]) == (400, "invalid_request")
