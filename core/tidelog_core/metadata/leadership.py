"""Fences decisions about a partition's log with the leader epoch.

A leader decides from its own log, a function from the segments that it has read. Another leader
may have another log, so a decision is valid only in its leader epoch. A commit that follows from
it expects the version of the partition's item at which that epoch was read. If only something else
in the item has changed, such as the ISR, the commit is retried.

The epoch alone identifies the log. Each change of leader begins an epoch, and so does each start
of a node that led before: an epoch has one leader and one log. The leader's id adds nothing. The
item's version would protect less if it is read just before the commit and long after the decision.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from uuid import UUID

from tidelog_core.errors import NotLeaderOrFollower, UnknownTopicOrPartition
from tidelog_core.metadata import records
from tidelog_core.metadata.epoch_chains import cut_tiered
from tidelog_core.metadata.records import Partition
from tidelog_core.metadata.store import Item, MetadataStore, Write
from tidelog_core.metadata.update import update


@dataclass(frozen=True, slots=True)
class Leadership:
    """A partition in one leader epoch."""

    topic_id: UUID
    partition: int
    leader_epoch: int

    def __str__(self) -> str:
        return f"{self.topic_id}-{self.partition} in leader epoch {self.leader_epoch}"


def leadership_of(partition: Partition) -> Leadership:
    """Return the leadership in the partition's item."""
    return Leadership(partition.topic_id, partition.partition, partition.leader_epoch)


async def require_leadership(store: MetadataStore, leadership: Leadership) -> Partition:
    """Return the stored partition; a commit can expect its version.

    Raises ``UnknownTopicOrPartition`` if it was deleted, ``NotLeaderOrFollower`` if it has
    another leader epoch.
    """
    key = records.partition_key(leadership.topic_id, leadership.partition)
    return _led(await store.get(key), leadership)


async def advance_log_start(
    store: MetadataStore, leadership: Leadership, offset: int, *, copied_end: int = -1
) -> int:
    """Store the log start offset unless the stored one is greater; return the stored one.

    Durable on return. The offset is at most the leader's high watermark or the end of the tiered
    segments. In another epoch the leader's log may end before it and would lose appends up to
    there. Below ``copied_end`` the tier has had every record: chains of diskless partitions that
    have nothing else are no longer named. The log start never goes back, so an unknown outcome is
    settled by reading. Raises as ``require_leadership``, and the errors of the store.
    """

    def advance(item: Item | None) -> tuple[int, Write | None]:
        partition = _led(item, leadership)
        if partition.log_start_offset >= offset:
            return partition.log_start_offset, None
        wal = cut_tiered(partition.wal, copied_end)
        return offset, records.put(dataclasses.replace(partition, log_start_offset=offset, wal=wal))

    key = records.partition_key(leadership.topic_id, leadership.partition)
    return await update(store, key, advance)


def _led(item: Item | None, leadership: Leadership) -> Partition:
    if item is None:
        raise UnknownTopicOrPartition(f"{leadership} is over: the partition was deleted")
    partition = Partition.from_item(item)
    if partition.leader_epoch != leadership.leader_epoch:
        raise NotLeaderOrFollower(f"{leadership} is over, it is in {partition.leader_epoch} now")
    return partition
