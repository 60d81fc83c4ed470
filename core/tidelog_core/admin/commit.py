"""Commits changes of topics, so that readers see all of a topic or nothing.

A topic that fits into one transaction is written in one, together with others that fit. Of a
wider topic, the partition items are written first, which are ignored until a topic item counts
them, and the topic item last: that write is the commit point. Every transaction before it
expects the topic item at the version of the decision. So a writer that conflicts cannot change
the winner's partitions, and the next attempt overwrites what a crash left behind.

Topics that share a transaction fail or succeed independently: a conflicting topic is taken out,
and the others are written again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from tidelog_core.admin.topics import TopicPlan
from tidelog_core.errors import (
    CommitTooLarge,
    ItemTooLarge,
    RequestTimedOut,
    StoreUnavailable,
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
from tidelog_core.replication.heirs import DISKLESS_ENABLE
from tidelog_core.retention.deleted_topics import remove_partitions

K = TypeVar("K")
V = TypeVar("V")

_PARTITIONS_PER_COMMIT = COMMIT_WRITES_MAX - 1  # one place is for the topic item
_LATE = "The time for the request was over before this topic was begun."


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
    is_late: Callable[[], bool] = lambda: False,
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
                raise RequestTimedOut(_LATE)
            is_begun = True
            await commit_topic(store, plan)
        except TidelogError as error:
            failed[key] = error
    return failed


async def commit_deletions(
    store: MetadataStore,
    deletions: Mapping[K, Deletion],
    *,
    is_late: Callable[[], bool] = lambda: False,
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


async def commit_together(
    store: MetadataStore,
    decided: Mapping[K, V],
    writes_of: Callable[[V], Sequence[Write]],
    *,
    write_count: Callable[[V], int],
    is_late: Callable[[], bool],
) -> dict[K, TidelogError]:
    """Commit each key's writes, all of them or none, those of many keys in one transaction.

    Writes are computed when their transaction begins: for thousands of topics that takes long.
    """
    failed: dict[K, TidelogError] = {}
    groups = _pack(decided, write_count)
    again: deque[list[K]] = deque()  # parts of groups that failed as a whole
    is_begun = False
    while keys := again.popleft() if again else next(groups, None):
        if is_begun and is_late():
            failed.update((key, RequestTimedOut(_LATE)) for key in keys)
            continue
        is_begun = True
        writes = {key: writes_of(decided[key]) for key in keys}
        try:
            await store.commit([write for key in keys for write in writes[key]])
        except VersionConflict as conflict:
            lost = [key for key in keys if _touches(writes[key], conflict)] or keys
            failed.update((key, conflict) for key in lost)
            if len(lost) < len(keys):
                again.appendleft([key for key in keys if key not in failed])
        except (CommitTooLarge, ItemTooLarge) as error:
            if len(keys) == 1:
                failed[keys[0]] = error
            else:
                middle = len(keys) // 2
                again.extendleft((keys[middle:], keys[:middle]))
        except StoreUnavailable as error:
            # The other writes would fail as well, and each attempt takes time.
            failed.update((key, error) for some in (keys, *again, *groups) for key in some)
            break
        except TidelogError as error:
            failed.update((key, error) for key in keys)
    return failed


def _pack(decided: Mapping[K, V], write_count: Callable[[V], int]) -> Iterator[list[K]]:
    """Yield the keys in order, in runs whose writes fit into one transaction."""
    keys: list[K] = []
    total = 0
    for key, one in decided.items():
        count = write_count(one)
        if total + count > COMMIT_WRITES_MAX:
            yield keys
            keys, total = [], 0
        keys.append(key)
        total += count
    if keys:
        yield keys


def _touches(writes: Iterable[Write], conflict: VersionConflict) -> bool:
    return any((write.id.collection, write.id.key) in conflict.keys for write in writes)


def _writes(topic: Topic, partitions: Sequence[Partition]) -> list[Write]:
    return [*_put_partitions(partitions), records.put(topic)]


def _put_partitions(partitions: Sequence[Partition]) -> list[Write]:
    # Not logged: readers list a topic's partitions when its item counts more of them.
    return [
        Write(partition.item_id, partition.to_body(), ANY_VERSION, False)
        for partition in partitions
    ]
