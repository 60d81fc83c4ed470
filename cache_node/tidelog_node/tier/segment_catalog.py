"""The metadata of tiered segments: each step is one commit, fenced by the leader epoch.

    absent -> COPY_STARTED -> COPY_FINISHED -> DELETE_STARTED -> absent
                     |                               ^
                     +----- what a crash left -------+

A leader's commits check that the partition's item is still as it was when this node
was found to lead it, so a leader that was replaced changes nothing any more. Readers
are pointed at COPY_FINISHED segments only, and objects are deleted only in
DELETE_STARTED: whoever reads the metadata finds no segment whose objects are gone.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from tidelog_core.errors import NotLeaderOrFollower, OutcomeUnknown, VersionConflict
from tidelog_core.metadata import records
from tidelog_core.metadata.records import Partition, SegmentMeta, SegmentState, segment_key_from
from tidelog_core.metadata.store import Item, KeyRange, MetadataStore, Write
from tidelog_core.retention.deletion import as_doomed, drop_segments, read_segments
from tidelog_core.tier.contents import TierContents, read_tier
from tidelog_core.tier.tiered_segments import TieredSegments

CONFLICT_RETRIES_MAX = 10
OVERLAPPING_COUNT_MAX = 8  # segments below an offset that are looked at first


@dataclass(frozen=True, slots=True)
class Leadership:
    """A partition that this node leads, and in which epoch."""

    topic_id: UUID
    partition: int
    broker_id: int
    leader_epoch: int

    def __str__(self) -> str:
        return f"{self.topic_id}-{self.partition} in leader epoch {self.leader_epoch}"


class SegmentCatalog:
    """Reads and changes the segments' items. Every method is durable on return."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store

    async def contents(self, topic_id: UUID, partition: int) -> TierContents:
        """Return all of the partition's segments in any state."""
        return await read_tier(self._store, topic_id, partition)

    async def segments_from(self, topic_id: UUID, partition: int, offset: int) -> list[SegmentMeta]:
        """Return those of the partition's segments that begin at or above the offset."""
        keys = KeyRange(segment_key_from(offset))
        return await read_segments(self._store, topic_id, partition, keys=keys)

    async def tiered_end(self, topic_id: UUID, partition: int, offset: int) -> int:
        """Return the offset up to which every record from ``offset`` on is in the tier.

        Reads what was copied since ``offset`` was the tier's end, and a few segments before,
        since the first that another leader has copied may begin below it. Where that leaves a
        gap, all segments are read.
        """
        keys = KeyRange(
            end=segment_key_from(offset), limit=OVERLAPPING_COUNT_MAX, is_descending=True
        )
        before = await read_segments(self._store, topic_id, partition, keys=keys)
        tiered = TieredSegments([*before, *await self.segments_from(topic_id, partition, offset)])
        end = tiered.tiered_end(offset)
        if tiered.last is not None and tiered.last.base_offset > end:
            return (await self.contents(topic_id, partition)).finished.tiered_end(offset)
        return end

    async def require_leads(self, leadership: Leadership) -> None:
        """Return where nobody else can have changed the segments until now.

        Raises ``NotLeaderOrFollower``.
        """
        await self._led(leadership)

    async def has(self, segment: SegmentMeta) -> bool:
        """Whether there is an item of the segment, in whatever state."""
        return await self._store.get(segment.item_id) is not None

    async def start_copy(self, leadership: Leadership, segment: SegmentMeta) -> SegmentMeta:
        """Record that a copy begins. Raises ``NotLeaderOrFollower``, ``VersionConflict``."""
        assert segment.state is SegmentState.COPY_STARTED
        return await self._put_fenced(leadership, segment)

    async def finish_copy(self, leadership: Leadership, segment: SegmentMeta) -> SegmentMeta:
        """Record that both objects are complete: from now on readers use them.

        Raises ``NotLeaderOrFollower``, ``VersionConflict`` where someone has begun to
        clean the copy up.
        """
        finished = dataclasses.replace(segment, state=SegmentState.COPY_FINISHED)
        return await self._put_fenced(leadership, finished)

    async def start_deletion(
        self, leadership: Leadership, segment: SegmentMeta, *, deletable_ms: int
    ) -> SegmentMeta:
        """Record that the segment is no longer read and when its objects may go.

        Raises ``NotLeaderOrFollower``, ``VersionConflict`` where someone else has done it.
        """
        if segment.state is SegmentState.DELETE_STARTED:
            return segment
        doomed = as_doomed(segment, deletable_ms=deletable_ms)
        return await self._put_fenced(leadership, doomed)

    async def drop(self, segments: Sequence[SegmentMeta]) -> None:
        """Forget segments whose objects are gone. Doing it twice is harmless."""
        await drop_segments(self._store, segments)

    async def advance_log_start(self, leadership: Leadership, offset: int) -> int:
        """Persist the log start unless the store has it or a later one; return what it has.

        Raises ``NotLeaderOrFollower``.
        """
        for attempt in range(CONFLICT_RETRIES_MAX):
            partition = await self._led(leadership)
            if partition.log_start_offset >= offset:
                return partition.log_start_offset
            moved = dataclasses.replace(partition, log_start_offset=offset)
            try:
                await self._store.commit([records.put(moved)])
            except (VersionConflict, OutcomeUnknown):
                if attempt == CONFLICT_RETRIES_MAX - 1:
                    raise
                continue
            return offset
        raise AssertionError("unreachable")

    async def _put_fenced(self, leadership: Leadership, segment: SegmentMeta) -> SegmentMeta:
        write = records.put(segment, is_logged=False)
        for attempt in range(CONFLICT_RETRIES_MAX):
            check = records.check(await self._led(leadership))
            try:
                await self._store.commit([write], checks=[check])
            except OutcomeUnknown:
                if _is_done(write, await self._store.get(write.id)):
                    return _written(segment)
                if attempt == CONFLICT_RETRIES_MAX - 1:
                    raise
            except VersionConflict as conflict:
                if (write.id.collection, write.id.key) in conflict.keys:
                    # Ours, of an attempt whose outcome was not known?
                    if _is_done(write, await self._store.get(write.id)):
                        return _written(segment)
                    raise
                # Only the partition's item has changed: look whether we still lead.
                if attempt == CONFLICT_RETRIES_MAX - 1:
                    raise
            else:
                return _written(segment)
        raise AssertionError("unreachable")

    async def _led(self, leadership: Leadership) -> Partition:
        key = records.partition_key(leadership.topic_id, leadership.partition)
        item = await self._store.get(key)
        if item is not None:
            partition = Partition.from_item(item)
            is_same_epoch = partition.leader_epoch == leadership.leader_epoch
            if is_same_epoch and partition.leader == leadership.broker_id:
                return partition
        raise NotLeaderOrFollower(f"broker {leadership.broker_id} does not lead {leadership}")


def _written(segment: SegmentMeta) -> SegmentMeta:
    return dataclasses.replace(segment, version=segment.version + 1)


def _is_done(write: Write, found: Item | None) -> bool:
    return (
        found is not None
        and found.version == write.expected_version + 1
        and (dict(found.body) == dict(write.body or {}))
    )
