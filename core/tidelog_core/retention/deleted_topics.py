"""Cleans up a deleted topic.

The deletion writes a tombstone, which is removed last, so an interrupted clean-up starts again from
it. Any number of nodes and functions may do it at the same time, a page of items at a time, since
a topic may have a hundred thousand:

- the deletion is published to the bucket as soon as the tombstone is seen, so that a restoration
  from the bucket alone does not bring the topic back;
- once its time has come, the partition items are removed first: every commit of a leader checks
  one, so no copy of the topic finishes or begins any more;
- then its segments become DELETE_STARTED, which is final;
- then every object below the topic's prefix is deleted, which has the topic's id and is never
  reused;
- then the items of the segments, of claims on them and of erasures;
- then the deletion object, which is outside of the prefix, and the tombstone. Those of a diskless
  topic, which has a mark (``ChainTombstone``), stay for another day. Objects of chains have records
  of several topics, and go when the last of them is not needed: both say, one to a restoration,
  that those of this topic are not.

An older program that cleans up such a topic removes both at once, and leaves the mark. Objects of
chains with its records then count as those of an unknown topic.

An upload that was under way all that time may still put its object after the prefix was
emptied; the scrub removes it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from uuid import UUID

from tidelog_core.batched import batched
from tidelog_core.errors import CorruptItem, InvalidObjectKey
from tidelog_core.metadata import records
from tidelog_core.metadata.erasures import (
    KEY_ERASURE_COLLECTION,
    key_erasure_prefix,
    local_erasure_key,
)
from tidelog_core.metadata.records import (
    CHAIN_TOMBSTONE_COLLECTION,
    DELETED_TOPIC_COLLECTION,
    ChainTombstone,
    DeletedTopic,
    SegmentState,
    chain_tombstone_key,
)
from tidelog_core.metadata.rewrite_claims import rewrite_claim_key
from tidelog_core.metadata.store import (
    ANY_VERSION,
    COMMIT_WRITES_MAX,
    ItemKey,
    KeyRange,
    MetadataStore,
    Write,
)
from tidelog_core.objects.key_rules import check_key
from tidelog_core.objects.store import ObjectStore
from tidelog_core.tier.contents import read_item_pages, read_pages
from tidelog_core.tier.keys import deletion_key, topic_prefix
from tidelog_core.tier.lifecycle import (
    AT_ONCE,
    delete_objects,
    drop_segments,
    start_deletions,
)

logger = logging.getLogger(__name__)

OBJECTS_AT_ONCE = 1000  # Source: S3's DeleteObjects.
# Chains of dead brokers are sealed within minutes, and collected an hour after that. A node that
# starts later, on a disk of that time, seals its chains then.
CHAINS_DELAY_MS = 24 * 3_600_000


def deletable_topic_ms(
    tombstone: DeletedTopic, mark: ChainTombstone | None, *, delay_ms: int
) -> int:
    """Return the Unix time from which the topic's objects may go; once they have, the tombstone.

    The topic's own file.delete.delay.ms went with its settings, so ``delay_ms`` is the
    same for all.
    """
    is_cleaned = mark is not None and mark.is_cleaned
    return tombstone.deleted_ms + (CHAINS_DELAY_MS if is_cleaned else delay_ms)


async def read_mark(store: MetadataStore, topic_id: UUID) -> ChainTombstone | None:
    """Return the mark of a tombstone, ``None`` if the topic was never diskless.

    One that cannot be read counts as if nothing were cleaned up: that is repeated, and stores it
    again. Raises the store's errors.
    """
    item = await store.get(chain_tombstone_key(topic_id))
    try:
        return None if item is None else ChainTombstone.from_item(item)
    except CorruptItem:
        return ChainTombstone(topic_id=topic_id)


async def has_marks(store: MetadataStore) -> bool:
    """Return whether a tombstone has a mark. Raises the store's errors."""
    return bool(await store.list(CHAIN_TOMBSTONE_COLLECTION, keys=KeyRange(limit=1)))


