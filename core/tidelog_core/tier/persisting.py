"""Writes manifests, log starts and deletions of topics to the bucket.

Each is written after the metadata store has it, and before any object is deleted because of it.
All writes can be repeated by any process at any time. Log starts and deletions are stored in keys:
the greatest log start counts, and objects with the same key have the same bytes.
"""

from __future__ import annotations

from tidelog_core.errors import ObjectNotFound
from tidelog_core.metadata.records import DeletedTopic, Topic
from tidelog_core.objects.store import ObjectStore
from tidelog_core.tier.keys import deletion_key, log_start_key
from tidelog_core.tier.manifest import deletion_object, log_start_object


async def persist(objects: ObjectStore, key: str, data: bytes) -> None:
    """Write the object unless it has this content. A GET costs a tenth of a PUT."""
    try:
        if await objects.get(key) == data:
            return
    except ObjectNotFound:
        pass
    await objects.replace(key, data)


async def persist_log_start(
    objects: ObjectStore, cluster_id: str, topic: Topic, partition: int, *, start: int, before: int
) -> None:
    """Write the object that says that the log starts at ``start``, as the metadata store does.

    ``before`` is the log start last written, 0 for none; its object is then deleted.
    """

    def key(offset: int) -> str:
        return log_start_key(cluster_id, topic.name, topic.topic_id, partition, offset)

    await persist(objects, key(start), log_start_object(start))
    if 0 < before < start:
        await objects.delete([key(before)])


async def persist_deletion(objects: ObjectStore, cluster_id: str, topic: DeletedTopic) -> None:
    """Write the object that says that the topic was deleted."""
    key = deletion_key(cluster_id, topic.name, topic.topic_id)
    await persist(objects, key, deletion_object(topic))
