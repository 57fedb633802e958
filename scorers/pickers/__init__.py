"""Pickers choose one candidate by the totals.

To add one, put one file `NAME.py` here with one frozen dataclass of that name in CamelCase that satisfies `Picker`.
The configuration's name is the file name.
"""

from collections.abc import Sequence
from typing import Protocol


class Picker(Protocol):
    """Chooses one of the candidates."""

    def pick(self, totals: Sequence[float], chance: float) -> int:
        """Return an index into `totals`, which has at least one entry; `chance` in [0, 1) is the only luck allowed."""
        ...
