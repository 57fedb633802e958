"""The pool of KV blocks of one engine: references, prefix cache, least-recently-used eviction.

Invariant: a block is either referenced (count of one or more) or in the free queue, never both, never neither;
a free block keeps its hash, and so can be hit, until it is handed out again.
"""

from collections import OrderedDict
from collections.abc import Iterable, Sequence


class BlockPool:
    """`size` blocks, numbered from 0; the first in the free queue is the next to be handed out."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._references = [0] * size
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(size))
        self._hash_of: dict[int, int] = {}
        self._block_of: dict[int, int] = {}
        self.evictions = 0

    @property
    def free(self) -> int:
        """The number of blocks nobody references."""
        return len(self._free)

    def lookup(self, hashes: Sequence[int]) -> list[int]:
        """Return the blocks that hold the longest cached prefix of `hashes`; no reference is taken."""
        blocks = []
        for block_hash in hashes:
            block = self._block_of.get(block_hash)
            if block is None:
                break
            blocks.append(block)
        return blocks

    def idle(self, blocks: Iterable[int]) -> int:
        """Return how many of `blocks` nobody references."""
        references = self._references
        return sum(1 for block in blocks if not references[block])

    def hold(self, blocks: Iterable[int]) -> None:
        """Take one more reference on each of `blocks`."""
        references = self._references
        for block in blocks:
            if not references[block]:
                del self._free[block]
            references[block] += 1

    def take(self, count: int) -> list[int]:
        """Hand out the `count` least recently used free blocks with one reference each, their cache forgotten.

        The caller has checked that `count` blocks are free.
        """
        taken = []
        for _ in range(count):
            block, _ = self._free.popitem(last=False)
            block_hash = self._hash_of.pop(block, None)
            if block_hash is not None:
                del self._block_of[block_hash]
                self.evictions += 1
            self._references[block] = 1
            taken.append(block)
        return taken

    def remember(self, block: int, block_hash: int) -> None:
        """Let `block` be found by `block_hash`, unless another block already is."""
        if block not in self._hash_of and block_hash not in self._block_of:
            self._hash_of[block] = block_hash
            self._block_of[block_hash] = block

    def drop(self, blocks: Sequence[int]) -> None:
        """Give back one reference on each of `blocks`; the last block of a prefix will be the first to be evicted."""
        references = self._references
        for block in reversed(blocks):
            references[block] -= 1
            if not references[block]:
                self._free[block] = None

    def check(self) -> None:
        """Raise AssertionError if the module's invariant does not hold; for tests."""
        counts = enumerate(self._references)
        wrong = [block for block, count in counts if (count > 0) == (block in self._free) or count < 0]
        if wrong or {block: h for h, block in self._block_of.items()} != self._hash_of:
            raise AssertionError(f"blocks {wrong} are free and held, or neither, or the cache contradicts itself")
