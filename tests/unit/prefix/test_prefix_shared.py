"""Laws of what the index learns about front parts that many prompts share, and of what it says it holds."""

from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.prefix.blocks import BLOCK_ENDS, block_keys
from gateway.prefix.index import SHARED_AFTER, PrefixIndex

law = settings(deadline=None, max_examples=100)
paths = st.lists(st.integers(0, 2), max_size=6)


def chain(path: list[int]) -> list[int]:
    """Return a key per step of a path in a tree, the same for the same path from the root alone."""
    return [hash(tuple(path[: depth + 1])) for depth in range(len(path))]


def send(index: PrefixIndex, keys: list[int], endpoint: str = "a") -> int:
    """Do what routing does with one prompt; return how many of its bytes count as shared."""
    longest = max(index.match(keys).values(), default=0)
    shared = index.shared_bytes(keys, longest)
    index.note(keys, longest)
    index.insert(keys, endpoint)
    return shared


@given(prompts=st.lists(st.tuples(paths, st.sampled_from("abc")), max_size=60), capacity=st.integers(1, 200))
@law
def test_no_more_is_shared_than_is_matched(prompts, capacity):
    index = PrefixIndex(capacity)
    for path, endpoint in prompts:
        keys = chain(path)
        longest = max(index.match(keys).values(), default=0)
        for matched in {longest, *range(0, longest, 100)}:
            shared = index.shared_bytes(keys, matched)
            assert 0 <= shared <= matched
            assert shared in (0, matched, *BLOCK_ENDS)
        send(index, keys, endpoint)


@given(turns=st.lists(st.integers(1, 900), min_size=1, max_size=30), again=st.integers(1, 3))
@law
def test_a_conversation_that_only_grows_shares_nothing(turns, again):
    index, history = PrefixIndex(20_000), b""
    for number, size in enumerate(turns):
        history += b"%05d" % number * size
        for _ in range(again):  # a retry brings nothing new
            assert send(index, block_keys(1, history)) == 0


@given(front=st.integers(1, 20), more=st.integers(0, 10), tails=st.integers(1, 3))
@law
def test_a_front_part_is_shared_once_enough_prompts_went_on_from_it(front, more, tails):
    index = PrefixIndex(20_000)
    common = list(range(1, front + 1))
    send(index, common)
    for number in range(SHARED_AFTER + more):
        keys = common + [-(number * 10 + step) - 1 for step in range(tails)]
        expected = BLOCK_ENDS[front - 1] if number >= SHARED_AFTER else 0
        assert send(index, keys) == expected
    # The history of one of these prompts is its own again, beyond what they all share.
    own = common + [-1 - step for step in range(tails)]
    assert index.shared_bytes(own, BLOCK_ENDS[len(own) - 1]) == BLOCK_ENDS[front - 1]
    assert index.shared_bytes(own, BLOCK_ENDS[front - 1] - 1) == BLOCK_ENDS[front - 1] - 1


def test_nothing_is_learnt_of_a_prompt_that_is_all_new_or_all_known():
    index = PrefixIndex(100)
    for _ in range(3 * SHARED_AFTER):
        index.note([1, 2], 0)
        index.note([1, 2], BLOCK_ENDS[1])
        index.note([], 0)
    assert [index.shared_bytes([1, 2], end) for end in BLOCK_ENDS[:2]] == [0, 0]
    assert index.shared_bytes([], 0) == 0


@given(capacity=st.integers(1, 40), fronts=st.integers(1, 80))
@law
def test_what_is_learnt_is_bounded_by_the_capacity_and_the_oldest_goes_first(capacity, fronts):
    index = PrefixIndex(capacity)
    for front in range(fronts):
        for number in range(SHARED_AFTER):
            index.note([front, -number], BLOCK_ENDS[0])
    shared = [front for front in range(fronts) if index.shared_bytes([front], BLOCK_ENDS[0])]
    assert shared == list(range(fronts))[fronts - len(shared) :]
    assert len(shared) <= capacity
    if fronts <= capacity:
        assert len(shared) == fronts
    else:
        assert len(shared) >= capacity - capacity // 16


def test_a_front_part_in_use_is_not_forgotten():
    index = PrefixIndex(32)
    for number in range(500):
        index.note([1, -number], BLOCK_ENDS[0])
        index.note([number + 2, -number], BLOCK_ENDS[0])
    assert index.shared_bytes([1], BLOCK_ENDS[0]) == BLOCK_ENDS[0]


@given(prompts=st.lists(st.tuples(paths, st.sampled_from("abc")), max_size=40), capacity=st.integers(1, 30))
@law
def test_what_is_held_adds_up(prompts, capacity):
    index = PrefixIndex(capacity)
    for path, endpoint in prompts:
        index.insert(chain(path), endpoint)
        held = index.held_blocks()
        assert sum(held.values()) == len(index)
        assert all(0 <= blocks <= capacity for blocks in held.values())
    for endpoint in "abc":
        index.drop(endpoint)
    assert index.held_blocks() == {}
