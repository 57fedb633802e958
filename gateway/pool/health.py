"""An endpoint's health as a pure state machine: a table of what each signal does in each state.

Invariant: `ready` is reached by signals of the engine itself alone, never by time; an answer of 4xx moves nothing.
"""

from dataclasses import dataclass, replace
from enum import Enum
from typing import Literal, NamedTuple


class State(Enum):
    """`UNKNOWN` until the first clear signal; only `READY` endpoints get requests."""

    UNKNOWN = "unknown"
    READY = "ready"
    UNREADY = "unready"


class Signal(Enum):
    """What a probe or a request told about an engine."""

    PASS = "pass"  # noqa: S105 - a word, no secret: healthy, and it names its models
    LOADING = "loading"  # it answers, and says that it serves no model yet
    UNCLEAR = "unclear"  # it answers 4xx: alive, nothing said about health
    FAIL = "fail"  # no answer, 5xx, or a refused connection, seen by a probe or by a request


@dataclass(frozen=True, slots=True)
class Limits:
    """How many signals in a row change the state; both at least 1."""

    healthy_after: int = 1
    unhealthy_after: int = 3


@dataclass(frozen=True, slots=True)
class Health:
    """State, the run of equal signals so far, and in words why the endpoint is not ready (None when it is)."""

    state: State = State.UNKNOWN
    passes: int = 0
    fails: int = 0
    reason: str | None = "not probed yet"


class _Rule(NamedTuple):
    """Raise `counter` (None: none); at `limit` signals in a row (None: at once) go to `then`."""

    counter: Literal["passes", "fails"] | None
    limit: Literal["healthy_after", "unhealthy_after"] | None
    then: State


_UP = _Rule("passes", "healthy_after", State.READY)
_DOWN_NOW = _Rule(None, None, State.UNREADY)

_TABLE = {
    (State.UNKNOWN, Signal.PASS): _UP,
    (State.UNKNOWN, Signal.LOADING): _DOWN_NOW,
    (State.UNKNOWN, Signal.UNCLEAR): _Rule(None, None, State.UNKNOWN),
    (State.UNKNOWN, Signal.FAIL): _DOWN_NOW,
    (State.UNREADY, Signal.PASS): _UP,
    (State.UNREADY, Signal.LOADING): _DOWN_NOW,
    (State.UNREADY, Signal.UNCLEAR): _DOWN_NOW,
    (State.UNREADY, Signal.FAIL): _DOWN_NOW,
    (State.READY, Signal.PASS): _Rule(None, None, State.READY),
    (State.READY, Signal.LOADING): _DOWN_NOW,
    (State.READY, Signal.FAIL): _Rule("fails", "unhealthy_after", State.UNREADY),
    # (READY, UNCLEAR) is missing: a 4xx neither counts against a ready endpoint nor clears what counted before.
}


def step(health: Health, signal: Signal, reason: str | None, limits: Limits) -> Health:
    """Return the health after `signal`; `reason` says in words what was seen (used where the endpoint is not ready)."""
    rule = _TABLE.get((health.state, signal))
    if rule is None:
        return health
    passes = health.passes + 1 if rule.counter == "passes" else 0
    fails = health.fails + 1 if rule.counter == "fails" else 0
    reached = rule.limit is None or max(passes, fails) >= getattr(limits, rule.limit)
    if not reached:
        return replace(health, passes=passes, fails=fails)
    if rule.then is State.READY:
        return Health(State.READY, reason=None)
    return Health(rule.then, reason=reason)
