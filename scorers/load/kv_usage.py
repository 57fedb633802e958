"""The scorer `kv_usage`: how much of the KV cache is free."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import fsum

from scorers.model import EndpointView, RequestView


@dataclass(frozen=True, slots=True)
class KvUsage:
    """Scores the free share of the KV blocks, 0 to 1."""

    def score(self, request: RequestView, candidates: Sequence[EndpointView]) -> list[float]:
        """Return 1 - `kv_usage` per candidate; a stale one is at least as full as the fresh ones are on average."""
        if True not in [endpoint.stale for endpoint in candidates]:
            return [1.0 - endpoint.kv_usage for endpoint in candidates]
        fresh = [endpoint.kv_usage for endpoint in candidates if not endpoint.stale]
        if not fresh:
            return [1.0 - endpoint.kv_usage for endpoint in candidates]
        mean = fsum(fresh) / len(fresh)
        return [
            1.0 - (max(endpoint.kv_usage, mean) if endpoint.stale else endpoint.kv_usage) for endpoint in candidates
        ]
