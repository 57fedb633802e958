"""A29: what clients make up becomes no label; what engines serve does, and the exposition stays valid."""

from collections.abc import Iterator

from benchmarks.field_reports.case import Figures, Scenario, Size, expect
from benchmarks.field_reports.client import COMPLETIONS, Post, ask, chat, closed_loop, statuses
from benchmarks.field_reports.engine import engine
from benchmarks.field_reports.gateway import Gateway, serve

A_FEW = 12
ENDINGS = (
    '"',
    '\\"',
    "\n",
    "\r\n",
    "\\",
    "{",
    "}",
    ",",
    "\x00",
    "\x1f",
    "\u2028",
    "\U0001f600",
    " ",
    "\ud800",
    "x" * 10_000,
)
KNOWN = ("base", "adapter-a", 'quo"te', "line\nbreak", "back\\slash", "\u6a21\u578b", "org/name")
GROWN_MB = 40.0


def _names(count: int) -> Iterator[str]:
    for number in range(count):
        yield f"made-up-{number}{ENDINGS[number % len(ENDINGS)]}"


async def _known(gateway: Gateway) -> None:
    for model in KNOWN:
        for path in ("/v1/chat/completions", COMPLETIONS):
            answer = await gateway.post(chat(model=model), path=path)
            expect(answer.status == 200, f"{path} with the model {model!r} got {answer.told()}")


async def made_up_models(size: Size) -> Figures:
    """Hundreds of made-up model names, some with quotes, line breaks and 10 KB: 404 each, and hardly a series."""
    count = size.count(150, 600)
    async with engine(models=KNOWN) as one, serve([one]) as gateway:
        await _known(gateway)
        before, before_mb = await gateway.metrics(), gateway.rss_mb()
        served = len(one.calls)
        for path in ("/v1/chat/completions", COMPLETIONS):
            posts = [Post(chat(model=name), path=path) for name in _names(count)]
            answers = await closed_loop(gateway.address, posts, 4)
            expect(set(statuses(answers)) <= {400, 404}, f"made-up models got {statuses(answers)}")
            codes = {answer.code for answer in answers if answer.status == 404}
            expect(codes == {"model_not_found"}, f"made-up models got {codes}")
            expect(statuses(answers).get(404, 0) >= count * 0.9, f"made-up models got {statuses(answers)}")
        expect(len(one.calls) == served, "a request for a made-up model reached an engine")
        after = await gateway.metrics()
        grown = after.lines - before.lines
        expect(grown <= A_FEW, f"{2 * count} made-up models made {grown} series")
        labels = after.labels("twohop_requests_total", "model")
        expect(set(KNOWN) <= labels, f"known models without a label: {set(KNOWN) - labels}")
        expect(not any("made-up" in label for label in labels), "a made-up model is a label")
        expect(gateway.rss_mb() - before_mb < GROWN_MB, f"RSS grew by {gateway.rss_mb() - before_mb:.0f} MB")
        return {"series": after.lines, "grown": grown}


HEADERS = (
    "x-twohop-tenant",
    "x-twohop-priority",
    "user-agent",
    "x-session-id",
    "x-request-id",
    "authorization",
    "x-gateway-inference-objective",
    "x-gateway-inference-fairness-id",
)


def _value(number: int) -> str:
    ending = ENDINGS[number % len(ENDINGS)]
    visible = "".join(one for one in ending if " " <= one <= "~") or "\xe9"
    return f"value-{number}{visible}z"


async def made_up_headers(size: Size) -> Figures:
    """Hundreds of values of every header that the gateway understands or might count by."""
    count = size.count(60, 300)
    async with engine(models=KNOWN) as one, serve([one]) as gateway:
        await _known(gateway)
        before = await gateway.metrics()
        body = chat(model="base")
        posts = [Post(body, [(name, _value(number)) for name in HEADERS]) for number in range(count)]
        answers = await closed_loop(gateway.address, posts, 4)
        expect(set(statuses(answers)) <= {200, 400, 431}, f"made-up headers got {statuses(answers)}")
        expect(statuses(answers).get(200, 0) > 0, f"made-up headers got {statuses(answers)}")
        after = await gateway.metrics()
        grown = after.lines - before.lines
        expect(grown <= A_FEW, f"{count} values of {len(HEADERS)} headers made {grown} series")
        expect("value-" not in after.text, "a made-up header value is in /metrics")
        return {"grown": grown}


async def made_up_paths_and_methods(size: Size) -> Figures:
    """Hundreds of paths, queries and methods that do not exist."""
    count = size.count(60, 300)
    async with engine(models=KNOWN) as one, serve([one]) as gateway:
        await _known(gateway)
        before = await gateway.metrics()
        for number in range(count):
            target = f"/v1/made-up-{number}" + ("?q=" + "x" * 5000 if number % 5 == 0 else "")
            method = ("GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "PROPFIND")[number % 7]
            body = chat(model="made up") if method in ("POST", "PUT", "PATCH") else None
            answer = await ask(gateway.address, method, target, body)
            expect(answer.status in (404, 405), f"{method} {target[:40]} got {answer.told()}")
        after = await gateway.metrics()
        grown = after.lines - before.lines
        expect(grown <= A_FEW, f"{count} made-up paths made {grown} series")
        expect("made-up" not in after.text, "a made-up path is in /metrics")
        return {"grown": grown}


async def names_that_engines_make_up(_: Size) -> Figures:
    """An engine's endpoint name and model ids with quotes and line breaks: the exposition stays valid."""
    async with engine(models=KNOWN) as one:
        async with serve([{"url": one.url, "name": 'na"me\\ of it'}]) as gateway:
            await _known(gateway)
            told = await gateway.metrics()
            expect(told.labels("twohop_endpoint_ready", "endpoint") == {'na"me\\ of it'}, "the endpoint's name is lost")
            expect(set(KNOWN) <= told.labels("twohop_requests_total", "model"), "a model id is lost")
        return {"models": len(KNOWN)}


SCENARIOS: tuple[Scenario, ...] = (
    made_up_models,
    made_up_headers,
    made_up_paths_and_methods,
    names_that_engines_make_up,
)
