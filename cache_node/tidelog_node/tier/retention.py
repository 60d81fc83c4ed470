"""Advances log starts by retention, then deletes expired segments and deleted topics.

The leader decides the new log start offset by time and size, persists it, advances its local log,
and then takes the steps of ``tidelog_core.tier.lifecycle``. The retention function may take any of
them first. Only the leader knows the untiered segments and rolls an old active segment, so it
always does its part. A log start that another process has advanced reaches the local log with the
next image (``adopt_log_start``).

The objects of a deleted topic are removed by the live node that the topic's id selects. It
publishes the deletion in the bucket immediately.

While the node's clock is in doubt (``tidelog_core.retention.clock_rule``) nothing expires by age,
and no deletion begins or ends: both use the clock.
"""

from __future__ import annotations

import asyncio
import logging
import zlib
from collections.abc import Sequence
from uuid import UUID

from tidelog_core.batched import batched
from tidelog_core.config import UNLIMITED, TopicConfig
from tidelog_core.errors import TidelogError, VersionConflict
from tidelog_core.log.local_log import LocalLog
from tidelog_core.metadata.image.cluster_image import ClusterImage
from tidelog_core.metadata.leadership import advance_log_start
from tidelog_core.metadata.records import ChainTombstone, DeletedTopic, SegmentMeta
from tidelog_core.retention.deleted_topics import (
    clean_deleted_topic,
    deletable_topic_ms,
    read_mark,
)
from tidelog_core.retention.selection import (
    Limits,
    RetainedSegment,
    expiry_ms,
    log_start_after_retention,
    retained_segments,
    retained_size_bytes,
    total_limits,
)
from tidelog_core.tier.lifecycle import next_deletable_ms, select_deletable, start_deletions
from tidelog_core.tier.persisting import persist_deletion

from tidelog_node.inspection.inspector import BatchInspector
from tidelog_node.node_context import NodeContext
from tidelog_node.tier.client import TierClient
from tidelog_node.tier.copier import Copier
from tidelog_node.tier.led_partition import LedPartition, TieredReplica

logger = logging.getLogger(__name__)

CLEAN_RETRY_SECONDS = 60.0
# Deleted topics that are cleaned up together: each takes a dozen sequential calls to store and
# bucket, and all other retention waits for them.
CLEANED_AT_ONCE = 16
PUBLISH_RETRY_SECONDS = 5.0
CLOCK_RETRY_SECONDS = 60.0  # while the clock is in doubt
OTHERS_DELAY_MS = 600_000  # then the node selected for a topic is assumed gone


