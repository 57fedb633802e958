"""Laws of counting and removing the usage of a stream of events, however its bytes are cut into reads."""

import json
from dataclasses import dataclass
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.wire.chunked import frame
from gateway.wire.sse_usage import HELD_BYTES, UsageTap
from gateway.wire.usage import Usage

NULL = "NULL"  # a place for a member that is null


@dataclass(frozen=True)
class Part:
    """A part of a stream: its bytes, what a client that did not ask gets of them, and the counts that it tells.

    `null`: whether there is a null usage beside its choices, None where there are no choices.
    """

    data: bytes
    seen: bytes
    counts: dict[str, int | None]
    null: bool | None = None


def lines(value: object, end: str, spelling: str) -> str:
    """Return the data lines of an event in one of the spellings that the field has seen."""
    if spelling == "many":
        return "".join(f"data: {line}{end}" for line in json.dumps(value, indent=1).split("\n"))
    text = json.dumps(
        value, ensure_ascii=spelling != "utf8", separators=(", ", ": ") if spelling == "wide" else (",", ":")
    )
    return f"data:{'' if spelling == 'tight' else ' '}{text}{end}"


def usage_object(counts: dict[str, int | None]) -> dict[str, object]:
    """Return an OpenAI usage with these counts."""
    details = {} if counts["cached"] is None else {"prompt_tokens_details": {"cached_tokens": counts["cached"]}}
    return {"prompt_tokens": counts["prompt"], "total_tokens": 1, "completion_tokens": counts["output"], **details}


texts = st.one_of(
    st.text(max_size=12),
    st.sampled_from(
        ['"usage"', '"choices":[],"usage":{"prompt_tokens":5}', "_tokens", "usage", "😀é", ',"usage":null}']
    ),
)
counts = st.fixed_dictionaries(
    {"prompt": st.integers(0, 10**6), "output": st.integers(0, 10**6), "cached": st.none() | st.integers(0, 10**6)}
)
fields = st.sampled_from(["", "", "event: e{}", "id: 7{}", "retry: 5{}", "usage{}"])
notes = st.sampled_from(["", "", ": ping{}", ":{}", ': "usage":{{}} _tokens"{}'])
spellings = st.sampled_from(["plain", "plain", "utf8", "tight", "wide", "many"])
FIXED = [
    "data: [DONE]{0}{0}",
    'data: {{"error":{{"message":"no"}}}}{0}{0}',
    'data: {{"choices":[],"prompt_filter_results":[{{"a":1}}]}}{0}{0}',
    'data: {{"choices":[],"usage":null}}{0}{0}',
    'data: {{"choices":[],"usage":{{}}}}{0}{0}',
    'data: {{"usage":{{"prompt_toke{0}{0}',
    "data{0}{0}",
    ": ping{0}",
    ": ping{0}{0}",
    "{0}",
]


