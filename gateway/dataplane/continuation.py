"""What is kept of a stream so that another engine can go on with it where its own is lost (`continuation: true`)."""

from collections.abc import Awaitable, Callable

from gateway.errors import GatewayError, UpstreamFailed
from gateway.upstream.client import Leg
from gateway.wire.continuation import Seam, follow_up, said
from gateway.wire.json_object import Members

# A stream that has said more is not gone on with: that much of each would be held in memory.
KEPT_BYTES = 1 << 20
OK = 200


class Continuation:
    """One stream's past; `elsewhere(body)` opens a leg on an endpoint that has not had this request, or raises."""

    def __init__(self, path: str, members: Members, elsewhere: Callable[[bytes], Awaitable[Leg]]) -> None:
        self._path, self._members, self._elsewhere = path, members, elsewhere
        self._kept: list[bytes] = []
        self._size = 0

    def keep(self, chunk: bytes) -> None:
        """Remember what the engine said, up to `KEPT_BYTES`."""
        self._size += len(chunk)
        if self._size <= KEPT_BYTES:
            self._kept.append(chunk)
        else:
            self._kept.clear()

    async def go_on(self, failure: UpstreamFailed) -> tuple[Leg, Seam]:
        """Return an opened leg for the rest and what makes it fit. Raises `failure` where there is none, ClientGone."""
        stream = b"".join(self._kept)
        before = said(stream)
        if before is None:
            raise failure
        try:
            leg = await self._elsewhere(follow_up(self._path, self._members, before))
        except GatewayError:
            raise failure from None
        if leg.status != OK:
            leg.abort(failure)
            raise failure
        self._kept = [stream[: before.whole_bytes]]
        self._size = before.whole_bytes
        return leg, Seam(before)
