"""The scorer `queue_depth`: how many requests an endpoint has, scraped and corrected by what was sent since."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import fsum

from scorers.model import EndpointView, RequestView


@dataclass(frozen=True, slots=True)
class QueueDepth:
    """Scores 1 for an empty endpoint, 0 at `full_at` requests, and on below zero in a straight line.

    The line has no floor on purpose. With weights 3 for `prefix_cache` and 2 for this, an endpoint that holds the
    whole prompt is left once it has 12 requests more than an empty one: a hot prefix spreads as its load grows, at
    whatever depth, and stays together while there is room.
    """

    full_at: float = 8.0

    def __post_init__(self) -> None:
        if not self.full_at > 0:
            raise ValueError("full_at must be greater than 0")

    def score(self, request: RequestView, candidates: Sequence[EndpointView]) -> list[float]:
        """Return 1 - depth ÷ `full_at` per candidate.

        The depth of a fresh endpoint is what it reported plus sent less finished since, and at least this gateway's
        own requests there. A stale one counts as its own requests plus what the fresh candidates have from elsewhere
        on average, and at least as their mean depth: an old zero never makes a favourite, and no endpoint starves for
        want of a scrape.
        """
        full_at = self.full_at
        depths = [_depth(endpoint) for endpoint in candidates]
        if True not in [endpoint.stale for endpoint in candidates]:
            return [1.0 - depth / full_at for depth in depths]
        fresh = [endpoint for endpoint in candidates if not endpoint.stale]
        mean = elsewhere = 0.0
        if fresh:
            mean = fsum(map(_depth, fresh)) / len(fresh)
            elsewhere = mean - fsum([endpoint.in_flight for endpoint in fresh]) / len(fresh)
        depths = [
            max(endpoint.in_flight + elsewhere, mean) if endpoint.stale else _depth(endpoint) for endpoint in candidates
        ]
        return [1.0 - depth / full_at for depth in depths]


def _depth(endpoint: EndpointView) -> float:
    since = endpoint.sent_since_scrape - endpoint.finished_since_scrape
    reported = endpoint.waiting + endpoint.running + since
    own = endpoint.in_flight
    return reported if reported > own else own
