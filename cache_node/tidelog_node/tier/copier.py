"""Copies sealed segments to the tier; evicts tiered local segments past the local retention.

For each segment, in order of offset: COPY_STARTED in the metadata, the log object, the index
object, COPY_FINISHED; then the local log may evict it. A crash between any two steps leaves a
COPY_STARTED item, which names the objects that may exist: the next leader deletes them and the
item, and copies again under another segment id. A copy that an unavailable store or worker
interrupted is continued under the same id; after any other failure it is cleaned up like this, too
(``Attempts``, ``tidelog_core.tier.lifecycle``).

Only flushed and replicated records without open transactions are copied. If the tier were ahead
of the records that survive a power cut, its offsets could later be assigned to other records.
Committed records of diskless topics survive it without a flush, because the object store has them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
from collections.abc import Sequence
from functools import partial
from uuid import UUID, uuid4

from tidelog_core.clock import steady_clock_ms
from tidelog_core.config import UNLIMITED
from tidelog_core.errors import (
    CorruptRecordBatch,
    ErrorCode,
    NotLeaderOrFollower,
    StorageError,
    TidelogError,
    UnknownTopicOrPartition,
    VersionConflict,
)
from tidelog_core.log.local_log import LocalLog
from tidelog_core.log.values import SealedSegment
from tidelog_core.metadata.leadership import require_leadership
from tidelog_core.metadata.records import SegmentMeta, SegmentState
from tidelog_core.model import NO_TIMESTAMP
from tidelog_core.retention.clock_rule import Witness
from tidelog_core.retention.selection import (
    eviction_end_offset,
    expiry_ms,
    local_limits,
    of_local,
)
from tidelog_core.tier.contents import read_tiered_end
from tidelog_core.tier.index_build import SegmentSource
from tidelog_core.tier.integrity import NO_HASH
from tidelog_core.tier.keys import (
    SegmentKeys,
    segment_keys,
)
from tidelog_core.tier.lifecycle import (
    AT_ONCE,
    delete_given_up_copy,
    end_deletions,
    finish_copy,
    select_deletable,
    start_copy,
    start_deletions,
)
from tidelog_core.tier.persisting import persist_log_start
from tidelog_core.tier.planning import select_copies, select_leftovers

from tidelog_node.node_context import NodeContext
from tidelog_node.tier.client import TierClient
from tidelog_node.tier.led_partition import LedPartition, TieredReplica, known_tiered_end
from tidelog_node.tier.manifests import BucketManifests
from tidelog_node.tier.protocol import UploadRequest
from tidelog_node.tracing.tracer import span

logger = logging.getLogger(__name__)


class SegmentSuspected(TidelogError):
    """A segment could not be copied: its local file may be damaged."""

    code = ErrorCode.kafka_storage_error

    def __init__(self, base_offset: int, error: TidelogError) -> None:
        super().__init__(str(error))
        self.base_offset = base_offset


NO_CHAINED_HASH = ""  # of a copy that has not finished


class Copier:
    """Copies, cleans up and evicts for led partitions. For the tasks of one event loop."""

    def __init__(self, node: NodeContext, *, client: TierClient, has_own_clock: bool) -> None:
        """``has_own_clock``: the bucket's clock is not this machine's."""
        self._node = node
        self._client = client
        self._has_own_clock = has_own_clock
        self.witness: Witness | None = None  # the bucket's time at the last copy
        self._manifests = BucketManifests(node, client)
        self.copied_count = 0
        self.evicted_bytes = 0

    async def take_over(self, led: LedPartition) -> None:
        """Read the tier's contents and clean up after a crash. The caller holds the lock.

        Raises ``NotLeaderOrFollower``, ``StorageError`` if the local log is behind the tier,
        ``TierRewritten`` and the stores' errors.
        """
        leadership, swap_count = led.leadership, led.swap_count
        tier = await led.remote.reload()
        under_way = set() if led.under_way is None else {led.under_way[1].segment_id}
        led.deleting.clear()
        now_ms = self._node.clock_ms()
        for leftover in select_leftovers(tier.unfinished, under_way=under_way, now_ms=now_ms):
            if leftover.state is SegmentState.COPY_STARTED:
                logger.info(
                    "copy of a segment was cut short, it is removed",
                    extra={"segment_id": str(leftover.segment_id)},
                )
                given_up = await start_deletions(
                    self._node.store, [leftover], deletable_ms=AT_ONCE, leadership=leadership
                )
                await self.delete(led, select_deletable(given_up, now_ms=now_ms))
            else:
                led.deleting[leftover.segment_id] = leftover  # retention ends it when it is due
        log = led.replica.log
        tiered_end = tier.finished.tiered_end(log.log_start_offset)
        if tiered_end > log.log_end_offset:
            # If another leader has tiered more, this log is not at fault.
            await require_leadership(self._node.store, leadership)
            # Its next records would get offsets that the tier already has.
            log.take_offline()
            raise StorageError(
                f"{log.partition} is tiered up to {tiered_end}, but the local log ends at "
                f"{log.log_end_offset}: it has lost records and must not be appended to"
            )
        log.set_tiered_up_to(tiered_end)
        # A swap noted since then requires another take-over.
        led.is_taken_over = led.swap_count == swap_count

    async def copy(self, led: LedPartition) -> None:
        """Copy the segments that may be copied, then evict. The caller holds the lock.

        Raises the first error; a later call continues from there.
        """
        if not led.is_taken_over:
            await self.take_over(led)
        log = led.replica.log
        while (segment := await self._next(led, log)) is not None:
            attributes: dict[str, str | int] = {
                "tidelog.partition": str(log.partition),
                "tidelog.base_offset": segment.base_offset,
                "tidelog.size_bytes": segment.size_bytes,
            }
            try:
                with span(self._node.tracer, "tier copy", attributes):
                    await self._copy_segment(led, segment)
            except (CorruptRecordBatch, StorageError) as error:
                raise SegmentSuspected(segment.base_offset, error) from error
        self.evict(led)

    def evict(self, led: LedPartition) -> None:
        """Evict the local segments that are tiered and past the local retention."""
        if led.is_taken_over:
            self._evict(led.replica, led.replica.log.tiered_up_to)

    async def evict_followed(self, replica: TieredReplica) -> None:
        """Evict the local segments of a partition that this node follows.

        Reads the tier's end only if something can be evicted. Raises the store's errors.
        """
        log = replica.log
        if self._evictable(replica, log.high_watermark) is None:
            return
        number, known_end = replica.partition.partition, known_tiered_end(log)
        tiered_end = await read_tiered_end(self._node.store, replica.topic_id, number, known_end)
        if replica.is_follower and not log.is_offline:
            # Records above this node's high watermark stay, even if they are tiered.
            log.set_tiered_up_to(min(tiered_end, log.high_watermark))
            self._evict(replica, log.tiered_up_to)

    def next_eviction_ms(self, replica: TieredReplica) -> int | None:
        """Return when the oldest local segment is past the local retention, ``None`` for never.

        In wall-clock time: now if a segment waits to be tiered, or for a trustworthy clock.
        """
        log, config = replica.opened_log, replica.config
        if log is None or log.is_offline or not config.remote_storage_enable:
            return None
        oldest = next(log.sealed_above(log.local_log_start_offset), None)
        if oldest is None:
            return None
        if self._evictable(replica, log.high_watermark) is not None or not self._node.may_expire():
            return self._node.clock_ms()
        return expiry_ms(of_local(oldest), local_limits(config))

    def _evict(self, replica: TieredReplica, tiered_end: int) -> None:
        end_offset = self._evictable(replica, tiered_end)
        if end_offset is not None:
            self.evicted_bytes += replica.log.evict_local(end_offset)

    def _evictable(self, replica: TieredReplica, tiered_end: int) -> int | None:
        """Return the offset below which local segments may be evicted, ``None`` for none."""
        log, config = replica.log, replica.config
        if not config.remote_storage_enable:
            return None
        limits = local_limits(config)
        if limits.retention_ms != UNLIMITED and not self._node.may_expire():
            limits = limits.without_time()
        return eviction_end_offset(
            log.sealed_above(log.local_log_start_offset),
            limits,
            tiered_end=tiered_end,
            size_bytes=0 if limits.retention_bytes == UNLIMITED else log.size_bytes,
            now_ms=self._node.clock_ms(),
        )

    async def delete(self, led: LedPartition, segments: Sequence[SegmentMeta]) -> None:
        """Delete the objects and items of segments whose deletion is due. Idempotent."""
        if not segments:
            return
        attributes: dict[str, str | int] = {
            "tidelog.partition": str(led.replica.partition),
            "tidelog.segments": len(segments),
        }
        keys_of = partial(self._keys, led)
        with span(self._node.tracer, "tier delete", attributes):
            await end_deletions(self._node.store, self._client, segments, keys_of=keys_of)
        for segment in segments:
            led.deleting.pop(segment.segment_id, None)

    async def _next(self, led: LedPartition, log: LocalLog) -> SealedSegment | None:
        if log.unfilled is not None:
            return None  # The tier would have a gap. Filling the log notes a change of it.
        tiered_end = (await led.remote.whole()).tiered_end(log.log_start_offset)
        settled = min(log.high_watermark, log.last_stable_offset, log.durable_end)
        due = select_copies(log.sealed_above(tiered_end), tiered_end=tiered_end, up_to=settled)
        led.copied_up_to = tiered_end
        return due[0] if due else None

    async def _copy_segment(self, led: LedPartition, sealed: SealedSegment) -> None:
        if led.under_way is not None and led.under_way[0] != sealed:
            led.reset()
            await self.take_over(led)  # The copy under way is now an ordinary leftover.
        led.replica.log.make_whole(sealed)
        await self.write_manifests(led)
        if led.under_way is None:
            meta = self._describe(led, sealed)
            # Remembered before it is written: if the outcome is unknown, the next attempt
            # writes the same item.
            led.under_way = (sealed, meta)
        started = led.under_way[1]
        if started.version == 0:
            started = await start_copy(self._node.store, led.leadership, started)
            led.under_way = (sealed, started)
        source = await self._source(led, sealed, started)
        keys = self._keys(led, started)
        begun_ms = steady_clock_ms()
        kms_key_id = led.replica.config.tier_kms_key_id
        result = await self._client.upload(UploadRequest(source, keys, kms_key_id))
        if result.stored_ms != NO_TIMESTAMP:
            self.witness = Witness(
                "the bucket's clock", result.stored_ms, begun_ms, self._has_own_clock
            )
        copied = dataclasses.replace(
            started,
            index_size_bytes=result.index_size_bytes,
            chained_hash=result.chained_hash.hex(),
            max_timestamp_ms=result.max_timestamp_ms,
        )
        try:
            finished = await finish_copy(self._node.store, led.leadership, copied)
        except (NotLeaderOrFollower, UnknownTopicOrPartition, VersionConflict):
            await self._remove_given_up(started, keys)
            raise
        led.under_way = None
        led.remote.add(finished)
        log = led.replica.log
        tiered = await led.remote.whole()
        log.set_tiered_up_to(tiered.tiered_end(log.log_start_offset))
        self.copied_count += 1
        logger.info(
            "segment copied",
            extra={"partition": str(log.partition), "base_offset": sealed.base_offset},
        )

    async def _remove_given_up(self, started: SegmentMeta, keys: SegmentKeys) -> None:
        """Remove objects that were stored after the next leader had cleaned the copy up.

        Without an item nothing will ever refer to them. If there still is one, the next leader
        cleans up. Objects that cannot be removed now are left to the scrub.
        """
        with contextlib.suppress(TidelogError):
            if await delete_given_up_copy(self._node.store, self._client, started, keys):
                logger.info(
                    "copy of a segment that a later leader gave up is removed",
                    extra={"segment_id": str(started.segment_id)},
                )

    def _describe(self, led: LedPartition, sealed: SealedSegment) -> SegmentMeta:
        return SegmentMeta(
            topic_id=led.leadership.topic_id,
            partition=led.leadership.partition,
            base_offset=sealed.base_offset,
            end_offset=sealed.end_offset,
            leader_epoch=led.leadership.leader_epoch,
            segment_id=uuid4(),
            state=SegmentState.COPY_STARTED,
            size_bytes=sealed.size_bytes,
            index_size_bytes=0,
            max_timestamp_ms=sealed.max_timestamp_ms,
            leader_epochs=sealed.leader_epochs,
            chained_hash=NO_CHAINED_HASH,
            created_ms=self._node.clock_ms(),
        )

    async def _source(
        self, led: LedPartition, sealed: SealedSegment, meta: SegmentMeta
    ) -> SegmentSource:
        log = led.replica.log
        # Every transaction with records in this segment is decided, so this finds all aborted
        # ones, also those whose marker is in a later segment.
        read = log.read(
            max(sealed.base_offset, log.log_start_offset),
            max_bytes=max(1, sealed.size_bytes),
            up_to=sealed.end_offset,
            include_aborted=True,
        )
        return SegmentSource.of_sealed(
            sealed,
            topic_id=meta.topic_id,
            partition=meta.partition,
            segment_id=meta.segment_id,
            leader_epoch=meta.leader_epoch,
            aborted=read.aborted_transactions,
            previous_hash=await self._previous_hash(led, sealed.base_offset),
            key_filter_records_max=self._node.config().tier_key_filter_records_max,
        )

    async def _previous_hash(self, led: LedPartition, base_offset: int) -> bytes:
        before = (await led.remote.whole()).before(base_offset)
        return NO_HASH if before is None else bytes.fromhex(before.chained_hash)

    def _keys(self, led: LedPartition, segment: SegmentMeta) -> SegmentKeys:
        topic = led.replica.partition.topic
        return segment_keys(self._node.view.image.cluster_id, topic, segment)

    async def write_manifests(self, led: LedPartition) -> None:
        """Persist the settings of the cluster and the topic in the bucket. Idempotent.

        Raises the store's errors.
        """
        await self._manifests.ensure([led.leadership.topic_id])

    async def publish_log_start(self, led: LedPartition, stored: int) -> None:
        """Publish the log start offset in the bucket. Idempotent. The caller holds the lock.

        ``stored`` is the metadata store's, so the bucket is never ahead of it. It is published
        before any segment is deleted for it. Raises the store's errors.
        """
        if stored <= led.published_log_start:
            return
        is_tiered = led.replica.config.remote_storage_enable or bool(await led.remote.segments())
        topic = self._node.view.image.topic_by_id(led.leadership.topic_id)
        if topic is None or not is_tiered:
            return
        await self.write_manifests(led)
        await persist_log_start(
            self._client,
            self._node.view.image.cluster_id,
            topic,
            led.leadership.partition,
            start=stored,
            before=led.published_log_start,
        )
        led.published_log_start = stored

    def forget_topic(self, topic_id: UUID) -> None:
        """Forget the manifest of a deleted topic."""
        self._manifests.forget_topic(topic_id)
