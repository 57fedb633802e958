"""What must hold for every workload on the scheduler of a simulated engine."""

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from gateway.simulator.engine import Engine
from gateway.simulator.job import Job, Status
from gateway.simulator.profiles import PROFILES
from gateway.simulator.tokens import Sampler

TINY = replace(
    PROFILES["fast"], block_size=4, num_blocks=24, max_model_len=64, max_num_seqs=4, max_num_batched_tokens=24
)
PROMPTS = st.lists(st.integers(300, 303), min_size=1, max_size=40)


def job(name: str, prompt: list[int], max_tokens: int, **more: object) -> Job:
    limit = min(max_tokens, TINY.max_model_len - len(prompt))
    return Job(id=name, prompt=prompt, max_tokens=limit, sampler=Sampler("m", prompt, None, 16), **more)  # type: ignore[arg-type]


def drain(engine: Engine, now_s: float = 0.0) -> list[tuple[str, int]]:
    """Step until nothing can run; return what was said."""
    said = []
    while (duration_s := engine.begin_step(now_s)) is not None:
        now_s += duration_s
        said += [(each.id, token) for each, token in engine.end_step(now_s)]
    return said


def alone(prompt: list[int], max_tokens: int) -> list[int]:
    engine = Engine(TINY)
    engine.add(job("alone", prompt, max_tokens), 0.0)
    return [token for _, token in drain(engine)]


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(PROMPTS, st.integers(1, 24)), min_size=1, max_size=12))
def test_every_job_ends_and_says_what_it_says_alone(asked):
    engine = Engine(TINY)
    jobs = [job(str(index), prompt, length) for index, (prompt, length) in enumerate(asked)]
    for each in jobs:
        engine.add(each, 0.0)
    said = drain(engine)
    for each, (prompt, length) in zip(jobs, asked, strict=True):
        assert each.status is Status.FINISHED
        assert each.finish_reason in ("stop", "length")
        assert [token for name, token in said if name == each.id] == alone(prompt, length)
    engine.pool.check()
    assert engine.pool.free == engine.pool.size
    assert engine.totals.prompt == sum(len(prompt) for prompt, _ in asked)
    assert engine.totals.generated == len(said)
    assert engine.totals.computed + engine.totals.cached + engine.totals.external == engine.totals.prompt


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(PROMPTS, st.integers(1, 24)), min_size=1, max_size=8))
def test_the_same_input_gives_the_same_run(asked):
    runs = []
    for _ in range(2):
        engine = Engine(TINY)
        for index, (prompt, length) in enumerate(asked):
            engine.add(job(str(index), prompt, length), 0.0)
        runs.append((drain(engine), engine.totals))
    assert runs[0] == runs[1]


@settings(max_examples=40, deadline=None)
@given(PROMPTS, st.integers(1, 20))
def test_a_repeated_prompt_hits_all_whole_blocks_but_never_its_last_token(prompt, length):
    engine = Engine(TINY)
    engine.add(job("first", prompt, length), 0.0)
    drain(engine)
    again = job("again", prompt, length)
    engine.add(again, 0.0)
    drain(engine)
    assert again.cached_tokens == (len(prompt) - 1) // TINY.block_size * TINY.block_size


@settings(max_examples=40, deadline=None)
@given(PROMPTS, st.integers(1, 20), PROMPTS)
def test_a_longer_conversation_hits_what_was_said(prompt, length, more):
    engine = Engine(TINY)
    first = job("first", prompt, length)
    engine.add(first, 0.0)
    drain(engine)
    longer = (first.tokens + more)[: TINY.max_model_len - 1]
    second = job("second", longer, 1)
    engine.add(second, 0.0)
    drain(engine)
    known = min(len(first.tokens) - 1, len(longer) - 1)
    assert second.cached_tokens >= known // TINY.block_size * TINY.block_size


