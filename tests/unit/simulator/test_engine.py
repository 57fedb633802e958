"""Single decisions of the scheduler: budget, chunks, places, preemption, pins, time."""

from dataclasses import replace

import pytest

from gateway.simulator.engine import Engine
from gateway.simulator.job import Job
from gateway.simulator.profiles import PROFILES, Profile
from gateway.simulator.tokens import EOS, Sampler, encode

SMALL = replace(
    PROFILES["fast"],
    step_s=1.0,
    prefill_token_s=0.01,
    decode_seq_s=0.1,
    context_token_s=0.001,
    block_size=4,
    num_blocks=16,
    max_model_len=64,
    max_num_seqs=4,
    max_num_batched_tokens=10,
)


def job(name: str, prompt_tokens: int, max_tokens: int = 4, **more: object) -> Job:
    prompt = [1000 + ord(name) * 100 + index for index in range(prompt_tokens)]
    values = {"ignore_eos": True} | more
    return Job(id=name, prompt=prompt, max_tokens=max_tokens, sampler=Sampler("m", prompt, None, 16), **values)  # type: ignore[arg-type]


def engine_with(*jobs: Job, profile: Profile = SMALL) -> Engine:
    engine = Engine(profile)
    for each in jobs:
        engine.add(each, 0.0)
    return engine


def test_a_long_prompt_is_computed_in_chunks_beside_decoding():
    short, long = job("a", 4, 8), job("b", 24)
    engine = engine_with(short, long)
    assert engine.begin_step(0.0) == pytest.approx(1.0 + 0.01 * 10)
    assert [each.id for each, _ in engine.end_step(1.0)] == ["a"]
    assert long.computed == 6
    assert engine.begin_step(1.0) == pytest.approx(1.0 + 0.01 * 9 + 0.1 + 0.001 * 4)
    engine.end_step(2.0)
    assert long.computed == 15


def test_no_more_sequences_run_than_allowed():
    engine = engine_with(*(job(name, 2) for name in "abcdef"))
    engine.begin_step(0.0)
    assert len(engine.running) == SMALL.max_num_seqs
    assert len(engine.waiting) == 2


def test_a_full_cache_preempts_the_youngest():
    old, young = job("a", 24, 24), job("b", 24, 24)
    engine = engine_with(old, young)
    now_s = 0.0
    while not young.preemptions:
        duration_s = engine.begin_step(now_s)
        assert duration_s is not None
        now_s += duration_s
        engine.end_step(now_s)
    assert old.preemptions == 0
    assert young.blocks == []
    while (duration_s := engine.begin_step(now_s)) is not None:
        now_s += duration_s
        engine.end_step(now_s)
    assert (old.output_tokens, young.output_tokens) == (24, 24)
    assert engine.totals.preemptions == young.preemptions


def test_pinned_blocks_hold_back_a_job_until_they_are_freed():
    pinned, waiting = job("a", 40, 1, pin=True), job("b", 40, 1)
    engine = engine_with(pinned)
    while not engine.pins:
        engine.begin_step(0.0)
        engine.end_step(0.0)
    assert engine.pins["a"].tokens == 40
    engine.add(waiting, 0.0)
    while engine.begin_step(0.0) is not None:
        engine.end_step(0.0)
    assert waiting.finish_reason is None
    assert engine.unpin("a") == 10
    while engine.begin_step(0.0) is not None:
        engine.end_step(0.0)
    assert waiting.finish_reason == "length"


def test_an_aborted_job_pins_nothing():
    engine = engine_with(job("a", 8, 4, pin=True))
    engine.begin_step(0.0)
    engine.end_step(0.0)
    assert engine.abort("a") is not None
    assert engine.abort("a") is None
    assert not engine.pins
    assert engine.usage == 0


def test_a_job_that_was_aborted_within_a_step_says_nothing():
    engine = engine_with(job("a", 4), job("b", 4))
    engine.begin_step(0.0)
    engine.abort("a")
    assert [each.id for each, _ in engine.end_step(1.0)] == ["b"]


def test_forced_tokens_come_first_and_then_the_end():
    forced = encode('{"a": 1}')
    each = job("a", 4, 20, forced=forced)
    engine = engine_with(each)
    while engine.begin_step(0.0) is not None:
        engine.end_step(0.0)
    assert each.tokens[4:] == [*forced, EOS]
    assert each.finish_reason == "stop"


def test_min_tokens_holds_off_the_end():
    lengths = []
    for index in range(30):
        prompt = [2000 + index]
        each = Job(id="a", prompt=prompt, max_tokens=40, min_tokens=5, sampler=Sampler("m", prompt, None, 2))
        engine = engine_with(each)
        while engine.begin_step(0.0) is not None:
            engine.end_step(0.0)
        lengths.append(each.output_tokens)
    assert min(lengths) == 6  # five tokens, then EOS
    assert max(lengths) < 40


def test_a_kv_that_covers_no_more_than_the_cache_is_not_loaded():
    engine = engine_with(job("a", 12))
    while engine.begin_step(0.0) is not None:
        engine.end_step(0.0)
    prompt = [1000 + ord("a") * 100 + index for index in range(12)]
    again = Job(id="b", prompt=prompt, max_tokens=1, remote_tokens=8, sampler=Sampler("m", prompt, None, 16))
    engine.add(again, 0.0)
    assert engine.begin_step(0.0) is not None
    assert engine.take_loads() == []
    assert again.cached_tokens == 8


def test_what_can_never_fit_is_refused():
    engine = Engine(SMALL)
    for bad in (job("a", 0), job("a", 4, 0), job("a", 60, 5)):
        with pytest.raises(ValueError, match="max_model_len"):
            engine.add(bad, 0.0)
    engine.add(job("a", 4), 0.0)
    with pytest.raises(ValueError, match="in use"):
        engine.add(job("a", 4), 0.0)
    with pytest.raises(ValueError, match="cannot hold"):
        Engine(replace(SMALL, max_model_len=65))


@pytest.mark.parametrize("profile", PROFILES.values(), ids=PROFILES)
def test_every_profile_makes_an_engine(profile):
    assert Engine(profile).pool.free == profile.num_blocks
