"""Admission on a real pool and a real loop: turns in order, each ended once, none lost; no test waits for time."""

import asyncio
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.errors import ModelNotFound, NoEndpoint, QueueFull
from gateway.flowcontrol.controller import Admission, Place
from gateway.pool.endpoint import Endpoint, Lease
from gateway.pool.health import Signal
from gateway.pool.spec import EndpointSpec, Model
from gateway.pool.store import Pool

LIMIT = 2
FOREVER_S = 3600.0


class Left(Exception):
    """What a client that leaves gives as the reason."""


class Room:
    """A pool, its admission with a clock that stands where it is put, and requests that come, wait, try and go."""

    def __init__(self, max_queue: int = 100, max_wait_s: float = 30.0) -> None:
        self.now_s = 0.0
        self.pool = Pool()
        self.admission = Admission(self.pool, LIMIT, max_queue, max_wait_s, lambda: self.now_s)
        self.loop = asyncio.get_running_loop()
        self.places: dict[int, Place] = {}
        self.leases: list[Lease] = []
        self.ends: Counter[int] = Counter()
        self.served: list[tuple[str, int]] = []
        self.refuses: set[int] = set()

    def ready(self, name: str, *models: str) -> Endpoint:
        endpoint = self.pool.get(name) or self.pool.add(EndpointSpec(name, f"http://{name}:1", name, 1))
        endpoint.tell_models([Model(model, {"id": model}) for model in models])
        endpoint.observe(Signal.PASS)
        return endpoint

    def observe(self, name: str, signal: Signal) -> None:
        endpoint = self.pool.get(name)
        assert endpoint is not None
        endpoint.observe(signal)

    def plan(self, number: int, model: str) -> bool:
        """Take a lease as a route does, in one breath with the turn; say whether there was one to take."""
        if number in self.refuses:
            self.refuses.discard(number)
            return False
        for endpoint in self.pool:
            if endpoint.ready and model in endpoint.model_ids and endpoint.in_flight < LIMIT:
                self.leases.append(endpoint.lease())
                self.served.append((model, number))
                return True
        return False

    async def request(self, number: int, model: str, timeout_s: float = FOREVER_S) -> None:
        """Run one request to the end of its wait, as the data plane does."""
        admission, place = self.admission, None
        if admission.may_go(model) and self.plan(number, model):
            self.ends[number] += 1
            return
        while True:
            try:
                place = self.places[number] = admission.enter(model, self.loop, place)
            except QueueFull:
                self.ends[number] += 1
                raise
            try:
                await place.wait(timeout_s)
            except (TimeoutError, Left):
                self.ends[number] += 1
                raise
            finally:
                admission.leave(place)
            if self.plan(number, model):
                admission.wake_next()
                self.ends[number] += 1
                return

    def start(self, number: int, model: str, timeout_s: float = FOREVER_S) -> "asyncio.Task[None]":
        return self.loop.create_task(self.request(number, model, timeout_s))


async def settle() -> None:
    """Let every task that can go on do so."""
    for _ in range(12):
        await asyncio.sleep(0)


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("come"), st.sampled_from("mn")),
        st.tuples(st.just("finish"), st.integers(0, 9)),
        st.tuples(st.just("leave"), st.integers(0, 40)),
        st.tuples(st.just("late"), st.sampled_from("mn")),
        st.tuples(st.sampled_from(["down", "up"]), st.sampled_from("ab")),
        st.tuples(st.just("settle"), st.none()),
    ),
    max_size=40,
)


async def run_steps(room: Room, steps: list[tuple[str, object]]) -> dict[int, "asyncio.Task[None]"]:
    tasks: dict[int, asyncio.Task[None]] = {}
    for what, argument in steps:
        if what in ("come", "late"):
            number = len(tasks)
            tasks[number] = room.start(number, str(argument), 0.0 if what == "late" else FOREVER_S)
        elif what == "finish" and room.leases:
            room.leases.pop(int(str(argument)) % len(room.leases)).release()
        elif what == "leave" and argument in room.places:
            room.places[int(str(argument))].abort(Left())
        elif what == "down":
            room.observe(str(argument), Signal.LOADING)
        elif what == "up":
            room.observe(str(argument), Signal.PASS)
        elif what == "settle":
            await settle()
            assert room.admission.waiting == sum(1 for task in tasks.values() if not task.done())
            assert all(one.in_flight <= LIMIT for one in room.pool)
    return tasks


