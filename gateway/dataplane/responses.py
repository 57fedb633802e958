"""Which endpoint made which response, so that what is asked of a response by its id goes to the engine that keeps it.

Invariant: at most `limit` ids are kept, the oldest go first; one that is not known here (made before a restart, or
through another process of this gateway) is looked for on one endpoint after another.
"""

import re
from collections.abc import Awaitable, Callable, Iterator
from typing import NamedTuple

from gateway.dataplane.records import Exchange
from gateway.errors import NoEndpoint, UpstreamFailed
from gateway.pool.endpoint import Endpoint, Lease
from gateway.pool.store import Pool
from gateway.upstream.client import Leg

MAX_ASKED = 16
OK, NOT_FOUND = 200, 404
_ANSWER_BYTES = 1 << 20
_LOOKED_AT_BYTES = 4096
_ID = re.compile(rb'"id"\s*:\s*"(resp_[A-Za-z0-9_-]{1,200})"')

Send = Callable[[Lease], Awaitable[Leg]]


class Made(NamedTuple):
    """Who made a response: the endpoint's name, and the model that was asked for."""

    endpoint: str
    model: str


class Responses:
    """The last `limit` response ids with their makers, and how to ask for one."""

    def __init__(self, pool: Pool, limit: int = 10_000) -> None:
        self._pool, self._limit = pool, limit
        self._made: dict[str, Made] = {}

    def __len__(self) -> int:
        return len(self._made)

    def note(self, leg: Leg, model: str) -> None:
        """Keep the id at the beginning of an answer to POST `/v1/responses`, if it is there.

        Only the bytes that came with the head are looked at, at most 4 KB; of one id, the first maker stays.
        """
        found = _ID.search(b"".join(leg.early)[:_LOOKED_AT_BYTES]) if leg.status == OK else None
        if found is None:
            return
        made = self._made
        made.setdefault(found[1].decode("ascii"), Made(leg.name, model))
        if len(made) > self._limit:
            del made[next(iter(made))]

    def maker(self, response_id: str) -> Made | None:
        """Return who made a response, or None where that is not known; it counts as used now."""
        made = self._made.pop(response_id, None)
        if made is not None:
            self._made[response_id] = made
        return made

    async def ask(self, exchange: Exchange, response_id: str, send: Send) -> Leg:
        """Return the answer to a request for a response by its id: the maker's, else the first that is not 404.

        Where every endpoint says 404, the last of these passes. The maker is asked first, and its failure is raised;
        others follow where it is not ready or says 404 itself. A lookup takes a lease, but does not wait for room: what
        it cancels makes some. Raises UpstreamFailed, UpstreamTimeout, NoEndpoint.
        """
        made = self.maker(response_id)
        receipt = exchange.receipt
        receipt.route, receipt.reason = "single", "response_id"
        if made is not None:
            receipt.model = made.model
        turns = self._turns(None if made is None else made.endpoint)
        failure: UpstreamFailed | None = None

        async def following() -> Leg | None:
            nonlocal failure
            for endpoint in turns:
                lease = endpoint.lease()
                exchange.leases.append(lease)
                try:
                    return await send(lease)
                except UpstreamFailed as error:
                    failure = error
                    lease.release()
                    if made is not None and made.endpoint == endpoint.name:
                        break
            if failure is not None:
                raise failure
            return None

        first = await following()
        if first is None:
            raise NoEndpoint("no endpoint is ready that could know this response", retry_after_s=1.0)
        return await first_found(first, following)

    def _turns(self, maker: str | None) -> Iterator[Endpoint]:
        """Yield the ready endpoints, the maker first, not over `MAX_ASKED`; one that left meanwhile is passed over."""
        endpoints = sorted(self._pool, key=lambda one: one.name != maker)
        return (one for one in [one for one in endpoints if one.ready][:MAX_ASKED] if one.ready)


async def first_found(leg: Leg, following: Callable[[], Awaitable[Leg | None]]) -> Leg:
    """Return `leg`, or where it says 404 the first of those that follow which does not; else the last."""
    for _ in range(MAX_ASKED):
        if leg.status != NOT_FOUND:
            break
        if not leg.complete:
            await leg.read(_ANSWER_BYTES)
        another = await following()
        if another is None:
            break
        leg = another
    return leg
