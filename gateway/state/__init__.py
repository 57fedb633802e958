"""What several gateway processes share: requests in flight, prompts sent, what is counted, orders of the admin API.

To add an implementation: a class with `SharedState`'s methods that passes `tests/contracts/state`, picked in
`gateway/app.py`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from gateway.observability.snapshot import Snapshot

BATCH_S = 0.025
"""Seconds for which a process's own changes are gathered before the others are told."""

GATHER_S = 0.5
"""Seconds that the others have to answer a question."""


class OrderRefused(Exception):
    """An order could not be carried out, so nobody who joins later gets it; `told` is what its giver is to hear."""

    def __init__(self, told: Any) -> None:
        super().__init__(str(told))
        self.told = told


class Participant(Protocol):
    """What one gateway process shows of itself, and takes in of the others; no method waits."""

    def in_flight(self) -> Mapping[str, int]:
        """Return the leases that this process itself holds now, by endpoint name; zeros may be left out."""
        ...

    def counted(self) -> Snapshot:
        """Return what this process itself has counted."""
        ...

    def hear_in_flight(self, elsewhere: Mapping[str, int]) -> None:
        """Take in the leases that all others hold together; an endpoint that is not named has none."""
        ...

    def hear_prompt(self, endpoint: str, keys: Sequence[int]) -> None:
        """Take in that another process sent `endpoint` a prompt with these block keys."""
        ...

    def answer(self, question: str, argument: Any) -> Any:
        """Return this process's own answer: JSON types; None to a question that it does not know."""
        ...

    def obey(self, order: Mapping[str, Any]) -> Any:
        """Carry an order out in this process; return what its giver is to hear, or raise OrderRefused."""
        ...


@dataclass(frozen=True, slots=True)
class Gathered:
    """The answers to one question by process number, this process's own included, and who gave none in time."""

    answers: Mapping[int, Any]
    missing: Sequence[int] = ()


class SharedState(Protocol):
    """One process's place among several.

    What a process does itself it sees at once; of the others it hears within two `BATCH_S`, or never where one cannot
    keep up: nothing here ever waits for another process, but for `gather` and `snapshot`, which do so for a bounded
    time. The leases of a process that has ended vanish; what it counted stays.
    """

    @property
    def number(self) -> int:
        """This process's number, from 1; the one that replaces it has it again."""
        ...

    @property
    def alone(self) -> bool:
        """Whether there are no others to tell, ever."""
        ...

    async def join(self, participant: Participant) -> None:
        """Become one of the processes; once this returns, `participant` has obeyed the orders that hold."""
        ...

    async def run(self) -> None:
        """Tell the others and hear from them; returns when the others cannot be reached any more."""
        ...

    def sent(self, endpoint: str, keys: Sequence[int]) -> None:
        """Note that a prompt with these block keys, which never change, was sent to `endpoint`; a batch has a bound."""
        ...

    async def order(self, key: str, order: Mapping[str, Any]) -> Any:
        """Have every process obey `order`, all in one sequence; return or raise what `obey` did here.

        A process that joins later obeys the newest order of each `key`, so orders that undo each other share a key.
        Raises ConnectionError where the others cannot be reached.
        """
        ...

    async def gather(self, question: str, argument: Any = None, timeout_s: float = GATHER_S) -> Gathered:
        """Return the answers of every process that gives one in `timeout_s`."""
        ...

    async def snapshot(self) -> Snapshot:
        """Return what all processes have counted, those that have ended too; of the same series never less than before.

        Of a process that does not answer in `GATHER_S` the last known figures count.
        """
        ...