@given(steps=STEPS)
@settings(max_examples=120)
def test_every_request_ends_once_and_no_room_is_left_while_one_waits(steps):
    async def run() -> None:
        room = Room()
        room.ready("a", "m", "n")
        room.ready("b", "n")
        tasks = await run_steps(room, steps)
        await settle()
        waiting = [number for number, task in tasks.items() if not task.done()]
        assert room.admission.waiting == len(waiting)
        for name in "ab":  # who is ready again finds the next in line
            room.observe(name, Signal.PASS)
        await settle()
        while room.leases:
            room.leases.pop().release()
            await settle()
        results = await asyncio.gather(*tasks.values(), return_exceptions=True)
        assert all(result is None or isinstance(result, TimeoutError | Left) for result in results)
        assert room.ends == dict.fromkeys(tasks, 1)
        assert room.admission.waiting == 0
        assert all(room.admission.may_go(model) for model in "mn")

    asyncio.run(run())


@given(steps=STEPS)
@settings(max_examples=120)
def test_within_a_model_who_waits_is_served_in_order_of_coming(steps):
    async def run() -> None:
        room = Room()
        room.ready("a", "m", "n")
        room.ready("b", "n")
        tasks = await run_steps(room, [step for step in steps if step[0] != "late"])
        await settle()
        for name in "ab":
            room.observe(name, Signal.PASS)
        await settle()
        while room.leases:
            room.leases.pop(0).release()
            await settle()
        await asyncio.gather(*tasks.values(), return_exceptions=True)
        for model in "mn":
            numbers = [number for of, number in room.served if of == model]
            assert numbers == sorted(numbers)

    asyncio.run(run())


async def full_room(*models: str, max_queue: int = 100, max_wait_s: float = 30.0) -> tuple[Room, Endpoint]:
    room = Room(max_queue, max_wait_s)
    endpoint = room.ready("a", *models)
    for number in range(LIMIT):
        await room.request(-1 - number, models[0])
    room.served.clear()
    return room, endpoint


async def test_two_who_find_no_room_after_all_keep_their_order():
    room, _ = await full_room("m")
    room.refuses = {0, 1}
    tasks = [room.start(number, "m") for number in range(3)]
    await settle()
    for _ in range(2):
        room.leases.pop().release()
    await settle()
    assert room.admission.waiting == 3
    room.admission.wake_next()
    await settle()
    assert room.served == [("m", 0), ("m", 1)]
    room.leases.pop().release()
    await asyncio.gather(*tasks)
    assert room.served == [("m", 0), ("m", 1), ("m", 2)]


async def test_models_that_share_an_endpoint_take_turns_in_order_of_coming():
    room, _ = await full_room("m", "n")
    tasks = [room.start(number, model) for number, model in enumerate("mnmnm")]
    await settle()
    for _ in tasks:
        room.leases.pop().release()
        await settle()
    await asyncio.gather(*tasks)
    assert room.served == [("m", 0), ("n", 1), ("m", 2), ("n", 3), ("m", 4)]


async def test_one_that_is_about_to_try_is_not_overtaken():
    room, _ = await full_room("m")
    waits = room.start(0, "m")
    await settle()
    room.leases.pop().release()
    assert not room.admission.may_go("m")
    assert room.admission.waiting == 0
    await settle()
    assert waits.done()
    assert room.served == [("m", 0)]


async def test_room_for_many_wakes_many():
    room, _ = await full_room("m")
    tasks = [room.start(number, "m") for number in range(LIMIT)]
    await settle()
    room.ready("b", "m")
    await asyncio.gather(*tasks)
    assert room.served == [("m", number) for number in range(LIMIT)]


@pytest.mark.parametrize("with_reason", [True, False])
async def test_a_turn_that_nobody_takes_goes_to_the_next(with_reason):
    room, _ = await full_room("m")
    first, second = room.start(0, "m"), room.start(1, "m")
    await settle()
    room.leases.pop().release()  # wakes the first, which leaves before it can try
    if with_reason:
        room.places[0].abort(Left())
    else:
        first.cancel()
    with pytest.raises(Left if with_reason else asyncio.CancelledError):
        await first
    await second
    assert room.served == [("m", 1)]


async def test_an_ended_place_stays_ended():
    room, _ = await full_room("m")
    place = room.admission.enter("m", room.loop)
    assert place.open
    place.abort(Left("first"))
    place.abort(Left("second"))
    place.wake()
    assert not place.open
    with pytest.raises(Left, match="first"):
        await place.wait(FOREVER_S)
    room.admission.leave(place)
    taken = room.admission.enter("m", room.loop)
    room.leases.pop().release()
    await taken.wait(FOREVER_S)
    taken.abort(Left())
    assert taken.took_turn
    room.admission.leave(taken)
    assert room.admission.waiting == 0


