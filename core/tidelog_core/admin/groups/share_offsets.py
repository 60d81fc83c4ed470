"""Reads and resets the offsets of share groups, for administrators.

Share partitions belong to the leaders of their partitions (``share_partitions``). A caller that
writes must have made sure that the group has no members. The write wins over concurrent writes of
a leader, whose next write conflicts.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from uuid import UUID

from tidelog_core.errors import CorruptItem
from tidelog_core.metadata.coordination.share_partitions import (
    NO_START_OFFSET,
    SharePartitionRecord,
    share_collection,
    share_partition_of,
)
from tidelog_core.metadata.records import put
from tidelog_core.metadata.store import ANY_VERSION, Item, MetadataStore, Write

RecordOrCorruptItem = SharePartitionRecord | CorruptItem
"""The offsets of a group in a partition, or the error of reading them."""

SharePartitions = Mapping[tuple[UUID, int], RecordOrCorruptItem]


async def read_share_partitions(store: MetadataStore, group_id: str) -> SharePartitions:
    """Return the group's share partitions by topic and number, the damaged ones too."""
    found: dict[tuple[UUID, int], RecordOrCorruptItem] = {}
    for item in await list_share_partitions(store, group_id):
        at = share_partition_of(item.id)
        if at is not None:  # Another program's item is no share partition.
            try:
                found[at] = SharePartitionRecord.from_item(item)
            except CorruptItem as error:
                found[at] = error
    return found


async def list_share_partitions(store: MetadataStore, group_id: str) -> list[Item]:
    """Return the items of the group's share partitions, readable or not."""
    return await store.list(share_collection(group_id))


def begin_at(
    known: SharePartitions, group_id: str, topic_id: UUID, partition: int, start_offset: int
) -> Write:
    """Return the write that makes the group begin at this offset, with nothing delivered.

    At -1 ``share.auto.offset.reset`` decides when the partition is next read. Such an item is kept
    rather than deleted: a recreated one could get a version that a leader knows.
    """
    record = known.get((topic_id, partition))
    if not isinstance(record, SharePartitionRecord):
        record = SharePartitionRecord(group_id=group_id, topic_id=topic_id, partition=partition)
    record = dataclasses.replace(
        record, state_epoch=record.state_epoch + 1, start_offset=start_offset, batches=()
    )
    return dataclasses.replace(put(record), expected_version=ANY_VERSION)


def forget(item: Item) -> Write:
    """Return the write that removes a share partition with its group or topic."""
    return Write(item.id, None, ANY_VERSION)


def is_begun(record: RecordOrCorruptItem) -> bool:
    """Return whether the group has begun with the partition."""
    return isinstance(record, CorruptItem) or record.start_offset != NO_START_OFFSET
