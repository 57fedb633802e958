"""Laws of the bound over all endpoints together."""

import tracemalloc

from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.prefix.blocks import BLOCK_ENDS
from gateway.prefix.index import BLOCK_BYTES, PrefixIndex

law = settings(deadline=None, max_examples=100)
NAMES = st.integers(0, 11).map(str)
STEPS = st.lists(
    st.tuples(st.sampled_from(["insert", "insert", "insert", "drop"]), st.lists(st.integers(0, 1), max_size=7), NAMES),
    max_size=60,
)


def chain(path: list[int]) -> list[int]:
    """Return a key per step of a path in a tree, the same for the same path from the root alone."""
    return [hash(tuple(path[: depth + 1])) for depth in range(len(path))]


@given(capacity=st.integers(1, 40), total=st.integers(1, 100), steps=STEPS)
@law
def test_all_endpoints_together_stay_within_the_bound_and_no_block_outlives_one_in_front_of_it(capacity, total, steps):
    index, seen = PrefixIndex(capacity, total), []
    for what, path, endpoint in steps:
        if what == "drop":
            index.drop(endpoint)
            continue
        keys = chain(path)
        seen.append(keys)
        index.note(keys, max(index.match(keys).values(), default=0))
        index.insert(keys, endpoint)
        held = index.held_blocks()
        fair = max(1, min(capacity, total // (len(held) + 1)))
        assert max(held.values()) <= fair
        assert len(index) == sum(held.values()) <= max(total, len(held))
        assert not keys or endpoint in index.match(keys)
    for keys in seen:
        for endpoint in index.held_blocks():
            has = [index.match(keys[: end + 1]).get(endpoint) == BLOCK_ENDS[end] for end in range(len(keys))]
            assert has == sorted(has, reverse=True)


def test_one_more_endpoint_takes_its_share_of_what_was_used_longest_ago():
    index = PrefixIndex(1000, 96)
    for key in range(48):
        index.insert([key], "a")
    assert index.held_blocks() == {"a": 48}
    index.insert([-1], "b")
    assert index.held_blocks() == {"a": 30, "b": 1}  # a third of 96 each, and a sixteenth of that as room to come
    assert [key for key in range(48) if index.match([key])] == list(range(18, 48))


def test_a_new_bound_holds_at_once():
    index = PrefixIndex(1000, 96)
    for key in range(48):
        index.insert([key], "a")
    index.configure(64)
    assert [key for key in range(48) if index.match([key])] == list(range(18, 48))
    index.configure(1)
    assert len(index) == 1
    index.configure(96)
    for key in range(48):
        index.insert([key], "a")
    assert len(index) == 48


def test_who_leaves_gives_its_share_back():
    index = PrefixIndex(1000, 96)
    index.insert([-1], "b")
    index.drop("b")
    index.drop("never seen")
    for key in range(48):
        index.insert([key], "a")
    assert len(index) == 48


def test_what_was_learnt_of_shared_fronts_makes_room_too():
    index = PrefixIndex(1000, 96)
    index.insert([-1], "a")
    for front in range(48):
        for number in range(4):
            index.note([front, -number], BLOCK_ENDS[0])
    assert all(index.shared_bytes([front], BLOCK_ENDS[0]) for front in range(48))
    index.insert([-1], "b")
    assert [front for front in range(48) if index.shared_bytes([front], BLOCK_ENDS[0])] == list(range(18, 48))


def test_a_block_costs_no_more_than_the_bound_counts_for_it():
    tracemalloc.start()
    try:
        index, before = PrefixIndex(12_000, 24_000), tracemalloc.get_traced_memory()[0]
        costs = []
        for number in range(620):
            # Twenty that come late and bring little: what the first has by then must not keep the memory it had.
            index.insert([hash((number, block)) for block in range(20)], str(max(0, number - 600)))
            if number % 10 == 9:
                costs.append((tracemalloc.get_traced_memory()[0] - before) / len(index))
    finally:
        tracemalloc.stop()
    assert len(index) < 1600
    assert max(costs) <= BLOCK_BYTES
