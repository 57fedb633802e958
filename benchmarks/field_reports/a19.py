"""A19: model ids with slashes, and with whatever else a file path may hold, are found, raw and encoded."""

import json
from urllib.parse import quote

from benchmarks.field_reports.case import Figures, Scenario, Size, expect
from benchmarks.field_reports.client import COMPLETIONS, chat
from benchmarks.field_reports.engine import Call, completion, engine, engines
from benchmarks.field_reports.gateway import Gateway, serve

IDS = ("org/name-7b", "/models/x", "plain")
ODD = (
    "a/b/c/d",
    "//double",
    "trailing/",
    "dots/../up",
    ".",
    "with space",
    "50%",
    "%2F",
    "a?b=c",
    "a#b",
    "ü/\u6a21\u578b",
    'q"uote',
)
# What a client may send as it is in a path: the rest only encoded.
RAW = set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/-._~")


async def _named(call: Call) -> None:
    call.answer(200, completion(model=call.json["model"]))


def spellings(model: str) -> list[str]:
    """Return the ways in which a client may write `model` into a path."""
    encoded = quote(model, safe="")
    found = [encoded, encoded.replace("%2F", "%2f"), quote(model, safe="/")]
    if set(model) <= RAW:
        found.append(model)
    return list(dict.fromkeys(found))


async def _found(gateway: Gateway, model: str) -> None:
    for written in spellings(model):
        answer = await gateway.get(f"/v1/models/{written}")
        expect(answer.status == 200, f"GET /v1/models/{written} answered {answer.told()}")
        expect(answer.json.get("id") == model, f"GET /v1/models/{written} gave {answer.json.get('id')!r}")
        expect(answer.json.get("object") == "model", f"GET /v1/models/{written} gave no model object")
    for path in ("/v1/chat/completions", COMPLETIONS):
        answer = await gateway.post(chat(model=model), path=path)
        expect(answer.status == 200 and answer.json["model"] == model, f"{path} with {model!r} got {answer.told()}")


async def ids_with_slashes(_: Size) -> Figures:
    """Listed, looked up in every spelling, and chatted with; on one engine that has all and on one for each."""
    for together in (True, False):
        groups = [IDS] if together else [(one,) for one in IDS]
        async with engines(len(groups), _named) as each:
            for one, models in zip(each, groups, strict=True):
                entries = [{"id": name, "object": "model", "root": name, "parent": None} for name in models]
                one.gets["/v1/models"] = (200, json.dumps({"object": "list", "data": entries}).encode())
            async with serve(each) as gateway:
                listed = {entry["id"] for entry in (await gateway.get("/v1/models")).json["data"]}
                expect(listed == set(IDS), f"/v1/models lists {listed}")
                for model in IDS:
                    await _found(gateway, model)
                told = (await gateway.metrics()).labels("twohop_requests_total", "model")
                expect(set(IDS) <= told, f"the metrics know {told}")
    return {"ids": len(IDS)}


async def odd_ids(_: Size) -> Figures:
    """Leading, double and trailing slashes, dots, spaces, per cent signs, question marks, other scripts."""
    async with engine(_named, ODD) as one, serve([one]) as gateway:
        failed = []
        for model in ODD:
            try:
                await _found(gateway, model)
            except AssertionError as failure:
                failed.append(str(failure))
        expect(not failed, "; ".join(failed))
        return {"ids": len(ODD)}


async def an_unknown_id_is_told_in_the_apis_own_shape(_: Size) -> Figures:
    """404 with code model_not_found, whatever the unknown id looks like."""
    async with engine(_named, IDS) as one, serve([one]) as gateway:
        for model in ("nope", "org/nope", "org", "org/name-7b/x", "/models/y", "/org/name-7b", "models/x", "x" * 4000):
            for written in spellings(model):
                answer = await gateway.get(f"/v1/models/{written}")
                seen = answer.status, answer.code
                expect(seen == (404, "model_not_found"), f"GET /v1/models/{written[:80]} answered {answer.told()}")
            answer = await gateway.post(chat(model=model))
            expect((answer.status, answer.code) == (404, "model_not_found"), f"a chat with it got {answer.told()}")
        expect(not one.calls, "a request for an unknown model reached an engine")
        return {}


SCENARIOS: tuple[Scenario, ...] = (ids_with_slashes, odd_ids, an_unknown_id_is_told_in_the_apis_own_shape)