async def test_several_awake_at_once_are_counted_one_by_one():
    room, _ = await full_room("m")
    places = [room.admission.enter("m", room.loop) for _ in range(2)]
    for _ in range(2):
        room.leases.pop().release()
    assert [place.open for place in places] == [False, False]
    for place in places:
        assert not room.admission.may_go("m")
        await place.wait(FOREVER_S)
        room.admission.leave(place)
    assert room.admission.may_go("m")


async def test_a_full_queue_takes_nobody_but_those_who_were_in_it():
    room, _ = await full_room("m", max_queue=1)
    room.refuses = {0}
    task = room.start(0, "m")
    await settle()
    with pytest.raises(QueueFull, match=r"1 requests are waiting already \(flow_control.max_queue\)") as refused:
        await room.request(1, "m")
    assert 1 <= (refused.value.retry_after_s or 0) <= 60
    room.leases.pop().release()
    assert room.admission.waiting == 0
    other = room.admission.enter("m", room.loop)
    await settle()  # the first tried in vain and came back though the queue is full
    assert room.admission.waiting == 2
    room.admission.leave(other)
    room.admission.wake_next()
    await task


async def test_no_model_is_unknown_before_any_endpoint_has_told_its_own():
    room = Room()
    room.admission.check_model("m")
    assert not room.admission.may_go("m")
    tasks = [room.start(number, "x") for number in range(3)]
    await settle()
    room.ready("a", "m")  # now all who wait for another model are woken, to be told so
    assert room.admission.waiting == 0
    with pytest.raises(ModelNotFound, match=r"no endpoint serves the model 'x'; served: m$"):
        room.admission.check_model("x")
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_a_model_once_served_is_waited_for():
    room = Room()
    room.ready("a", "m")
    room.pool.remove("a")
    room.admission.check_model("m")
    with pytest.raises(ModelNotFound, match="nothing at this moment"):
        room.admission.check_model("n")


async def test_a_long_list_and_a_long_name_are_cut():
    room = Room()
    room.ready("a", *(f"m{number:02}" for number in range(23)))
    with pytest.raises(ModelNotFound, match=r"'x{100}…'; served: m00, .*, m19 and 3 more$") as refused:
        room.admission.check_model("x" * 101)
    assert (refused.value.param, refused.value.status) == ("model", 404)
    with pytest.raises(ModelNotFound, match=r"'x{100}';"):
        room.admission.check_model("x" * 100)


async def test_who_waited_too_long_is_told_whether_room_or_an_endpoint_was_missing():
    room, endpoint = await full_room("m", max_wait_s=2.5)
    with pytest.raises(TimeoutError):
        await room.request(0, "m", 0.0)
    late = room.admission.late("m")
    assert (type(late), late.status) == (QueueFull, 429)
    assert late.message == "no endpoint had room for 'm': waited 2.5 s (flow_control.max_queue_wait_s)"
    assert len(room.admission.late("m" * 5000).message) < 250
    endpoint.observe(Signal.LOADING)
    for model in "mn":
        late = room.admission.late(model)
        assert (type(late), late.status, late.retry_after_s) == (NoEndpoint, 503, 2.5)


@given(gaps=st.lists(st.floats(0, 1e6), max_size=30), waiting=st.integers(0, 200))
@settings(max_examples=60)
def test_retry_after_is_a_whole_number_of_seconds_from_1_to_60(gaps, waiting):
    async def run() -> None:
        room = Room(max_queue=1000)
        endpoint = room.ready("a", "m")
        for gap in gaps:
            room.now_s += gap
            endpoint.lease().release()
        before = room.admission.retry_after_s()
        for _ in range(waiting):
            room.admission.enter("m", room.loop)
        after = room.admission.retry_after_s()
        assert 1 <= before <= after <= 60
        assert after == int(after)

    asyncio.run(run())


async def test_retry_after_follows_the_rate_at_which_requests_end():
    room = Room()
    endpoint = room.ready("a", "m")
    for _ in range(100):
        room.now_s += 50.0  # nothing to do meanwhile
        assert room.admission.may_go("m")
        lease = endpoint.lease()
        room.now_s += 4.0
        lease.release()
    for _ in range(4):
        room.admission.enter("m", room.loop)
    assert room.admission.retry_after_s() == 20


async def test_who_waits_keeps_its_place_under_other_limits_and_goes_where_they_let_it():
    room = Room()
    endpoint = room.ready("a", "m")
    leases = [endpoint.lease() for _ in range(100)]
    assert not room.admission.may_go("m")
    first, second = room.admission.enter("m", room.loop), room.admission.enter("m", room.loop)
    room.admission.configure(max_in_flight=101, max_queue=2, max_wait_s=1.0)
    assert (first.open, second.open) == (False, True)
    for place in (first, second):
        room.admission.leave(place)
    for lease in leases:
        lease.release()
