"""One partition's tier for rewriting: reads its segments and writes the new ones.

A group is read from its segments' objects and written to a local file. Objects are put and
swapped in only if records were removed, or if several segments become one.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Protocol
from uuid import UUID, uuid4

from tidelog_core.compaction.rewrite import RewriteBatch
from tidelog_core.compaction.segment_writer import SegmentWriter
from tidelog_core.compaction.selection import SegmentLimits
from tidelog_core.config import TopicConfig
from tidelog_core.errors import UnknownTopicOrPartition
from tidelog_core.log.segments.offset_index import ENTRY_SIZE_BYTES
from tidelog_core.log.values import AbortedTransaction
from tidelog_core.metadata import records
from tidelog_core.metadata.records import Partition, SegmentMeta, SegmentState, Topic
from tidelog_core.metadata.rewrite_claims import RewriteClaim
from tidelog_core.metadata.store import MetadataStore
from tidelog_core.objects.store import ObjectStore
from tidelog_core.records.batch import BatchHeader, Buffer
from tidelog_core.tier.index_build import RewriteFacts, SegmentSource, build_index_file
from tidelog_core.tier.index_file import IndexFile, ReplacedSegment
from tidelog_core.tier.integrity import replaced_segment
from tidelog_core.tier.keys import SegmentKeys, segment_keys
from tidelog_core.tier.lifecycle import read_segments
from tidelog_core.tier.planning import finished_segments
from tidelog_core.tier.stretches import Stretch
from tidelog_core.tier.time_search import parse_index_of
from tidelog_core.tier_compaction.aborted_transactions import TransactionalSpans
from tidelog_core.tier_compaction.groups import SegmentGroup
from tidelog_core.tier_compaction.segment_files import downloaded, stretch_batches
from tidelog_core.tier_compaction.swap import SegmentSwaps, take_claim

INDEXES_AT_ONCE_MAX = 16


@dataclass(frozen=True, slots=True)
class SegmentFacts:
    """The parts of a segment's index object that rewriting needs, without the bulk."""

    link: ReplacedSegment
    replaced: tuple[ReplacedSegment, ...]
    aborted: tuple[AbortedTransaction, ...]
    producer_snapshot: bytes
    index_entry_count: int  # of the offset index


@dataclass(frozen=True, slots=True)
class LiveTier:
    """The finished segments of a partition that hold something, by base offset."""

    segments: tuple[SegmentMeta, ...]
    has_leftovers: bool  # there are segments to clean up
    log_start_offset: int


class GroupOutcome(Enum):
    """The result for a group."""

    UNCHANGED = "unchanged"  # nothing in it had to go
    REWRITTEN = "rewritten"
    LOST = "lost"  # one of its segments has changed: nothing was done


@dataclass(frozen=True, slots=True)
class RewrittenGroup:
    """The result for a group, and the new segment if there is one."""

    outcome: GroupOutcome
    group: SegmentGroup  # the groups that were joined
    new: SegmentMeta | None = None
    removed_offsets: int = 0  # records that are no longer there


@dataclass(frozen=True, slots=True)
class PreparedGroup:
    """A group and the new segment that will replace it."""

    group: SegmentGroup  # the groups that were joined
    new: SegmentMeta | None  # its objects exist, its item is COPY_STARTED; None: unchanged
    removed_offsets: int = 0


class SegmentStarts(Protocol):
    """The methods of a claim that writing a new segment needs."""

    @property
    def rewrite_epoch(self) -> int:
        """The claim's epoch, which the new segments have."""

    async def renew(self) -> None:
        """Keep the claim."""

    async def start(self, segment: SegmentMeta) -> SegmentMeta:
        """Record that the new segment's objects may be there from now on."""

    async def put(self, segment: SegmentMeta, log: Path, index: bytes) -> None:
        """Store the new segment's objects, the index last; durable on return."""


