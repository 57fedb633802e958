"""The scheduler of one simulated engine: continuous batching over a finite KV cache, in virtual time.

Invariant: nothing here waits, reads a clock or draws by chance. The driver calls `begin_step(now)`, lets the returned
duration pass on its clock, calls `end_step(now)`, and may add, abort, unpin or report a loaded job in between.

A step gives each running job its next tokens (one when decoding, a chunk of its prompt before that), then admits
waiting jobs, all within one token budget. A job that cannot get a block takes those of the youngest running job,
which starts over (its own cache may still hit).
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from gateway.simulator.blocks import BlockPool
from gateway.simulator.job import Job, Status
from gateway.simulator.profiles import Profile
from gateway.simulator.tokens import block_hashes, next_block_hash


@dataclass(slots=True)
class Totals:
    """What an engine has done since its start, in tokens where not said otherwise."""

    steps: int = 0
    preemptions: int = 0
    prefix_queries: int = 0
    prefix_hits: int = 0
    external_queries: int = 0
    external_hits: int = 0
    prompt: int = 0
    computed: int = 0
    cached: int = 0
    external: int = 0
    generated: int = 0


@dataclass(frozen=True, slots=True)
class Pin:
    """Blocks kept for another engine: `tokens` tokens of KV in `blocks`."""

    blocks: tuple[int, ...]
    tokens: int


class Engine:
    """One engine; `profile` gives its speed and size. A job's id must be unique while it or its pin lives."""

    def __init__(self, profile: Profile) -> None:
        if profile.num_blocks * profile.block_size < profile.max_model_len:
            raise ValueError(
                f"{profile.num_blocks} blocks of {profile.block_size} tokens "
                f"cannot hold one sequence of max_model_len {profile.max_model_len}"
            )
        self.profile = profile
        self.pool = BlockPool(profile.num_blocks)
        self.totals = Totals()
        self.jobs: dict[str, Job] = {}
        self.pins: dict[str, Pin] = {}
        self.waiting: deque[Job] = deque()
        self.running: list[Job] = []
        self.to_load: list[Job] = []
        self.loading: dict[str, Job] = {}
        self._plan: list[tuple[Job, int]] = []

    @property
    def usage(self) -> float:
        """The share of KV blocks in use, 0 to 1."""
        return 1.0 - self.pool.free / self.pool.size

    @property
    def pinned_blocks(self) -> int:
        """The number of block references kept for other engines."""
        return sum(len(pin.blocks) for pin in self.pins.values())

    def add(self, job: Job, now_s: float) -> None:
        """Queue `job`. Raises ValueError if it could never fit or its id is in use."""
        if job.id in self.jobs or job.id in self.pins:
            raise ValueError(f"job id {job.id!r} is in use")
        if not job.prompt or len(job.prompt) + job.max_tokens > self.profile.max_model_len or job.max_tokens < 1:
            raise ValueError("a job needs a prompt, a token to say, and no more than max_model_len tokens in all")
        job.tokens = list(job.prompt)
        job.hashes = block_hashes(job.prompt, self.profile.block_size, job.salt)
        job.arrived_s = now_s
        self.jobs[job.id] = job
        self.waiting.append(job)

    def abort(self, job_id: str) -> Job | None:
        """End the job, free its blocks at once and return it; None if it has ended already."""
        job = self.jobs.get(job_id)
        if job is not None:
            if job.status is Status.RUNNING:
                self.running.remove(job)
            elif job.status is Status.LOADING:
                del self.loading[job_id]
            else:
                self.waiting.remove(job)
            if job in self.to_load:
                self.to_load.remove(job)
            job.finish_reason = "abort"
            self._finish(job)
        return job

    def unpin(self, job_id: str) -> int:
        """Free the blocks pinned for `job_id`; return how many, 0 if there are none."""
        pin = self.pins.pop(job_id, None)
        if pin is None:
            return 0
        self.pool.drop(pin.blocks)
        return len(pin.blocks)

    def take_loads(self) -> list[Job]:
        """Return the jobs that now wait for KV to arrive; the driver answers each by `loaded` or `load_failed`."""
        taken, self.to_load = self.to_load, []
        return taken

    def loaded(self, job: Job) -> None:
        """The KV of a loading job has arrived; it is next in the queue, its last prompt token still to be computed."""
        job.computed = min(job.cached_tokens + job.external_tokens, len(job.prompt) - 1)
        self._remember(job, job.computed)
        self._requeue(job)

    def load_failed(self, job: Job, *, recompute: bool) -> None:
        """The KV of a loading job will not arrive: it computes the prompt itself, or ends with reason "error"."""
        job.external_tokens = 0
        job.remote_tokens = 0
        if recompute:
            self._requeue(job)
        else:
            del self.loading[job.id]
            job.finish_reason = "error"
            self._finish(job)

    def begin_step(self, now_s: float) -> float | None:
        """Plan the next step; return how long it takes in seconds, or None if nothing can run now."""
        budget = self.profile.max_num_batched_tokens
        self._plan = plan = []
        preempted = False
        index = 0
        while index < len(self.running) and budget > 0:
            job = self.running[index]
            count = min(len(job.tokens) - job.computed, budget)
            while not self._grow(job, job.computed + count):
                preempted = True
                if self._preempt() is job:
                    break
            else:
                plan.append((job, count))
                self._remember(job, job.computed + count)
                budget -= count
                index += 1
        if not preempted:
            self._admit(budget, now_s)
        return self._duration_s() if plan else None

    def end_step(self, now_s: float) -> list[tuple[Job, int]]:
        """Apply the planned step; return each job that said a token, with the token."""
        said = []
        ended = False
        self.totals.steps += 1
        for job, count in self._plan:
            if job.status is not Status.RUNNING:
                continue
            job.computed += count
            if job.computed < len(job.tokens):
                continue
            if not job.output_tokens:
                self._count_prompt(job, now_s)
            said.append((job, job.say()))
            self.totals.generated += 1
            job.last_token_s = now_s
            ended = ended or job.finish_reason is not None
        self._plan = []
        if ended:
            self.running = [job for job in self.running if job.finish_reason is None]
            for job, _ in said:
                if job.finish_reason is not None:
                    self._finish(job)
        return said

    def _admit(self, budget: int, now_s: float) -> None:
        while self.waiting and budget > 0:
            job = self.waiting[0]
            if job.remote_tokens and not job.external_tokens:
                if not self._start_loading(job):
                    return
                continue
            if len(self.running) >= self.profile.max_num_seqs or not self._place(job, budget):
                return
            self.waiting.popleft()
            job.status = Status.RUNNING
            job.started_s = job.started_s or now_s
            self.running.append(job)
            count = min(len(job.tokens) - job.computed, budget)
            self._plan.append((job, count))
            self._remember(job, job.computed + count)
            budget -= count

    def _place(self, job: Job, budget: int) -> bool:
        """Give a waiting job its cached blocks and those of its first chunk; False if too few are free."""
        if job.blocks:
            return self._grow(job, job.computed + min(len(job.tokens) - job.computed, budget))
        hits = self._hit(job)
        computed = len(hits) * self.profile.block_size
        target = computed + min(len(job.tokens) - computed, budget)
        if not self._seize(job, hits, target):
            return False
        job.computed = computed
        self._count_hits(job, computed)
        return True

    def _start_loading(self, job: Job) -> bool:
        hits = self._hit(job)
        cached = len(hits) * self.profile.block_size
        prompt_tokens = min(job.remote_tokens, len(job.prompt))
        if prompt_tokens <= cached:
            job.remote_tokens = 0
            return True
        if not self._seize(job, hits, prompt_tokens):
            return False
        self.waiting.popleft()
        job.computed = cached
        self._count_hits(job, cached)
        job.external_tokens = prompt_tokens - cached
        self.totals.external_queries += len(job.prompt) - cached
        self.totals.external_hits += job.external_tokens
        job.status = Status.LOADING
        self.loading[job.id] = job
        self.to_load.append(job)
        return True

    def _requeue(self, job: Job) -> None:
        del self.loading[job.id]
        job.status = Status.WAITING
        self.waiting.appendleft(job)

    def _hit(self, job: Job) -> list[int]:
        return self.pool.lookup(job.hashes[: (len(job.tokens) - 1) // self.profile.block_size])

    def _seize(self, job: Job, hits: Sequence[int], target: int) -> bool:
        needed = -(-target // self.profile.block_size) - len(hits)
        if needed > self.pool.free - self.pool.idle(hits):
            return False
        self.pool.hold(hits)
        job.blocks = [*hits, *self.pool.take(needed)]
        job.remembered = len(hits)
        return True

    def _grow(self, job: Job, target: int) -> bool:
        needed = -(-target // self.profile.block_size) - len(job.blocks)
        if needed <= 0:
            return True
        if needed > self.pool.free:
            return False
        job.blocks += self.pool.take(needed)
        return True

    def _preempt(self) -> Job:
        job = self.running.pop()
        self.pool.drop(job.blocks)
        job.blocks = []
        job.computed = job.remembered = 0
        job.remote_tokens = 0
        job.preemptions += 1
        job.status = Status.WAITING
        self.waiting.appendleft(job)
        self.totals.preemptions += 1
        return job

    def _remember(self, job: Job, computed: int) -> None:
        """Let the whole blocks of the first `computed` tokens be found.

        That is done when they are planned, as vLLM does when it allocates them: a step writes a layer's KV before any
        request of the step reads it, so prompts that arrive together share their front part.
        """
        block_size = self.profile.block_size
        whole = computed // block_size
        while len(job.hashes) < whole:
            start = len(job.hashes) * block_size
            parent = job.hashes[-1] if job.hashes else job.salt
            job.hashes.append(next_block_hash(job.tokens[start : start + block_size], parent))
        for index in range(job.remembered, whole):
            self.pool.remember(job.blocks[index], job.hashes[index])
        job.remembered = max(job.remembered, whole)

    def _finish(self, job: Job) -> None:
        del self.jobs[job.id]
        job.status = Status.FINISHED
        if job.pin and job.finish_reason in ("stop", "length") and job.blocks:
            self.pins[job.id] = Pin(tuple(job.blocks), job.computed)
        else:
            self.pool.drop(job.blocks)
        job.blocks = []

    def _duration_s(self) -> float:
        prefill = decoding = context = 0
        for job, count in self._plan:
            if job.computed >= len(job.prompt) or count == 1:
                decoding += 1
                context += job.computed
            else:
                prefill += count
        profile = self.profile
        return (
            profile.step_s
            + profile.prefill_token_s * prefill
            + profile.decode_seq_s * decoding
            + profile.context_token_s * context
        )

    def _count_hits(self, job: Job, cached: int) -> None:
        if job.admitted:
            return
        job.admitted = True
        job.cached_tokens = cached
        self.totals.prefix_queries += len(job.prompt)
        self.totals.prefix_hits += cached

    def _count_prompt(self, job: Job, now_s: float) -> None:
        totals = self.totals
        job.first_token_s = now_s
        totals.prompt += len(job.prompt)
        totals.cached += job.cached_tokens
        totals.external += job.external_tokens
        totals.computed += len(job.prompt) - job.cached_tokens - job.external_tokens
