"""A prefix index that tells others what it is taught, and learns what they were."""

from collections.abc import Callable, Sequence

from gateway.prefix.index import PrefixIndex


class SharedIndex(PrefixIndex):
    """A `PrefixIndex` whose `insert` also calls `tell(endpoint, keys)`; `hear` learns without telling."""

    def __init__(self, capacity_blocks: int, total_blocks: int, tell: Callable[[str, Sequence[int]], None]) -> None:
        super().__init__(capacity_blocks, total_blocks)
        self._tell = tell

    def insert(self, keys: Sequence[int], endpoint: str) -> None:
        """Remember a prompt that this process sent."""
        super().insert(keys, endpoint)
        self._tell(endpoint, keys)

    def hear(self, keys: Sequence[int], endpoint: str) -> None:
        """Remember a prompt that another process sent."""
        super().insert(keys, endpoint)