class Retention:
    """Applies retention to led partitions and deleted topics. For one event loop."""

    def __init__(
        self,
        node: NodeContext,
        *,
        copier: Copier,
        client: TierClient,
        inspector: BatchInspector,
        deleted_topic_delay_ms: int = TopicConfig().file_delete_delay_ms,
    ) -> None:
        self._node = node
        self._copier = copier
        self._client = client
        self._inspector = inspector
        self._deleted_topic_delay_ms = deleted_topic_delay_ms
        self._published_deletions: set[UUID] = set()  # topics
        self._cleaned: dict[UUID, ChainTombstone] = {}  # topics whose tombstones alone are left
        self.deleted_count = 0

    async def apply(self, led: LedPartition, *, expires: bool = True) -> float | None:
        """Apply retention to the partition. The caller holds the lock.

        Without ``expires`` nothing expires by age or size. Returns the seconds until the next
        deletion is due, ``None`` for none.
        """
        if not led.is_taken_over:
            await self._copier.take_over(led)
        log = led.replica.log
        stored = await self._advance_log_start(led, log, expires=expires)
        self._copier.evict(led)
        # DeleteRecords may advance the log during the call: delete only below the published start.
        start = min(stored, log.log_start_offset)
        expired = (await led.remote.whole()).below(start)
        if not expired and stored <= max(led.published_log_start, self._restored_log_start(led)):
            return await self._delete(led, ())
        if expired or self._client.may_answer:
            await self._copier.publish_log_start(led, stored)
            return await self._delete(led, expired)
        wait_s = await self._delete(led, ())
        return PUBLISH_RETRY_SECONDS if wait_s is None else min(wait_s, PUBLISH_RETRY_SECONDS)

    async def next_expiry_ms(self, led: LedPartition) -> int | None:
        """Return when the next segment of the partition expires, ``None`` for never.

        In wall-clock time, valid after ``apply`` until the log or its settings change. Now if the
        clock or the settings cannot be relied on; now or earlier if an expired segment waits for
        something else.
        """
        log, config = led.replica.opened_log, led.replica.config
        if log is None or log.is_offline:
            return None
        topic = led.replica.partition.topic
        limits = total_limits(config)
        if not (
            self._node.may_expire()
            and self._node.view.image.has_all_settings(topic, self._node.broker_id)
        ):
            return self._node.clock_ms()
        begin, tiered = log.log_start_offset, await led.remote.segments()
        kept = retained_segments(
            tiered, log.sealed_above(tiered.end_offset), log_start_offset=begin
        )
        oldest = next(kept, None)
        times = [self._copier.next_eviction_ms(led.replica)]
        if oldest is not None:
            times.append(expiry_ms(oldest, limits))
        elif led.newest is not None and led.newest[0] == log.log_end_offset > begin:
            active = RetainedSegment(begin, log.log_end_offset, 0, led.newest[1])
            times.append(expiry_ms(active, limits))
        return min((time for time in times if time is not None), default=None)

    async def clean_deleted_topics(self) -> float | None:
        """Remove the objects and metadata of deleted topics that this node is to clean up.

        Returns the seconds until the next one is due, ``None`` for none. One that cannot be removed
        is retried later and does not delay the others.
        """
        if not self._node.may_expire():
            return CLOCK_RETRY_SECONDS
        image, now_ms = self._node.view.image, self._node.clock_ms()
        self._published_deletions &= image.deleted_topics.keys()
        self._cleaned = {
            topic_id: mark
            for topic_id, mark in self._cleaned.items()
            if topic_id in image.deleted_topics
        }
        waits: list[float] = []
        topics = tuple(image.deleted_topics.values())
        for some in batched(topics, CLEANED_AT_ONCE):
            cleanings = [self._clean_if_due(topic, image, now_ms) for topic in some]
            waits += [wait_s for wait_s in await asyncio.gather(*cleanings) if wait_s is not None]
        return min(waits, default=None)

    async def _clean_if_due(
        self, topic: DeletedTopic, image: ClusterImage, now_ms: int
    ) -> float | None:
        """Publish and clean up a deleted topic if due; return the seconds to the next try."""
        delay_ms = self._deleted_topic_delay_ms
        is_ours = _is_ours(topic, image, self._node.broker_id)
        late_ms = 0 if is_ours else OTHERS_DELAY_MS
        what = {"topic": topic.name}
        mark = self._cleaned.get(topic.topic_id)
        due_ms = deletable_topic_ms(topic, mark, delay_ms=delay_ms) + late_ms
        try:
            if (is_ours or now_ms >= due_ms) and mark is None:
                await self._publish_deletion(topic, image.cluster_id)
            if now_ms >= due_ms and mark is None:
                mark = await read_mark(self._node.store, topic.topic_id)
                if mark is not None and mark.is_cleaned:
                    self._cleaned[topic.topic_id] = mark
                due_ms = deletable_topic_ms(topic, mark, delay_ms=delay_ms) + late_ms
            if now_ms < due_ms:
                return (due_ms - now_ms) / 1000
            await self._clean_topic(topic, mark, image.cluster_id)
        except TidelogError as error:
            logger.warning(
                "deleted topic not cleaned up, will retry",
                extra={**what, "reason": str(error)},
            )
            return CLEAN_RETRY_SECONDS
        except Exception:
            # One topic must not keep the others from being cleaned up.
            logger.exception("cleaning of a deleted topic broke, will retry", extra=what)
            return CLEAN_RETRY_SECONDS
        return None

    async def _advance_log_start(self, led: LedPartition, log: LocalLog, *, expires: bool) -> int:
        """Advance both log start offsets; return the stored one, never behind the local one."""
        limits = total_limits(led.replica.config)
        topic = led.replica.partition.topic
        has_settings = self._node.view.image.has_all_settings(topic, self._node.broker_id)
        # The age of records that are still to be filled in is not known.
        if not expires or not has_settings or log.unfilled is not None:
            limits = Limits(UNLIMITED, UNLIMITED)
        if not self._node.may_expire():
            limits = limits.without_time()
        start = await self._log_start(led, log, limits)
        if await self._is_active_expired(led, limits, start):
            log.roll()
            led.replica.note_changed()  # No record may be appended to it any more.
            start = await self._log_start(led, log, limits)
        known = self._node.view.image.partition(led.replica.partition)
        stored = 0 if known is None else known.log_start_offset
        if start > stored:  # Also if the local log is ahead of the store.
            stored = await advance_log_start(
                self._node.store, led.leadership, start, copied_end=log.copied_end
            )
        before = log.log_start_offset
        log.advance_log_start_offset(min(stored, log.high_watermark))
        self._node.counters.expired_offset_count += log.log_start_offset - before
        return stored

    def _restored_log_start(self, led: LedPartition) -> int:
        known = self._node.view.image.partition(led.replica.partition)
        return 0 if known is None else known.restored_log_start

    async def _log_start(self, led: LedPartition, log: LocalLog, limits: Limits) -> int:
        begin, tiered = log.log_start_offset, await led.remote.whole()
        if not led.remote.is_settled:
            limits = limits.without_size()  # After a swap fewer bytes may be left than are known.
        size_bytes = 0
        if limits.retention_bytes != UNLIMITED:
            sealed = log.sealed_above(tiered.end_offset)
            size_bytes = retained_size_bytes(tiered, sealed, log_start_offset=begin)
            size_bytes += log.active_segment_size_bytes
        start = log_start_after_retention(
            retained_segments(tiered, log.sealed_above(tiered.end_offset), log_start_offset=begin),
            limits,
            log_start_offset=begin,
            size_bytes=size_bytes,
            now_ms=self._node.clock_ms(),
        )
        return min(start, log.high_watermark)

    async def _is_active_expired(self, led: LedPartition, limits: Limits, start: int) -> bool:
        """Whether only the active segment is left and all its records are too old."""
        log = led.replica.log
        if limits.retention_ms == UNLIMITED or start < log.active_segment_base_offset:
            return False
        if log.log_end_offset == start or log.high_watermark < log.log_end_offset:
            return False
        if led.newest is None or led.newest[0] != log.log_end_offset:
            end_offset = log.log_end_offset
            found = await self._inspector.search(log.max_timestamp)
            led.newest = None if found is None else (end_offset, found[0])
        if led.newest is None or led.newest[0] != log.log_end_offset:
            return False  # Records were appended during the search.
        return self._node.clock_ms() - led.newest[1] > limits.retention_ms

    async def _delete(self, led: LedPartition, expired: Sequence[SegmentMeta]) -> float | None:
        """Mark expired segments, end due deletions; return the seconds until the next, if any."""
        if not self._node.may_expire():
            return CLOCK_RETRY_SECONDS if expired or led.deleting else None
        deletable_ms = self._node.clock_ms() + led.replica.config.file_delete_delay_ms
        started = await start_deletions(self._node.store, expired, deletable_ms=deletable_ms)
        led.deleting.update((segment.segment_id, segment) for segment in started)
        for segment in expired:
            led.remote.remove(segment)
        due = select_deletable(led.deleting.values(), now_ms=self._node.clock_ms())
        await self._copier.delete(led, due)
        self.deleted_count += len(due)
        next_ms = next_deletable_ms(led.deleting.values())
        return None if next_ms is None else max(0, next_ms - self._node.clock_ms()) / 1000

    async def _publish_deletion(self, topic: DeletedTopic, cluster_id: str) -> None:
        if topic.topic_id not in self._published_deletions:
            await persist_deletion(self._client, cluster_id, topic)
            self._published_deletions.add(topic.topic_id)

    async def _clean_topic(
        self, topic: DeletedTopic, mark: ChainTombstone | None, cluster_id: str
    ) -> None:
        try:
            await clean_deleted_topic(
                self._node.store, self._client, topic, mark, cluster_id=cluster_id
            )
        except VersionConflict:
            return  # Another node or a function is cleaning it up.
        if mark is None or not mark.is_cleaned:
            logger.info("deleted topic cleaned up", extra={"topic": topic.name})


def adopt_log_start(replica: TieredReplica, stored: int) -> None:
    """Advance a led log to the stored log start offset if another process has advanced that.

    Immediately, not only when retention is due: the records below it will be deleted. A log that is
    not open reads the stored one when it opens.
    """
    log = replica.opened_log
    if log is None or log.is_offline or stored <= log.log_start_offset:
        return
    log.advance_log_start_offset(min(stored, log.high_watermark))


def _is_ours(topic: DeletedTopic, image: ClusterImage, broker_id: int) -> bool:
    brokers = sorted(image.brokers)
    if broker_id not in image.brokers:
        return False
    return brokers[zlib.crc32(topic.topic_id.bytes) % len(brokers)] == broker_id