@settings(max_examples=40, deadline=None)
@given(PROMPTS, st.integers(1, 64), st.integers(2, 20))
def test_text_after_a_handoff_is_the_text_of_one_engine(prompt, remote_tokens, length):
    engine = Engine(TINY)
    handed = job("handed", prompt, length, remote_tokens=remote_tokens)
    engine.add(handed, 0.0)
    assert engine.begin_step(0.0) is None
    (loading,) = engine.take_loads()
    engine.loaded(loading)
    assert [token for _, token in drain(engine)] == alone(prompt, length)
    assert engine.totals.external == min(remote_tokens, len(prompt))


class EngineLife(RuleBasedStateMachine):
    """Adds, aborts, pins, loads and steps in any order; the books must balance after each."""

    def __init__(self) -> None:
        super().__init__()
        self.engine = Engine(TINY)
        self.now_s = 0.0
        self.jobs: list[Job] = []
        self.loading: list[Job] = []
        self.mid_step = False

    @rule(prompt=PROMPTS, length=st.integers(1, 24), pin=st.booleans(), remote=st.sampled_from([0, 0, 3, 40]))
    def add(self, prompt: list[int], length: int, pin: bool, remote: int) -> None:
        each = job(str(len(self.jobs)), prompt, length, pin=pin, remote_tokens=remote)
        self.jobs.append(each)
        self.engine.add(each, self.now_s)

    @precondition(lambda self: self.jobs)
    @rule(which=st.integers(0, 1000))
    def abort(self, which: int) -> None:
        each = self.jobs[which % len(self.jobs)]
        ended = each.status is Status.FINISHED
        assert (self.engine.abort(each.id) is None) == ended
        assert each.status is Status.FINISHED

    @precondition(lambda self: self.engine.pins)
    @rule(which=st.integers(0, 1000))
    def unpin(self, which: int) -> None:
        name = sorted(self.engine.pins)[which % len(self.engine.pins)]
        assert self.engine.unpin(name) > 0
        assert self.engine.unpin(name) == 0

    @precondition(lambda self: self.loading)
    @rule(arrives=st.booleans(), recompute=st.booleans())
    def load(self, arrives: bool, recompute: bool) -> None:
        each = self.loading.pop()
        if each.status is not Status.LOADING:
            return
        if arrives:
            self.engine.loaded(each)
        else:
            self.engine.load_failed(each, recompute=recompute)
            assert recompute or each.finish_reason == "error"

    @rule()
    def step(self) -> None:
        if self.mid_step:
            self.engine.end_step(self.now_s)
            self.mid_step = False
        else:
            duration_s = self.engine.begin_step(self.now_s)
            self.mid_step = duration_s is not None
            self.now_s += duration_s or 0.0
        self.loading += self.engine.take_loads()

    @invariant()
    def books_balance(self) -> None:
        engine = self.engine
        engine.pool.check()
        held = {block for each in engine.jobs.values() for block in each.blocks}
        held |= {block for pin in engine.pins.values() for block in pin.blocks}
        assert len(held) + engine.pool.free == engine.pool.size
        assert 0 <= engine.usage <= 1
        assert engine.pinned_blocks >= len({block for pin in engine.pins.values() for block in pin.blocks})
        for each in engine.jobs.values():
            assert each.cached_tokens <= len(each.prompt) - 1
            assert each.computed < len(each.tokens)
        assert len(engine.running) <= TINY.max_num_seqs
        assert len(engine.jobs) == len(engine.running) + len(engine.waiting) + len(engine.loading)

    def teardown(self) -> None:
        if self.mid_step:
            self.engine.end_step(self.now_s)
        for _ in range(2 * len(self.jobs) + 2):
            for name in tuple(self.engine.pins):
                self.engine.unpin(name)
            drain(self.engine, self.now_s)
            for each in self.engine.take_loads() + self.loading:
                if each.status is Status.LOADING:
                    self.engine.loaded(each)
            self.loading = []
        for name in tuple(self.engine.pins):
            self.engine.unpin(name)
        assert [each.id for each in self.jobs if each.status is not Status.FINISHED] == []
        assert self.engine.pool.free == self.engine.pool.size


TestEngineLife = EngineLife.TestCase
TestEngineLife.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
