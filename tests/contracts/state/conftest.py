"""Several participants in one event loop, joined by each implementation of `SharedState` in turn."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Protocol

import pytest

from gateway.observability.metrics import Metrics
from gateway.observability.snapshot import Snapshot
from gateway.state import OrderRefused, SharedState
from gateway.state.local import LinkedState
from gateway.state.memory import Memory, MemoryState
from gateway.workers.broker import Broker, Seat


class Person:
    """A participant whose every figure the test sets, and who notes what it hears."""

    def __init__(self, state: SharedState) -> None:
        self.state = state
        self.metrics = Metrics()
        self.held: dict[str, int] = {}
        self.elsewhere: dict[str, int] = {}
        self.prompts: list[tuple[str, list[int]]] = []
        self.obeyed: list[dict[str, Any]] = []
        self.answers: Callable[[str, Any], Any] = lambda question, argument: [state.number, question, argument]
        self.refuses: set[str] = set()

    def in_flight(self) -> Mapping[str, int]:
        return self.held

    def counted(self) -> Snapshot:
        return self.metrics.snapshot()

    def hear_in_flight(self, elsewhere: Mapping[str, int]) -> None:
        self.elsewhere = {name: count for name, count in elsewhere.items() if count}

    def hear_prompt(self, endpoint: str, keys: Sequence[int]) -> None:
        self.prompts.append((endpoint, list(keys)))

    def answer(self, question: str, argument: Any) -> Any:
        return self.answers(question, argument)

    def obey(self, order: Mapping[str, Any]) -> Any:
        if order["verb"] in self.refuses:
            raise OrderRefused("no")
        self.obeyed.append(dict(order))
        return {"done": order["verb"], "by": self.state.number}


class Group(Protocol):
    """Where participants meet."""

    async def enter(self, number: int) -> Person:
        """Return a new participant that has joined."""
        ...

    async def end(self, person: Person) -> None:
        """Have a participant's process end, without a word."""
        ...


class Running:
    """Starts each participant's `run` and ends it."""

    def __init__(self) -> None:
        self.tasks: dict[Person, asyncio.Task[None]] = {}

    async def start(self, state: SharedState) -> Person:
        person = Person(state)
        await state.join(person)
        self.tasks[person] = asyncio.get_running_loop().create_task(state.run())
        return person

    async def stop(self, person: Person) -> None:
        task = self.tasks.pop(person)
        task.cancel()
        await asyncio.wait([task])

    async def stop_all(self) -> None:
        for person in list(self.tasks):
            await self.stop(person)


class InMemory(Running):
    def __init__(self) -> None:
        super().__init__()
        self.memory = Memory()

    async def enter(self, number: int) -> Person:
        return await self.start(MemoryState(self.memory, number))

    async def end(self, person: Person) -> None:
        await self.stop(person)
        self.memory.leave(person.state.number)


class ThroughBroker(Running):
    def __init__(self) -> None:
        super().__init__()
        self.broker = Broker()
        self.seats: dict[int, Seat] = {}
        self.sockets: list[asyncio.StreamWriter] = []

    async def seat(self, number: int) -> socket.socket:
        """Return the worker's end of a new socket to the broker."""
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        seat = self.seats[number] = Seat(number, self.broker, lambda: None, lambda: None)
        await asyncio.get_running_loop().create_unix_connection(lambda: seat.link, sock=ours)
        return theirs

    async def enter(self, number: int) -> Person:
        theirs = await self.seat(number)
        return await self.start(LinkedState(theirs, number))

    async def end(self, person: Person) -> None:
        self.seats[person.state.number].link.abort()
        task = self.tasks.pop(person)
        async with asyncio.timeout(5):
            await task  # it notices

    async def stop_all(self) -> None:
        await super().stop_all()
        for seat in self.seats.values():
            seat.link.abort()
        for writer in self.sockets:
            writer.transport.abort()
        self.broker.close()
        await asyncio.sleep(0)


@asynccontextmanager
async def group_of(kind: type[InMemory] | type[ThroughBroker]) -> AsyncIterator[Any]:
    async with AsyncExitStack() as stack:
        group = kind()
        stack.push_async_callback(group.stop_all)
        yield group


@pytest.fixture(params=[InMemory, ThroughBroker])
async def group(request: pytest.FixtureRequest) -> AsyncIterator[Group]:
    async with group_of(request.param) as made:
        yield made


@pytest.fixture
async def broker_group() -> AsyncIterator[ThroughBroker]:
    async with group_of(ThroughBroker) as made:
        yield made


async def until(condition: Callable[[], bool], what: str) -> None:
    """Wait until `condition()` holds; fail after 5 s."""
    try:
        async with asyncio.timeout(5):
            while not condition():
                await asyncio.sleep(0.002)
    except TimeoutError:
        raise AssertionError(f"waited 5 s for {what}") from None