@st.composite
def parts(draw, end: str) -> Part:
    """Draw a part of a stream whose lines end in `end`; `seen` is without null members."""
    kind = draw(st.sampled_from(["content", "content", "null", "packed", "usage", "usage", "fixed"]))
    if kind == "fixed":
        data = draw(st.sampled_from(FIXED)).format(end)
        null = ',"usage":null' in data if '"choices"' in data else None
        return Part(data.encode(), data.replace(',"usage":null', "").encode(), {}, null)
    head = {"id": draw(texts), "object": "chat.completion.chunk"}
    text = draw(texts)
    before, after, spelling = draw(fields).format(end), draw(notes).format(end), draw(spellings)
    told: dict[str, int | None] = {}
    if kind == "usage":
        told = draw(counts)
        members = [("choices", []), ("usage", usage_object(told))]
        value = head | dict(members if draw(st.booleans()) else members[::-1]) | {"system_fingerprint": text}
        lead = draw(notes).format(end)
        data = lead + before + lines(value, end, spelling) + after + end
        return Part(data.encode(), (lead + after).encode(), told)
    value = head | {"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None}]}
    if kind == "packed":
        told = draw(counts)
        value["usage"] = usage_object(told)
    seen = data = before + lines(value, end, spelling) + after + end
    if kind == "null":
        data = before + lines(value | {"usage": None}, end, spelling) + after + end
        if spelling == "many":  # a member that is cut over two data lines stays
            seen = data
    return Part(data.encode(), seen.encode(), told, data != seen)


@st.composite
def streams(draw) -> list[Part]:
    """Draw a whole stream."""
    ends = st.just("\r") if draw(st.integers(0, 3)) == 0 else st.sampled_from(["\n", "\r\n"])
    return [draw(parts(draw(ends))) for _ in range(draw(st.integers(1, 7)))]


def shown(stream: list[Part], nulls: bool) -> list[bytes]:
    """Return what a client that did not ask gets of each part; `nulls`: null members are there because we asked."""
    nulls = nulls and next((part.null for part in stream if part.null is not None), False)
    return [part.data if part.null is not None and not nulls else part.seen for part in stream]


cuts = st.lists(st.integers(0, 5000), max_size=12)


def pieces(stream: list[Part], places: list[int]) -> list[bytes]:
    """Cut a stream, at the given places and behind each of its parts."""
    data = b"".join(part.data for part in stream)
    ends = [0]
    for part in stream:
        ends.append(ends[-1] + len(part.data))
    marks = sorted({*ends, *(place % (len(data) + 1) for place in places)})
    return [data[start:end] for start, end in pairwise(marks)]


def counted(stream: list[Part]) -> Usage | None:
    """Return the usage that the parts tell together."""
    told: dict[str, int | None] = {}
    for part in stream:
        told.update({name: count for name, count in part.counts.items() if count is not None})
    return Usage(told["prompt"] or 0, told["output"] or 0, told.get("cached")) if told else None


def check(stream: list[Part], places: list[int], nulls: bool) -> None:
    tap = UsageTap(remove=True, nulls=nulls)
    out, taken, whole = b"", 0, 0
    expected = shown(stream, nulls)
    ends = [0]
    for part in stream:
        ends.append(ends[-1] + len(part.data))
    for piece in pieces(stream, places):
        out += tap.feed(piece)
        taken += len(piece)
        while whole < len(stream) and ends[whole + 1] <= taken:
            whole += 1
        if ends[whole] == taken and stream[whole - 1].data.endswith((b"\n\n", b"\r\n\r\n", b"\r\r")):
            assert out == b"".join(expected[:whole])
    assert out + tap.flush() == b"".join(expected)
    assert tap.usage == counted(stream)
    assert tap.flush() == b""


@given(stream=streams(), places=cuts)
@settings(max_examples=400)
def test_what_goes_out_is_the_stream_without_its_usage_events(stream, places):
    check(stream, places, nulls=False)


@given(stream=streams(), places=cuts)
@settings(max_examples=400)
def test_a_chat_loses_its_null_usages_too(stream, places):
    check(stream, places, nulls=True)


@given(stream=streams(), nulls=st.booleans())
@settings(max_examples=60)
def test_byte_by_byte_is_as_in_one(stream, nulls):
    whole, single = UsageTap(remove=True, nulls=nulls), UsageTap(remove=True, nulls=nulls)
    data = b"".join(part.data for part in stream)
    expected = whole.feed(data) + whole.flush()
    assert b"".join(single.feed(bytes((byte,))) for byte in data) + single.flush() == expected
    assert single.usage == whole.usage


@given(stream=streams(), places=cuts)
@settings(max_examples=200)
def test_watching_changes_nothing_holds_nothing_and_counts_the_same(stream, places):
    tap = UsageTap()
    for piece in pieces(stream, places):
        assert tap.feed(piece) == piece
    assert tap.usage == counted(stream)
    assert tap.flush() == b""
    assert tap.usage == counted(stream)


@given(stream=streams(), places=cuts, remove=st.booleans(), nulls=st.booleans(), cached=st.none() | st.just(7))
@settings(max_examples=300)
def test_the_quick_way_goes_out_as_the_slow_one(stream, places, remove, nulls, cached):
    by_frames = UsageTap(remove=remove, nulls=nulls and remove, cached_tokens=cached)
    by_feed = UsageTap(remove=remove, nulls=nulls and remove, cached_tokens=cached)
    for piece in pieces(stream, places):
        quick = by_frames.quick(frame(piece))
        assert (piece if quick else by_frames.feed(piece)) == by_feed.feed(piece)
    assert by_frames.flush() == by_feed.flush()
    assert by_frames.usage == by_feed.usage


CONTENT = b'data: {"id":"c","choices":[{"index":0,"delta":{"content":" hi \xc3\xa9"}}]}\n\n'
USAGE = b'data: {"id":"c","choices":[],"usage":{"prompt_tokens":9,"completion_tokens":4,"total_tokens":13}}\n\n'
DONE = b"data: [DONE]\n\n"
NINE = Usage(9, 4, None)


def test_a_plain_chunk_is_quick_framed_or_not_and_the_usage_is_not():
    tap = UsageTap(remove=True, nulls=True)
    assert not tap.quick(frame(CONTENT))
    assert tap.feed(CONTENT) == CONTENT
    assert tap.quick(frame(CONTENT))
    assert tap.feed(CONTENT) is CONTENT
    assert tap.quick(frame(CONTENT.replace(b"\n\n", b"\r\n\r\n")))
    assert not tap.quick(frame(USAGE))
    assert not tap.quick(frame(CONTENT[:-1]))
    tap.feed(CONTENT[:-1])
    assert not tap.quick(frame(CONTENT))


@pytest.mark.parametrize(
    "glued", [USAGE, CONTENT + USAGE, USAGE + DONE, CONTENT + USAGE + DONE, USAGE[:-2], USAGE[:-1]]
)
def test_glued_in_one_read_or_cut_in_two_at_any_place(glued):
    for cut in range(len(glued) + 1):
        tap = UsageTap(remove=True)
        out = tap.feed(glued[:cut]) + tap.feed(glued[cut:]) + tap.flush()
        assert (out, tap.usage) == (b"".join(one for one in (CONTENT, DONE) if one in glued), NINE)


def test_a_token_goes_out_before_its_event_ends_as_soon_as_it_cannot_be_the_usage():
    tap = UsageTap(remove=True, nulls=True)
    known = CONTENT.index(b"[{") + 2
    assert tap.feed(CONTENT[: known - 1]) == b""
    assert tap.feed(CONTENT[known - 1 : 45]) == CONTENT[:45]
    assert tap.feed(CONTENT[45:-1]) == CONTENT[45:-1]


def test_a_null_member_cut_anywhere_goes_and_what_only_begins_like_one_stays():
    event = CONTENT.replace(b"}]}", b'}],"usage":null}')
    for cut in range(len(event) + 1):
        tap = UsageTap(remove=True, nulls=True)
        assert tap.feed(event[:cut]) + tap.feed(event[cut:]) == CONTENT
    other = CONTENT.replace(b"}]}", b'}],"usage":nul, "x":1}')
    tap = UsageTap(remove=True, nulls=True)
    assert b"".join(tap.feed(bytes((byte,))) for byte in other) == other


def test_nulls_that_the_first_choices_lack_are_the_engines_own():
    event = CONTENT.replace(b"}]}", b'}],"usage":null}')
    tap = UsageTap(remove=True, nulls=True)
    assert tap.feed(CONTENT) == CONTENT
    assert tap.feed(event) == event
    tap = UsageTap(remove=True, nulls=True)
    assert (tap.feed(event), tap.feed(event[:80]) + tap.feed(event[80:])) == (CONTENT, CONTENT)


def test_the_null_members_of_a_text_completion_stay():
    event = b'data: {"choices":[{"text":"a"}],"usage":null}\n\n'
    tap = UsageTap(remove=True)
    assert tap.quick(frame(event))


@pytest.mark.parametrize("read", [1, 1000, 65536, 300000])
@pytest.mark.parametrize("remove", [True, False])
def test_an_endless_event_is_neither_held_nor_kept(read, remove):
    tap = UsageTap(remove=remove, nulls=remove)
    size = 3 * HELD_BYTES if read > 1 else HELD_BYTES + 5000
    data = b'data: {"x":"' + b"y" * size
    end = b'","usage":{"input_tokens":3,"output_tokens":4}}\n\n'
    sent, most = b"", 0
    for start in range(0, len(data), read):
        sent += tap.feed(data[start : start + read])
        most = max(most, min(len(data), start + read) - len(sent))
    assert most < HELD_BYTES
    assert sent + tap.feed(end) == data + end
    assert tap.usage == Usage(3, 4, None)


def test_a_usage_far_from_the_end_of_a_long_event_counts():
    tap = UsageTap()
    for piece in (
        b'data: {"response":{"usage":{"input_tokens":3,"output_tokens":4},"output":"',
        b"y" * 10**6,
        b'"}}\n\n',
    ):
        assert tap.feed(piece) == piece
    assert tap.usage == Usage(3, 4, None)


def test_a_usage_event_that_the_end_tears_is_not_shown():
    tap = UsageTap(remove=True)
    torn = USAGE[: USAGE.index(b',"total')] + b","
    assert tap.feed(CONTENT + torn) + tap.flush() == CONTENT
    assert tap.usage == NINE


def test_any_other_event_that_the_end_tears_is():
    for torn in (CONTENT[:-5], b'data: {"id":"c","obj', USAGE[: USAGE.index(b',"usage"')]):
        tap = UsageTap(remove=True)
        assert tap.feed(torn) + tap.flush() == torn


ANTHROPIC = (
    b'event: message_start\ndata: {"type":"message_start","message":{"usage":{"input_tokens":5,'
    b'"cache_creation_input_tokens":2,"cache_read_input_tokens":10,"output_tokens":1}}}\n\n'
    b'event: content_block_delta\ndata: {"type":"content_block_delta","delta":{"text":"hi"}}\n\n'
    b'event: message_delta\ndata: {"type":"message_delta","usage":{"output_tokens":15}}\n\n'
    b'event: message_stop\ndata: {"type":"message_stop"}\n\n'
)


def test_anthropic_tells_the_prompt_first_and_the_output_last():
    for cut in range(len(ANTHROPIC)):
        tap = UsageTap()
        tap.feed(ANTHROPIC[:cut])
        tap.feed(ANTHROPIC[cut:])
        assert tap.usage == Usage(17, 15, 10)


def test_the_usage_so_far_is_known_when_a_client_leaves():
    tap = UsageTap()
    tap.feed(ANTHROPIC[: ANTHROPIC.index(b"event: content")])
    assert tap.usage == Usage(17, 1, 10)
    assert UsageTap().usage is None


@given(cut=st.integers(0, 400), remove=st.booleans())
def test_on_two_hops_the_prefill_legs_number_is_put_in_and_counted(cut, remove):
    details = USAGE.replace(b'"total', b'"prompt_tokens_details":{"cached_tokens":1},"total')
    tap = UsageTap(remove=remove, nulls=remove, cached_tokens=8)
    data = CONTENT + details + DONE
    out = tap.feed(data[:cut]) + tap.feed(data[cut:]) + tap.flush()
    assert out == (CONTENT + DONE if remove else data.replace(b'"cached_tokens":1', b'"cached_tokens":8'))
    assert tap.usage == Usage(9, 4, 8)


def test_whole_events_alone_go_out_where_another_stream_may_go_on():
    tap = UsageTap(whole=True, cached_tokens=3)
    assert tap.feed(b": ping\n" + CONTENT + CONTENT[:-1]) == b": ping\n" + CONTENT
    assert not tap.mid_event
    tap.drop_half()
    assert tap.clear
    assert tap.feed(CONTENT) == CONTENT
    assert UsageTap(remove=True, whole=True).feed(CONTENT[:-1]) == b""
    open_ended = UsageTap(whole=True)
    open_ended.drop_half()
    open_ended.feed(b"data: " + b"x" * HELD_BYTES)
    assert open_ended.mid_event


@pytest.mark.parametrize("space", ["", " "])
def test_a_null_usage_before_another_member_goes_wherever_the_stream_is_cut(space):
    seen = f'data: {{"choices":{space}[{{"index":0}}],"prompt_token_ids":{space}null}}\n\n'.encode() * 2
    sent = seen.replace(b'],"', f'],"usage":{space}null,"'.encode())
    for first in range(1, len(sent)):
        for size in (1, 2, len(sent)):
            tap = UsageTap(remove=True, nulls=True)
            pieces = [sent[:first], *[sent[at : at + size] for at in range(first, len(sent), size)]]
            assert b"".join([*map(tap.feed, pieces), tap.flush()]) == seen
