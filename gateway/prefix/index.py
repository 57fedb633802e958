"""The approximate prefix index: which endpoint should hold which front part of a prompt, by what was sent there.

Invariant: an endpoint that has a block has every block in front of it, and each was used no earlier than the one
behind it. So eviction takes chains from their ends, and the length of a match is found by bisection.
"""

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Mapping, Sequence

from gateway.prefix.blocks import BLOCK_ENDS


class PrefixIndex:
    """Block keys per endpoint, each endpoint's least recently used ones forgotten first.

    `capacity_blocks` bounds each endpoint by itself, as its KV cache does; a block costs about 200 bytes of memory
    per endpoint that has it. Pure state: no clock, no I/O, one loop.
    """

    def __init__(self, capacity_blocks: int) -> None:
        if capacity_blocks < 1:
            raise ValueError("capacity_blocks must be at least 1")
        self.capacity_blocks = capacity_blocks
        self._held: dict[str, OrderedDict[int, None]] = {}

    def __len__(self) -> int:
        """Return the number of blocks remembered, counted once per endpoint that has them."""
        return sum(map(len, self._held.values()))

    def match(self, keys: Sequence[int]) -> dict[str, int]:
        """Return for each endpoint that has at least the first block the prompt bytes it has from the front.

        Reads only: a match is no use of the blocks, being sent there is. O(endpoints × log blocks).
        """
        if not keys:
            return {}
        first = keys[0]
        # From the back a chain reads absent … absent, present … present, which is sorted as bisection wants it.
        backwards = keys[::-1]
        count = len(keys)
        return {
            endpoint: BLOCK_ENDS[count - 1 - bisect_left(backwards, True, key=held.__contains__)]
            for endpoint, held in self._held.items()
            if first in held
        }

    def insert(self, keys: Sequence[int], endpoint: str) -> None:
        """Remember that `endpoint` was sent the prompt with these keys, from block 0 on. O(blocks)."""
        held = self._held.get(endpoint)
        if held is None:
            held = self._held[endpoint] = OrderedDict()
        # Deepest first, so that the front is always the more recently used: what the invariant rests on.
        for key in reversed(keys[: self.capacity_blocks]):
            if key in held:
                held.move_to_end(key)
            else:
                held[key] = None
        for _ in range(len(held) - self.capacity_blocks):
            held.popitem(last=False)

    def drop(self, endpoint: str) -> None:
        """Forget an endpoint that is gone or has lost its cache; one never seen is no error."""
        self._held.pop(endpoint, None)


def share(matched_bytes: int, prompt_bytes: int) -> float:
    """Return matched as a share, 0 to 1, of the prompt; 0 for an empty prompt."""
    return min(matched_bytes / prompt_bytes, 1.0) if prompt_bytes > 0 else 0.0


def shares(matched: Mapping[str, int], prompt_bytes: int) -> dict[str, float]:
    """Return what `match` found as `RequestView.matched` wants it: shares of the prompt by endpoint name."""
    return {endpoint: share(matched_bytes, prompt_bytes) for endpoint, matched_bytes in matched.items()}
