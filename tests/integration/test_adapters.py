"""LoRA adapters are models: asked for where they are served or can be loaded, rather where they are active."""

from tests.fakes.engine import FakeEngine, fake_engine
from tests.gateways import Running, run_gateway


async def ask(gateway: Running, model: str) -> int:
    return (await gateway.client.post("/v1/completions", json={"model": model, "prompt": "x"})).status_code


async def scraped(gateway: Running) -> None:
    await gateway.until(lambda: all(one.load is not None for one in gateway.parts.pool), "scrapes")


def served(engine: FakeEngine) -> list[str]:
    return [call.json["model"] for call in engine.calls]


async def test_an_adapter_is_a_model_of_the_endpoints_that_list_it():
    async with (
        fake_engine(adapters={"sql": "m"}) as one,
        fake_engine() as other,
        run_gateway([one.url, other.url]) as gateway,
    ):
        listed = (await gateway.client.get("/v1/models")).json()["data"]
        assert [(entry["id"], entry.get("parent")) for entry in listed] == [("m", None), ("sql", "m")]
        for _ in range(6):
            assert await ask(gateway, "sql") == 200
        assert (served(one), served(other)) == (["sql"] * 6, [])
        assert await ask(gateway, "other") == 404


async def test_an_adapter_goes_where_it_is_active_and_else_where_there_is_room():
    adapters = dict.fromkeys(("a", "b", "c", "d"), "m")
    async with (
        fake_engine(adapters=adapters, active="a,b") as full,
        fake_engine(adapters=adapters, active="c", running=1) as free,
        run_gateway([full.url, free.url], routing={"receipt_headers": True}) as gateway,
    ):
        await scraped(gateway)
        for model, engine in (("a", full), ("c", free), ("d", free), ("b", full)):
            before = len(engine.calls)
            assert await ask(gateway, model) == 200
            assert served(engine)[before:] == [model]
        newest = gateway.parts.receipts.latest(1)[0].decisions[0][1]
        assert newest.scorers == ("prefix_cache", "queue_depth", "kv_usage", "lora")
        assert list(newest.terms[3]) == [1.0, 0.5]
        await ask(gateway, "m")
        assert "lora" not in gateway.parts.receipts.latest(1)[0].decisions[0][1].scorers


async def test_an_adapter_that_none_lists_goes_where_it_can_be_loaded():
    async with fake_engine() as plain, fake_engine() as loads:
        endpoints = [{"url": plain.url}, {"url": loads.url, "loadable_adapters": ["team/*"]}]
        async with run_gateway(endpoints) as gateway:
            for number in range(6):
                assert await ask(gateway, f"team/{number}") == 200
            assert (served(plain), len(served(loads))) == ([], 6)
            assert await ask(gateway, "other/x") == 404
            metrics = await gateway.metrics()
            listed = (await gateway.client.get("/v1/models")).json()["data"]
    assert [entry["id"] for entry in listed] == ["m"]
    # A name that a pattern allows is still a client's word: it is no label before an engine has told it.
    assert 'twohop_requests_total{code="200",model="unknown",route="single"} 6.0' in metrics
    assert "team/" not in metrics
