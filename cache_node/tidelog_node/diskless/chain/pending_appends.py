"""Counts the appends that a chain has not committed: each has waiters, which take memory.

The records themselves are in the logs' files. But an append has an answer that waits, or an ack
that has timed out and stays until its offset is committed. Of tiny batches these are much more than
the batches' bytes, so they count towards a full chain.
"""

from __future__ import annotations

from collections import deque

from tidelog_core.diskless.wal.epoch_chains import PartitionName

# Of an append's request, answer and ack: an estimate from above, it was not measured.
PENDING_APPEND_BYTES = 1024
RUN_COUNT_MAX = 256  # appends that are settled together


class _Run:
    """Consecutive appends of a partition."""

    __slots__ = ("count", "end_offset")

    def __init__(self, end_offset: int, count: int) -> None:
        self.end_offset = end_offset  # exclusive
        self.count = count


class PendingAppends:
    """The appends of one chain. Memory grows with a part of them only."""

    def __init__(self) -> None:
        self.count = 0
        self._runs: dict[PartitionName, deque[_Run]] = {}

    @property
    def size_bytes(self) -> int:
        """The memory that they count for."""
        return self.count * PENDING_APPEND_BYTES

    def add(self, name: PartitionName, end_offset: int, count: int) -> None:
        """Note some appends that end at the offset."""
        self.count += count
        runs = self._runs.setdefault(name, deque())
        if runs and runs[-1].count + count <= RUN_COUNT_MAX:
            runs[-1].end_offset = end_offset
            runs[-1].count += count
        else:
            runs.append(_Run(end_offset, count))

    def settle(self, name: PartitionName, end_offset: int) -> None:
        """Forget the appends that are committed up to the offset."""
        runs = self._runs.get(name)
        if runs is None:
            return
        while runs and runs[0].end_offset <= end_offset:
            self.count -= runs.popleft().count
        if not runs:
            del self._runs[name]

    def clear(self) -> None:
        """Forget all of them."""
        self.count = 0
        self._runs.clear()
