"""Commits changes of topics, so that readers see all of a topic or nothing.

A topic that fits into one transaction is written in one, together with others that fit. Of a
wider topic, the partition items are written first, which are ignored until a topic item counts
them, and the topic item last: that write is the commit point. Every transaction before it
expects the topic item at the version of the decision. So a writer that conflicts cannot change
the winner's partitions, and the next attempt overwrites what a crash left behind.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from tidelog_core.admin.batch_changes import TOO_LATE, commit_together
from tidelog_core.admin.topics.topic_plans import TopicPlan
from tidelog_core.errors import (
    RequestTimedOut,
    TidelogError,
    VersionConflict,
)
from tidelog_core.metadata import records
from tidelog_core.metadata.records import ChainTombstone, DeletedTopic, Partition, Topic
from tidelog_core.metadata.store import (
    ABSENT,
    ANY_VERSION,
    COMMIT_WRITES_MAX,
    MetadataStore,
    Write,
)
from tidelog_core.replication.placement.heirs import DISKLESS_ENABLE
from tidelog_core.retention.deleted_topics import remove_partitions

K = TypeVar("K")
V = TypeVar("V")

_PARTITIONS_PER_COMMIT = COMMIT_WRITES_MAX - 1  # one place is for the topic item


@dataclass(frozen=True, slots=True)
class Deletion:
    """A topic as it was read, and the tombstone that replaces it."""

    topic: Topic
    tombstone: DeletedTopic


async def commit_topic(store: MetadataStore, plan: TopicPlan) -> None:
    """Store the topic and its new partitions.

    Raises ``VersionConflict`` if the topic has changed since the plan was made.
    """
    last = max(0, len(plan.partitions) - _PARTITIONS_PER_COMMIT)
    try:
        for start in range(0, last, _PARTITIONS_PER_COMMIT):
            some = plan.partitions[start : min(last, start + _PARTITIONS_PER_COMMIT)]
            await store.commit(_put_partitions(some), checks=[records.check(plan.topic)])
        await store.commit(_writes(plan.topic, plan.partitions[last:]))
    except VersionConflict:
        if last and plan.topic.version == ABSENT:
            # No other process knows the id of a topic that was not created.
            await remove_partitions(store, plan.topic.topic_id)
        raise


async def commit_topics(
    store: MetadataStore,
    plans: Mapping[K, TopicPlan],
    *,
    is_late: Callable[[], bool],
) -> dict[K, TidelogError]:
    """Store each topic as ``commit_topic`` does; return the failed ones with their errors.

    A transaction that would begin late fails with ``RequestTimedOut``, except the first one.
    """
    narrow = {
        key: plan for key, plan in plans.items() if len(plan.partitions) <= _PARTITIONS_PER_COMMIT
    }
    failed = await commit_together(
        store,
        narrow,
        lambda plan: _writes(plan.topic, plan.partitions),
        write_count=lambda plan: len(plan.partitions) + 1,
        is_late=is_late,
    )
    is_begun = bool(narrow)
    for key, plan in plans.items():
        if key in narrow:
            continue
        try:
            if is_begun and is_late():
                raise RequestTimedOut(TOO_LATE)
            is_begun = True
            await commit_topic(store, plan)
        except TidelogError as error:
            failed[key] = error
    return failed


async def commit_deletions(
    store: MetadataStore,
    deletions: Mapping[K, Deletion],
    *,
    is_late: Callable[[], bool],
) -> dict[K, TidelogError]:
    """Replace the topics by their tombstones; return the failed ones, as ``commit_topics``."""
    return await commit_together(
        store,
        deletions,
        deletion_writes,
        write_count=lambda deletion: len(deletion_writes(deletion)),
        is_late=is_late,
    )


def deletion_writes(deletion: Deletion) -> list[Write]:
    """Return the writes that replace a topic by its tombstone."""
    writes = [records.delete(deletion.topic), records.put(deletion.tombstone)]
    if DISKLESS_ENABLE in deletion.topic.configs:  # Also if it was diskless once.
        mark = ChainTombstone(topic_id=deletion.topic.topic_id)
        writes.append(records.put(mark, is_logged=False))
    return writes


def _writes(topic: Topic, partitions: Sequence[Partition]) -> list[Write]:
    return [*_put_partitions(partitions), records.put(topic)]


def _put_partitions(partitions: Sequence[Partition]) -> list[Write]:
    # Not logged: readers list a topic's partitions when its item counts more of them.
    return [
        Write(partition.item_id, partition.to_body(), ANY_VERSION, False)
        for partition in partitions
    ]
