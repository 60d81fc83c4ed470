"""Where share groups stand, for those who look after them: reading it, and writing it anew.

Share partitions belong to the leaders of their partitions (``share_partitions``). What is
written here is for whoever has made sure that the group has no members. It counts whatever a
leader has written meanwhile, and the leader's next write loses.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping
from uuid import UUID

from tidelog_core.errors import CorruptItem
from tidelog_core.metadata.records import put
from tidelog_core.metadata.share_partitions import (
    NO_START_OFFSET,
    SharePartitionRecord,
    share_collection,
)
from tidelog_core.metadata.store import ANY_VERSION, Item, MetadataStore, Write

logger = logging.getLogger(__name__)

SharePartitions = Mapping[tuple[UUID, int], SharePartitionRecord]


async def read_share_partitions(store: MetadataStore, group_id: str) -> SharePartitions:
    """Return the group's share partitions that can be read."""
    found = {}
    for item in await list_share_partitions(store, group_id):
        try:
            record = SharePartitionRecord.from_item(item)
        except CorruptItem as error:
            # One that is damaged must not hide the others.
            logger.warning("share partition cannot be read", extra={"problem": str(error)})
        else:
            found[(record.topic_id, record.partition)] = record
    return found


async def list_share_partitions(store: MetadataStore, group_id: str) -> list[Item]:
    """Return the items of the group's share partitions, whatever is in them."""
    return await store.list(share_collection(group_id))


def begin_at(
    known: SharePartitions, group_id: str, topic_id: UUID, partition: int, start_offset: int
) -> Write:
    """Return the write by which the group begins there, with nothing delivered.

    At -1 it begins where ``share.auto.offset.reset`` says when it is next read. Such an item
    is kept rather than deleted: made anew it could come to a version that a leader knows.
    """
    record = known.get((topic_id, partition)) or SharePartitionRecord(
        group_id=group_id, topic_id=topic_id, partition=partition
    )
    record = dataclasses.replace(
        record, state_epoch=record.state_epoch + 1, start_offset=start_offset, batches=()
    )
    return dataclasses.replace(put(record), expected_version=ANY_VERSION)


def forget(item: Item) -> Write:
    """Return the write that removes a share partition, of a group or topic that goes."""
    return Write(item.id, None, ANY_VERSION)


def is_begun(record: SharePartitionRecord) -> bool:
    """Return whether it is known where the group begins."""
    return record.start_offset != NO_START_OFFSET
