"""What a routing decision reads and what it returns.

Invariant: every type here is frozen, and a decision is a function of these values alone, so that production,
simulator and tests run the same code and a receipt can be replayed.
"""

from collections.abc import Container, Mapping, Sequence
from typing import Literal, NamedTuple

Role = Literal["both", "prefill", "decode"]
Hop = Literal["single", "prefill", "decode"]

NO_LABELS: Mapping[str, str] = {}
NO_MATCH: Mapping[str, float] = {}
NO_BLOCKS: Mapping[str, int] = {}


class Adapters(NamedTuple):
    """What an endpoint tells of its LoRA adapters.

    `own` are the models that need none. `active` are the adapters that requests run with or wait for, as last scraped;
    `slots` is how many may run at a time, None where that is not told.
    """

    own: frozenset[str] = frozenset()
    active: frozenset[str] = frozenset()
    slots: int | None = None


class EndpointView(NamedTuple):
    """One serving process as a decision sees it.

    `waiting` and `running` are requests as last scraped; `in_flight` counts this gateway's own leases now;
    `sent_since_scrape` and `finished_since_scrape` count what this gateway started and ended since that scrape.
    `models` holds what it serves or can load. `adapters` is None where it tells nothing of them.
    `kv_usage` is the share of KV blocks in use, 0 to 1. `stale` is true when the scrape is too old to be believed.
    `warmth` is how far it has warmed in since it became ready, 0 to 1.
    """

    name: str
    role: Role = "both"
    ready: bool = True
    models: Container[str] = frozenset()
    waiting: float = 0.0
    running: float = 0.0
    kv_usage: float = 0.0
    in_flight: int = 0
    sent_since_scrape: int = 0
    finished_since_scrape: int = 0
    stale: bool = False
    labels: Mapping[str, str] = NO_LABELS
    warmth: float = 1.0
    adapters: Adapters | None = None


class RequestView(NamedTuple):
    """One request as a decision sees it.

    `matched` is the share (0 to 1) of the prompt that each endpoint name holds, `shared` the share that is a front
    part of many prompts. `held_blocks` is how much each endpoint name is thought to have cached in all.
    """

    model: str
    hop: Hop = "single"
    prompt_bytes: int = 0
    matched: Mapping[str, float] = NO_MATCH
    shared: float = 0.0
    held_blocks: Mapping[str, int] = NO_BLOCKS


class Decision(NamedTuple):
    """The pick and the table that explains it.

    `candidates[i]` scored `totals[i]`, the sum over `scorers[j]` of `weights[j] * terms[j][i]`; a scorer that had
    nothing to say of this request is not among them.
    `rejected` maps a name to the filter that took it out. `picked` is None when nobody is left.
    """

    picked: str | None
    candidates: tuple[str, ...] = ()
    scorers: tuple[str, ...] = ()
    weights: tuple[float, ...] = ()
    terms: tuple[Sequence[float], ...] = ()
    totals: tuple[float, ...] = ()
    rejected: Mapping[str, str] = NO_LABELS
