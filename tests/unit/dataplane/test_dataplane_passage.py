"""What is noted of chunks on their way to the client, and what goes on."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from gateway.dataplane.relay import Passage
from gateway.wire.chunked import frame
from gateway.wire.sse_usage import UsageTap
from gateway.wire.usage import Usage

CONTENT = b'data: {"choices":[{"index":0,"delta":{"content":"a"}}]}\n\n'
USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":12,"completion_tokens":34}}\n\n'


@given(st.integers(0, 1100), st.booleans())
def test_every_gap_between_two_chunks_is_told_once_and_every_chunk_counted(count, framed):
    gaps: list[float] = []
    passage = Passage(UsageTap(), gaps.append)
    written: list[bytes] = []
    pass_on = passage.frames_to(written.append)
    for number in range(count):
        chunk = b"data: %d\n\n" % number
        if framed:
            pass_on(frame(chunk))
        else:
            written.append(frame(passage.take(chunk)))
    assert passage.chunks == count
    passage.tell_gaps()
    assert passage.chunks == count
    assert len(gaps) == max(0, count - 1)
    assert all(gap_s >= 0 for gap_s in gaps)
    assert written == [frame(b"data: %d\n\n" % number) for number in range(count)]


@given(
    places=st.lists(st.integers(0, 400), max_size=20),
    framed=st.lists(st.booleans(), min_size=30, max_size=30),
    remove=st.booleans(),
)
def test_a_usage_is_found_and_removed_in_any_pieces_framed_or_not(places, framed, remove):
    stream = CONTENT + CONTENT + USAGE + b"data: [DONE]\n\n"
    cuts = sorted({0, len(stream), *(place % len(stream) for place in places)})
    tap = UsageTap(remove=remove, nulls=remove)
    passage = Passage(tap, lambda _: None)
    written: list[bytes] = []

    def unframe(chunk: bytes) -> None:
        written.append(chunk[chunk.index(b"\r\n") + 2 : -2])

    pass_on = passage.frames_to(unframe)
    for (start, end), whole in zip(pairwise(cuts), framed, strict=False):
        if whole:
            pass_on(frame(stream[start:end]))
        else:
            written.append(passage.take(stream[start:end]))
    assert b"".join(written) + tap.flush() == (stream.replace(USAGE, b"") if remove else stream)
    assert tap.usage == Usage(12, 34, None)
