"""Passive ejection as a pure state machine: what the outcomes of requests do to an endpoint's standing.

Invariant: an answer of 4xx moves nothing; an endpoint goes out only where it is not the last of a model, for at most
`longest_s`; what comes of requests that were sent before it went out changes nothing while it is out.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final, NamedTuple

NO_PROGRESS: Final = "no_progress"
_KEPT_FAILURES: Final = 64
_MOST_DOUBLINGS: Final = 20
_NOT_IMPLEMENTED: Final = 501


class State(Enum):
    """`IN` gets requests, `OUT` none, `TRIAL` one at a time until one succeeds."""

    IN = "in"
    OUT = "out"
    TRIAL = "trial"


class Event(Enum):
    """What became of a request, or what else bears on an endpoint's standing."""

    SUCCESS = "success"  # a whole answer below 400
    BEGUN = "begun"  # the first body byte of an answer below 400, of which more is to come
    ENDED = "ended"  # such an answer came whole
    BROKE = "broke"  # such an answer broke off, or fell silent
    CALLER = "caller"  # 4xx, 429 too, and 501: the engine is at work, and says nothing of its health
    FAIL = "fail"  # another 5xx, no connection, or what is no answer, before the first body byte
    SILENT = "silent"  # no answer in time
    STUCK = "stuck"  # it sent no byte for long, and gave no token when it was asked for one
    DUE = "due"  # the time of an ejection is over
    NEEDED = "needed"  # nobody else is left for one of its models


@dataclass(frozen=True, slots=True)
class Limits:
    """When an endpoint goes out, and for how long.

    `in_a_row` failures without a success between, or as many within `window_s` seconds that are at least `share` (above
    0, at most 1) of the outcomes there. First out for `first_s`, twice as long each time, at most `longest_s`; anew
    from `first_s` after as much time in as `longest_s`.
    """

    in_a_row: int = 5
    share: float = 0.5
    window_s: float = 10.0
    first_s: float = 1.0
    longest_s: float = 30.0


class Failure(NamedTuple):
    """When a request failed, and how many had succeeded here by then."""

    at_s: float
    successes: int


@dataclass(frozen=True, slots=True)
class Standing:
    """An endpoint's standing.

    `row` counts failures before the first byte since the last beginning of an answer, `broken` answers that broke off
    since the last whole one. `failures` are the newest of the window. `times` is how often it went out without a calm
    time between, `until_s` when it is tried again, `back_s` when it last came back in (monotonic). `reason` is one
    token, empty when it is in. `silent`: it must give a token before a client's request is tried on it.
    """

    state: State = State.IN
    row: int = 0
    broken: int = 0
    failures: tuple[Failure, ...] = ()
    times: int = 0
    until_s: float = 0.0
    back_s: float = float("-inf")
    reason: str = ""
    silent: bool = False

    @property
    def calm(self) -> bool:
        """Whether a success changes nothing."""
        return self.state is State.IN and not self.row and not self.broken


class Sight(NamedTuple):
    """What is to be seen at an event: the monotonic time, the successes so far, and whether nobody else is left."""

    now_s: float
    successes: int
    last: bool = False


def outcome_of(status: int) -> Event:
    """Return what a whole answer of an engine with this status says of the engine."""
    if status < 400:
        return Event.SUCCESS
    return Event.CALLER if status < 500 or status == _NOT_IMPLEMENTED else Event.FAIL


def step(standing: Standing, event: Event, sight: Sight, limits: Limits) -> Standing:
    """Return the standing after `event`."""
    rule = _TABLE.get((standing.state, event))
    return standing if rule is None else rule(standing, sight, limits)


def _begun(standing: Standing, _: Sight, __: Limits) -> Standing:
    return replace(standing, row=0)


def _ended(standing: Standing, _: Sight, __: Limits) -> Standing:
    return replace(standing, broken=0)


def _success(standing: Standing, _: Sight, __: Limits) -> Standing:
    return replace(standing, row=0, broken=0)


