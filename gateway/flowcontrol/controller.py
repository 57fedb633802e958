"""Who may go now: first come, first served, while an endpoint of the model has room.

Invariant: a place in the queue ends exactly once: it gets its turn, times out, or is given up by the client; a turn
that is not taken goes to the next in line, and one that finds no room goes back to where it stood.
"""

import asyncio
import math
from collections import deque
from collections.abc import Callable

from gateway.errors import GatewayError, ModelNotFound, NoEndpoint, QueueFull, cut
from gateway.pool.endpoint import Endpoint
from gateway.pool.store import Pool

BAND = "standard"
_RATE_WEIGHT = 0.1


class Place:
    """A place in the queue. `abort` gives it up; `wait` returns when it is this request's turn to try."""

    __slots__ = ("_future", "_reason", "model", "number", "took_turn")

    def __init__(self, model: str, number: int, loop: asyncio.AbstractEventLoop) -> None:
        self.model, self.number = model, number
        self.took_turn = False
        self._future: asyncio.Future[None] = loop.create_future()
        self._reason: BaseException | None = None

    @property
    def open(self) -> bool:
        """Whether nobody has woken it yet."""
        return not self._future.done()

    def wake(self) -> None:
        """Let it try."""
        if self.open:
            self._future.set_result(None)

    def abort(self, reason: BaseException) -> None:
        """End the wait with `reason`, unless it is over; a wake-up that is still under way counts for nothing."""
        if self._reason is None and not self.took_turn:
            self._reason = reason
            self.wake()

    async def wait(self, timeout_s: float) -> None:
        """Wait to be woken. Raises TimeoutError, or what `abort` was given."""
        async with asyncio.timeout(timeout_s):
            await self._future
        if self._reason is not None:
            raise self._reason
        self.took_turn = True


class Admission:
    """Lets requests go while an endpoint of their model has room; the rest wait, bounded in number and time."""

    def __init__(
        self, pool: Pool, max_in_flight: int, max_queue: int, max_wait_s: float, clock: Callable[[], float]
    ) -> None:
        self.max_wait_s = max_wait_s
        self._pool, self._max_in_flight, self._max_queue, self._clock = pool, max_in_flight, max_queue, clock
        self._places: dict[str, deque[Place]] = {}
        self._woken: dict[str, int] = {}
        self._waiting = self._entered = 0
        self._last_finish_s = clock()
        self._finish_gap_s = 1.0  # while `_gaps`, the number of gaps seen, is 0
        self._gaps, self._busy = 0, False
        pool.on_room.append(self._on_room)
        pool.on_state.append(lambda _: self.wake_next())

    def configure(self, max_in_flight: int, max_queue: int, max_wait_s: float) -> None:
        """Go by other limits from now on; who waits keeps its place, and the time it was given."""
        self._max_in_flight, self._max_queue, self.max_wait_s = max_in_flight, max_queue, max_wait_s
        self.wake_next()

    @property
    def waiting(self) -> int:
        """Requests in the queue now."""
        return self._waiting

    def check_model(self, model: str) -> None:
        """Raise ModelNotFound if endpoints have told their models and none, now or before, has told this one."""
        if self._pool.has_told and not self._pool.could_serve(model):
            raise ModelNotFound(model, self._pool.served_models())

    def may_go(self, model: str) -> bool:
        """Whether a new request may try at once: nobody before it waits or is about to try, and there is room."""
        if not self._busy:
            self._last_finish_s, self._busy = self._clock(), True
        return model not in self._places and model not in self._woken and self._has_room(model)

    def enter(self, model: str, loop: asyncio.AbstractEventLoop, before: Place | None = None) -> Place:
        """Take a place: the last, or for one that tried in vain where it stood (`before`). Raises QueueFull."""
        if self._waiting >= self._max_queue and before is None:
            raise QueueFull(
                f"{self._waiting} requests are waiting already (flow_control.max_queue)",
                retry_after_s=self.retry_after_s(),
            )
        self._entered += 1
        place = Place(model, self._entered if before is None else before.number, loop)
        places = self._places.setdefault(model, deque())
        index = len(places)
        if before is not None:  # in front of all but those that came earlier and are back as well
            index = next((index for index, other in enumerate(places) if other.number > place.number), index)
        places.insert(index, place)
        self._waiting += 1
        return place

    def leave(self, place: Place) -> None:
        """Take a place out of the queue, woken or not; call it once, on every path, as soon as `wait` is over."""
        model = place.model
        places = self._places.get(model)
        if places is not None and place in places:
            self._remove(model, places, place)
            return
        left = self._woken[model] - 1
        if left:
            self._woken[model] = left
        else:
            del self._woken[model]
        if not place.took_turn:
            self.wake_next()

    def wake_next(self) -> None:
        """Wake the first in line of every model that has room, and all of one that has turned out to be unknown.

        Whoever is woken calls this again after taking a lease, so room for many wakes many, one after the other. Of
        models that share an endpoint, the one whose first has waited longest tries first: none starves another.
        """
        for model, places in sorted(self._places.items(), key=lambda line: line[1][0].number):
            if self._pool.has_told and not self._pool.could_serve(model):
                while places:
                    self._wake(model, places)
            elif self._has_room(model):
                self._wake(model, places)

    def late(self, model: str) -> GatewayError:
        """Return the error of a request whose wait was too long."""
        name, waited = repr(cut(model)), f"waited {self.max_wait_s:g} s (flow_control.max_queue_wait_s)"
        if any(one.ready and model in one.servable for one in self._pool):
            return QueueFull(f"no endpoint had room for {name}: {waited}", retry_after_s=self.retry_after_s())
        return NoEndpoint(f"no endpoint is ready to serve {name}: {waited}", retry_after_s=self.max_wait_s)

    def retry_after_s(self) -> float:
        """Return in how many seconds the present queue will have drained, from the measured rate; 1 to 60."""
        return float(min(60, max(1, math.ceil(self._finish_gap_s * (self._waiting + 1)))))

    def _has_room(self, model: str) -> bool:
        limit = self._max_in_flight
        for one in self._pool.each():
            if one.in_flight + one.in_flight_elsewhere < limit and model in one.servable and one.accepting:
                return True
        return False

    def _on_room(self, endpoint: Endpoint) -> None:
        now_s = self._clock()
        if self._busy:  # the gap behind an idle time says nothing of how fast a line moves
            self._gaps += 1
            gap_s = now_s - self._last_finish_s
            self._finish_gap_s += max(_RATE_WEIGHT, 1.0 / self._gaps) * (gap_s - self._finish_gap_s)
        self._last_finish_s, self._busy = now_s, endpoint.in_flight > 0 or self._waiting > 0
        if self._places:
            self.wake_next()

    def _wake(self, model: str, places: deque[Place]) -> None:
        place = places[0]
        self._remove(model, places, place)
        self._woken[model] = self._woken.get(model, 0) + 1
        place.wake()

    def _remove(self, model: str, places: deque[Place], place: Place) -> None:
        places.remove(place)
        self._waiting -= 1
        if not places:
            del self._places[model]
