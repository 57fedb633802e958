"""What a case is made of: scenarios that run at two sizes, check from outside, and return what they measured."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any

Figures = dict[str, float | str]
Scenario = Callable[["Size"], Coroutine[Any, Any, Figures]]


class CaseFailed(AssertionError):
    """The gateway did not do what the case asks for; the message says what it did."""


@dataclass(frozen=True, slots=True)
class Size:
    """How much a scenario does: `full` is the report's own size, else it is scaled down for the tests."""

    full: bool

    def count(self, small: int, full: int) -> int:
        """Return how many at this size."""
        return full if self.full else small

    def seconds(self, small: float, full: float) -> float:
        """Return how long at this size."""
        return full if self.full else small


SMALL, FULL = Size(full=False), Size(full=True)


def expect(holds: object, told: str) -> None:
    """Raise CaseFailed with `told` unless `holds`."""
    if not holds:
        raise CaseFailed(told)


async def until(condition: Callable[[], object | Awaitable[object]], what: str, within_s: float = 10.0) -> float:
    """Wait until `condition()` (or what it awaits) is true; return after how many seconds. Raises CaseFailed."""
    began_s = time.monotonic()
    while True:
        held = condition()
        if isinstance(held, Awaitable):
            held = await held
        waited_s = time.monotonic() - began_s
        if held:
            return waited_s
        expect(waited_s < within_s, f"waited {within_s:g} s for {what}")
        await asyncio.sleep(0.02)
