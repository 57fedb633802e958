"""Laws of block keys: stable from the front, apart by seed, few for long prompts."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.prefix.blocks import BLOCK_ENDS, block_keys, seed_of

law = settings(deadline=None)
prompts = st.binary(max_size=3000)


def whole_blocks(size: int) -> int:
    return sum(end <= size for end in BLOCK_ENDS)


def common(first: bytes, second: bytes) -> int:
    return next(
        (i for i, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), min(len(first), len(second))
    )


@given(head=prompts, one=prompts, other=prompts, seed=st.integers(0, 2**64 - 1))
@law
def test_keys_agree_as_far_as_the_bytes_agree(head, one, other, seed):
    first, second = head + one, head + other
    agree = whole_blocks(common(first, second))
    keys, others = block_keys(seed, first), block_keys(seed, second)
    assert keys[:agree] == others[:agree]
    assert set(keys[agree:]).isdisjoint(others[agree:])


@given(prompt=prompts)
@law
def test_there_is_one_key_per_whole_block_and_no_other(prompt):
    keys = block_keys(7, prompt)
    assert len(keys) == len(set(keys)) == whole_blocks(len(prompt))
    assert all(0 <= key < 2**64 for key in keys)
    assert block_keys(7, bytearray(prompt)) == block_keys(7, memoryview(prompt)) == keys


@given(
    prompt=st.binary(min_size=128, max_size=3000), seeds=st.lists(st.integers(0, 2**64 - 1), min_size=2, unique=True)
)
@law
def test_another_seed_shares_no_key(prompt, seeds):
    assert set(block_keys(seeds[0], prompt)).isdisjoint(block_keys(seeds[1], prompt))


def test_equal_blocks_at_other_places_have_other_keys():
    keys = block_keys(0, bytes(4096))
    assert len(set(keys)) == len(keys) > 10


def test_blocks_are_small_in_front_and_few_for_long_prompts():
    sizes = [end - start for start, end in pairwise((0, *BLOCK_ENDS))]
    assert sizes[0] == 128
    assert sizes == sorted(sizes)
    assert [whole_blocks(size) for size in (2_000, 400_000, 32 << 20)] == [13, 109, 207]
    assert BLOCK_ENDS[-1] > 1 << 30


def test_the_next_turn_of_a_chat_shares_all_but_the_last_block():
    turn = b'{"role":"user","content":"' + b"tell me more about it " * 20 + b'"}'
    before, after = b"[" + b",".join([turn] * 5) + b"]", b"[" + b",".join([turn] * 7) + b"]"
    shared = block_keys(1, before)
    assert block_keys(1, after)[: len(shared)] == shared
    assert BLOCK_ENDS[len(shared) - 1] / len(before) > 0.85


@given(parts=st.lists(st.binary(max_size=8), max_size=4), others=st.lists(st.binary(max_size=8), max_size=4))
@law
def test_a10_seeds_are_apart_for_any_other_model_adapter_salt_or_tools(parts, others):
    assert (seed_of(*parts) == seed_of(*others)) == (parts == others)
    assert 0 <= seed_of(*parts) < 2**64


@pytest.mark.parametrize(("parts", "others"), [((b"ab", b"c"), (b"a", b"bc")), ((b"a", b""), (b"", b"a"))])
def test_a_seed_knows_where_each_part_ends(parts, others):
    assert seed_of(*parts) != seed_of(*others)
