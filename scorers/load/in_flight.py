"""The scorer `in_flight`: how many of this gateway's own requests an endpoint has now; never stale."""

from collections.abc import Sequence
from dataclasses import dataclass

from scorers.model import EndpointView, RequestView


@dataclass(frozen=True, slots=True)
class InFlight:
    """Scores 1 for an endpoint without requests of ours, 0 at `full_at`, and on below zero in a straight line."""

    full_at: float = 8.0

    def __post_init__(self) -> None:
        if not self.full_at > 0:
            raise ValueError("full_at must be greater than 0")

    def score(self, request: RequestView, candidates: Sequence[EndpointView]) -> list[float]:
        """Return 1 - `in_flight` ÷ `full_at` per candidate."""
        full_at = self.full_at
        return [1.0 - endpoint.in_flight / full_at for endpoint in candidates]
