"""A partition for planning: its tiered segments, and the offsets to read from each."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING
from uuid import UUID

import numpy as np
from numpy.typing import NDArray
from tidelog_core.diskless.wal.keys import wal_key
from tidelog_core.log.values import AbortedTransaction
from tidelog_core.metadata.records import SegmentMeta
from tidelog_core.model import TopicPartition
from tidelog_core.tier.key_filter import KeyFilter
from tidelog_core.tier.stretches import Stretch, readable_stretches

if TYPE_CHECKING:
    from tidelog_core.diskless.tail.partition_tail import TailView
    from tidelog_core.diskless.tail.tail_slice import TailSlice


@dataclass(frozen=True, slots=True)
class LogTail:
    """The part of a diskless partition's log that chains have and the tier lacks."""

    cluster_id: str
    view: TailView
    end_offset: int  # exclusive, for the isolation level of the read

    def key_of(self, one: TailSlice) -> str:
        """Return the key of the object that has the slice."""
        return wal_key(self.cluster_id, one.chain, one.sequence)

    def between(self, start_offset: int, end_offset: int) -> Iterator[TailSlice]:
        """Yield the slices that overlap ``[start_offset, end_offset)`` above the tier."""
        return self.view.slices.between(max(start_offset, self.view.start_offset), end_offset)

    def holes(self, start_offset: int, end_offset: int) -> list[tuple[int, int]]:
        """Return the ranges in ``[start_offset, end_offset)`` above the tier that no slice has."""
        holes: list[tuple[int, int]] = []
        next_offset = max(start_offset, self.view.start_offset)
        for one in self.between(start_offset, end_offset):
            if one.base_offset > next_offset:
                holes.append((next_offset, one.base_offset))
            next_offset = one.end_offset
        if next_offset < end_offset:
            holes.append((next_offset, end_offset))
        return holes

    def batch_at_time(self, timestamp_ms: int) -> tuple[int, int] | None:
        """Return offsets ``[start, end)`` of the first batch with a record at or after the time."""
        view = self.view
        for one in self.between(view.start_offset, self.end_offset):
            if one.max_timestamp_ms < timestamp_ms:
                continue
            for row in one.batches:
                end_offset = row.base_offset + row.last_offset_delta + 1
                if row.max_timestamp_ms >= timestamp_ms and end_offset > view.start_offset:
                    start = max(row.base_offset, view.start_offset)
                    return None if start >= self.end_offset else (start, end_offset)
        return None


@dataclass(frozen=True, slots=True)
class PartitionLog:
    """A partition's log in the metadata store."""

    partition: TopicPartition
    log_start_offset: int
    stretches: tuple[Stretch, ...]  # ascending, never overlapping; holes are lost offsets
    # The end for consumers on the nodes; ``None`` if the nodes are not asked.
    node_end_offset: int | None = None
    topic_id: UUID | None = None  # identifies the topic to the nodes
    # Start of the listing of its segments; earlier segments are unknown.
    listed_from: int = 0
    tail: LogTail | None = None  # in chains; ``None`` if they are not read

    @property
    def end_offset(self) -> int:
        """Return the log's end, on the nodes or in chains if they are asked, else in the tier."""
        ends = [self.tiered_end_offset]
        if self.node_end_offset is not None:
            ends.append(self.node_end_offset)
        if self.tail is not None:
            ends.append(self.tail.end_offset)
        return max(ends)

    @property
    def tiered_end_offset(self) -> int:
        """Return the tier's end. Later records are only on the nodes, or in chains."""
        if not self.stretches:
            return self.log_start_offset
        return max(self.stretches[-1].end_offset, self.log_start_offset)

    def listing_start(self, offset: int) -> int:
        """Return the offset from which to list segments, to continue reading at the offset.

        It is the base offset of the last segment read before it, or 0 if there is none.
        """
        after = bisect_right(self.stretches, offset, key=lambda stretch: stretch.start_offset)
        return self.stretches[after - 1].segment.base_offset if after else 0

    @property
    def is_listed_enough(self) -> bool:
        """Whether listing only some segments has left no gap.

        A new leader's first segment, or a segment that replaced others, may start below the
        listing's start: then offsets are missing.
        """
        if not self.listed_from:
            return True
        start = max(self.log_start_offset, self.listed_from)
        return bool(self.stretches) and not self.holes(start, self.tiered_end_offset)

    def between(self, start_offset: int, end_offset: int) -> list[Stretch]:
        """Return the stretches that overlap ``[start_offset, end_offset)``, limited to it."""
        if start_offset >= end_offset:
            return []
        first = bisect_right(self.stretches, start_offset, key=lambda stretch: stretch.end_offset)
        last = bisect_left(self.stretches, end_offset, key=lambda stretch: stretch.start_offset)
        found = list(self.stretches[first:last])
        if found and found[0].start_offset < start_offset:
            found[0] = replace(found[0], start_offset=start_offset)
        if found and found[-1].end_offset > end_offset:
            found[-1] = replace(found[-1], end_offset=end_offset)
        return found

    def holes(self, start_offset: int, end_offset: int) -> list[tuple[int, int]]:
        """Return the ranges in ``[start_offset, end_offset)`` that no segment covers."""
        holes: list[tuple[int, int]] = []
        next_offset = start_offset
        for stretch in self.between(start_offset, end_offset):
            if stretch.start_offset > next_offset:
                holes.append((next_offset, stretch.start_offset))
            next_offset = stretch.end_offset
        if next_offset < end_offset:
            holes.append((next_offset, end_offset))
        return holes


@dataclass(frozen=True, slots=True)
class SegmentIndex:
    """The parts of an index object that planning uses. Arrays have one element per batch."""

    base_offsets: NDArray[np.int64]
    last_offsets: NDArray[np.int64]
    positions: NDArray[np.int64]
    sizes: NDArray[np.int64]
    max_timestamps: NDArray[np.int64]  # milliseconds
    aborted: tuple[AbortedTransaction, ...]  # all that have records in the segment
    key_filter: KeyFilter | None = None

    def may_contain(self, keys: Collection[bytes]) -> bool:
        """Return whether the segment may contain one of the keys; ``False`` is certain."""
        return self.key_filter is None or any(map(self.key_filter.may_contain, keys))


def slice_index(one: TailSlice) -> SegmentIndex:
    """Return the index of a slice's batches, with positions in its object."""
    rows = np.frombuffer(one.rows, dtype=np.dtype(one.batches.layout.fields))
    bases = rows["base_offset"].astype(np.int64)
    return SegmentIndex(
        base_offsets=bases,
        last_offsets=bases + rows["last_offset_delta"],
        positions=rows["position"].astype(np.int64),
        sizes=rows["size_bytes"].astype(np.int64),
        max_timestamps=rows["max_timestamp_ms"].astype(np.int64),
        aborted=(),
    )


def partition_log(
    partition: TopicPartition,
    log_start_offset: int,
    metas: Iterable[SegmentMeta],
    *,
    listed_from: int = 0,
) -> PartitionLog:
    """Return the partition's readable log from its segments' metadata.

    ``segments`` are all segments, or those with base offsets at or after ``listed_from``.

    See ``readable_stretches``.
    """
    stretches = readable_stretches(metas, max(log_start_offset, listed_from))
    return PartitionLog(partition, log_start_offset, stretches, listed_from=listed_from)
