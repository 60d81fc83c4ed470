"""Writing what was decided, so that readers see all of it or nothing.

A topic that fits one transaction is written in one. A wider one is written partition
items first, which nobody reads until a topic item counts them, and the topic item last:
that write is the commit point. Every transaction on the way holds the topic item at the
version the decision was made on, so a writer that lost cannot touch the winner's
partitions, and what a crash leaves behind is overwritten by the next attempt.
"""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from tidelog_core.admin.topics import TopicPlan
from tidelog_core.errors import VersionConflict
from tidelog_core.metadata import records
from tidelog_core.metadata.records import DeletedTopic, Partition, Topic
from tidelog_core.metadata.store import (
    ABSENT,
    ANY_VERSION,
    COMMIT_WRITES_MAX,
    MetadataStore,
    Write,
)

_PARTITIONS_PER_COMMIT = COMMIT_WRITES_MAX - 1  # one place is for the topic item


async def commit_topic(store: MetadataStore, plan: TopicPlan) -> None:
    """Store the topic and its new partitions.

    Raises ``VersionConflict`` where the topic changed since the plan was made.
    """
    last = max(0, len(plan.partitions) - _PARTITIONS_PER_COMMIT)
    try:
        for start in range(0, last, _PARTITIONS_PER_COMMIT):
            some = plan.partitions[start : min(last, start + _PARTITIONS_PER_COMMIT)]
            await store.commit(_put_partitions(some), checks=[records.check(plan.topic)])
        await store.commit([*_put_partitions(plan.partitions[last:]), records.put(plan.topic)])
    except VersionConflict:
        if last and plan.topic.version == ABSENT:
            # Nobody else knows the id of a topic that was not created.
            await _purge_partitions(store, plan.topic.topic_id)
        raise


async def commit_deletion(store: MetadataStore, topic: Topic, tombstone: DeletedTopic) -> None:
    """Replace the topic by its tombstone. Raises ``VersionConflict`` where the topic changed."""
    await store.commit([records.delete(topic), records.put(tombstone)])


async def purge_deleted_topic(store: MetadataStore, tombstone: DeletedTopic) -> None:
    """Remove a deleted topic's partition items and then its tombstone.

    For whoever has seen to it that no object of the topic is left. Doing it twice is
    harmless.
    """
    await _purge_partitions(store, tombstone.topic_id)
    await store.commit([Write(tombstone.item_id, None, ANY_VERSION)])


async def _purge_partitions(store: MetadataStore, topic_id: UUID) -> None:
    items = await store.list(records.partition_collection(topic_id))
    for start in range(0, len(items), COMMIT_WRITES_MAX):
        some = items[start : start + COMMIT_WRITES_MAX]
        await store.commit([Write(item.id, None, ANY_VERSION, False) for item in some])


def _put_partitions(partitions: Sequence[Partition]) -> list[Write]:
    # Not logged: readers list a topic's partitions when its item says there are more.
    return [
        Write(partition.item_id, partition.to_body(), ANY_VERSION, False)
        for partition in partitions
    ]
