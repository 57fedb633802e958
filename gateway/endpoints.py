"""Which endpoints there are: what their source tells, and what the admin's verbs say over it.

Commands and answers are plain data (JSON types), so that one process can have another carry them out.
"""

import json
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from gateway.config_source import read_endpoint
from gateway.discovery import Source
from gateway.discovery.static import spec_of
from gateway.errors import EndpointExists, EndpointUnknown, GatewayError, InvalidRequest
from gateway.pool.endpoint import Endpoint
from gateway.pool.overrides import Override, added, kept, removed, wanted
from gateway.pool.spec import EndpointSpec
from gateway.pool.store import Pool

logger = logging.getLogger(__name__)

Command = Mapping[str, Any]
Done = dict[str, Any]


class Endpoints:
    """The endpoints of one process. `apply` makes the pool hold exactly the endpoints it is given."""

    def __init__(self, pool: Pool, clock: Callable[[], float]) -> None:
        self.apply: Callable[[Iterable[EndpointSpec]], object] = pool.reconcile
        self.pool, self._clock = pool, clock
        self._told: dict[str, EndpointSpec] = {}
        self._overrides: dict[str, Override] = {}

    async def follow(self, source: Source) -> None:
        """Take in what `source` tells, set by set, until it has no more to tell."""
        async for specs in source.sets():
            self.tell(specs)

    def tell(self, specs: Iterable[EndpointSpec]) -> None:
        """Take in the whole set that a source tells."""
        self._told = {spec.name: spec for spec in specs}
        self._overrides = kept(self._told, self._overrides)
        self._apply()

    def perform(self, command: Command) -> Done:
        """Carry out `{"verb": "add", "endpoint": {…}}`, or `remove`, `drain`, `undrain` with a `name`.

        Returns `{"status": the HTTP status, "body": the endpoint as described, or an error in the usual shape}`.
        """
        try:
            if command["verb"] == "add":
                return {"status": 201, "body": self.add(command["endpoint"])}
            verbs = {"remove": self.remove, "drain": self.drain, "undrain": self.undrain}
            return {"status": 200, "body": verbs[command["verb"]](command["name"])}
        except GatewayError as error:
            return {"status": error.status, "body": json.loads(error.body())}

    def add(self, given: object) -> dict[str, Any]:
        """Add the endpoint of a section as in the configuration. Raises InvalidRequest, EndpointExists."""
        section, problems = read_endpoint(given)
        if section is None:
            raise InvalidRequest("; ".join(problems))
        spec = spec_of(section)
        if self.pool.get(spec.name) is not None:
            raise EndpointExists(f"an endpoint named {spec.name!r} is there already", param="name")
        self._overrides = added(self._told, self._overrides, spec)
        self._apply()
        logger.info("endpoint %s was added by the admin API: %s, role %s", spec.name, spec.url, spec.role)
        return self._find(spec.name).describe(self._clock())

    def remove(self, name: str) -> dict[str, Any]:
        """Take an endpoint out: it gets no new requests, those in flight go on. Raises EndpointUnknown."""
        endpoint = self._find(name)
        self._overrides = removed(self._told, self._overrides, name)
        self._apply()
        logger.info("endpoint %s was removed by the admin API with %d in flight", name, endpoint.in_flight)
        return endpoint.describe(self._clock())

    def drain(self, name: str) -> dict[str, Any]:
        """Give an endpoint no new requests; those in flight go on. Raises EndpointUnknown."""
        return self._drain(name, True)

    def undrain(self, name: str) -> dict[str, Any]:
        """Give an endpoint requests again. Raises EndpointUnknown."""
        return self._drain(name, False)

    def _drain(self, name: str, on: bool) -> dict[str, Any]:
        endpoint = self._find(name)
        if endpoint.draining is not on:
            endpoint.drain(on)
            what = "is drained" if on else "is drained no longer"
            logger.info("endpoint %s %s, by the admin API, with %d in flight", name, what, endpoint.in_flight)
        return endpoint.describe(self._clock())

    def _find(self, name: str) -> Endpoint:
        endpoint = self.pool.get(name)
        if endpoint is None:
            raise EndpointUnknown(f"no endpoint is named {name!r}", param="name")
        return endpoint

    def _apply(self) -> None:
        self.apply(wanted(self._told, self._overrides))


def order_key(command: Command) -> str:
    """Return the key under which a process that joins later needs only the last of these commands.

    Those that are left, in their order, then bring it to the same endpoints: an addition does not stand for the removal
    before it, which made room for it.
    """
    verb = "drain" if command["verb"] == "undrain" else command["verb"]
    if verb != "add":
        return f"{verb}:{command['name']}"
    section, _ = read_endpoint(command["endpoint"])
    return f"add:{section.name if section else ''}"
