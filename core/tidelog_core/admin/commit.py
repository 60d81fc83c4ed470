"""Writing what was decided, so that readers see all of it or nothing.

A topic that fits one transaction is written in one. A wider one is written partition
items first, which nobody reads until a topic item counts them, and the topic item last:
that write is the commit point. Every transaction on the way holds the topic item at the
version the decision was made on, so a writer that lost cannot touch the winner's
partitions, and what a crash leaves behind is overwritten by the next attempt.
"""

from __future__ import annotations

from collections.abc import Sequence

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
from tidelog_core.retention.deleted_topics import remove_partitions

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
            await remove_partitions(store, plan.topic.topic_id)
        raise


async def commit_deletion(store: MetadataStore, topic: Topic, tombstone: DeletedTopic) -> None:
    """Replace the topic by its tombstone. Raises ``VersionConflict`` where the topic changed."""
    await store.commit([records.delete(topic), records.put(tombstone)])


def _put_partitions(partitions: Sequence[Partition]) -> list[Write]:
    # Not logged: readers list a topic's partitions when its item says there are more.
    return [
        Write(partition.item_id, partition.to_body(), ANY_VERSION, False)
        for partition in partitions
    ]
