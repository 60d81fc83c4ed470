"""The writes of a partition's item that its leader has proposed, and the states that may result.

The store may apply a write before, after or without the leader's knowledge. A proposal may still
land as long as the item has the version that it expects; a reading that shows the old version
proves nothing. Only a higher version settles it. So after an unknown outcome the leader writes
again, expecting the same version, until the version moves: one of the writes lands and the others
cannot. Until then it counts on the worst of what may be stored: the **maximal ISR**, the least
number of replicas in sync, another leader.

Source: KIP-497, with unknown outcomes.
"""

from __future__ import annotations

from tidelog_core.metadata.records import Partition
from tidelog_core.model import INT64_MAX
from tidelog_core.replication.change import PartitionChange


class Proposals:
    """The proposals of one leader epoch. One write is in flight at a time."""

    __slots__ = (
        "_broker_id",
        "_in_flight",
        "_open",
        "_retry_from_ms",
        "end_max",
        "in_sync_count",
        "maximal_isr",
        "may_convert",
        "may_lead_elsewhere",
        "needs_read",
    )

    def __init__(self, partition: Partition) -> None:
        self._broker_id = partition.leader
        self._in_flight: PartitionChange | None = None
        self._open: list[PartitionChange] = []  # may have landed or land yet
        self._retry_from_ms = 0.0
        self.needs_read = False  # another node has written the item: read it
        # Every broker that may be in the stored ISR.
        self.maximal_isr: frozenset[int] = frozenset(partition.isr)
        # The number of replicas in sync for certain, with any outcome.
        self.in_sync_count = len(partition.isr)
        self.may_lead_elsewhere = False  # a proposal may have made another broker leader
        self.end_max = INT64_MAX  # a proposal may have ended the epoch there
        self.may_convert = False  # one may have made the partition diskless, or replicated

    @property
    def are_settled(self) -> bool:
        """Whether the known item is certainly the stored one, as far as this leader writes it."""
        return not (self.needs_read or self._in_flight is not None or self._open)

    @property
    def must_be_settled(self) -> bool:
        """Whether another write is due, whose outcome shows which earlier ones were stored."""
        return bool(self._open)

    def may_write(self, now_ms: float) -> bool:
        """Whether the next write may go out."""
        if self.needs_read or self._in_flight is not None:
            return False
        return self.is_due(now_ms)

    def is_due(self, now_ms: float) -> bool:
        """Whether the pause after a write that the store has refused is over."""
        return now_ms >= self._retry_from_ms

    def add(self, change: PartitionChange, partition: Partition) -> None:
        """Note that the change is being written. ``partition`` is the newest known item."""
        self._in_flight = change
        self._open.append(change)
        self._count(partition)

    def on_written(self) -> None:
        """Note that the write is stored; ``on_partition`` gets the item next."""
        self._in_flight = None

    def on_conflict(self) -> None:
        """Note that another node has written the item."""
        self._in_flight = None
        self.needs_read = True

    def on_unknown(self, retry_from_ms: float) -> None:
        """Note that the write may have been stored or may be yet."""
        self._in_flight = None
        self.needs_read = True
        self._retry_from_ms = retry_from_ms

    def on_refused(
        self, change: PartitionChange, partition: Partition, retry_from_ms: float
    ) -> None:
        """Note that the store has written nothing and will not."""
        self._in_flight = None
        self._open = [other for other in self._open if other is not change]
        self._retry_from_ms = retry_from_ms
        self._count(partition)

    def on_partition(self, partition: Partition) -> None:
        """Take a newer item: a proposal on an earlier version has landed in it or never will."""
        version = partition.version
        self._open = [change for change in self._open if change.after.version >= version]
        self._count(partition)

    def _count(self, partition: Partition) -> None:
        """Derive the possible stored states from the known item and the open proposals."""
        members, count = set(partition.isr), len(partition.isr)
        self.may_lead_elsewhere = self.may_convert = False
        self.end_max = INT64_MAX
        for change in self._open:
            after = change.after
            members.update(after.isr)
            count = min(count, len(after.isr))
            if after.is_diskless != partition.is_diskless:
                self.may_convert = True
            if after.leader != self._broker_id:
                self.may_lead_elsewhere = True
                if len(after.wal) > len(partition.wal):
                    self.end_max = min(self.end_max, after.wal[-1].first_offset)
        self.maximal_isr, self.in_sync_count = frozenset(members), count
