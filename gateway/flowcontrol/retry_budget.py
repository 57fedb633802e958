"""The share of traffic that may be sent a second time, as a bucket of tokens; no clock of its own.

Invariant: retries that were let through are at most `FLOOR` + `FLOOR_PER_S` × seconds + `ratio` × requests.
"""

from typing import Final

FLOOR: Final = 10.0  # tokens that are there at the start, and that time alone brings back
FLOOR_PER_S: Final = 1.0
MOST: Final = 100.0  # tokens that requests may save up


class RetryBudget:
    """Each request brings `ratio` tokens, each retry takes one; `now_s` is monotonic seconds."""

    __slots__ = ("_ratio", "_since_s", "_tokens")

    def __init__(self, ratio: float, now_s: float) -> None:
        self._ratio, self._tokens, self._since_s = ratio, FLOOR, now_s

    def configure(self, ratio: float) -> None:
        """Go by another ratio from now on; what is saved up stays."""
        self._ratio = ratio

    def earn(self) -> None:
        """Count one request."""
        tokens = self._tokens + self._ratio
        self._tokens = tokens if tokens < MOST else MOST

    def allows(self, now_s: float) -> bool:
        """Return whether a retry may be made now."""
        elapsed_s = now_s - self._since_s
        self._since_s = now_s
        if self._tokens < FLOOR:
            self._tokens = min(FLOOR, self._tokens + elapsed_s * FLOOR_PER_S)
        return self._tokens >= 1.0

    def spend(self) -> None:
        """Take the token of a retry that is made; call it only after `allows`, in the same breath."""
        self._tokens -= 1.0
