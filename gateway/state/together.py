"""One answer from what each process tells of the same thing; pure but for `Everyone`, which asks them.

Rule: a figure of the whole is in the place where one process alone shows its own, so that readers need not care how
many there are; what differs from process to process stands beside it, under the process's number.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

from gateway.endpoints import Command, Done, Endpoints, order_key
from gateway.errors import ShuttingDown
from gateway.observability.metrics import Metrics
from gateway.observability.receipts import Receipts
from gateway.observability.snapshot import Snapshot
from gateway.pool.endpoint import Endpoint
from gateway.prefix.index import PrefixIndex
from gateway.state import OrderRefused, SharedState
from gateway.state.index import SharedIndex

Description = dict[str, Any]

OF_EACH = ("state", "ready", "why_not_ready", "in_flight", "scrape_age_s", "stale", "scrape_error")
"""What `GET /admin/endpoints` shows of an endpoint for each worker."""


def endpoints_together(number: int, answers: Mapping[int, Sequence[Description]]) -> list[Description]:
    """Return every endpoint once, as process `number` describes it, or another where that one does not know it.

    `in_flight` is the sum over processes, `ready` whether any may pick it; of several, `workers` tells what each says.
    """
    order = sorted(answers, key=lambda one: (one != number, one))
    found: dict[str, dict[int, Description]] = {}
    for one in order:
        for description in answers[one]:
            found.setdefault(description["name"], {})[one] = description
    return [_together(described) for described in found.values()]


def _together(described: Mapping[int, Description]) -> Description:
    own = {one: told["in_flight"] - told["in_flight_elsewhere"] for one, told in described.items()}
    first = dict(next(iter(described.values())))
    del first["in_flight_elsewhere"]
    if len(described) == 1:
        return first | {"in_flight": sum(own.values())}
    workers = [
        {"worker": one, **{field: told[field] for field in OF_EACH}, "in_flight": own[one]}
        for one, told in sorted(described.items())
    ]
    ready = any(told["ready"] for told in described.values())
    return first | {"in_flight": sum(own.values()), "ready": ready, "workers": workers}


def newest_first(parts: Iterable[Sequence[Description]], limit: int) -> list[Description]:
    """Return up to `limit` receipts of all processes, each of which tells its own newest first."""
    return sorted(chain.from_iterable(parts), key=lambda one: str(one["at"]), reverse=True)[:limit]


class Everyone:
    """All processes of this gateway seen from one of them, and that one's own part: a `Participant`.

    Orders are the commands of `Endpoints.perform`; `clock` is monotonic seconds.
    """

    def __init__(
        self,
        state: SharedState,
        endpoints: Endpoints,
        metrics: Metrics,
        receipts: Receipts,
        index: PrefixIndex,
        clock: Callable[[], float],
    ) -> None:
        self.state = state
        self._endpoints, self._pool = endpoints, endpoints.pool
        self._elsewhere: Mapping[str, int] = {}
        self._pool.on_state.append(self._show_elsewhere)  # one that has just come among them
        self._metrics, self._receipts, self._index, self._clock = metrics, receipts, index, clock

    async def endpoints(self) -> Description:
        """Return the answer of `GET /admin/endpoints`; `missing_workers` is there where some did not answer."""
        gathered = await self.state.gather("endpoints")
        answers = {one: told for one, told in gathered.answers.items() if told is not None}
        return {"endpoints": endpoints_together(self.state.number, answers)} | _missing(gathered.missing)

    async def decisions(self, limit: int) -> Description:
        """Return the answer of `GET /admin/decisions`."""
        gathered = await self.state.gather("decisions", limit)
        parts = [told for told in gathered.answers.values() if told is not None]
        return {"decisions": newest_first(parts, limit)} | _missing(gathered.missing)

    async def decision(self, request_id: str) -> Description | None:
        """Return the newest receipt of this request id, None where nobody has one."""
        gathered = await self.state.gather("decision", request_id)
        found = newest_first([[told] for told in gathered.answers.values() if told is not None], 1)
        return found[0] if found else None

    async def order(self, command: Command) -> Done:
        """Have every process carry a command out, and return the answer of this one."""
        try:
            done: Done = await self.state.order(order_key(command), command)
        except OrderRefused as refused:
            done = refused.told
        except ConnectionError as error:
            raise ShuttingDown(str(error), retry_after_s=1.0) from error
        return done

    def in_flight(self) -> Mapping[str, int]:
        """Return this process's own leases."""
        return {endpoint.name: endpoint.in_flight for endpoint in self._pool if endpoint.in_flight}

    def counted(self) -> Snapshot:
        """Return what this process has counted."""
        return self._metrics.snapshot()

    def hear_in_flight(self, elsewhere: Mapping[str, int]) -> None:
        """Show each endpoint the leases that others hold on it."""
        self._elsewhere = elsewhere
        for endpoint in self._pool:
            self._show_elsewhere(endpoint)

    def _show_elsewhere(self, endpoint: Endpoint) -> None:
        count = self._elsewhere.get(endpoint.name, 0)
        if count != endpoint.in_flight_elsewhere:
            endpoint.hear_elsewhere(count)

    def hear_prompt(self, endpoint: str, keys: Sequence[int]) -> None:
        """Teach the prefix index, where the endpoint is known here."""
        if isinstance(self._index, SharedIndex) and self._pool.get(endpoint) is not None:
            self._index.hear(keys, endpoint)

    def answer(self, question: str, argument: Any) -> Any:
        """Tell this process's own part of an admin answer."""
        match question:
            case "endpoints":
                return self._pool.describe(self._clock())
            case "decisions":
                return [receipt.describe() for receipt in self._receipts.latest(argument)]
            case "decision":
                receipt = self._receipts.find(argument)
                return None if receipt is None else receipt.describe()
        return None

    def obey(self, order: Mapping[str, Any]) -> Any:
        """Carry a command out; raise OrderRefused with its answer where that is an error."""
        done = self._endpoints.perform(order)
        if done["status"] >= 400:
            raise OrderRefused(done)
        return done


def _missing(numbers: Sequence[int]) -> Description:
    return {"missing_workers": list(numbers)} if numbers else {}
