"""The approximate prefix index: which endpoint should hold which front part of a prompt, by what was sent there.

Invariant: an endpoint that has a block has every block in front of it, and used each no earlier than the one behind
it. So forgetting takes chains from their ends, and the length of a match is found by bisection.
"""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from itertools import islice

from gateway.prefix.blocks import BLOCK_ENDS

_FORGET_SHARE = 16
"""A full endpoint forgets 1/16 of its capacity at once, since finding the oldest entry of a dict costs a scan."""

SHARED_AFTER = 4
"""A front part counts as shared once this many prompts have gone on from it in ways not seen before."""

BLOCK_BYTES = 180
"""What one block of one endpoint costs at most. Measured as RSS with 17 to 64 endpoints full of 4 KB prompts, the
table of departures included: 98 to 151 bytes, by how long ago the dicts grew; the rest is for the worst moment."""

TOTAL_BLOCKS = 64_000_000 // BLOCK_BYTES
"""How many blocks 64 MB hold."""


class PrefixIndex:
    """Block keys per endpoint, each endpoint's least recently used ones forgotten first.

    `capacity_blocks` bounds each endpoint by itself, as its KV cache does; a full endpoint forgets a sixteenth of
    it at once. `total_blocks` bounds all together: every endpoint that has any, and the table of departures, may have
    an equal share of it, and where one more comes the others forget what no longer fits. At least one block each. Pure
    state: no clock, no I/O.
    """

    def __init__(self, capacity_blocks: int, total_blocks: int = TOTAL_BLOCKS) -> None:
        if capacity_blocks < 1 or total_blocks < 1:
            raise ValueError("capacity_blocks and total_blocks must be at least 1")
        self.capacity_blocks = capacity_blocks
        self.total_blocks = total_blocks
        # A dict keeps the order of insertion, here the order of use: a used key is taken out and put in again.
        self._held: dict[str, dict[int, None]] = {}
        # How many prompts left the known path behind this block: one entry at most for each prompt sent.
        self._departures: dict[int, int] = {}
        self._limit = self._share()

    def __len__(self) -> int:
        """Return the number of blocks remembered, counted once per endpoint that has them."""
        return sum(map(len, self._held.values()))

    def match(self, keys: Sequence[int]) -> dict[str, int]:
        """Return for each endpoint that has at least the first block the prompt bytes it has from the front.

        Reads only: a match is no use of the blocks, being sent there is. O(endpoints * log blocks).
        """
        if not keys:
            return {}
        first = keys[0]
        # From the back a chain reads absent … absent, present … present: sorted, as bisection wants it.
        backwards = keys[::-1]
        last = len(keys) - 1
        return {
            endpoint: BLOCK_ENDS[last - bisect_left(backwards, True, key=held.__contains__)]
            for endpoint, held in self._held.items()
            if first in held
        }

    def held_blocks(self) -> dict[str, int]:
        """Return how many blocks each endpoint has; endpoints without any are absent."""
        return {endpoint: len(held) for endpoint, held in self._held.items()}

    def shared_bytes(self, keys: Sequence[int], matched_bytes: int) -> int:
        """Return how many of the first `matched_bytes` of a prompt are a front part that many prompts share.

        A system prompt is one: conversation after conversation goes on from it in its own way. A conversation's own
        history is none: only its next turn goes on from it. O(blocks matched), reads only.
        """
        departures = self._departures
        for position in range(bisect_left(BLOCK_ENDS, matched_bytes), -1, -1):
            if position < len(keys) and departures.get(keys[position], 0) >= SHARED_AFTER:
                return min(BLOCK_ENDS[position], matched_bytes)
        return 0

    def note(self, keys: Sequence[int], matched_bytes: int) -> None:
        """Remember where a new prompt, of which `matched_bytes` were known anywhere, left the known path. O(1)."""
        if not matched_bytes:
            return
        last = bisect_left(BLOCK_ENDS, matched_bytes)
        if last + 1 >= len(keys):  # it brought no block of its own
            return
        departures = self._departures
        departures[keys[last]] = departures.pop(keys[last], 0) + 1
        if len(departures) > self._limit:
            for key in list(islice(departures, self._limit // _FORGET_SHARE + 1)):
                del departures[key]

    def insert(self, keys: Sequence[int], endpoint: str) -> None:
        """Remember that `endpoint` was sent the prompt with these keys, from block 0 on. O(blocks)."""
        held = self._held.get(endpoint)
        if held is None:
            held = self._add(endpoint)
        limit = self._limit
        # Deepest first, so that the front is always the more recently used: what the invariant rests on.
        for key in reversed(keys[:limit]):
            held.pop(key, None)
            held[key] = None
        over = len(held) - limit
        if over > 0:
            for key in list(islice(held, over + limit // _FORGET_SHARE)):
                del held[key]

    def drop(self, endpoint: str) -> None:
        """Forget an endpoint that is gone or has lost its cache; one never seen is no error."""
        if self._held.pop(endpoint, None) is not None:
            self._limit = self._share()

    def _share(self) -> int:
        """Return how many blocks each endpoint may have: the table of departures counts as one more."""
        return max(1, min(self.capacity_blocks, self.total_blocks // (len(self._held) + 1)))

    def configure(self, total_blocks: int) -> None:
        """Have all endpoints together hold at most `total_blocks` (at least 1) from now on. O(blocks held)."""
        self.total_blocks = total_blocks
        self._fit()

    def _add(self, endpoint: str) -> dict[int, None]:
        """Return the place of an endpoint that had no block, the others having made room for it. O(blocks held)."""
        held = self._held[endpoint] = {}
        self._fit()
        return held

    def _fit(self) -> None:
        """Have everyone forget what is over a new share."""
        limit = self._limit = self._share()
        keep = limit - limit // _FORGET_SHARE  # room for the next few who come
        for name, blocks in self._held.items():
            if len(blocks) > limit:
                # Made anew: a dict that only loses entries keeps the memory of its largest size.
                self._held[name] = dict.fromkeys(islice(blocks, len(blocks) - keep, None))
        if len(self._departures) > limit:
            self._departures = dict(islice(self._departures.items(), len(self._departures) - keep, None))


def share(matched_bytes: int, prompt_bytes: int) -> float:
    """Return matched as a share, 0 to 1, of the prompt; 0 for an empty prompt."""
    return min(matched_bytes / prompt_bytes, 1.0) if prompt_bytes > 0 else 0.0


def shares(matched: Mapping[str, int], prompt_bytes: int) -> dict[str, float]:
    """Return what `match` found as `RequestView.matched` wants it: shares of the prompt by endpoint name."""
    return {endpoint: share(matched_bytes, prompt_bytes) for endpoint, matched_bytes in matched.items()}