async def remove_lone_marks(store: MetadataStore) -> int:
    """Remove the marks whose tombstones an older program has removed; return how many."""
    marks = [item.id for item in await store.list(CHAIN_TOMBSTONE_COLLECTION)]
    tombs = {mark: ItemKey(DELETED_TOPIC_COLLECTION, mark.key) for mark in marks}
    # A deletion writes both at once, so a tombstone that is missing by now never comes.
    there = await store.get_many(set(tombs.values())) if tombs else {}
    lone = [mark for mark, tomb in tombs.items() if tomb not in there]
    for some in batched(lone, COMMIT_WRITES_MAX):
        await store.commit([Write(mark, None, ANY_VERSION, False) for mark in some])
    return len(lone)


async def clean_deleted_topic(
    store: MetadataStore,
    objects: ObjectStore,
    tombstone: DeletedTopic,
    mark: ChainTombstone | None,
    *,
    cluster_id: str,
    before_page: Callable[[], None] = lambda: None,
) -> None:
    """Remove all items and objects of the topic: partitions, segments, objects, tombstone.

    A tombstone with a mark is removed by another call, when that is due. The deletion must have
    been published to the bucket. Idempotent. Raises the errors of the stores and of
    ``before_page``, which is called before each deletion of objects: ``VersionConflict`` if another
    process is doing the same.
    """
    deletion = deletion_key(cluster_id, tombstone.name, tombstone.topic_id)
    if mark is not None and mark.is_cleaned:
        await objects.delete([deletion])
        await store.commit(
            [
                Write(tombstone.item_id, None, ANY_VERSION),
                Write(mark.item_id, None, ANY_VERSION, False),
            ]
        )
        return
    await remove_partitions(store, tombstone.topic_id)
    tiered = await _start_all_deletions(store, tombstone)
    await _delete_prefix(
        objects, topic_prefix(cluster_id, tombstone.name, tombstone.topic_id), before_page
    )
    # The deletion object goes last: until then a restoration must not bring the topic back.
    if mark is None:
        await objects.delete([deletion])
    for number in tiered:
        async for page in read_pages(store, tombstone.topic_id, number):
            marked = [one for one in page if one.state is SegmentState.DELETE_STARTED]
            await drop_segments(store, marked)
    await _remove_requests(store, tombstone)
    if mark is None:
        await store.commit([Write(tombstone.item_id, None, ANY_VERSION)])
    else:
        body = replace(mark, is_cleaned=True).to_body()
        await store.commit([Write(mark.item_id, body, ANY_VERSION, False)])


async def _start_all_deletions(store: MetadataStore, tombstone: DeletedTopic) -> list[int]:
    """Mark all segments of the topic for deletion; return the partitions that have any."""
    tiered: list[int] = []
    for number in range(tombstone.partition_count):
        async for page in read_pages(store, tombstone.topic_id, number):
            await start_deletions(store, page, deletable_ms=AT_ONCE)
            if page and number not in tiered[-1:]:
                tiered.append(number)
    return tiered


async def _remove_requests(store: MetadataStore, tombstone: DeletedTopic) -> None:
    """Remove the claims and erasures of the topic's partitions."""
    keys = [
        key(tombstone.topic_id, number)
        for number in range(tombstone.partition_count)
        for key in (rewrite_claim_key, local_erasure_key)
    ]
    prefix = key_erasure_prefix(tombstone.topic_id)
    keys += [item.id for item in await store.list(KEY_ERASURE_COLLECTION, prefix=prefix)]
    for some in batched(keys, COMMIT_WRITES_MAX):
        await store.commit([Write(key, None, ANY_VERSION, False) for key in some])


async def remove_partitions(store: MetadataStore, topic_id: UUID) -> None:
    """Remove the partition items of a topic that is not part of the cluster."""
    async for items in read_item_pages(store, records.partition_collection(topic_id)):
        for some in batched(items, COMMIT_WRITES_MAX):
            await store.commit([Write(item.id, None, ANY_VERSION, False) for item in some])


async def _delete_prefix(
    objects: ObjectStore, prefix: str, before_page: Callable[[], None]
) -> None:
    """Delete the objects below the prefix. Log and leave those that no tier can have put there."""
    assert prefix.endswith("/")
    keys: list[str] = []
    async for found in objects.list(prefix):
        try:
            check_key(found.key)
        except InvalidObjectKey as error:
            logger.warning("object left alone", extra={"reason": str(error)})
            continue
        keys.append(found.key)
        if len(keys) == OBJECTS_AT_ONCE:
            before_page()
            await delete_objects(objects, keys)
            keys.clear()
    before_page()
    await delete_objects(objects, keys)
