"""Laws of the prefix index against a model of plain sets and times of use."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.prefix.blocks import BLOCK_ENDS, block_keys
from gateway.prefix.index import PrefixIndex, share, shares

law = settings(deadline=None, max_examples=200)

ENDPOINTS = st.sampled_from(["a", "b", "c"])
PATHS = st.lists(st.integers(0, 1), max_size=7)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("insert"), PATHS, ENDPOINTS),
        st.tuples(st.just("match"), PATHS, st.none()),
        st.tuples(st.just("drop"), st.none(), ENDPOINTS),
    ),
    max_size=60,
)


def chain(path: list[int]) -> list[int]:
    """Return a key per step of a path in a binary tree, the same for the same path from the root alone."""
    return [hash(tuple(path[: depth + 1])) for depth in range(len(path))]


class Naive:
    """Every key of every endpoint with the time of its last use; the oldest go first."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.used: dict[str, dict[int, int]] = {}
        self.now = 0

    def insert(self, keys: list[int], endpoint: str) -> None:
        used = self.used.setdefault(endpoint, {})
        for key in reversed(keys[: self.capacity]):
            self.now += 1
            used[key] = self.now
        if len(used) > self.capacity:
            left = sorted(used, key=used.__getitem__)[-(self.capacity - self.capacity // 16) :]
            self.used[endpoint] = {key: used[key] for key in left}

    def match(self, keys: list[int]) -> dict[str, int]:
        found = {}
        for endpoint, used in self.used.items():
            depth = 0
            while depth < len(keys) and keys[depth] in used:
                depth += 1
            if depth:
                found[endpoint] = BLOCK_ENDS[depth - 1]
        return found


@given(capacity=st.integers(1, 40), steps=STEPS)
@law
def test_the_index_does_what_plain_sets_do(capacity, steps):
    index, naive = PrefixIndex(capacity), Naive(capacity)
    for what, path, endpoint in steps:
        if what == "insert":
            index.insert(chain(path), endpoint)
            naive.insert(chain(path), endpoint)
        elif what == "drop":
            index.drop(endpoint)
            naive.used.pop(endpoint, None)
        else:
            assert index.match(chain(path)) == naive.match(chain(path))
        assert len(index) == sum(map(len, naive.used.values())) <= capacity * 3


@given(capacity=st.integers(1, 40), paths=st.lists(PATHS, max_size=40))
@law
def test_no_block_outlives_one_in_front_of_it(capacity, paths):
    index = PrefixIndex(capacity)
    for path in paths:
        index.insert(chain(path), "a")
    for path in paths:
        keys = chain(path)
        credit = index.match(keys).get("a", 0)
        present = [index.match(keys[: depth + 1]).get("a") == BLOCK_ENDS[depth] for depth in range(len(keys))]
        assert present == sorted(present, reverse=True)
        assert credit == (BLOCK_ENDS[sum(present) - 1] if any(present) else 0)


@given(
    capacity=st.integers(1, 40),
    earlier=st.lists(PATHS, max_size=20),
    last=st.lists(st.integers(0, 1), min_size=1, max_size=7),
)
@law
def test_what_was_used_last_is_still_there(capacity, earlier, last):
    index = PrefixIndex(capacity)
    for path in earlier:
        index.insert(chain(path), "a")
    index.insert(chain(last), "a")
    kept = min(len(last), capacity - capacity // 16)
    assert index.match(chain(last))["a"] >= BLOCK_ENDS[kept - 1]


def test_a_chain_in_use_survives_any_number_of_others():
    index = PrefixIndex(64)
    kept = block_keys(0, b"kept" * 300)
    for number in range(200):
        index.insert(block_keys(number + 1, bytes(2000)), "a")
        index.insert(kept, "a")
    assert index.match(kept) == {"a": BLOCK_ENDS[len(kept) - 1]}
    assert len(index) <= 64


def test_a_match_is_no_use():
    index = PrefixIndex(2)
    index.insert([1], "a")
    index.insert([2], "a")
    index.match([1])
    index.insert([3], "a")
    assert (index.match([1]), index.match([2])) == ({}, {"a": BLOCK_ENDS[0]})


def test_a_capacity_below_one_block_is_refused():
    with pytest.raises(ValueError, match="at least 1"):
        PrefixIndex(0)
    with pytest.raises(ValueError, match="at least 1"):
        PrefixIndex(1, 0)


class Counted(int):
    """A key that counts how often any of its kind is looked up."""

    looked_up = 0

    def __hash__(self) -> int:
        Counted.looked_up += 1
        return int.__hash__(self)


def test_a_match_looks_up_few_keys_per_endpoint_however_long_the_prompt():
    index = PrefixIndex(1000)
    keys = list(range(1, 129))
    for number in range(50):
        index.insert(keys[: number * 2 + 1], f"e{number}")
        index.insert([-number], f"other{number}")
    asked = [Counted(key) for key in keys]
    Counted.looked_up = 0
    assert len(index.match(asked)) == 50
    assert Counted.looked_up <= 50 * (1 + 8) + 50


@given(matched=st.integers(0, 10**7), prompt=st.integers(0, 10**7))
@law
def test_a_share_is_between_none_and_all(matched, prompt):
    assert 0.0 <= share(matched, prompt) <= 1.0
    assert share(matched, prompt + 1) <= share(matched, max(prompt, 1))


def test_shares_are_by_endpoint():
    assert shares({"a": 512, "b": 1024}, 1024) == {"a": 0.5, "b": 1.0}
    assert shares({"a": 512}, 0) == {"a": 0.0}
