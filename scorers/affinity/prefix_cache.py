"""The scorer `prefix_cache`: how much of the prompt an endpoint already holds in its KV cache."""

from collections.abc import Sequence
from dataclasses import dataclass

from scorers.model import EndpointView, RequestView


@dataclass(frozen=True, slots=True)
class PrefixCache:
    """Scores the share of the prompt, 0 to 1, that is expected to be cached."""

    def score(self, request: RequestView, candidates: Sequence[EndpointView]) -> list[float]:
        """Return `request.matched` per candidate, 0 where it names none."""
        matched = request.matched
        if not matched:
            return [0.0] * len(candidates)
        return [matched.get(endpoint.name, 0.0) for endpoint in candidates]
