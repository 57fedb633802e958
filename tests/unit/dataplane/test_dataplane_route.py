"""Routes on a real pool and profile: nothing is reserved before all is decided, and a long wait fills no receipt."""

import pytest

from gateway.api.routes import POSTED
from gateway.dataplane.parse import parse
from gateway.dataplane.records import Exchange, Plan, SingleHop, TwoHop
from gateway.dataplane.route import Router
from gateway.errors import QueueFull
from gateway.observability.receipts import Receipt
from gateway.pool.health import Signal
from gateway.pool.spec import EndpointSpec, Model
from gateway.pool.store import Pool
from gateway.prefix.index import PrefixIndex
from scorers.model import Role
from scorers.registry import build_profile

LIMIT = 2
REQUEST = parse(b'{"model":"m","prompt":"%b"}' % (b"x" * 500), POSTED["/v1/completions"])


class Routed:
    """A pool, a router over it, and how often the pool told of room."""

    def __init__(self) -> None:
        self.pool, self.index = Pool(), PrefixIndex(1000)
        profile = build_profile({"queue_depth": 1.0}, ("healthy", "model_served", "role"), "max_score")
        self.router = Router(self.pool, profile, self.index, "auto", LIMIT, lambda: 0.0, lambda: 0.0)
        self.rooms = 0
        self.pool.on_room.append(self._on_room)

    def ready(self, name: str, role: Role, model: str = "m") -> None:
        endpoint = self.pool.add(EndpointSpec(name, f"http://{name}:1", name, 1, role))
        endpoint.tell_models([Model(model, {"id": model})])
        endpoint.observe(Signal.PASS)

    def _on_room(self, _: object) -> None:
        self.rooms += 1

    def plan(self, exchange: Exchange) -> Plan | None:
        return self.router.plan(exchange, REQUEST)

    def in_flight(self) -> dict[str, int]:
        return {one.name: one.in_flight for one in self.pool}


@pytest.fixture
def exchange() -> Exchange:
    return Exchange(None, Receipt("r", 0.0), 0.0, b"r")  # type: ignore[arg-type]


def test_a_pair_is_reserved_as_one(exchange: Exchange):
    routed = Routed()
    routed.ready("p", "prefill")
    routed.ready("d", "decode")
    plan = routed.plan(exchange)
    assert isinstance(plan, TwoHop)
    assert (plan.prefill.endpoint.name, plan.decode.endpoint.name) == ("p", "d")
    assert set(exchange.leases) == {plan.prefill, plan.decode}
    assert routed.in_flight() == {"p": 1, "d": 1}
    assert set(routed.index.held_blocks()) == {"p", "d"}


def test_half_a_pair_is_never_reserved(exchange: Exchange):
    routed = Routed()
    routed.ready("p", "prefill", model="other")
    routed.ready("d", "decode")
    told = routed.rooms
    plan = routed.plan(exchange)
    assert isinstance(plan, SingleHop)
    assert sum(routed.in_flight().values()) == len(exchange.leases) == 1
    assert routed.rooms == told  # nobody in line is woken for room that never came
    assert list(routed.index.held_blocks()) == [plan.lease.endpoint.name]


def test_a_receipt_holds_the_decisions_of_the_last_turn_alone(exchange: Exchange):
    routed = Routed()
    routed.ready("d", "decode")
    endpoint = routed.pool.get("d")
    assert endpoint is not None
    leases = [endpoint.lease() for _ in range(LIMIT)]
    for _ in range(50):
        assert routed.plan(exchange) is None
    assert len(exchange.receipt.decisions) == 1
    leases.pop().release()
    assert isinstance(routed.plan(exchange), SingleHop)
    assert [decision.picked for _, decision in exchange.receipt.decisions] == ["d", None, "d"]


def test_what_one_endpoint_alone_can_do_goes_there_or_is_refused_where_that_is_full(exchange: Exchange):
    routed = Routed()
    routed.ready("a", "both")
    routed.ready("b", "both", model="other")
    for name in ("b", "gone"):
        assert routed.router.plan_on(exchange, REQUEST, name) is None
    assert exchange.leases == []
    for _ in range(LIMIT):
        plan = routed.router.plan_on(exchange, REQUEST, "a")
        assert isinstance(plan, SingleHop)
        assert (plan.lease.endpoint.name, plan.reason) == ("a", "response_id")
    with pytest.raises(QueueFull) as full:
        routed.router.plan_on(exchange, REQUEST, "a")
    assert full.value.retry_after is not None
    endpoint = routed.pool.get("a")
    assert endpoint is not None
    endpoint.drain()
    assert routed.router.plan_on(exchange, REQUEST, "a") is None


def test_a_model_that_can_be_loaded_is_routed_and_a_made_up_name_is_not_told(exchange: Exchange):
    routed = Routed()
    endpoint = routed.pool.add(EndpointSpec("a", "http://a:1", "a", 1, loadable_adapters=("team/*",)))
    endpoint.tell_models([Model("m", {"id": "m"})])
    endpoint.observe(Signal.PASS)
    request = parse(b'{"model":"team/x","prompt":"x"}', POSTED["/v1/completions"])
    assert isinstance(routed.router.plan(exchange, request), SingleHop)
    assert (routed.pool.could_serve("team/x"), routed.pool.remembers("team/x")) == (True, False)
    assert not routed.pool.could_serve("other/x")
