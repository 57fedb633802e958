"""The broker in the supervisor: passes on what one worker tells to the others, and keeps what must outlive a worker.

Invariant: nothing here waits. A worker that does not read or does not answer costs the others at most the time limit
of a question, and what a worker has counted is never forgotten: figures for one series never go down.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count

import msgspec

from gateway.clock import monotonic_s
from gateway.observability.snapshot import EMPTY, Snapshot, lasting, merge, merge_all
from gateway.state import BATCH_S, GATHER_S
from gateway.state import frames as wire
from gateway.state.local import COUNTED
from gateway.state.memory import added

logger = logging.getLogger("twohop")

MAX_OPEN_QUESTIONS = 256
"""Questions under way at once, of all workers; one more is answered at once, with nobody's answer."""

MAX_ORDERS = 10_000
"""Orders kept for those that join later; the oldest go first."""

_decoder = msgspec.msgpack.Decoder(wire.ToBroker)
_snapshots = msgspec.msgpack.Decoder(Snapshot)


class Seat:
    """One worker as the broker sees it; `link` is the broker's end of its socket."""

    def __init__(self, number: int, broker: "Broker", on_joined: Callable[[], None], on_lost: Callable[[], None]):
        self.number = number
        self.joined = False
        self.heard_s = monotonic_s()  # a worker that lives is heard at least once a second
        self.in_flight: dict[str, int] = {}
        self.counted: Snapshot = EMPTY
        self.told_elsewhere: dict[str, int] = {}
        self.on_joined, self.on_lost = on_joined, on_lost
        self.link = wire.Link(lambda payload: broker.take(self, payload), lambda: broker.leave(self))


@dataclass(slots=True)
class _Question:
    """A question under way: who asked, whose answers are awaited, and those that have come."""

    asker: Seat
    number: int
    scrape: bool
    awaited: set[Seat]
    timer: asyncio.TimerHandle | None = None
    answers: dict[int, bytes] = field(default_factory=dict)
    failed: set[Seat] = field(default_factory=set)


