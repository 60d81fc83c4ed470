"""What open transactions hold for a group that is deleted: it goes with the group.

Source: ``OffsetMetadataManager.deleteAllOffsets`` of Kafka.
"""

from __future__ import annotations

from tidelog_core.errors import CoordinatorNotAvailable, VersionConflict
from tidelog_core.metadata.store import Check, Item, MetadataStore, Write
from tidelog_core.metadata.transactions import group_of_pending, pending_offsets_collection

ATTEMPTS_MAX = 4
ITEMS_PER_COMMIT = 90  # and a check; DynamoDB takes 100 a transaction


async def pending_items(store: MetadataStore, *, shard: int, group_id: str) -> list[Item]:
    """Return the items with offsets that become the group's when a transaction commits."""
    items = await store.list(pending_offsets_collection(shard))
    return [item for item in items if group_of_pending(item.id) == group_id]


async def drop_pending(store: MetadataStore, *, shard: int, group_id: str, if_still: Check) -> bool:
    """Remove them all, and return whether there were some. Durable on return.

    ``if_still`` is of the group's record, which every writer of new ones checks too. Raises
    ``VersionConflict`` where it does not hold, and ``CoordinatorNotAvailable``.
    """
    found = False
    for _ in range(ATTEMPTS_MAX):
        items = await pending_items(store, shard=shard, group_id=group_id)
        found = found or bool(items)
        try:
            for start in range(0, len(items), ITEMS_PER_COMMIT):
                some = items[start : start + ITEMS_PER_COMMIT]
                writes = [Write(item.id, None, item.version, is_logged=False) for item in some]
                await store.commit(writes, checks=[if_still])
        except VersionConflict as error:
            if (if_still.id.collection, if_still.id.key) in error.keys:
                raise
            continue  # A transaction has ended meanwhile.
        return found
    raise CoordinatorNotAvailable(f"transactions of group {group_id!r} keep changing")
