"""A24: ids of clients, equal, missing, huge or strange, never meet in an engine; traces go on through the gateway."""

import asyncio
import re
from collections.abc import Sequence

from benchmarks.field_reports.case import Figures, Scenario, Size, expect
from benchmarks.field_reports.client import Answer, Connection, Headers, chat
from benchmarks.field_reports.engine import Call, Engine, engine, prefill
from benchmarks.field_reports.gateway import Gateway, serve

TRACE = "0af7651916cd43dd8448eb211c80319c"
SPAN = "b7ad6b7169203331"
PARENT = f"00-{TRACE}-{SPAN}-01"
EQUAL: Headers = [("traceparent", PARENT), ("tracestate", "vendor=1"), ("x-request-id", "the-same")]
LEGAL = re.compile(r"[\x21-\x7e][\x20-\x7e]*")
TRACEPARENT = re.compile(r"00-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}")
SANE = ("abc", "a" * 128, "with space", "with,comma;and=more", "6ba7b810-9dad-11d1-80b4-00c04fd430c8")
STRANGE = {
    "129 characters": "a" * 129,
    "2 KB": "a" * 2000,
    "100 KB": "a" * 100_000,
    "a control character": "a\x01b",
    "a bell": "a\x07",
    "an escape": "\x1b[31mred",
    "a delete": "a\x7fb",
    "a tab": "a\tb",
    "a C1 control": "a\x85b",
    "Latin-1": "\xe4",
    "nothing": "",
}
WRONG_PARENTS = (
    "nonsense",
    f"00-{'0' * 32}-{SPAN}-01",
    f"00-{TRACE}-{'0' * 16}-01",
    f"ff-{TRACE}-{SPAN}-01",
    f"00-{TRACE}-{SPAN}",
    f"00-{TRACE.upper()}-{SPAN}-01",
    f"00-{TRACE}-{SPAN}-01-more",
    "a" * 10_000,
)


def _ids(calls: Sequence[Call]) -> list[str]:
    return [call.header("x-request-id") or "" for call in calls]


def _checked_ids(calls: Sequence[Call]) -> None:
    """Check that every request towards an engine has an id of its own that is safe to use."""
    ids = _ids(calls)
    expect(len(set(ids)) == len(ids), f"two requests had one id in an engine: {ids[:6]}")
    expect(all(LEGAL.fullmatch(one) and len(one) <= 200 for one in ids), f"unsafe ids reached an engine: {ids[:6]!r}")
    many = [call.headers for call in calls if sum(name == "x-request-id" for name, _ in call.headers) != 1]
    expect(not many, f"several x-request-id reached an engine: {many[:1]}")


def _checked_trace(call: Call) -> str:
    """Check that the trace goes on under a new parent span; return that span."""
    told = [value for name, value in call.headers if name == "traceparent"]
    expect(len(told) == 1, f"an engine got {len(told)} traceparent headers")
    found = TRACEPARENT.fullmatch(told[0])
    expect(found, f"an engine got the traceparent {told[0]!r}")
    trace, span = found.groups() if found else ("", "")
    expect(trace == TRACE, f"an engine got the trace id {trace}, not the client's")
    expect(span != SPAN, "an engine got the client's span as its parent, not one of the gateway's own")
    return span


class _Together:
    """Answers only when `count` requests are in the engine at once."""

    def __init__(self, count: int) -> None:
        self._barrier = asyncio.Barrier(count)

    async def __call__(self, call: Call) -> None:
        async with asyncio.timeout(10):
            await self._barrier.wait()
        call.answer()


async def equal_ids_at_the_same_time(size: Size) -> Figures:
    """Requests of one trace and one id are in the engine together; each succeeds under an id of its own."""
    together = size.count(2, 20)
    async with engine(_Together(together)) as one, serve([one]) as gateway:
        answers = await asyncio.gather(*(gateway.post(chat(), EQUAL) for _ in range(together)))
        for answer in answers:
            expect(answer.status == 200, f"a request got {answer.told()}")
            expect(answer.header("x-request-id") == "the-same", f"the answer has id {answer.header('x-request-id')!r}")
        _checked_ids(one.calls)
        expect(all(name.startswith("the-same") for name in _ids(one.calls)), "an id in an engine is not the client's")
        spans = {_checked_trace(call) for call in one.calls}
        expect(len(spans) == together, "two requests have one parent span")
        states = [call.header("tracestate") for call in one.calls]
        expect(states == ["vendor=1"] * together, f"tracestate became {states}")
        return {"together": together}