@dataclass(frozen=True, slots=True)
class _WrittenGroup:
    """A group's remaining records, as local files."""

    group: SegmentGroup
    writer: SegmentWriter  # sealed
    spans: TransactionalSpans
    producer_snapshot: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionTier:
    """A partition's tier and its stores."""

    store: MetadataStore
    objects: ObjectStore
    cluster_id: str
    topic: Topic
    partition: int
    config: TopicConfig
    key_filter_records_max: int  # no key filter for segments with more records
    clock_ms: Callable[[], int]

    async def live(self) -> LiveTier:
        """Return the segments that hold something above the log start.

        Raises ``UnknownTopicOrPartition``.
        """
        metas = await read_segments(self.store, self.topic.topic_id, self.partition)
        # Read after the segments: those that retention has removed since are below this log start.
        item = await self.store.get(records.partition_key(self.topic.topic_id, self.partition))
        if item is None:
            raise UnknownTopicOrPartition(f"partition {self.topic.name}-{self.partition} is gone")
        start = Partition.from_item(item).log_start_offset
        now_ms = self.clock_ms()
        has_leftovers = any(
            (meta.state is SegmentState.COPY_STARTED and meta.rewrite_epoch > 0)
            or (meta.state is SegmentState.DELETE_STARTED and meta.deletable_ms <= now_ms)
            for meta in metas
        )
        live = tuple(meta for meta in finished_segments(metas) if meta.end_offset > start)
        return LiveTier(live, has_leftovers, start)

    @asynccontextmanager
    async def claimed(self, holder: UUID | None = None) -> AsyncIterator[SegmentSwaps]:
        """Hold the claim on the partition, after cleaning up after earlier holders.

        ``holder`` is for work that may be continued by another process, which need not wait until
        the claim expires; ``None``: a holder of its own. Raises ``PartitionClaimed``.
        """
        claim = await take_claim(
            self.store,
            self.topic.topic_id,
            self.partition,
            holder=uuid4() if holder is None else holder,
            now_ms=self.clock_ms(),
        )
        swaps = self.swaps_under(claim)
        try:
            await swaps.clean_up()
            yield swaps
        finally:
            await swaps.release()

    def swaps_under(self, claim: RewriteClaim) -> SegmentSwaps:
        """Return the partition's swaps under a claim that the caller holds."""
        return SegmentSwaps(
            self.store,
            self.objects,
            claim,
            keys_of=self.keys_of,
            clock_ms=self.clock_ms,
            kms_key_id=self.config.tier_kms_key_id,
        )

    def keys_of(self, segment: SegmentMeta) -> SegmentKeys:
        """Return the keys of the segment's objects."""
        return segment_keys(self.cluster_id, self.topic.name, segment)

    async def index_of(self, segment: SegmentMeta) -> IndexFile:
        """Return the segment's index. Raises ``ObjectNotFound``, ``CorruptObject``."""
        key = self.keys_of(segment).index
        return parse_index_of(segment, await self.objects.get(key), key=key)

    async def facts_of(self, segments: Sequence[SegmentMeta]) -> dict[UUID, SegmentFacts]:
        """Return the facts in the segments' index objects. Raises as ``index_of``."""
        slots = asyncio.Semaphore(INDEXES_AT_ONCE_MAX)

        async def read(segment: SegmentMeta) -> SegmentFacts:
            async with slots:
                index = await self.index_of(segment)
            return SegmentFacts(
                replaced_segment(index),
                index.replaced,
                index.aborted,
                bytes(index.producer_snapshot) if segment is segments[-1] else b"",
                len(index.offset_index) // ENTRY_SIZE_BYTES,
            )

        found = await asyncio.gather(*map(read, segments))
        return dict(zip((segment.segment_id for segment in segments), found, strict=True))

    @asynccontextmanager
    async def reading(self, stretch: Stretch) -> AsyncIterator[tuple[Buffer, IndexFile]]:
        """Give the bytes and the index of the stretch's segment."""
        index = await self.index_of(stretch.segment)
        key = self.keys_of(stretch.segment).log
        async with downloaded(self.objects, key, stretch.segment, index) as log:
            yield log, index

    async def rewrite(
        self,
        swaps: SegmentSwaps,
        groups: deque[SegmentGroup],
        rewrite_batch: RewriteBatch,
        *,
        facts: Mapping[UUID, SegmentFacts],
        compacted_up_to: int,
        limits: SegmentLimits | None,
    ) -> RewrittenGroup:
        """Take groups off the left as ``prepare`` does, and swap the new segment in."""
        prepared = await self.prepare(
            swaps,
            groups,
            rewrite_batch,
            facts=facts,
            compacted_up_to=compacted_up_to,
            limits=limits,
        )
        return await self.swap_in(swaps, prepared)

    async def swap_in(self, swaps: SegmentSwaps, prepared: PreparedGroup) -> RewrittenGroup:
        """Replace the group's segments with the new one, if there is one."""
        group, new = prepared.group, prepared.new
        if new is None:
            return RewrittenGroup(GroupOutcome.UNCHANGED, group)
        delay_ms = self.config.file_delete_delay_ms
        if not await swaps.finish(new, group.segments, delete_delay_ms=delay_ms):
            return RewrittenGroup(GroupOutcome.LOST, group)
        return RewrittenGroup(GroupOutcome.REWRITTEN, group, new, prepared.removed_offsets)

    async def prepare(
        self,
        starts: SegmentStarts,
        groups: deque[SegmentGroup],
        rewrite_batch: RewriteBatch,
        *,
        facts: Mapping[UUID, SegmentFacts],
        compacted_up_to: int,
        limits: SegmentLimits | None,
    ) -> PreparedGroup:
        """Take groups from the front of the list, and store their remaining records as one segment.

        As many groups as fit: compaction may leave next to nothing of many, and readers have to
        request each segment. They are joined even if no record is removed. Without ``limits`` only
        one group is taken. ``facts`` are of every finished segment. Raises
        ``PartitionClaimed``, ``CorruptObject``, ``CorruptRecordBatch`` and the errors of the
        stores.
        """
        with TemporaryDirectory(prefix="tidelog-rewrite-") as name:
            written = await self._write(
                Path(name), starts, groups, rewrite_batch, facts=facts, limits=limits
            )
            group, writer = written.group, written.writer
            is_joined = limits is not None and len(group.segments) > 1
            if not writer.is_changed and not is_joined:
                return PreparedGroup(group, None)
            rewrite = RewriteFacts(
                rewrite_epoch=starts.rewrite_epoch,
                compacted_up_to=compacted_up_to,
                replaced=replaced_links(group, facts),
            )
            new, index_data = self._describe(written, rewrite, facts)
            new = await starts.start(new)
            await starts.put(new, writer.path, index_data)
        return PreparedGroup(group, new, writer.removed_record_count)

    async def _write(
        self,
        folder: Path,
        starts: SegmentStarts,
        left: deque[SegmentGroup],
        rewrite_batch: RewriteBatch,
        *,
        facts: Mapping[UUID, SegmentFacts],
        limits: SegmentLimits | None,
    ) -> _WrittenGroup:
        """Take groups from the front, and write their remaining records into the folder."""
        group = left.popleft()
        following = group
        spans, snapshot_path = TransactionalSpans(), folder / "snapshot"
        writer = SegmentWriter(
            folder, group.base_offset, index_interval_bytes=self.config.index_interval_bytes
        )

        def noted(buffer: Buffer, position: int, header: BatchHeader) -> bytes | None:
            batch = rewrite_batch(buffer, position, header)
            if batch is not None:
                spans.note(header)
            return batch

        while True:
            for stretch in following.stretches:
                await starts.renew()
                async with self.reading(stretch) as (log, index):
                    snapshot_path.write_bytes(index.producer_snapshot)
                    writer.rewrite(stretch_batches(log, index, stretch), noted)
            if limits is None or not left or not group.may_join(left[0]):
                break
            entry_count = sum(facts[one.segment_id].index_entry_count for one in left[0].segments)
            if not writer.has_room_for(left[0], limits, index_entry_count=entry_count):
                break
            following = left.popleft()
            group = group.joined(following)
        writer.seal(group.end_offset)
        return _WrittenGroup(group, writer, spans, snapshot_path)

    def _describe(
        self,
        written: _WrittenGroup,
        rewrite: RewriteFacts,
        facts: Mapping[UUID, SegmentFacts],
    ) -> tuple[SegmentMeta, bytes]:
        """Return the new segment's metadata and index object."""
        group, writer = written.group, written.writer
        found = all_aborted(facts[segment.segment_id] for segment in group.segments)
        segment_id = uuid4()
        leader_epoch = max(segment.leader_epoch for segment in group.segments)
        leader_epochs = group.leader_epochs
        built = build_index_file(
            SegmentSource(
                topic_id=self.topic.topic_id,
                partition=self.partition,
                segment_id=segment_id,
                leader_epoch=leader_epoch,
                base_offset=group.base_offset,
                end_offset=group.end_offset,
                size_bytes=writer.size_bytes,
                path=writer.path,
                offset_index=writer.offset_index,
                time_index=writer.time_index,
                producer_snapshot=written.producer_snapshot,
                leader_epochs=leader_epochs,
                aborted=written.spans.within(found),
                previous_hash=facts[group.segments[0].segment_id].link.previous_hash,
                key_filter_records_max=self.key_filter_records_max,
                rewrite=rewrite,
            )
        )
        meta = SegmentMeta(
            topic_id=self.topic.topic_id,
            partition=self.partition,
            base_offset=group.base_offset,
            end_offset=group.end_offset,
            leader_epoch=leader_epoch,
            segment_id=segment_id,
            state=SegmentState.COPY_STARTED,
            size_bytes=writer.size_bytes,
            index_size_bytes=len(built.data),
            max_timestamp_ms=built.max_timestamp_ms,
            leader_epochs=leader_epochs,
            chained_hash=built.chained_hash.hex(),
            created_ms=self.clock_ms(),
            rewrite_epoch=rewrite.rewrite_epoch,
            compacted_up_to=rewrite.compacted_up_to,
        )
        return meta, built.data


def replaced_links(
    group: SegmentGroup, facts: Mapping[UUID, SegmentFacts]
) -> tuple[ReplacedSegment, ...]:
    """Return the links that the group's new segment must list as replaced.

    Links that its segments had replaced themselves are listed only if a segment outside continues
    them. A leader with older metadata may still copy a segment behind the last one, so all
    links of that one are listed.
    """
    own = {segment.segment_id for segment in group.segments}
    outside = [fact.link for segment_id, fact in facts.items() if segment_id not in own]
    continued = {link.previous_hash for link in outside}
    last_base = max((link.base_offset for link in outside), default=-1)
    found = []
    for segment in group.segments:
        fact = facts[segment.segment_id]
        is_last = segment is group.segments[-1] and segment.base_offset > last_base
        found += [row for row in fact.replaced if is_last or row.chained_hash in continued]
        found.append(fact.link)
    return tuple(found)


def all_aborted(facts: Iterable[SegmentFacts]) -> list[AbortedTransaction]:
    """Return the aborted transactions of the segments, each once."""
    return list(dict.fromkeys(one for fact in facts for one in fact.aborted))
