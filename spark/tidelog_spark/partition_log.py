"""What planning knows of a partition: its tiered segments, in which stretches they are read.

After a change of leader, segments may overlap: the new leader copies from a segment
of its own that begins below where the old one had got to, or copies again what the
old one had not finished. Where they overlap, the newer leader's segment is read, and
where a newer epoch began below the end of an older leader's segment, the rest of that
segment was truncated from the log and is not read at all.
Source: KIP-405, remote log segment lineage.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from uuid import UUID

import numpy as np
from numpy.typing import NDArray
from tidelog_core.log.values import AbortedTransaction
from tidelog_core.metadata.records import SegmentMeta, SegmentState
from tidelog_core.model import TopicPartition
from tidelog_core.tier.key_filter import KeyFilter


@dataclass(frozen=True, slots=True)
class Stretch:
    """The part ``[start_offset, end_offset)`` of a segment that is read from it."""

    segment: SegmentMeta
    start_offset: int
    end_offset: int


@dataclass(frozen=True, slots=True)
class PartitionLog:
    """One partition as the metadata store shows it."""

    partition: TopicPartition
    log_start_offset: int
    stretches: tuple[Stretch, ...]  # ascending, never overlapping; holes are lost offsets
    # Where consumers' reading ends on the nodes; ``None`` where the nodes are not asked.
    node_end_offset: int | None = None
    topic_id: UUID | None = None  # the topic's, to ask the nodes for no other of its name

    @property
    def end_offset(self) -> int:
        """Where the log ends for a reader of the tier, and of the nodes if they are asked."""
        if self.node_end_offset is None:
            return self.tiered_end_offset
        return max(self.tiered_end_offset, self.node_end_offset)

    @property
    def tiered_end_offset(self) -> int:
        """Where the tiered log ends. What comes after is on the nodes only."""
        if not self.stretches:
            return self.log_start_offset
        return max(self.stretches[-1].end_offset, self.log_start_offset)

    def between(self, start_offset: int, end_offset: int) -> list[Stretch]:
        """Return the stretches that overlap ``[start_offset, end_offset)``, cut to it."""
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
        """Return the runs of offsets in ``[start_offset, end_offset)`` that no segment has."""
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
    """What planning takes from an index object. The arrays have one element a batch."""

    base_offsets: NDArray[np.int64]
    last_offsets: NDArray[np.int64]
    positions: NDArray[np.int64]
    sizes: NDArray[np.int64]
    max_timestamps: NDArray[np.int64]  # milliseconds
    aborted: tuple[AbortedTransaction, ...]  # all that have records in the segment
    key_filter: KeyFilter | None = None

    def may_contain(self, keys: Collection[bytes]) -> bool:
        """Return whether the segment may hold a record of one of the keys; ``False`` is certain."""
        return self.key_filter is None or any(map(self.key_filter.may_contain, keys))


def partition_log(
    partition: TopicPartition, log_start_offset: int, metas: Iterable[SegmentMeta]
) -> PartitionLog:
    """Return the partition's readable log from all of its segments' metadata.

    Segments are copied side by side: where one that is still being copied is missing
    between finished ones, the tiered log ends before it. A hole that nobody is
    filling is a loss, and stays visible as one.
    """
    copying: list[SegmentMeta] = []
    finished: list[SegmentMeta] = []
    for meta in metas:
        if meta.state is SegmentState.COPY_FINISHED:
            finished.append(meta)
        elif meta.state is SegmentState.COPY_STARTED:
            copying.append(meta)
    stretches = stretches_of(finished)
    log = PartitionLog(partition, log_start_offset, stretches)
    for hole_start, hole_end in log.holes(log_start_offset, log.tiered_end_offset):
        if any(m.base_offset < hole_end and m.end_offset > hole_start for m in copying):
            return replace(log, stretches=tuple(s for s in stretches if s.end_offset <= hole_start))
    return log


def stretches_of(segments: Iterable[SegmentMeta]) -> tuple[Stretch, ...]:
    """Return which part of which segment is read, for a partition's finished segments."""
    stretches: list[Stretch] = []
    for segment in sorted(segments, key=_age):
        if segment.end_offset <= segment.base_offset:
            continue
        if stretches and segment.base_offset < stretches[-1].end_offset:
            stretches = _without(stretches, segment)
        stretches.append(Stretch(segment, segment.base_offset, segment.end_offset))
        if len(stretches) > 1 and stretches[-2].start_offset > segment.base_offset:
            stretches.sort(key=lambda stretch: stretch.start_offset)
    return tuple(stretches)


def _age(segment: SegmentMeta) -> tuple[int, int, int, str]:
    return (
        segment.leader_epoch,
        segment.base_offset,
        segment.end_offset,
        str(segment.segment_id),
    )


def _without(stretches: Sequence[Stretch], newer: SegmentMeta) -> list[Stretch]:
    """Return the stretches without what the newer segment holds or proves to be truncated."""
    kept: list[Stretch] = []
    for stretch in stretches:
        before = min(stretch.end_offset, newer.base_offset)
        if stretch.start_offset < before:
            kept.append(replace(stretch, end_offset=before))
        after = max(stretch.start_offset, newer.end_offset)
        truncated_from = _truncated_from(stretch.segment, newer)
        if after < stretch.end_offset and after < truncated_from:
            kept.append(
                replace(
                    stretch,
                    start_offset=after,
                    end_offset=min(stretch.end_offset, truncated_from),
                )
            )
    return kept


def _truncated_from(older: SegmentMeta, newer: SegmentMeta) -> int:
    """Return from which offset on the older leader's log was replaced, as far as this tells."""
    return min(
        (start for epoch, start in newer.leader_epochs if epoch > older.leader_epoch),
        default=older.end_offset,
    )
