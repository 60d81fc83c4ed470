"""Retention of one partition from its metadata, and of the remains of a deleted topic.

For the steps, and why other processes may run them too, see ``tidelog_core.tier.lifecycle``.
No state is kept between calls, so a repeated, late or interrupted call differs from any
other only in the amount of work it finds.

A function knows the tiered segments, not the leader's local ones: it removes no more than
the leader would. It reads no objects, so damaged ones are deleted like others, and writes
only those that permit a deletion before it happens: ``tidelog_core.tier.manifest``.

The machine's clock is compared with the metadata store's, if that has one
(``tidelog_core.retention.clock_rule``). While it is in doubt nothing expires by age, and no
deletion is started or completed: both depend on the clock.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from tidelog_core.batched import batched
from tidelog_core.config import TopicConfig
from tidelog_core.errors import NotLeaderOrFollower, TierRewritten, UnknownTopicOrPartition
from tidelog_core.metadata import records
from tidelog_core.metadata.leadership import advance_log_start, leadership_of
from tidelog_core.metadata.records import DeletedTopic, Partition, SegmentMeta, Topic
from tidelog_core.metadata.store import COMMIT_WRITES_MAX, MetadataStore
from tidelog_core.metadata.update import LOST, retried
from tidelog_core.objects.store import ObjectStore
from tidelog_core.retention.deleted_topics import (
    clean_deleted_topic,
    deletable_topic_ms,
    read_mark,
)
from tidelog_core.retention.selection import total_limits
from tidelog_core.tier.keys import segment_keys
from tidelog_core.tier.lifecycle import (
    below_log_start,
    end_deletions,
    next_deletable_ms,
    select_deletable,
    start_deletions,
)
from tidelog_core.tier.persisting import persist_deletion, persist_log_start

from tidelog_functions.invocation import TimeLimit
from tidelog_functions.retention.due_segments import read_due

logger = logging.getLogger(__name__)

# Another process did the step or leads, or the outcome of our step is unknown.
RETRIED_ERRORS = (*LOST, NotLeaderOrFollower, UnknownTopicOrPartition, TierRewritten)
SEGMENTS_AT_ONCE = COMMIT_WRITES_MAX


@dataclass(frozen=True, slots=True)
class Done:
    """The work done, and the time of the next work."""

    log_start_advanced_count: int = 0
    deletion_started_count: int = 0
    segment_deleted_count: int = 0
    topic_deleted_count: int = 0
    next_deletion_ms: int | None = None  # Unix time; None: no deletion is waiting

    def __add__(self, other: Done) -> Done:
        """Return the sum of both."""
        waits = [ms for ms in (self.next_deletion_ms, other.next_deletion_ms) if ms is not None]
        return Done(
            self.log_start_advanced_count + other.log_start_advanced_count,
            self.deletion_started_count + other.deletion_started_count,
            self.segment_deleted_count + other.segment_deleted_count,
            self.topic_deleted_count + other.topic_deleted_count,
            min(waits, default=None),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionRetention:
    """Applies retention in one cluster. Safe to use from several tasks and processes."""

    store: MetadataStore
    objects: ObjectStore
    cluster_id: str
    topic_config: Callable[[Topic, int], TopicConfig]  # on the given leader's node
    clock_ms: Callable[[], int]
    may_expire: Callable[[], bool]  # whether the clock can be trusted to expire segments
    limit: TimeLimit

    async def apply(self, topic: Topic, partition: int, *, is_event: bool = False) -> Done:
        """Apply retention to the partition. Raises ``OutOfTime`` and the stores' errors.

        An event reads only the partition's first segments (``read_due``). A topic that was
        deleted since has no partitions: nothing is done.
        """
        return await retried(
            lambda: self._apply(topic, partition, is_event=is_event), on=RETRIED_ERRORS
        )

    async def clean(self, tombstone: DeletedTopic) -> Done:
        """Remove the remains of a deleted topic once its delay has passed.

        Raises ``OutOfTime`` and the stores' errors.
        """
        # The topic's own settings were deleted with it.
        delay_ms = TopicConfig().file_delete_delay_ms
        mark = await read_mark(self.store, tombstone.topic_id)
        is_cleaned = mark is not None and mark.is_cleaned
        due_ms = deletable_topic_ms(tombstone, mark, delay_ms=delay_ms)
        if not is_cleaned:
            await persist_deletion(self.objects, self.cluster_id, tombstone)
        if self.clock_ms() < due_ms or not self.may_expire():
            return Done() if is_cleaned else Done(next_deletion_ms=due_ms)
        await retried(
            lambda: clean_deleted_topic(
                self.store,
                self.objects,
                tombstone,
                mark,
                cluster_id=self.cluster_id,
                before_page=self.limit.require,
            )
        )
        if is_cleaned:
            return Done()
        logger.info("deleted topic cleaned up", extra={"topic": tombstone.name})
        return Done(topic_deleted_count=1)

    async def _apply(self, topic: Topic, number: int, *, is_event: bool) -> Done:
        self.limit.require()
        item = await self.store.get(records.partition_key(topic.topic_id, number))
        if item is None:
            return Done()
        partition = Partition.from_item(item)
        config = self.topic_config(topic, partition.leader)
        limits = total_limits(config)
        metas, start = await read_due(
            self.store,
            partition,
            limits if self.may_expire() else limits.without_time(),
            now_ms=self.clock_ms(),
            is_event=is_event,
        )
        if start > partition.log_start_offset:
            start = await advance_log_start(self.store, leadership_of(partition), start)
        if not self.may_expire():
            return Done(log_start_advanced_count=int(start > partition.log_start_offset))
        # Only after the commit above: the delay is for readers up to that moment.
        deletable_ms = self.clock_ms() + config.file_delete_delay_ms
        expired = below_log_start(metas, start)
        if expired:
            await persist_log_start(
                self.objects,
                self.cluster_id,
                topic,
                number,
                start=start,
                before=partition.log_start_offset,
            )
        started = await start_deletions(self.store, expired, deletable_ms=deletable_ms)
        gone = {segment.segment_id for segment in expired}
        metas = [meta for meta in metas if meta.segment_id not in gone] + started
        deleted = select_deletable(metas, now_ms=self.clock_ms())
        await self._delete(topic, deleted)
        gone = {segment.segment_id for segment in deleted}
        return Done(
            log_start_advanced_count=int(start > partition.log_start_offset),
            deletion_started_count=len(started),
            segment_deleted_count=len(deleted),
            next_deletion_ms=next_deletable_ms(m for m in metas if m.segment_id not in gone),
        )

    async def _delete(self, topic: Topic, segments: Sequence[SegmentMeta]) -> None:
        for some in batched(segments, SEGMENTS_AT_ONCE):
            self.limit.require()
            keys_of = partial(segment_keys, self.cluster_id, topic.name)
            await end_deletions(self.store, self.objects, some, keys_of=keys_of)
