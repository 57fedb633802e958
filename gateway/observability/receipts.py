"""Receipts: for each of the last requests, why it went where, and what followed.

Invariant: at most `limit` receipts are kept, and each kept one is found by its request id; of receipts with one id,
the newest. Keeping one costs the same however many there are; JSON is made only when someone asks.
"""

from collections import deque
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from scorers.model import Decision, Hop


@dataclass(slots=True)
class Receipt:
    """One request's way: `at_s` is the wall clock at its arrival, other times are seconds, None where not reached.

    `decisions` holds each routing decision of the last turn and of the retries, with its hop, in order, and `attempts`
    (endpoint, outcome) of each leg sent. `endpoint` is the one that answered; `prefill` the one that filled its cache,
    on two hops only. `kind` is which route of the API it came in by, one of `gateway.api.routes.KINDS`.
    """

    request_id: str
    at_s: float
    model: str = ""
    route: str = ""
    reason: str = ""
    kind: str = ""
    decisions: list[tuple[Hop, Decision]] = field(default_factory=list)
    endpoint: str | None = None
    prefill: str | None = None
    attempts: list[tuple[str, str]] = field(default_factory=list)
    status: int = 0
    queue_s: float | None = None
    ttft_s: float | None = None
    total_s: float | None = None
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None

    def describe(self) -> dict[str, Any]:
        """Return the receipt as the admin API shows it, ready for JSON."""
        return {
            "request_id": self.request_id,
            "at": datetime.fromtimestamp(self.at_s, UTC).isoformat(timespec="milliseconds"),
            "model": self.model,
            "kind": self.kind,
            "route": self.route,
            "reason": self.reason,
            "endpoint": self.endpoint,
            "prefill": self.prefill,
            "status": self.status,
            "queue_s": self.queue_s,
            "ttft_s": self.ttft_s,
            "total_s": self.total_s,
            "tokens": {"prompt": self.prompt_tokens, "output": self.output_tokens, "cached": self.cached_tokens},
            "attempts": [{"endpoint": endpoint, "outcome": outcome} for endpoint, outcome in self.attempts],
            "decisions": [{"hop": hop, **describe_decision(decision)} for hop, decision in self.decisions],
        }


def describe_decision(decision: Decision) -> dict[str, Any]:
    """Return a decision as the admin API shows it: the pick, and every candidate with every term of its score."""
    candidates = []
    for i, (name, total) in enumerate(zip(decision.candidates, decision.totals, strict=True)):
        terms = {
            scorer: {"score": values[i], "weight": weight, "weighted": values[i] * weight}
            for scorer, weight, values in zip(decision.scorers, decision.weights, decision.terms, strict=True)
        }
        candidates.append({"endpoint": name, "total": total, "terms": terms})
    return {"picked": decision.picked, "candidates": candidates, "rejected": dict(decision.rejected)}


class Receipts:
    """The last `limit` receipts."""

    def __init__(self, limit: int = 1000) -> None:
        self._limit = limit
        self._ring: deque[Receipt] = deque()
        self._by_id: dict[str, Receipt] = {}

    def __len__(self) -> int:
        return len(self._ring)

    def keep(self, receipt: Receipt) -> None:
        """Add a receipt; the oldest goes where there are too many."""
        ring, by_id = self._ring, self._by_id
        ring.append(receipt)
        by_id[receipt.request_id] = receipt
        if len(ring) > self._limit:
            oldest = ring.popleft()
            if by_id.get(oldest.request_id) is oldest:
                del by_id[oldest.request_id]

    def find(self, request_id: str) -> Receipt | None:
        """Return the newest kept receipt with this request id."""
        return self._by_id.get(request_id)

    def latest(self, limit: int) -> list[Receipt]:
        """Return up to `limit` receipts, newest first."""
        newest_first = reversed(self._ring)
        return [receipt for _, receipt in zip(range(limit), newest_first, strict=False)]
