"""The scorer `lora`: where the request's LoRA adapter is active, else where there is room for one more."""

from collections.abc import Sequence
from dataclasses import dataclass

from scorers.model import EndpointView, RequestView

_ROOM = 0.5


@dataclass(frozen=True, slots=True)
class Lora:
    """Scores 1 where the adapter runs or is waited for, 0.5 where a slot is free, 0 where all are taken.

    With the default weights, 1 for this and 2 for `queue_depth`, an active adapter is worth two requests more than a
    free slot and four more than a full endpoint: to load an adapter takes about as long as a short queue, while a
    request that finds every slot taken waits until all requests of one of the other adapters have ended.
    """

    def score(self, request: RequestView, candidates: Sequence[EndpointView]) -> list[float] | None:
        """Return the rating per candidate; None where no candidate tells of adapters, or the model is none.

        One that tells nothing counts as one with room. Of a stale one its activity counts as room, and its room as
        nothing.
        """
        model = request.model
        for endpoint in candidates:
            told = endpoint.adapters
            if told is not None and model not in told.own:
                return [_rated(model, one) for one in candidates]
        return None


def _rated(model: str, endpoint: EndpointView) -> float:
    told = endpoint.adapters
    if told is None:
        return _ROOM
    if model in told.own:  # no adapter here: it needs no slot
        return 1.0
    if model in told.active:
        return _ROOM if endpoint.stale else 1.0
    full = told.slots is not None and len(told.active) >= told.slots
    return 0.0 if full or endpoint.stale else _ROOM
