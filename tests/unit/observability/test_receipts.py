"""Receipts: bounded, found by id, newest first, and JSON only on demand."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.observability.receipts import Receipt, Receipts, describe_decision
from scorers.model import Decision

DECISION = Decision(
    picked="b",
    candidates=("a", "b"),
    scorers=("prefix_cache", "queue_depth"),
    weights=(3.0, 2.0),
    terms=((0.5, 1.0), (1.0, 0.25)),
    totals=(3.5, 3.5),
    rejected={"c": "healthy"},
)


@given(st.lists(st.sampled_from("abcdef")), st.integers(min_value=0, max_value=5))
def test_the_ring_keeps_the_newest_and_finds_the_newest_of_each_id(ids: list[str], limit: int):
    receipts = Receipts(limit)
    added = [Receipt(request_id, float(i)) for i, request_id in enumerate(ids)]
    for receipt in added:
        receipts.keep(receipt)
    kept = added[-limit:] if limit else []
    assert len(receipts) == len(kept)
    assert receipts.latest(len(ids)) == kept[::-1]
    for request_id in "abcdef":
        newest = next((receipt for receipt in reversed(kept) if receipt.request_id == request_id), None)
        assert receipts.find(request_id) is newest


def test_latest_stops_at_the_limit_asked_for():
    receipts = Receipts()
    for i in range(5):
        receipts.keep(Receipt(str(i), 0.0))
    assert [receipt.request_id for receipt in receipts.latest(2)] == ["4", "3"]
    assert receipts.latest(0) == []


def test_a_decision_shows_every_term_of_every_score():
    shown = describe_decision(DECISION)
    assert shown["picked"] == "b"
    assert shown["rejected"] == {"c": "healthy"}
    assert [candidate["endpoint"] for candidate in shown["candidates"]] == ["a", "b"]
    for candidate in shown["candidates"]:
        assert candidate["total"] == pytest.approx(sum(term["weighted"] for term in candidate["terms"].values()))
    assert shown["candidates"][1]["terms"]["queue_depth"] == {"score": 0.25, "weight": 2.0, "weighted": 0.5}


def test_a_receipt_tells_the_whole_way_as_json():
    receipt = Receipt("id-1", 1.5, model="m", route="two_hop", reason="pair_ready", kind="chat")
    receipt.decisions.append(("prefill", DECISION))
    receipt.attempts += [("a", "connect_failed"), ("b", "ok")]
    receipt.endpoint, receipt.prefill, receipt.status = "b", "p", 200
    receipt.queue_s, receipt.ttft_s, receipt.total_s = 0.0, 0.1, 0.9
    receipt.prompt_tokens, receipt.output_tokens, receipt.cached_tokens = 100, 20, 64
    assert json.loads(json.dumps(receipt.describe())) == {
        "request_id": "id-1",
        "at": "1970-01-01T00:00:01.500+00:00",
        "model": "m",
        "kind": "chat",
        "route": "two_hop",
        "reason": "pair_ready",
        "endpoint": "b",
        "prefill": "p",
        "status": 200,
        "queue_s": 0.0,
        "ttft_s": 0.1,
        "total_s": 0.9,
        "tokens": {"prompt": 100, "output": 20, "cached": 64},
        "attempts": [{"endpoint": "a", "outcome": "connect_failed"}, {"endpoint": "b", "outcome": "ok"}],
        "decisions": [{"hop": "prefill", **describe_decision(DECISION)}],
    }
