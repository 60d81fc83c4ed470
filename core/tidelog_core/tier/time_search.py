"""Finds records by time in the tiered segments of a partition."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from tidelog_core.errors import CorruptObject
from tidelog_core.metadata.records import SegmentMeta
from tidelog_core.tier.index_file import BatchRow, IndexFile
from tidelog_core.tier.tiered_segments import TieredSegments

IndexOf = Callable[[SegmentMeta], Awaitable[IndexFile]]
SearchBatch = Callable[[SegmentMeta, IndexFile, int], Awaitable[tuple[int, int] | None]]
"""Returns (timestamp, offset) of the first record that fits in a row's batch, if any."""


async def find_tiered_offset(
    segments: TieredSegments,
    timestamp_ms: int,
    *,
    start_offset: int,
    index_of: IndexOf,
    search_batch: SearchBatch,
) -> tuple[int, int] | None:
    """Return timestamp and offset of the first tiered record at or after both, if any.

    Raises the errors of the callables.
    """
    for segment in segments.since(timestamp_ms, start_offset=start_offset):
        index = await index_of(segment)
        first = index.row_of_timestamp(timestamp_ms)
        if first is None:
            continue
        for row in range(first, len(index.batches)):
            batch: BatchRow = index.batches[row]
            if batch.max_timestamp_ms < timestamp_ms or batch.last_offset < start_offset:
                continue
            found = await search_batch(segment, index, row)
            if found is not None:
                return found
    return None


def parse_index_of(segment: SegmentMeta, data: bytes, *, key: str) -> IndexFile:
    """Return the segment's index. Raises ``CorruptObject`` if it is damaged or another one's."""
    index = IndexFile.parse(data, key=key)
    described = (index.segment_id, index.base_offset, index.end_offset, index.log_size_bytes)
    expected = (segment.segment_id, segment.base_offset, segment.end_offset, segment.size_bytes)
    if described != expected or index.chained_hash.hex() != segment.chained_hash:
        raise CorruptObject(key, f"it describes {described}, the metadata says {expected}")
    return index
