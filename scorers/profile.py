"""A profile and the one function that decides with it: filter, score, pick.

Invariant: `decide` is a function of its arguments alone, so a decision can be replayed bit for bit.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from scorers import Scorer
from scorers.filters import Filter
from scorers.model import NO_LABELS, Decision, EndpointView, RequestView
from scorers.pickers import Picker


class WeightedScorer(NamedTuple):
    """A scorer under its configured name, with the weight of its terms in the total."""

    name: str
    weight: float
    scorer: Scorer


class NamedFilter(NamedTuple):
    """A filter under its configured name."""

    name: str
    filter: Filter


@dataclass(frozen=True, slots=True)
class Profile:
    """How to decide: filters in order, weighted scorers, one picker."""

    filters: tuple[NamedFilter, ...]
    scorers: tuple[WeightedScorer, ...]
    picker: Picker


def decide(profile: Profile, request: RequestView, pool: Sequence[EndpointView], chance: float) -> Decision:
    """Return which endpoint of `pool` gets `request`, and why.

    `chance` in [0, 1) breaks ties. Names in `pool` are unique. An empty pool, or one that the filters empty, gives
    a decision with `picked` None. Without scorers every candidate scores 0.
    """
    candidates, rejected = _filtered(profile, request, pool)
    if not candidates:
        return Decision(picked=None, rejected=rejected)
    scorers: list[str] = []
    weights: list[float] = []
    terms: list[list[float]] = []
    totals = [0.0] * len(candidates)
    for name, weight, scorer in profile.scorers:
        column = scorer.score(request, candidates)
        if column is None:
            continue
        scorers.append(name)
        weights.append(weight)
        terms.append(column)
        totals = [total + weight * term for total, term in zip(totals, column, strict=True)]
    names = tuple([endpoint.name for endpoint in candidates])
    return Decision(
        picked=names[profile.picker.pick(totals, chance)],
        candidates=names,
        scorers=tuple(scorers),
        weights=tuple(weights),
        terms=tuple(terms),
        totals=tuple(totals),
        rejected=rejected,
    )


def _filtered(
    profile: Profile, request: RequestView, pool: Sequence[EndpointView]
) -> tuple[Sequence[EndpointView], Mapping[str, str]]:
    """Return who is left, and for each that is not, the filter that took it out."""
    candidates = pool
    rejected: dict[str, str] = {}
    for name, entry in profile.filters:
        kept = entry.keep(request, candidates)
        if len(kept) < len(candidates):
            left = {endpoint.name for endpoint in kept}
            rejected.update({endpoint.name: name for endpoint in candidates if endpoint.name not in left})
        candidates = kept
    return candidates, rejected or NO_LABELS
