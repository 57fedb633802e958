"""Filters say which endpoints may serve a request at all.

To add one, put one file `NAME.py` here with one frozen dataclass of that name in CamelCase that satisfies `Filter`.
The configuration's name is the file name; filters run in the order configured, each on what the one before left.
"""

from collections.abc import Sequence
from typing import Protocol

from scorers.model import EndpointView, RequestView


class Filter(Protocol):
    """Leaves out the endpoints that must not get a request."""

    def keep(self, request: RequestView, candidates: Sequence[EndpointView]) -> list[EndpointView]:
        """Return the candidates that stay, in their order and nothing but them; an empty list when none may."""
        ...
