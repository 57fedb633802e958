"""What is noted of chunks on their way to the client."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from gateway.dataplane.relay import Passage
from gateway.wire.chunked import frame


@given(st.integers(0, 1100), st.booleans())
def test_every_gap_between_two_chunks_is_told_once(count, framed):
    gaps: list[float] = []
    passage = Passage(None, gaps.append)
    written: list[bytes] = []
    pass_on = passage.frames_to(written.append)
    for number in range(count):
        chunk = b"data: %d\n\n" % number
        if framed:
            pass_on(frame(chunk))
        else:
            written.append(frame(passage.take(chunk)))
    passage.tell_gaps()
    assert len(gaps) == max(0, count - 1)
    assert all(gap_s >= 0 for gap_s in gaps)
    assert written == [frame(b"data: %d\n\n" % number) for number in range(count)]


@given(st.integers(1, 8), st.integers(0, 120), st.lists(st.booleans(), min_size=8, max_size=8))
def test_a_usage_in_the_last_chunks_is_found_framed_or_not(pieces, start, framed):
    event = b'data: {"choices":[],"usage":{"prompt_tokens":12,"completion_tokens":34}}\n\n'
    cuts = sorted({min(len(event), start + number) for number in range(pieces)} | {0, len(event)})
    parts = [event[begin:end] for begin, end in pairwise(cuts)][-8:]
    passage = Passage(None, lambda _: None)
    pass_on = passage.frames_to(lambda _: None)
    for chunk, whole in zip([b"data: x\n\n"] * (8 - len(parts)) + parts, framed, strict=True):
        if whole:
            pass_on(frame(chunk))
        else:
            passage.take(chunk)
    found = passage.usage
    assert found is None if len(cuts) > 9 else found is not None
    if found is not None:
        assert (found.prompt, found.output) == (12, 34)
    assert event.endswith(passage.last)
