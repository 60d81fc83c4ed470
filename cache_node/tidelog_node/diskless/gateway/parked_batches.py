"""Committed batches that wait for a leader, in order, each with a deadline.

    park         the batch waits, and all later ones of its partition behind it
    take_first   a try: the leader gets the partition's first batch alone
    take_all     the leader has accepted it, or nothing blocks the others any more

A node that does not lead yet reads an object before it can say so. A try with one batch costs it
one read, no matter how many wait. The tries of a partition are further and further apart, so
waiting batches cost the event loop little. ``expired`` yields every batch at its deadline.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappop, heappush

from tidelog_core.diskless.wal.epoch_chains import PartitionName

from tidelog_node.diskless.gateway.gateway_batches import GatewayBatch

RETRY_SECONDS = 0.25
RETRY_SECONDS_MAX = 0.5


class _ParkedPartition:
    """The waiting batches of one partition."""

    __slots__ = ("batches", "delay_s", "next_s")

    def __init__(self, next_s: float) -> None:
        self.batches: list[int] = []  # a heap of numbers; those whose time was up may be there
        self.next_s = next_s  # when to try
        self.delay_s = RETRY_SECONDS  # from that try to the next one


class ParkedBatches:
    """The waiting batches of all partitions. Times are the loop's."""

    def __init__(self) -> None:
        # A partition stays while its first batch is tried, so that others wait behind that.
        self._partitions: dict[PartitionName, _ParkedPartition] = {}
        self._deadlines: list[tuple[float, int]] = []  # a heap, with a batch's number, once
        self._noted: set[int] = set()  # the numbers there
        self._waiting: dict[int, GatewayBatch] = {}  # by number

    def __len__(self) -> int:
        """Return the number of batches that wait."""
        return len(self._waiting)

    def __contains__(self, name: PartitionName) -> bool:
        """Return whether later batches of the partition have to wait."""
        return name in self._partitions

    @property
    def is_idle(self) -> bool:
        """Whether nothing waits, and nothing is tried."""
        return not (self._partitions or self._deadlines)

    def park(self, batch: GatewayBatch, now_s: float) -> None:
        """Have the batch wait."""
        partition = self._partitions.get(batch.name)
        if partition is None:
            partition = self._partitions[batch.name] = _ParkedPartition(now_s + RETRY_SECONDS)
        heappush(partition.batches, batch.number)
        self._waiting[batch.number] = batch
        if batch.number not in self._noted:
            self._noted.add(batch.number)
            heappush(self._deadlines, (batch.deadline_s, batch.number))

    def due(self, now_s: float) -> list[PartitionName]:
        """Return the partitions to try now, and put the next try of each off."""
        found: list[PartitionName] = []
        for name, partition in self._partitions.items():
            if partition.next_s <= now_s:
                partition.next_s = now_s + partition.delay_s
                partition.delay_s = min(2 * partition.delay_s, RETRY_SECONDS_MAX)
                found.append(name)
        return found

    def of_topics(self, topics: frozenset[str]) -> list[PartitionName]:
        """Return the partitions of these topics with batches that wait."""
        firsts = map(self.first, tuple(self._partitions))
        return [
            one.name for one in firsts if one is not None and one.replica.partition.topic in topics
        ]

    def first(self, name: PartitionName) -> GatewayBatch | None:
        """Return the first batch that waits of the partition."""
        partition = self._partitions.get(name)
        while partition is not None and partition.batches:
            one = self._waiting.get(partition.batches[0])
            if one is not None:
                return one
            heappop(partition.batches)
        return None

    def take_first(self, name: PartitionName) -> GatewayBatch | None:
        """Take the first batch; ``None`` if there is none: then nothing has to wait any more."""
        one = self.first(name)
        if one is None:
            self._partitions.pop(name, None)
            return None
        heappop(self._partitions[name].batches)
        del self._waiting[one.number]
        return one

    def take_all(self, name: PartitionName) -> list[GatewayBatch]:
        """Take all batches of the partition, in order."""
        partition = self._partitions.pop(name, None)
        if partition is None:
            return []
        found = (self._waiting.pop(number, None) for number in sorted(partition.batches))
        return [one for one in found if one is not None]

    def expired(self, now_s: float) -> Iterator[GatewayBatch]:
        """Take the batches whose time is up."""
        while self._deadlines and self._deadlines[0][0] <= now_s:
            _, number = heappop(self._deadlines)
            self._noted.discard(number)
            one = self._waiting.pop(number, None)
            if one is not None:
                yield one
