"""The picker `max_score`: the greatest total, and luck among equals."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

TIE = 1e-9


@dataclass(frozen=True, slots=True)
class MaxScore:
    """Picks the greatest total; totals within 1e-9 of it are equals, and `chance` chooses among them evenly."""

    def pick(self, totals: Sequence[float], chance: float) -> int:
        """Return the index of the pick; a total that is not a number loses against every number."""
        best = max(totals)
        if best != best:  # NaN in front hides every number behind it from max()
            totals = [-inf if total != total else total for total in totals]
            best = max(totals)
        ties = [index for index, total in enumerate(totals) if total >= best - TIE]
        return ties[int(chance * len(ties))]
