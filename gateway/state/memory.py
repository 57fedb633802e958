"""Shared state of processes that are none: all in one, or a test's several in one event loop. No I/O.

Invariant: every change reaches the others inside the call that made it, but for leases, which `tell` carries.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from gateway.observability.snapshot import EMPTY, Snapshot, lasting, merge, merge_all
from gateway.state import BATCH_S, GATHER_S, Gathered, OrderRefused, Participant


class Memory:
    """The participants by number, the orders that hold, and what stays of those that left."""

    def __init__(self) -> None:
        self.participants: dict[int, Participant] = {}
        self.orders: dict[str, Mapping[str, Any]] = {}
        self.left: Snapshot = EMPTY

    def leave(self, number: int) -> None:
        """Take a participant out, as if its process had ended."""
        gone = self.participants.pop(number)
        self.left = lasting(merge(self.left, gone.counted()))

    def tell(self) -> None:
        """Tell each participant the leases of all others."""
        held = {number: one.in_flight() for number, one in self.participants.items()}
        for number, participant in self.participants.items():
            participant.hear_in_flight(added(one for other, one in held.items() if other != number))


class MemoryState:
    """One participant's side of a `Memory`; with none given it is alone."""

    def __init__(self, memory: Memory | None = None, number: int = 1) -> None:
        self.number = number
        self.alone = memory is None
        self._memory = memory or Memory()

    async def join(self, participant: Participant) -> None:
        """Become one of the participants."""
        self._memory.participants[self.number] = participant
        for order in self._memory.orders.values():
            with suppress(OrderRefused):
                participant.obey(order)

    async def run(self) -> None:
        """Tell leases until cancelled; one that is alone has nobody to tell."""
        if self.alone:
            await asyncio.get_running_loop().create_future()
        while True:
            await asyncio.sleep(BATCH_S)
            self._memory.tell()

    def sent(self, endpoint: str, keys: Sequence[int]) -> None:
        """Tell the others of a prompt."""
        for number, participant in self._memory.participants.items():
            if number != self.number:
                participant.hear_prompt(endpoint, keys)

    async def order(self, key: str, order: Mapping[str, Any]) -> Any:
        """Have every participant obey."""
        told = self._memory.participants[self.number].obey(order)
        self._memory.orders.pop(key, None)
        self._memory.orders[key] = order
        for number, participant in self._memory.participants.items():
            if number != self.number:
                with suppress(OrderRefused):
                    participant.obey(order)
        return told

    async def gather(self, question: str, argument: Any = None, timeout_s: float = GATHER_S) -> Gathered:  # noqa: ARG002 - the protocol's
        """Ask every participant."""
        return Gathered({number: one.answer(question, argument) for number, one in self._memory.participants.items()})

    async def snapshot(self) -> Snapshot:
        """Add up what every participant has counted and what is left of others."""
        return merge_all([self._memory.left, *(one.counted() for one in self._memory.participants.values())])


def added(parts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Return the sums by name."""
    sums: dict[str, int] = {}
    for part in parts:
        for name, count in part.items():
            sums[name] = sums.get(name, 0) + count
    return sums