async def equal_ids_on_two_hops(size: Size) -> Figures:
    """The same through prefill and decode: one id on both legs of a request, another for each request."""
    together = size.count(2, 20)
    async with engine(prefill) as first, engine(_Together(together)) as second:
        listed = [{"url": first.url, "role": "prefill"}, {"url": second.url, "role": "decode"}]
        async with serve(listed, disaggregation={"mode": "always"}) as gateway:
            answers = await asyncio.gather(*(gateway.post(chat(), EQUAL) for _ in range(together)))
            expect(all(answer.status == 200 for answer in answers), f"requests got {[one.status for one in answers]}")
            _checked_ids(first.calls)
            _checked_ids(second.calls)
            expect(len(first.calls) == together, f"{len(first.calls)} prefills for {together} requests")
            expect(set(_ids(first.calls)) == set(_ids(second.calls)), "a request has another id on its second leg")
            for call in (*first.calls, *second.calls):
                _checked_trace(call)
            return {"together": together}


async def ids_made_and_kept(size: Size) -> Figures:
    """Without an id one is made; a sane one comes back; without a trace an engine gets no false one."""
    async with engine() as one, serve([one]) as gateway:
        made = [(await gateway.post(chat())).header("x-request-id") for _ in range(size.count(3, 300))]
        expect(len(set(made)) == len(made) and all(made), "made ids are missing or not unique")
        for sent, known in zip(made, _ids(one.calls), strict=True):
            expect(sent is not None and known.startswith(sent), f"the engine knows {known}, the client {sent}")
        for call in one.calls:
            told = call.header("traceparent")
            expect(told is None or TRACEPARENT.fullmatch(told), f"a made traceparent is {told!r}")
        for sane in SANE:
            answer = await gateway.post(chat(), [("x-request-id", sane)])
            expect(answer.header("x-request-id") == sane, f"{sane!r} came back as {answer.header('x-request-id')!r}")
        refused = await gateway.post(chat(model="nope"), [("x-request-id", "abc")])
        expect((refused.status, refused.header("x-request-id")) == (404, "abc"), "a refusal has lost its id")
        _checked_ids(one.calls)
        return {"made": len(made)}


async def _raw(gateway: Gateway, value: bytes) -> Answer:
    body = chat()
    lines = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nx-request-id: %b\r\ncontent-length: %d\r\n\r\n"
    connection = await Connection.to(gateway.address)
    connection.send(lines % (value, len(body)) + body)
    answer = await connection.answer()
    connection.close()
    return answer


def _sane_id(answer: Answer, what: str) -> None:
    told = answer.header("x-request-id")
    expect(told and LEGAL.fullmatch(told) and len(told) <= 128, f"{what}: the answer has the id {told!r}")


async def strange_ids_are_replaced_or_refused(_: Size) -> Figures:
    """Over-long ids and ids with control characters: replaced, or 400 or 431; also twice in one request."""
    async with engine() as one, serve([one]) as gateway:
        statuses: dict[str, float | str] = {}
        for name, value in STRANGE.items():
            answer = await _raw(gateway, value.encode("latin-1"))
            statuses[name.replace(" ", "_")] = answer.status
            expect(answer.status in (200, 400, 431), f"an id with {name} got {answer.told()}")
            if answer.status == 200:
                _sane_id(answer, name)
                expect(answer.header("x-request-id") != value, f"an id with {name} came back as it was")
            else:
                expect(answer.code == "invalid_request", f"an id with {name} was refused without our error")
        answer = await _raw(gateway, b"a\r\nx-request-id: b")
        expect(answer.status in (200, 400), f"two ids got {answer.told()}")
        _checked_ids(one.calls)
        expect((await gateway.post(chat())).status == 200, "after strange ids a plain request failed")
        return statuses


async def wrong_traces_do_no_harm(_: Size) -> Figures:
    """A traceparent that is none is not passed on as if it were one, and the request succeeds."""
    async with engine() as one, serve([one]) as gateway:
        for wrong in WRONG_PARENTS:
            answer = await gateway.post(chat(), [("traceparent", wrong), ("tracestate", "vendor=1")])
            expect(answer.status == 200, f"with the traceparent {wrong[:60]!r} a request got {answer.told()}")
            told = one.calls[-1].header("traceparent")
            passed = told is not None and not TRACEPARENT.fullmatch(told)
            expect(not passed, f"the traceparent {wrong[:60]!r} reached an engine")
        answer = await gateway.post(chat(), [("traceparent", PARENT), ("traceparent", PARENT)])
        expect(answer.status == 200, f"with two traceparents a request got {answer.told()}")
        expect(_count(one, "traceparent") <= 1, "two traceparents reached an engine")
        return {"wrong": len(WRONG_PARENTS)}


def _count(one: Engine, name: str) -> int:
    return sum(header == name for header, _ in one.calls[-1].headers)


SCENARIOS: tuple[Scenario, ...] = (
    equal_ids_at_the_same_time,
    equal_ids_on_two_hops,
    ids_made_and_kept,
    strange_ids_are_replaced_or_refused,
    wrong_traces_do_no_harm,
)
