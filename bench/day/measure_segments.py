"""Measures the units of tiering, retention and scrubs."""

from __future__ import annotations

import asyncio
import dataclasses
from concurrent.futures import ThreadPoolExecutor

from tidelog_core.config import NodeConfig, TopicConfig
from tidelog_core.log.local_log import LocalLog
from tidelog_core.log.values import SealedSegment
from tidelog_core.metadata.leadership import Leadership, advance_log_start, leadership_of
from tidelog_core.metadata.records import SegmentMeta, SegmentState
from tidelog_core.model import TopicPartition
from tidelog_core.records.batch import Record, build_batch
from tidelog_core.tier.index_build import SegmentSource
from tidelog_core.tier.integrity import NO_HASH
from tidelog_core.tier.keys import SegmentKey, segment_keys
from tidelog_core.tier.lifecycle import (
    delete_objects,
    drop_segments,
    finish_copy,
    marked_for_deletion,
    read_segments,
    start_copy,
    start_deletions,
)
from tidelog_functions.cluster_reader import ClusterReader
from tidelog_functions.invocation import TimeLimit
from tidelog_functions.retention.handler import apply_retention
from tidelog_functions.scrub.handler import scrub
from tidelog_functions.scrub.settings import parse_scrub_settings
from tidelog_node.tier.protocol import UploadRequest, UploadResult
from tidelog_node.tier.upload import upload_segment

from bench.day.measure_world import (
    CHANGED_TOGETHER,
    CLUSTER,
    DAY_MS,
    NOW_MS,
    OFFSET_FIRST,
    RECORDS_PER_SEGMENT,
    SEGMENTS,
    TOPIC,
    MeasuredCluster,
    identity,
)


class Segments:
    """Measures tiering, retention and scrubs."""

    def __init__(self, world: MeasuredCluster) -> None:
        self._world = world

    async def run(self) -> None:
        """Measure a segment's life."""
        store, leadership = self._world.store, leadership_of(await self._world.partition())
        for number in range(SEGMENTS):
            await self._copy(leadership, number)
        await self._world.note(
            f"list {SEGMENTS} segments",
            lambda: read_segments(store, leadership.topic_id, leadership.partition),
        )
        segment = self._segment(0, await asyncio.to_thread(self._sealed, 0))
        # The first segment has just expired.
        self._world.wall.now_ms = segment.max_timestamp_ms + TopicConfig().retention_ms + 1
        await self._world.note(
            "a function expires a segment", lambda: self._apply_retention(segment)
        )
        self._world.wall.now_ms += TopicConfig().file_delete_delay_ms + 1
        await self._world.note(
            "a function deletes a segment", lambda: self._apply_retention(segment)
        )
        await self._world.note(
            "a function finds nothing due", lambda: self._apply_retention(segment)
        )
        await self._node_retention(leadership)
        await self._world.note(f"scrub {CHANGED_TOGETHER} partitions", self._scrub)

    async def _node_retention(self, leadership: Leadership) -> None:
        store = self._world.store
        second = (await read_segments(store, leadership.topic_id, leadership.partition))[0]
        await self._world.note(
            "a node advances a log start",
            lambda: advance_log_start(store, leadership, second.end_offset),
        )
        await self._world.note(
            "a node begins a deletion",
            lambda: start_deletions(store, [second], deletable_ms=NOW_MS),
        )
        marked = marked_for_deletion(second, deletable_ms=NOW_MS)
        marked = dataclasses.replace(marked, version=second.version + 1)
        keys = segment_keys(CLUSTER, TOPIC, marked)
        await delete_objects(self._world.objects, (keys.log, keys.index))
        await self._world.note("a node drops a segment", lambda: drop_segments(store, [marked]))

    def _segment(self, number: int, sealed: SealedSegment) -> SegmentMeta:
        base = OFFSET_FIRST + number * RECORDS_PER_SEGMENT
        return SegmentMeta(
            topic_id=self._world.topic.topic_id,
            partition=0,
            base_offset=base,
            end_offset=base + RECORDS_PER_SEGMENT,
            leader_epoch=18,
            segment_id=identity(1000 + number),
            state=SegmentState.COPY_STARTED,
            size_bytes=sealed.size_bytes,
            index_size_bytes=0,
            max_timestamp_ms=NOW_MS + number * DAY_MS,
            leader_epochs=((17, OFFSET_FIRST - 5), (18, OFFSET_FIRST)),
            chained_hash="",
            created_ms=NOW_MS,
        )

    async def _copy(self, leadership: Leadership, number: int) -> None:
        """Copy one segment as the copier does."""
        sealed = await asyncio.to_thread(self._sealed, number)
        segment = self._segment(number, sealed)
        started, results = [segment], []

        async def start() -> None:
            started[0] = await start_copy(self._world.store, leadership, segment)

        async def upload() -> None:
            results.append(await self._upload(started[0], sealed))

        await self._world.note("begin a copy", start)
        await self._world.note("upload a segment", upload)
        described = dataclasses.replace(
            started[0],
            index_size_bytes=results[0].index_size_bytes,
            chained_hash=results[0].chained_hash.hex(),
        )
        await self._world.note(
            "finish a copy", lambda: finish_copy(self._world.store, leadership, described)
        )

    async def _upload(self, meta: SegmentMeta, sealed: SealedSegment) -> UploadResult:
        source = SegmentSource.of_sealed(
            sealed,
            topic_id=meta.topic_id,
            partition=meta.partition,
            segment_id=meta.segment_id,
            leader_epoch=meta.leader_epoch,
            previous_hash=NO_HASH,
        )
        keys = segment_keys(CLUSTER, TOPIC, meta)
        with ThreadPoolExecutor(1) as executor:
            request = UploadRequest(source, keys, "")
            return await upload_segment(self._world.objects, request, executor=executor)

    def _sealed(self, number: int) -> SealedSegment:
        """Return a sealed segment of one record, from a new log."""
        directory = self._world.folder / f"log-{number}"
        log = LocalLog.open(directory, TopicPartition(TOPIC, 0), config=TopicConfig())
        try:
            batch = bytearray(build_batch([Record(0, NOW_MS, None, b"value")]))
            log.append_as_leader(batch, leader_epoch=18)
            log.roll()
            sealed = log.sealed_segments()[0]
            log.make_whole(sealed)
            return sealed
        finally:
            log.close()

    async def _apply_retention(self, segment: SegmentMeta) -> None:
        """Apply retention as the function does for the event of one index object."""
        key = SegmentKey(
            CLUSTER,
            TOPIC,
            segment.topic_id,
            segment.partition,
            segment.base_offset,
            segment.leader_epoch,
            segment.segment_id,
            is_index=True,
        )
        result = await apply_retention(
            self._world.store,
            self._world.objects,
            ClusterReader(self._world.store, NodeConfig()),
            keys=[key],
            is_scheduled=False,
            clock_ms=self._world.wall,
            may_expire=lambda: True,
            limit=TimeLimit(_Unlimited()),
        )
        assert not result.failed

    async def _scrub(self) -> None:
        await scrub(
            self._world.store,
            self._world.objects,
            ClusterReader(self._world.store, NodeConfig()),
            settings=parse_scrub_settings({}),
            clock_ms=self._world.wall,
            limit=TimeLimit(_Unlimited()),
        )


class _Unlimited:
    """A Lambda context with enough time."""

    def get_remaining_time_in_millis(self) -> int:
        return 900_000
