"""What is left of a deleted topic, and how it goes.

The tombstone is written by the deletion and removed last, so whatever stops on the way
is begun again from it. Any number of nodes and functions may do it at once:

- the bucket is told of the deletion, as soon as the tombstone is seen: whoever has nothing but
  the bucket does not bring back what is left;
- once its time has come, the partition items go first: every commit of a leader checks one,
  so no copy of the topic ends any more and no new one begins;
- then its segments are DELETE_STARTED: what one more party finds is final;
- then every object below the topic's prefix, which holds the topic's id: nothing else
  ever has it; and then what tells of the deletion, which lies beside;
- then the items of the segments, of claims on them and of erasures, and the tombstone.

An upload that was on its way all that time may still put its object after the prefix was
emptied; the scrub removes it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from uuid import UUID

from tidelog_core.metadata import records
from tidelog_core.metadata.key_erasures import KEY_ERASURE_COLLECTION, key_erasure_prefix
from tidelog_core.metadata.local_erasures import local_erasure_key
from tidelog_core.metadata.records import DeletedTopic, SegmentMeta
from tidelog_core.metadata.rewrite_claims import rewrite_claim_key
from tidelog_core.metadata.store import ANY_VERSION, COMMIT_WRITES_MAX, MetadataStore, Write
from tidelog_core.tier.lifecycle import (
    AT_ONCE,
    drop_segments,
    read_segments,
    start_deletions,
)


def deletable_topic_ms(tombstone: DeletedTopic, *, delay_ms: int) -> int:
    """Return the Unix time from which the topic's objects may go.

    The topic's own file.delete.delay.ms went with its settings, so ``delay_ms`` is the
    same for all.
    """
    return tombstone.deleted_ms + delay_ms


async def clean_deleted_topic(
    store: MetadataStore,
    tombstone: DeletedTopic,
    *,
    delete_objects: Callable[[], Awaitable[None]],
) -> None:
    """Remove what is left of the topic: its partitions, segments, objects, tombstone.

    ``delete_objects`` deletes all below the topic's prefix, then what tells of the deletion,
    durable on return; that was told before. Doing it twice is harmless. Raises what it and
    the store raise: ``VersionConflict`` where someone else is at it just now.
    """
    await remove_partitions(store, tombstone.topic_id)
    marked: list[SegmentMeta] = []
    for partition in range(tombstone.partition_count):
        segments = await read_segments(store, tombstone.topic_id, partition)
        marked += await start_deletions(store, segments, deletable_ms=AT_ONCE)
    await delete_objects()
    await drop_segments(store, marked)
    others = [
        key(tombstone.topic_id, number)
        for number in range(tombstone.partition_count)
        for key in (rewrite_claim_key, local_erasure_key)
    ]
    prefix = key_erasure_prefix(tombstone.topic_id)
    others += [item.id for item in await store.list(KEY_ERASURE_COLLECTION, prefix=prefix)]
    for at in range(0, len(others), COMMIT_WRITES_MAX):
        some = others[at : at + COMMIT_WRITES_MAX]
        await store.commit([Write(key, None, ANY_VERSION, False) for key in some])
    await store.commit([Write(tombstone.item_id, None, ANY_VERSION)])


async def remove_partitions(store: MetadataStore, topic_id: UUID) -> None:
    """Remove the partition items of a topic that is not part of the cluster."""
    items = await store.list(records.partition_collection(topic_id))
    for at in range(0, len(items), COMMIT_WRITES_MAX):
        some = items[at : at + COMMIT_WRITES_MAX]
        await store.commit([Write(item.id, None, ANY_VERSION, False) for item in some])
