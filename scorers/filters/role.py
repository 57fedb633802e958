"""The filter `role`: which roles may take which hop.

It judges one hop by itself. Which prefill endpoint may pair with which decode endpoint (a `both` endpoint joins only
opposite an explicit one) is the route step's business: it passes the candidates of the pairing that it wants.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from scorers.model import EndpointView, RequestView


@dataclass(frozen=True, slots=True)
class Role:
    """Keeps the endpoints whose role fits the hop.

    A prefill endpoint is a whole engine too, so it takes a single hop when nobody else is left: place this filter
    after those that say who is alive and able.
    """

    def keep(self, request: RequestView, candidates: Sequence[EndpointView]) -> list[EndpointView]:
        """Return who may take `request.hop`: for a prefill hop prefill and both, for the others decode and both."""
        unfit = "decode" if request.hop == "prefill" else "prefill"
        kept = [endpoint for endpoint in candidates if endpoint.role != unfit]
        if not kept and request.hop == "single":
            return list(candidates)
        return kept
