"""One sequence inside a simulated engine: what was asked, where it stands, what it has cost."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum, auto

from gateway.simulator.tokens import EOS, Sampler


class Status(Enum):
    """Where a job stands."""

    WAITING = auto()  # for blocks or a place in the batch
    LOADING = auto()  # for KV blocks from another engine
    RUNNING = auto()
    FINISHED = auto()


@dataclass(slots=True, eq=False)
class Job:
    """A sequence to be generated from `prompt`; the fields after `sampler` are the engine's.

    `key` is None for greedy decoding. `forced` tokens are said first, then EOS, instead of drawn ones.
    `pin` keeps the prompt's blocks referenced after the end, until `Engine.unpin`.
    `remote_tokens` is how many tokens of the prompt another engine holds KV of; `tokens` is prompt and output.
    `finish_reason` is None, "stop", "length", "abort" or "error"; `stop_token` the id that stopped it, never EOS.
    """

    id: str
    prompt: Sequence[int]
    max_tokens: int
    sampler: Sampler
    min_tokens: int = 0
    ignore_eos: bool = False
    stop_tokens: frozenset[int] = frozenset()
    forced: Sequence[int] = ()
    salt: int = 0
    pin: bool = False
    remote_tokens: int = 0

    status: Status = Status.WAITING
    tokens: list[int] = field(default_factory=list)
    blocks: list[int] = field(default_factory=list)
    hashes: list[int] = field(default_factory=list)
    computed: int = 0
    remembered: int = 0
    cached_tokens: int = 0
    external_tokens: int = 0
    admitted: bool = False
    preemptions: int = 0
    finish_reason: str | None = None
    stop_token: int | None = None
    arrived_s: float = 0.0
    started_s: float = 0.0
    first_token_s: float = 0.0
    last_token_s: float = 0.0

    def created_cache_tokens(self, block_size: int) -> int:
        """Return how many tokens of the prompt this job has computed into whole blocks that others can hit."""
        return max(len(self.prompt) // block_size * block_size - self.cached_tokens - self.external_tokens, 0)

    @property
    def output_tokens(self) -> int:
        """The number of tokens said so far, EOS included."""
        return len(self.tokens) - len(self.prompt)

    def say(self) -> int:
        """Append the next token, set `finish_reason` if it is the last, and return it."""
        said = self.output_tokens
        if self.forced:
            token = self.forced[said] if said < len(self.forced) else EOS
        else:
            token = self.sampler.draw(may_end=not self.ignore_eos and said >= max(self.min_tokens, 1))
        self.sampler.push(token)
        self.tokens.append(token)
        if token == EOS:
            self.finish_reason = "stop"
        elif token in self.stop_tokens and said >= self.min_tokens:
            self.finish_reason, self.stop_token = "stop", token
        elif said + 1 >= self.max_tokens:
            self.finish_reason = "length"
        return token
