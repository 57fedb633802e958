"""The scorer `prefix_cache`: how much of the prompt an endpoint already holds in its KV cache."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from scorers.model import EndpointView, RequestView

_COLD = 0.05
"""What the emptiest cache is worth to a prompt that nobody knows: less than one request's room in `queue_depth`."""


@dataclass(frozen=True, slots=True)
class PrefixCache:
    """Scores the share of the prompt, 0 to 1, that is expected to be cached, with two rules for balance.

    A front part that many prompts share (a system prompt) counts `shared_weight` of itself, and nothing below
    `shared_from_bytes`: each endpoint computes it once and has it from then on, so it is no reason to crowd, and
    one of some KB is no reason at all (1,500 tokens are 50 ms of an H100, once for each endpoint). With the default
    weights 3 and 2 for `queue_depth`, a long front part holds requests together while an endpoint has no more than
    one of them more than another.

    A prompt without any credit goes where the least is cached, as far as this scorer is asked: what is computed
    there displaces least, and conversations spread evenly even if they come one at a time.
    """

    shared_weight: float = 0.16
    shared_from_bytes: int = 6144

    def __post_init__(self) -> None:
        if not 0 <= self.shared_weight <= 1 or self.shared_from_bytes < 0:
            raise ValueError("shared_weight must be 0 to 1 and shared_from_bytes 0 or more")

    def score(self, request: RequestView, candidates: Sequence[EndpointView]) -> list[float]:
        """Return the credit per candidate, 0 to 1."""
        matched, shared = request.matched, request.shared
        if matched:
            weight = self.shared_weight if shared * request.prompt_bytes >= self.shared_from_bytes else 0.0
            of_shared = weight * shared
            credit = [
                share - shared + of_shared if share > shared else weight * share
                for share in [matched.get(endpoint.name, 0.0) for endpoint in candidates]
            ]
            if any(credit):
                return credit
        return _emptiest(request.held_blocks, candidates)


def _emptiest(held_blocks: Mapping[str, int], candidates: Sequence[EndpointView]) -> list[float]:
    if not candidates:
        return []
    held = [held_blocks.get(endpoint.name, 0) for endpoint in candidates]
    most = max(held)
    return [_COLD * (1.0 - one / most) for one in held] if most else [0.0] * len(candidates)
