"""One endpoint's standing: ejections, trials one at a time, warming in, and who is told to go elsewhere."""

from gateway.errors import EngineStuck
from gateway.pool.ejection import Event, Limits, State
from gateway.pool.endpoint import Endpoint
from gateway.pool.health import Signal
from gateway.pool.scrape import Load
from gateway.pool.spec import EndpointSpec, Model

SPEC = EndpointSpec("a", "http://a:8000", "a", 8000)


class Waiting:
    """A request that waits, and what it was told."""

    def __init__(self) -> None:
        self.told: list[BaseException] = []

    def abort(self, reason: BaseException) -> None:
        self.told.append(reason)


def beside_others(warm_in_s: float = 0.0) -> Endpoint:
    """Return a ready endpoint that is never the last; it goes out at the second failure, for a second."""
    endpoint = Endpoint(SPEC, ejection_limits=Limits(in_a_row=2), warm_in_s=warm_in_s)
    endpoint.is_last = lambda _: False
    endpoint.tell_models([Model("m", {"id": "m"})])
    endpoint.observe(Signal.PASS)
    return endpoint


def ejected(endpoint: Endpoint, now_s: float = 10.0) -> Endpoint:
    for _ in range(2):
        endpoint.outcome(Event.FAIL, now_s, "endpoint a answered 500: out of memory" + "!" * 1000)
    return endpoint


def test_an_endpoint_without_a_pool_is_the_last_and_stays():
    endpoint = Endpoint(SPEC)
    endpoint.observe(Signal.PASS)
    assert ejected(endpoint).ready


def test_an_ejected_endpoint_is_not_ready_and_says_why_and_for_how_long():
    endpoint = ejected(beside_others())
    assert (endpoint.ready, endpoint.accepting, endpoint.free, endpoint.view(10.0).ready) == (False,) * 4
    assert endpoint.why_not_ready == (
        "ejected, failures_in_a_row: " + ("endpoint a answered 500: out of memory" + "!" * 1000)[:200]
    )
    told = endpoint.describe(10.25)
    assert (told["state"], told["ready"], told["ejected_for_s"]) == ("ejected", False, 0.75)
    endpoint.outcome(Event.DUE, 11.0)
    told = endpoint.describe(11.0)
    assert (told["state"], told["ready"], told["why_not_ready"], told["ejected_for_s"]) == ("trial", True, None, None)


def test_a_drained_one_that_is_ejected_too_says_that_it_drains():
    endpoint = ejected(beside_others())
    endpoint.drain()
    assert (endpoint.why_not_ready, endpoint.describe(0.0)["state"]) == ("draining", "draining")
    endpoint.drain(on=False)
    assert not endpoint.ready


def test_a_trial_takes_one_request_at_a_time_whatever_was_there_before():
    endpoint = beside_others()
    rooms: list[Endpoint] = []
    old = endpoint.lease()
    ejected(endpoint).outcome(Event.DUE, 11.0)
    assert (endpoint.ready, endpoint.accepting) == (True, True)
    endpoint.on_room = rooms.append
    trial = endpoint.lease()
    assert (endpoint.ready, endpoint.accepting, endpoint.view(11.0).ready) == (True, False, False)
    old.release()
    assert not endpoint.accepting
    trial.release()  # its client left: nothing is known, and the next may try
    assert (endpoint.accepting, endpoint.standing.state) == (True, State.TRIAL)
    endpoint.lease()
    rooms.clear()
    endpoint.outcome(Event.BEGUN, 11.5)
    assert (endpoint.accepting, endpoint.free, rooms) == (True, True, [endpoint])


def test_a_trial_that_fails_ejects_again_and_frees_its_place():
    endpoint = ejected(beside_others())
    endpoint.outcome(Event.DUE, 11.0)
    trial = endpoint.lease()
    endpoint.outcome(Event.FAIL, 11.1, "again")
    trial.release()
    assert (endpoint.ready, endpoint.why_not_ready) == (False, "ejected, trial_failed: again")
    endpoint.outcome(Event.DUE, 13.1)
    assert endpoint.accepting


def test_what_waits_for_a_stuck_engine_is_told_and_what_waits_for_a_failing_one_is_not():
    for event, told in ((Event.FAIL, 0), (Event.STUCK, 1)):
        endpoint, request = beside_others(), Waiting()
        endpoint.waiting.add(request)
        for _ in range(2):
            endpoint.outcome(event, 10.0, "gave no token")
        assert (endpoint.ready, len(request.told)) == (False, told)
        assert all(isinstance(one, EngineStuck) for one in request.told)


def test_a_long_run_of_successes_costs_no_standing():
    endpoint = beside_others()
    before = endpoint.standing
    for _ in range(10):
        endpoint.outcome(Event.SUCCESS, 1.0)
        endpoint.outcome(Event.BEGUN, 1.0)
        endpoint.outcome(Event.ENDED, 1.0)
    assert endpoint.standing is before


def test_a_new_endpoint_warms_in_from_its_first_view_on():
    endpoint = beside_others(warm_in_s=4.0)
    assert [endpoint.view(now_s).warmth for now_s in (100.0, 101.0, 103.0, 104.0, 101.0)] == [0, 0.25, 0.75, 1, 1]
    assert endpoint.view(104.0) is endpoint.view(104.0)


def test_it_warms_in_anew_after_a_restart_an_ejection_and_ill_health_but_not_after_a_drain():
    endpoint = beside_others(warm_in_s=4.0)

    def warm(now_s: float) -> None:
        assert endpoint.view(now_s).warmth == 0.0
        assert endpoint.view(now_s + 4.0).warmth == 1.0

    warm(0.0)
    endpoint.drain()
    endpoint.drain(on=False)
    assert endpoint.view(10.0).warmth == 1.0
    endpoint.observe(Signal.LOADING, "loading")
    endpoint.observe(Signal.PASS)
    warm(10.0)
    ejected(endpoint, 20.0).outcome(Event.DUE, 21.0)
    endpoint.outcome(Event.SUCCESS, 22.0)
    warm(23.0)
    endpoint.accept_scrape(endpoint.begin_scrape(30.0), Load(process_started_s=1.0))
    endpoint.accept_scrape(endpoint.begin_scrape(31.0), Load(process_started_s=2.0))
    warm(32.0)


def test_another_process_behind_the_name_is_not_held_to_what_the_old_one_did():
    endpoint = ejected(beside_others())
    endpoint.tell_models([Model("other", {"id": "other"})])
    assert (endpoint.ready, endpoint.standing.state, endpoint.standing.times) == (True, State.IN, 0)