def _failed(standing: Standing, sight: Sight, limits: Limits) -> Standing:
    return _judged(replace(standing, row=standing.row + 1), sight, limits)


def _silent(standing: Standing, sight: Sight, limits: Limits) -> Standing:
    after = _failed(standing, sight, limits)
    return replace(after, silent=after.state is State.OUT)


def _broke(standing: Standing, sight: Sight, limits: Limits) -> Standing:
    return _judged(replace(standing, broken=standing.broken + 1), sight, limits)


def _judged(standing: Standing, sight: Sight, limits: Limits) -> Standing:
    oldest_s = sight.now_s - limits.window_s
    recent = [one for one in standing.failures if one.at_s > oldest_s][1 - _KEPT_FAILURES :]
    recent.append(Failure(sight.now_s, sight.successes))
    counted = replace(standing, failures=tuple(recent))
    if sight.last:
        return counted
    if max(counted.row, counted.broken) >= limits.in_a_row:
        return _out(counted, "failures_in_a_row", sight, limits)
    succeeded = sight.successes - recent[0].successes
    if len(recent) >= min(limits.in_a_row, _KEPT_FAILURES) and len(recent) >= limits.share * (len(recent) + succeeded):
        return _out(counted, "failure_share", sight, limits)
    return counted


def _trial_failed(standing: Standing, sight: Sight, limits: Limits) -> Standing:
    return _back(standing, sight, limits) if sight.last else _out(standing, "trial_failed", sight, limits)


def _trial_silent(standing: Standing, sight: Sight, limits: Limits) -> Standing:
    after = _trial_failed(standing, sight, limits)
    return replace(after, silent=after.state is State.OUT)


def _stuck(standing: Standing, sight: Sight, limits: Limits) -> Standing:
    if sight.last and standing.state is not State.OUT:
        return _back(standing, sight, limits)
    return replace(_out(standing, NO_PROGRESS, sight, limits), silent=True)


def _out(standing: Standing, reason: str, sight: Sight, limits: Limits) -> Standing:
    calm = standing.state is State.IN and sight.now_s - standing.back_s > limits.longest_s
    times = 1 if calm else standing.times + 1
    pause_s = min(limits.longest_s, limits.first_s * 2.0 ** min(times - 1, _MOST_DOUBLINGS))
    return Standing(State.OUT, times=times, until_s=sight.now_s + pause_s, back_s=standing.back_s, reason=reason)


def _due(standing: Standing, _: Sight, __: Limits) -> Standing:
    return replace(standing, state=State.TRIAL, reason="")


def _needed(standing: Standing, sight: Sight, limits: Limits) -> Standing:
    # One that gave no token when asked would keep requests waiting that can wait in line for somebody better.
    return standing if standing.reason == NO_PROGRESS else _back(standing, sight, limits)


def _back(standing: Standing, sight: Sight, _: Limits) -> Standing:
    return Standing(times=standing.times, back_s=sight.now_s)


_TABLE: Mapping[tuple[State, Event], Callable[[Standing, Sight, Limits], Standing]] = {
    (State.IN, Event.SUCCESS): _success,
    (State.IN, Event.BEGUN): _begun,
    (State.IN, Event.ENDED): _ended,
    (State.IN, Event.FAIL): _failed,
    (State.IN, Event.SILENT): _silent,
    (State.IN, Event.BROKE): _broke,
    (State.IN, Event.STUCK): _stuck,
    (State.OUT, Event.DUE): _due,
    (State.OUT, Event.STUCK): _stuck,
    (State.OUT, Event.NEEDED): _needed,
    (State.TRIAL, Event.SUCCESS): _back,
    (State.TRIAL, Event.BEGUN): _back,
    (State.TRIAL, Event.FAIL): _trial_failed,
    (State.TRIAL, Event.SILENT): _trial_silent,
    (State.TRIAL, Event.BROKE): _trial_failed,
    (State.TRIAL, Event.STUCK): _stuck,
    (State.TRIAL, Event.NEEDED): _back,
    # CALLER is missing in every state: a 4xx neither counts against an endpoint nor clears what counted before.
}
