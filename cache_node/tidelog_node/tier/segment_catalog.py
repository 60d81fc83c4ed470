"""The metadata of tiered segments as a node reads it: all of a partition's, or what is new."""

from __future__ import annotations

from uuid import UUID

from tidelog_core.metadata.records import SegmentMeta, segment_key_from
from tidelog_core.metadata.store import KeyRange, MetadataStore
from tidelog_core.tier.contents import TierContents, read_tier
from tidelog_core.tier.lifecycle import read_segments
from tidelog_core.tier.tiered_segments import TieredSegments

OVERLAPPING_COUNT_MAX = 8  # segments below an offset that are looked at first


class SegmentCatalog:
    """Reads the items of partitions' segments."""

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
