"""The admin API's verbs on endpoints."""

import asyncio

import pytest

from tests.fakes.engine import Call, fake_engine
from tests.gateways import Running, run_gateway

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
PATH = "/v1/chat/completions"
JSON = {"content-type": "application/json"}


def admin(gateway: Running) -> str:
    return f"{gateway.admin_url}/admin/endpoints"


async def test_an_added_endpoint_serves_and_a_removed_one_ends_what_it_has():
    let = asyncio.Event()

    async def wait(call: Call) -> None:
        await let.wait()
        call.answer()

    async with fake_engine(wait) as one, fake_engine() as two, run_gateway([{"url": one.url, "name": "a"}]) as gateway:
        running = asyncio.ensure_future(gateway.client.post(PATH, json=CHAT))
        await gateway.until(lambda: one.calls, "the request to arrive")
        reply = await gateway.client.post(admin(gateway), json={"url": two.url, "name": "b", "labels": {"zone": "z"}})
        assert (reply.status_code, reply.json()["name"], reply.json()["labels"]) == (201, "b", {"zone": "z"})
        await gateway.until_ready(2)
        reply = await gateway.client.delete(f"{admin(gateway)}/a")
        assert (reply.status_code, reply.json()["in_flight"]) == (200, 1)
        assert (await gateway.client.delete(f"{admin(gateway)}/a")).status_code == 404
        listed = (await gateway.client.get(admin(gateway))).json()["endpoints"]
        assert [endpoint["name"] for endpoint in listed] == ["b"]
        for _ in range(3):
            assert (await gateway.client.post(PATH, json=CHAT)).status_code == 200
        assert (len(one.calls), len(two.calls)) == (1, 3)
        let.set()
        assert (await running).status_code == 200
        assert "twohop_endpoint_ejections_total{" not in await gateway.metrics()


async def test_a_drained_endpoint_gets_nothing_new_and_is_no_ejection():
    async with fake_engine() as one, fake_engine() as two:
        endpoints = [{"url": one.url, "name": "a"}, {"url": two.url, "name": "b"}]
        async with run_gateway(endpoints, health={"interval_s": 0.05, "unhealthy_after": 1}) as gateway:
            for _ in range(2):
                reply = await gateway.client.post(f"{admin(gateway)}/a/drain")
                assert (reply.status_code, reply.json()["state"], reply.json()["ready"]) == (200, "draining", False)
            for _ in range(3):
                assert (await gateway.client.post(PATH, json=CHAT)).status_code == 200
            assert (len(one.calls), len(two.calls)) == (0, 3)
            one.stop_listening()
            endpoint = next(iter(gateway.parts.pool))
            await gateway.until(lambda: endpoint.health.reason, "a failed probe")
            text = await gateway.metrics()
            assert 'twohop_endpoint_ready{endpoint="a",role="both"} 0.0' in text
            assert "twohop_endpoint_ejections_total{" not in text
            reply = await gateway.client.post(f"{admin(gateway)}/a/undrain")
            assert (reply.status_code, reply.json()["state"]) == (200, "unready")


async def test_a_request_that_waits_goes_when_the_only_endpoint_is_drained_no_longer():
    async with fake_engine() as one, run_gateway([{"url": one.url, "name": "a"}]) as gateway:
        await gateway.client.post(f"{admin(gateway)}/a/drain")
        assert (await gateway.client.get("/readyz")).status_code == 503
        waiting = asyncio.ensure_future(gateway.client.post(PATH, json=CHAT))
        await gateway.until(lambda: gateway.parts.admission.waiting, "the request to wait")
        assert (await gateway.client.post(f"{admin(gateway)}/a/undrain")).json()["ready"] is True
        assert (await waiting).status_code == 200


@pytest.mark.parametrize(
    ("name", "path"),
    [("a/b", "a/b"), ("a/b", "a%2Fb"), ("x/drain", "x/drain"), ("50%", "50%25"), ("ä b?c#d", "%C3%A4%20b%3Fc%23d")],
)
async def test_names_hold_what_they_like(name, path):
    async with fake_engine() as one, run_gateway([{"url": one.url, "name": name}]) as gateway:
        for verb, state in (("drain", "draining"), ("undrain", "ready")):
            reply = await gateway.client.post(f"{admin(gateway)}/{path}/{verb}")
            assert (reply.status_code, reply.json()["name"], reply.json()["state"]) == (200, name, state)
        assert (await gateway.client.delete(f"{admin(gateway)}/{path}")).json()["name"] == name
        assert not len(gateway.parts.pool)


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        (b'{"url": "http://127.0.0.1:1", "name": "a"}', 409, "'a' is there already"),
        (b'{"url": "http://127.0.0.1:1", "rol": "both"}', 400, "rol: unknown key; did you mean 'role'?"),
        (b'{"url": "127.0.0.1:1"}', 400, "url: '127.0.0.1:1' is not http://host:port"),
        (b"{", 400, "the body is not JSON"),
        (b"\xff", 400, "the body is not JSON"),
        (b"[" * 100_000, 400, "the body is not JSON"),
    ],
)
async def test_what_cannot_be_added_is_refused_with_the_fix(body, status, said):
    async with fake_engine() as one, run_gateway([{"url": one.url, "name": "a"}]) as gateway:
        reply = await gateway.client.post(admin(gateway), content=body, headers=JSON)
        assert reply.status_code == status
        assert said in reply.json()["error"]["message"]
        assert len(gateway.parts.pool) == 1


async def test_unknown_names_pages_from_elsewhere_and_strangers_are_refused():
    token = {"listen": "127.0.0.1:0", "token": "t"}
    async with fake_engine() as one, run_gateway([{"url": one.url, "name": "a"}], admin=token) as gateway:
        own = {"authorization": "Bearer t"}
        for path in ("nobody/drain", "nobody/undrain"):
            reply = await gateway.client.post(f"{admin(gateway)}/{path}", headers=own)
            assert (reply.status_code, reply.json()["error"]["code"]) == (404, "endpoint_not_found")
        for headers, status in (({}, 401), ({**own, "origin": "http://evil.example"}, 403)):
            reply = await gateway.client.post(f"{admin(gateway)}/a/drain", headers=headers)
            assert reply.status_code == status
        assert not next(iter(gateway.parts.pool)).draining
        reply = await gateway.client.post(f"{admin(gateway)}/a/drain", headers={**own, "origin": gateway.admin_url})
        assert reply.status_code == 200
