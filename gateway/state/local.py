"""Shared state of the worker processes of one machine: one worker's side of the socket to their broker.

Invariant: what waits to be told is bounded; where the broker is slow to read, changes add up until it does.
"""

import asyncio
import logging
import socket
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import Any, TypeVar

import msgspec

from gateway.observability.snapshot import Snapshot
from gateway.state import BATCH_S, GATHER_S, Gathered, OrderRefused, Participant
from gateway.state import frames as wire

logger = logging.getLogger("twohop")

COUNTED_EVERY = 4
"""Batches from one telling of what is counted to the next: 100 ms."""

MAX_BATCH_KEYS = 8192
"""Block keys told in one batch; the prompts beyond are left out: a prefix index is a guess in any case."""

MAX_BEHIND_BYTES = 1 << 20
ANSWER_MARGIN_S = 0.25
"""What an answer of the broker may take beyond the time that it gives the workers."""

_decoder = msgspec.msgpack.Decoder(wire.FromBroker)
_prompts = msgspec.msgpack.Decoder(wire.Prompts)
T = TypeVar("T")


class LinkedState:
    """Shared state through a broker at the other end of `sock`, a connected stream socket."""

    alone = False

    def __init__(self, sock: socket.socket, number: int) -> None:
        self.number = number
        self._sock = sock
        self._link = wire.Link(self._take, self._lost)
        self._participant: Participant | None = None
        self._welcome: asyncio.Future[None] | None = None
        self._over = asyncio.Event()
        self._numbers = count(1)
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._prompts: list[tuple[str, Sequence[int]]] = []
        self._keys = 0
        self._told_in_flight: dict[str, int] = {}
        self._told_counted = b""

    async def join(self, participant: Participant) -> None:
        """Say hello and obey the orders that hold; return at once where the broker is gone."""
        loop = asyncio.get_running_loop()
        self._participant = participant
        self._welcome = loop.create_future()
        await loop.create_unix_connection(lambda: self._link, sock=self._sock)
        self._link.send(wire.Joined())
        await self._welcome

    async def run(self) -> None:
        """Tell changes every `BATCH_S` until the broker is gone; at the end, however it ends, what is counted."""
        batches = count(1)
        try:
            while not self._over.is_set():
                await asyncio.sleep(BATCH_S)
                self._tell(with_counted=next(batches) % COUNTED_EVERY == 0)
        finally:
            self._tell(with_counted=True)
            self._link.close()

    def sent(self, endpoint: str, keys: Sequence[int]) -> None:
        """Keep a prompt for the next batch."""
        if self._keys < MAX_BATCH_KEYS:
            self._keys += len(keys)
            self._prompts.append((endpoint, keys))

    async def order(self, key: str, order: Mapping[str, Any]) -> Any:
        """Have every worker obey, in the broker's sequence."""
        return await self._ask(lambda number: wire.Order(number, key, dict(order)), GATHER_S)

    async def gather(self, question: str, argument: Any = None, timeout_s: float = GATHER_S) -> Gathered:
        """Ask every worker through the broker; a broker that is gone or stuck leaves this worker's own answer."""
        try:
            gathered: Gathered = await self._ask(
                lambda number: wire.Ask(number, question, argument, timeout_s), timeout_s
            )
        except ConnectionError:
            assert self._participant is not None  # noqa: S101 - nobody asks before `join`
            return Gathered({self.number: self._participant.answer(question, argument)})
        return gathered

    async def snapshot(self) -> Snapshot:
        """Return what all have counted, as the broker adds it up; raise ConnectionError where it is gone or stuck."""
        counted: Snapshot = await self._ask(wire.Scrape, GATHER_S)
        return counted

    async def _ask(self, frame: Callable[[int], wire.Frame], timeout_s: float) -> Any:
        number = next(self._numbers)
        future = self._waiting[number] = asyncio.get_running_loop().create_future()
        try:
            if not self._link.send(frame(number)):
                raise ConnectionError("the broker of the workers cannot be reached")
            async with asyncio.timeout(timeout_s + ANSWER_MARGIN_S):
                return await future
        except TimeoutError as error:
            raise ConnectionError("the broker of the workers does not answer") from error
        finally:
            del self._waiting[number]

    def _tell(self, *, with_counted: bool) -> None:
        participant, link = self._participant, self._link
        if participant is None or link.unread_bytes > MAX_BEHIND_BYTES:
            return
        in_flight = {name: held for name, held in participant.in_flight().items() if held}
        counted = participant.counted() if with_counted else None
        encoded = wire.encode(counted)
        frame = wire.Told(
            None if in_flight == self._told_in_flight else in_flight,
            wire.encode(self._prompts) if self._prompts else None,
            None if encoded == self._told_counted else counted,
        )
        self._prompts, self._keys = [], 0
        if frame == _NOTHING_NEW or not link.send(frame):
            return
        self._told_in_flight = in_flight
        if counted is not None:
            self._told_counted = encoded

    def _take(self, payload: bytes) -> None:
        frame = _decoder.decode(payload)
        match frame:
            case wire.Heard():
                self._hear(frame)
            case wire.Asked(ticket=ticket, question=question, argument=argument):
                self._answer(ticket, question, argument)
            case wire.Answers(number=number, answers=answers, missing=missing):
                told = {one: msgspec.msgpack.decode(answer) for one, answer in answers.items()}
                self._resolve(number, Gathered(told, missing))
            case wire.Totals(number=number, counted=counted, missing=missing):
                if missing:
                    logger.warning("figures of workers %s are the last known ones: no answer in time", missing)
                self._resolve(number, counted)
            case wire.Order():
                self._obey(frame)
            case wire.Welcome() if self._welcome is not None and not self._welcome.done():
                self._welcome.set_result(None)

    def _hear(self, heard: wire.Heard) -> None:
        assert self._participant is not None  # noqa: S101 - the link is made after it
        if heard.in_flight is not None:
            self._participant.hear_in_flight(heard.in_flight)
        if heard.prompts is not None:
            for endpoint, keys in _prompts.decode(heard.prompts):
                self._participant.hear_prompt(endpoint, keys)

    def _answer(self, ticket: int, question: str, argument: Any) -> None:
        assert self._participant is not None  # noqa: S101 - see `_hear`
        answer: bytes | None = None
        try:
            told = self._participant.counted() if question == COUNTED else self._participant.answer(question, argument)
            answer = wire.encode(told)
        except Exception:
            logger.exception("a question of another worker could not be answered: %s", question)
        if not self._link.send(wire.Answer(ticket, answer)):  # too long
            self._link.send(wire.Answer(ticket, None))

    def _obey(self, frame: wire.Order) -> None:
        assert self._participant is not None  # noqa: S101 - see `_hear`
        future = self._waiting.get(frame.number)
        try:
            told = self._participant.obey(frame.order)
        except OrderRefused as refused:
            if future is not None and not future.done():
                future.set_exception(refused)
            else:
                logger.info("an order that holds for other workers is refused here: %s: %s", frame.key, refused)
            return
        except Exception:  # a fault of ours in one order must not end the worker, nor each that comes in its place
            logger.exception("an order failed: %s", frame.key)
            if future is not None and not future.done():
                future.set_exception(OrderRefused({"status": 500, "body": {"error": "the order failed; see the log"}}))
            return
        if frame.number:
            self._link.send(wire.Obeyed(frame.key, frame.order, frame.turn))
            self._resolve(frame.number, told)

    def _resolve(self, number: int, result: Any) -> None:
        future = self._waiting.get(number)
        if future is not None and not future.done():
            future.set_result(result)

    def _lost(self) -> None:
        self._over.set()
        if self._welcome is not None and not self._welcome.done():
            self._welcome.set_result(None)
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(ConnectionError("the broker of the workers is gone"))


COUNTED = "counted"
"""The broker's own question: what a worker has counted, as `Snapshot`."""

_NOTHING_NEW = wire.Told()
