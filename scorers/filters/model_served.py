"""The filter `model_served`: the exact model or adapter name must be among what the endpoint has told, or can load."""

from collections.abc import Sequence
from dataclasses import dataclass

from scorers.model import EndpointView, RequestView


@dataclass(frozen=True, slots=True)
class ModelServed:
    """Keeps the endpoints that serve the request's model."""

    def keep(self, request: RequestView, candidates: Sequence[EndpointView]) -> list[EndpointView]:
        """Return the candidates with `request.model` in `models`; one that has told no models yet serves none."""
        model = request.model
        return [endpoint for endpoint in candidates if model in endpoint.models]
