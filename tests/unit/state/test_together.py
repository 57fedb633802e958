"""Answers of several processes become one, in the shape of one process's own."""

from gateway.state.together import OF_EACH, endpoints_together, newest_first


def described(name: str, in_flight: int = 0, elsewhere: int = 0, ready: bool = True) -> dict[str, object]:
    told = dict.fromkeys(OF_EACH)
    return {**told, "name": name, "ready": ready, "in_flight": in_flight + elsewhere, "in_flight_elsewhere": elsewhere}


def test_one_process_alone_is_shown_as_it_describes_itself():
    [shown] = endpoints_together(1, {1: [described("a", 3)]})
    assert (shown["in_flight"], "workers" in shown, "in_flight_elsewhere" in shown) == (3, False, False)


def test_leases_are_added_up_from_each_ones_own_whatever_it_has_heard_of_others():
    [shown] = endpoints_together(2, {1: [described("a", 3, elsewhere=9)], 2: [described("a", 4, elsewhere=1)]})
    assert shown["in_flight"] == 7
    assert [(one["worker"], one["in_flight"]) for one in shown["workers"]] == [(1, 3), (2, 4)]


def test_an_endpoint_is_ready_where_anybody_may_pick_it_and_shown_where_anybody_knows_it():
    shown = endpoints_together(2, {1: [described("b"), described("a")], 2: [described("a", ready=False)]})
    assert [(one["name"], one["ready"]) for one in shown] == [("a", True), ("b", True)]
    assert [one["ready"] for one in shown[0]["workers"]] == [True, False]


def test_receipts_are_put_in_order_and_cut():
    mine = [{"at": "2026-01-01T00:00:03"}, {"at": "2026-01-01T00:00:01"}]
    theirs = [{"at": "2026-01-01T00:00:02"}]
    assert [one["at"][-1] for one in newest_first([mine, theirs], 2)] == ["3", "2"]
