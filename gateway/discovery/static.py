"""Endpoints listed in the configuration: one set, told once."""

from collections.abc import AsyncIterator, Iterable, Sequence
from urllib.parse import urlsplit

from gateway.config import EndpointConfig
from gateway.pool.spec import EndpointSpec


class StaticSource:
    """The source of `discovery.static`."""

    def __init__(self, endpoints: Iterable[EndpointConfig]) -> None:
        self._specs = tuple(spec_of(endpoint) for endpoint in endpoints)

    async def sets(self) -> AsyncIterator[Sequence[EndpointSpec]]:
        """Yield the configured set once."""
        yield self._specs


def spec_of(endpoint: EndpointConfig) -> EndpointSpec:
    """Return the endpoint of a validated section; a URL without a port means 80, or 443 with https."""
    parts = urlsplit(endpoint.url)
    tls = parts.scheme == "https"
    return EndpointSpec(
        name=endpoint.name,
        url=endpoint.url,
        host=parts.hostname or "",
        port=parts.port or (443 if tls else 80),
        role=endpoint.role,
        labels=dict(endpoint.labels),
        loadable_adapters=endpoint.loadable_adapters,
        tls=tls,
    )
