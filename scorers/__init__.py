"""Routing decisions as pure functions over a frozen view of the pool: no I/O, no clock, no random numbers.

To add a scorer, put one file `NAME.py` into the folder that answers its question: `affinity` (where is the state),
`load` (where is room). It holds one frozen dataclass with the file's name in CamelCase (`queue_depth.py`:
`QueueDepth`) that satisfies `Scorer`; its fields, each with a default, are its parameters; `__post_init__` raises
ValueError for a value out of range. The configuration's name is the file name. Nothing else needs a change.
"""

from collections.abc import Sequence
from typing import Protocol

from scorers.model import EndpointView, RequestView


class Scorer(Protocol):
    """Rates every candidate for one request; the greater the better."""

    def score(self, request: RequestView, candidates: Sequence[EndpointView]) -> list[float] | None:
        """Return one finite number per candidate, in the order of `candidates`; 1.0 is the best to be had.

        None where this scorer has nothing to say of the request: it takes no part in the decision then.
        """
        ...
