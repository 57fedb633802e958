"""The filter `healthy`: an endpoint that is not ready gets nothing."""

from collections.abc import Sequence
from dataclasses import dataclass

from scorers.model import EndpointView, RequestView


@dataclass(frozen=True, slots=True)
class Healthy:
    """Keeps the endpoints that are ready."""

    def keep(self, request: RequestView, candidates: Sequence[EndpointView]) -> list[EndpointView]:
        """Return the candidates whose `ready` is true."""
        return [endpoint for endpoint in candidates if endpoint.ready]
