"""Partitions with a forwarded batch that their leader has not appended.

Before a gateway learns of it, it may have sent later batches, and those of the same producer must
not be appended (``broken_producers``). A log that knows the producer refuses them by their
sequence; one that does not would begin with the first of them. If the batch could not be read,
nobody here knows its producer. So for a time all producers that the partition's log does not know
must begin with sequence 0 (``UnknownProducers``).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from tidelog_core.diskless.wal.epoch_chains import PartitionName

MISSED_SECONDS = 600.0  # longer than producers repeat a batch
PARTITIONS_MAX = 10_000


class MissedBatches:
    """Remembers when a batch of each partition was missed. For the node's event loop."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._missed_s: OrderedDict[PartitionName, float] = OrderedDict()  # oldest first

    def __len__(self) -> int:
        """Return the number of partitions that are remembered."""
        return len(self._missed_s)

    def note(self, partition: PartitionName) -> None:
        """A batch was not appended."""
        self._missed_s[partition] = self._now_s()
        self._missed_s.move_to_end(partition)
        if len(self._missed_s) > PARTITIONS_MAX:
            self._missed_s.popitem(last=False)

    def has(self, partition: PartitionName) -> bool:
        """Return whether a batch was missed not long ago."""
        before_s = self._now_s() - MISSED_SECONDS
        while self._missed_s and next(iter(self._missed_s.values())) <= before_s:
            self._missed_s.popitem(last=False)
        return partition in self._missed_s
