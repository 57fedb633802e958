"""The filter `healthy`: an endpoint that is not ready gets nothing, and one that has just become so gets a part.

An engine that has just come has empty queues and empty caches, so every load score favours it, while its first requests
are its slowest. Until it is as warm as the warmest, it may hold its share of what the warmest hold, and one more.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

from scorers.model import EndpointView, RequestView


@dataclass(frozen=True, slots=True)
class Healthy:
    """Keeps the endpoints that are ready, those that warm in only up to their part."""

    def keep(self, request: RequestView, candidates: Sequence[EndpointView]) -> list[EndpointView]:
        """Return the candidates whose `ready` is true, but for those that warm in and hold their part already.

        The part: warmth as a share of the greatest, times the mean `in_flight` of the warmest, rounded up, and one.
        Only endpoints that could take this request are compared, so the warmest of them stay; where all are equally
        new, all do.
        """
        ready = [endpoint for endpoint in candidates if endpoint.ready]
        for endpoint in ready:
            if endpoint.warmth < 1.0:
                return _warmed_in(request, ready)
        return ready


def _warmed_in(request: RequestView, ready: list[EndpointView]) -> list[EndpointView]:
    unfit = "decode" if request.hop == "prefill" else "prefill"
    able = [one for one in ready if one.role != unfit and request.model in one.models]
    greatest = max([one.warmth for one in able], default=0.0)
    if greatest == 0.0:
        return ready
    warmest = [one.in_flight for one in able if one.warmth == greatest]
    mean = sum(warmest) / len(warmest)
    full = {
        one.name for one in able if one.warmth < greatest and one.in_flight >= ceil(one.warmth / greatest * mean) + 1
    }
    return [one for one in ready if one.name not in full] if full else ready
