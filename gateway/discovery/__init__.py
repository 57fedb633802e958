"""Where endpoints come from. A source tells, again and again, the whole set of endpoints that there should be.

To add a source: one file in this folder with a class that meets `Source`, and its section in `gateway/config.py`.
"""

from collections.abc import AsyncIterator, Sequence
from typing import Protocol

from gateway.pool.spec import EndpointSpec


class Source(Protocol):
    """A source of endpoints."""

    def sets(self) -> AsyncIterator[Sequence[EndpointSpec]]:
        """Yield the whole set of endpoints at once, then again at each change; ends where nothing can change."""
        ...
