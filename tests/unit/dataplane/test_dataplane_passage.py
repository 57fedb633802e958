"""What is noted of chunks on their way to the client."""

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


@given(st.lists(st.tuples(st.binary(min_size=1, max_size=50), st.booleans()), max_size=8))
def test_the_tail_is_the_last_chunks_without_their_framing(chunks):
    passage = Passage(None, lambda _: None)
    pass_on = passage.frames_to(lambda _: None)
    for chunk, framed in chunks:
        if framed:
            pass_on(frame(chunk))
        else:
            passage.take(chunk)
    payloads = [chunk for chunk, _ in chunks]
    assert passage.tail == b"".join(payloads[-4:])
    assert passage.last == (payloads[-1] if payloads else b"")
