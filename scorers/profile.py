"""A profile and the one function that decides with it: filter, score, pick.

Invariant: `decide` is a function of its arguments alone, so a decision can be replayed bit for bit.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
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


Columns = tuple[tuple[str, ...], tuple[float, ...]]


class NamedFilter(NamedTuple):
    """A filter under its configured name."""

    name: str
    filter: Filter


@dataclass(frozen=True, slots=True)
class Profile:
    """How to decide: filters in order, weighted scorers, one picker.

    `columns` maps the names of scorers that have nothing to say (none, or one) to the others' names and weights.
    """

    filters: tuple[NamedFilter, ...]
    scorers: tuple[WeightedScorer, ...]
    picker: Picker
    columns: Mapping[tuple[str, ...], Columns] = field(init=False)

    def __post_init__(self) -> None:
        silent: list[tuple[str, ...]] = [(), *((entry.name,) for entry in self.scorers)]
        object.__setattr__(self, "columns", {names: _columns(self.scorers, names) for names in silent})


def _columns(scorers: Sequence[WeightedScorer], silent: Sequence[str]) -> Columns:
    said = [entry for entry in scorers if entry.name not in silent]
    return tuple([entry.name for entry in said]), tuple([entry.weight for entry in said])


def decide(profile: Profile, request: RequestView, pool: Sequence[EndpointView], chance: float) -> Decision:
    """Return which endpoint of `pool` gets `request`, and why.

    `chance` in [0, 1) breaks ties. Names in `pool` are unique. An empty pool, or one that the filters empty, gives
    a decision with `picked` None. Without scorers every candidate scores 0.
    """
    candidates = pool
    rejected = NO_LABELS
    for name, entry in profile.filters:
        kept = entry.keep(request, candidates)
        if len(kept) < len(candidates):
            rejected = _rejected(rejected, name, candidates, kept)
        candidates = kept
    if not candidates:
        return Decision(None, (), (), (), (), (), rejected)
    terms = []
    silent: tuple[str, ...] = ()
    totals: Sequence[float] = ()
    for name, weight, scorer in profile.scorers:
        column = scorer.score(request, candidates)
        if column is None:
            silent += (name,)
            continue
        terms.append(column)
        if totals:
            totals = [total + weight * term for total, term in zip(totals, column, strict=True)]
        else:
            totals = [weight * term for term in column]
    if not totals:
        totals = [0.0] * len(candidates)
    names = tuple([endpoint.name for endpoint in candidates])
    picked = names[profile.picker.pick(totals, chance)]
    scorers, weights = profile.columns.get(silent) or _columns(profile.scorers, silent)
    return Decision(picked, names, scorers, weights, tuple(terms), tuple(totals), rejected)


def _rejected(
    before: Mapping[str, str], by: str, candidates: Sequence[EndpointView], kept: Sequence[EndpointView]
) -> Mapping[str, str]:
    """Return `before` with the name of each candidate that is not kept, and of the filter that took it out."""
    left = {endpoint.name for endpoint in kept}
    return {**before, **{endpoint.name: by for endpoint in candidates if endpoint.name not in left}}