class Broker:
    """All `seats` that have joined, the `questions` under way by ticket, and the newest `orders` by key.

    Its methods run on one event loop.
    """

    def __init__(self) -> None:
        self.seats: list[Seat] = []
        self.orders: dict[str, wire.Order] = {}
        self._turns = count(1)
        self._tickets = count(1)
        self.questions: dict[int, _Question] = {}
        self._left: Snapshot = EMPTY
        self._telling: asyncio.TimerHandle | None = None

    def take(self, seat: Seat, payload: bytes) -> None:
        """Take in one frame of a worker; one that cannot be read ends its link."""
        seat.heard_s = monotonic_s()
        try:
            frame = _decoder.decode(payload)
        except msgspec.DecodeError:
            logger.exception("worker %d says what its broker does not know", seat.number)
            seat.link.abort()
            return
        match frame:
            case wire.Told():
                self._hear(seat, frame)
            case wire.Answer(ticket=ticket, answer=answer):
                self._answered(seat, ticket, answer)
            case wire.Ask(number=number, question=question, argument=argument, timeout_s=timeout_s):
                self._ask(seat, number, question, argument, timeout_s)
            case wire.Scrape(number=number):
                self._ask(seat, number, COUNTED, None, GATHER_S)
            case wire.Order():
                self._pass_order(seat, frame)
            case wire.Obeyed():
                self._keep_order(frame)
            case wire.Joined():
                self._join(seat)

    def leave(self, seat: Seat) -> None:
        """Forget a worker whose link is over, but for what it has counted."""
        if seat in self.seats:
            self.seats.remove(seat)
            self._left = lasting(merge(self._left, seat.counted))
            self._tell_soon()
        for ticket, question in list(self.questions.items()):
            if question.asker is seat:
                self._end(ticket, reply=False)
            elif seat in question.awaited:
                question.awaited.discard(seat)
                self._end_if_complete(ticket)
        seat.on_lost()

    def close(self) -> None:
        """Stop every timer; no frame is sent any more."""
        for ticket in list(self.questions):
            self._end(ticket, reply=False)
        if self._telling is not None:
            self._telling.cancel()

    def counted(self) -> Snapshot:
        """Return what all workers have counted as far as is known, those that have ended too."""
        return merge_all([self._left, *(seat.counted for seat in self.seats)])

    def _join(self, seat: Seat) -> None:
        if seat.joined:
            return
        seat.joined = True
        self.seats.append(seat)
        for order in self.orders.values():
            seat.link.send(wire.Order(0, order.key, order.order, order.turn))
        seat.link.send(wire.Welcome())
        self._tell_soon()
        seat.on_joined()

    def _hear(self, seat: Seat, told: wire.Told) -> None:
        if told.counted is not None:
            seat.counted = told.counted
        if told.in_flight is not None:
            seat.in_flight = told.in_flight
            self._tell_soon()
        if told.prompts is not None:
            payload = wire.encode(wire.Heard(None, told.prompts))
            for other in self._others(seat):
                other.link.send_encoded(payload)

    def _others(self, seat: Seat) -> list[Seat]:
        return [other for other in self.seats if other is not seat]

    def _tell_soon(self) -> None:
        """Tell leases in a moment: by then others have told theirs too."""
        if self._telling is None:
            self._telling = asyncio.get_running_loop().call_later(BATCH_S, self._tell)

    def _tell(self) -> None:
        self._telling = None
        for seat in tuple(self.seats):
            elsewhere = added(other.in_flight for other in self._others(seat))
            if elsewhere != seat.told_elsewhere and seat.link.send(wire.Heard(elsewhere)):
                seat.told_elsewhere = elsewhere

    def _pass_order(self, seat: Seat, order: wire.Order) -> None:
        turn = next(self._turns)
        for other in tuple(self.seats):
            other.link.send(wire.Order(order.number if other is seat else 0, order.key, order.order, turn))

    def _keep_order(self, obeyed: wire.Obeyed) -> None:
        kept = self.orders.get(obeyed.key)
        if kept is not None and kept.turn > obeyed.turn:
            return
        self.orders.pop(obeyed.key, None)
        self.orders[obeyed.key] = wire.Order(0, obeyed.key, obeyed.order, obeyed.turn)
        if len(self.orders) > MAX_ORDERS:
            del self.orders[next(iter(self.orders))]

    def _ask(self, asker: Seat, number: int, question: str, argument: object, timeout_s: float) -> None:
        ticket = next(self._tickets)
        scrape = question == COUNTED
        room = len(self.questions) < MAX_OPEN_QUESTIONS
        entry = self.questions[ticket] = _Question(asker, number, scrape, set(self.seats))
        if room:
            entry.timer = asyncio.get_running_loop().call_later(timeout_s, self._end, ticket)
            payload = wire.encode(wire.Asked(ticket, question, argument))
            for seat in tuple(self.seats):
                seat.link.send_encoded(payload)
            self._end_if_complete(ticket)
        else:
            self._end(ticket)

    def _answered(self, seat: Seat, ticket: int, answer: bytes | None) -> None:
        question = self.questions.get(ticket)
        if question is None or seat not in question.awaited:
            return
        question.awaited.discard(seat)
        if answer is None:
            question.failed.add(seat)
        elif question.scrape:
            seat.counted = _snapshots.decode(answer)
        else:
            question.answers[seat.number] = answer
        self._end_if_complete(ticket)

    def _end_if_complete(self, ticket: int) -> None:
        if ticket in self.questions and not self.questions[ticket].awaited:
            self._end(ticket)

    def _end(self, ticket: int, *, reply: bool = True) -> None:
        question = self.questions.pop(ticket)
        if question.timer is not None:
            question.timer.cancel()
        if not reply:
            return
        missing = sorted(seat.number for seat in question.awaited | question.failed)
        if question.scrape:
            question.asker.link.send(wire.Totals(question.number, self.counted(), missing))
        elif not question.asker.link.send(wire.Answers(question.number, question.answers, missing)):
            own = question.answers.get(question.asker.number)  # all together are too long for one frame
            kept = {} if own is None else {question.asker.number: own}
            everyone = sorted({*missing, *question.answers} - set(kept))
            question.asker.link.send(wire.Answers(question.number, kept, everyone))
