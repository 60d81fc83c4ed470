"""Fills an empty metadata store with a restored cluster.

    cluster and mark  ->  each topic: segments, partitions, the topic's item  ->  schemas
        ->  mark removed

Concurrent readers find a topic with all of its segments or not at all. An interrupted writing
leaves the mark. Repeating it continues, and overwrites nothing that a node has changed since: a
topic whose topic item exists is skipped.
"""

from __future__ import annotations

from collections.abc import Callable

from tidelog_core.admin.topics.topic_commits import commit_topic
from tidelog_core.batched import batched
from tidelog_core.errors import StoreNotEmpty, VersionConflict
from tidelog_core.metadata import records
from tidelog_core.metadata.image.cluster_image import NO_VERSION
from tidelog_core.metadata.records import PRODUCER_ID_COUNTER, Cluster, RestorationMark
from tidelog_core.metadata.store import ABSENT, ANY_VERSION, COMMIT_WRITES_MAX, MetadataStore, Write
from tidelog_core.objects.store import ObjectStore
from tidelog_core.restoration.plan import Restoration, RestoredTopic
from tidelog_core.restoration.schemas import RestoredSchemas, restore_schemas

OnWritten = Callable[[int], None]
"""Called with the number of segments written since the last call."""


async def require_restorable(store: MetadataStore, cluster_id: str) -> RestorationMark | None:
    """Return the mark of an earlier attempt for this cluster, ``None`` for an empty store.

    Raises ``StoreNotEmpty``.
    """
    item = await store.get(records.restoration_key())
    if item is not None:
        mark = RestorationMark.from_item(item)
        if mark.cluster_id == cluster_id:
            return mark
        raise StoreNotEmpty(f"a restoration of cluster {mark.cluster_id} is under way in it")
    found = await store.get(records.cluster_key())
    if found is not None:
        raise StoreNotEmpty(f"it holds cluster {Cluster.from_item(found).cluster_id}")
    if (await store.changes_since(NO_VERSION)).version != NO_VERSION:
        raise StoreNotEmpty("it has been written to")
    return None


async def write_restoration(
    store: MetadataStore,
    restoration: Restoration,
    objects: ObjectStore,
    *,
    on_written: OnWritten = lambda _: None,
) -> RestoredSchemas:
    """Write all of it, and the schemas of the bucket; durable on return.

    Raises ``StoreNotEmpty`` before anything is written.
    """
    cluster = Cluster(cluster_id=restoration.cluster_id)
    mark = await require_restorable(store, restoration.cluster_id)
    if mark is None:
        new = RestorationMark(cluster_id=restoration.cluster_id)
        try:
            await store.commit([records.put(cluster), records.put(new, is_logged=False)])
        except VersionConflict:
            raise StoreNotEmpty("a node was started on it just now") from None
    for topic in restoration.topics:
        await _write_topic(store, topic)
        on_written(len(topic.segments))
    schemas = await restore_schemas(objects, restoration.cluster_id, store)
    await store.increment(PRODUCER_ID_COUNTER, restoration.next_producer_id)
    await store.commit([Write(records.restoration_key(), None, ANY_VERSION, False)])
    return schemas


async def _write_topic(store: MetadataStore, topic: RestoredTopic) -> None:
    if await store.get(topic.plan.topic.item_id) is not None:
        return  # An earlier attempt has ended with it.
    assert topic.plan.topic.version == ABSENT
    for some in batched(topic.segments, COMMIT_WRITES_MAX):
        await store.commit([Write(s.item_id, s.to_body(), ANY_VERSION, False) for s in some])
    await commit_topic(store, topic.plan)
