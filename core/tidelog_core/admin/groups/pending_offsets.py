"""Removes the pending offsets of open transactions with a deleted group or deleted offsets.

Source: ``deleteAllOffsets`` and ``deleteOffsets`` in ``OffsetMetadataManager`` of Kafka.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping

from tidelog_core.batched import batched
from tidelog_core.errors import CoordinatorNotAvailable, VersionConflict
from tidelog_core.metadata.coordination.transactions import (
    PendingOffsets,
    group_of_pending,
    pending_offsets_collection,
)
from tidelog_core.metadata.records import delete, put
from tidelog_core.metadata.store import Check, Item, MetadataStore, Write

ATTEMPTS_MAX = 4
ITEMS_PER_COMMIT = 90  # and a check; DynamoDB takes 100 a transaction


async def pending_items(store: MetadataStore, *, shard: int, group_id: str) -> list[Item]:
    """Return the items with offsets that become the group's when a transaction commits."""
    items = await store.list(pending_offsets_collection(shard))
    return [item for item in items if group_of_pending(item.id) == group_id]


async def drop_pending(
    store: MetadataStore,
    *,
    shard: int,
    group_id: str,
    if_still: Check,
    partitions: Mapping[str, Collection[int]] | None = None,
) -> bool:
    """Remove the partitions' pending offsets, by topic, or all. Returns whether there were any.

    Durable on return. ``if_still`` is a check of the group's record, which every writer of new
    pending offsets commits too. Raises ``VersionConflict`` if it does not hold, and
    ``CoordinatorNotAvailable``.
    """
    found = False
    for _ in range(ATTEMPTS_MAX):
        items = await pending_items(store, shard=shard, group_id=group_id)
        writes = [write for item in items for write in _removal(item, partitions)]
        found = found or bool(writes)
        try:
            for some in batched(writes, ITEMS_PER_COMMIT):
                await store.commit(some, checks=[if_still])
        except VersionConflict as error:
            if (if_still.id.collection, if_still.id.key) in error.keys:
                raise
            continue  # A transaction ended in between.
        return found
    raise CoordinatorNotAvailable(f"transactions of group {group_id!r} keep changing")


def _removal(item: Item, partitions: Mapping[str, Collection[int]] | None) -> list[Write]:
    """Return the write that removes the partitions from the item, none if it has none of them."""
    if partitions is None:
        return [Write(item.id, None, item.version, is_logged=False)]  # damaged items too
    pending = PendingOffsets.from_item(item)
    left = {
        topic: kept
        for topic, offsets in pending.offsets.items()
        if (kept := {p: o for p, o in offsets.items() if p not in partitions.get(topic[0], ())})
    }
    if left == pending.offsets:
        return []
    rest = dataclasses.replace(pending, offsets=left)
    return [put(rest, is_logged=False) if left else delete(rest, is_logged=False)]
