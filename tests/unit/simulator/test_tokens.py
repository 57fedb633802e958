"""Text and tokens of simulated models."""

from hypothesis import given
from hypothesis import strategies as st

from gateway.simulator.tokens import (
    EOS,
    WORD_IDS,
    WORDS,
    Sampler,
    block_hashes,
    decode,
    encode,
    logprobs_of,
    next_block_hash,
    token_bytes,
)

TOKENS = st.lists(st.integers(0, (1 << 63) - 1), max_size=40)


def drawn(prompt: list[int], count: int, key: int | None = None, model: str = "m") -> list[int]:
    sampler = Sampler(model, prompt, key, 64)
    said = []
    for _ in range(count):
        said.append(sampler.draw(may_end=False))
        sampler.push(said[-1])
    return said


@given(st.text())
def test_text_survives_the_round_trip(text):
    assert decode(encode(text)) == text.encode("utf-8", "replace").decode()


@given(st.text(), st.text())
def test_tokens_of_a_text_begin_with_those_of_its_part_before_a_space(start, end):
    assert encode(f"{start} {end}")[: len(encode(start))] == encode(start)


@given(st.text(), st.lists(st.sampled_from(range(4096)), max_size=10))
def test_drawn_words_sent_back_are_the_same_tokens(prompt, words):
    said = [WORD_IDS[word] for word in words]
    assert encode(prompt + decode(said)) == encode(prompt) + said


@given(TOKENS)
def test_every_id_stands_for_a_text(tokens):
    assert isinstance(decode(tokens), str)


def test_the_vocabulary_is_distinct_and_eos_is_silent():
    assert len(set(WORDS)) == len(set(WORD_IDS)) == 4096
    assert token_bytes(EOS) == b""


@given(TOKENS, st.integers(1, 8), st.integers(0, 9))
def test_block_hashes_chain(tokens, block_size, salt):
    hashes = block_hashes(tokens, block_size, salt)
    assert len(hashes) == len(tokens) // block_size
    parent = salt
    for index, each in enumerate(hashes):
        parent = next_block_hash(tokens[index * block_size : (index + 1) * block_size], parent)
        assert each == parent


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=10), st.integers(0, 19))
def test_a_cut_answer_is_continued_as_it_would_have_gone_on(prompt, cut):
    whole = drawn(prompt, 20)
    assert drawn(prompt + whole[:cut], 20 - cut) == whole[cut:]


def test_model_prompt_and_key_each_change_what_is_said():
    plain = drawn([1, 2, 3], 10)
    assert plain == drawn([1, 2, 3], 10)
    assert len({tuple(plain), tuple(drawn([1, 2, 4], 10)), tuple(drawn([1, 2, 3], 10, key=1))}) == 3
    assert plain != drawn([1, 2, 3], 10, model="other")


def test_answers_end_about_as_often_as_asked():
    sampler = Sampler("m", [1], None, 50)
    ends = 0
    for _ in range(5000):
        ends += sampler.draw(may_end=True) == EOS
        sampler.push(sampler.draw(may_end=False))
    assert 60 < ends < 150


@given(st.sampled_from(WORD_IDS), st.integers(0, 1 << 40), st.integers(0, 20))
def test_the_drawn_token_is_the_likeliest(token, previous, top):
    pairs = logprobs_of(token, previous, top)
    assert pairs[0][0] == token
    assert len({each for each, _ in pairs}) == len(pairs) == top + 1
    assert max(pairs, key=lambda pair: pair[1]) == pairs[0]
    assert all(logprob <= 0 for _, logprob in pairs)
