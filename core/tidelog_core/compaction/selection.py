"""Selects the log and the segments to compact, and the size of compacted segments.

Segments are compacted as a whole, and never the active one. The part that may be compacted ends
at the first segment that does not qualify.
Source: Kafka's LogCleanerManager; KIP-58 (min lag), KIP-354 (max lag).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from tidelog_core.config import TopicConfig
from tidelog_core.log.cleaned_segments import SegmentToClean
from tidelog_core.log.segments.offset_index import POSITION_MAX, RELATIVE_OFFSET_MAX
from tidelog_core.log.segments.time_index import ENTRY_SIZE_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class Dirtiness:
    """The part of a log that may be compacted now, on a node's disk or in the tier."""

    clean_bytes: int
    dirty_bytes: int  # of whole segments
    is_overdue: bool  # a dirty record has waited for max.compaction.lag.ms

    @property
    def dirty_ratio(self) -> float:
        """The dirty share of the bytes, from 0 to 1; 0 if there are none."""
        total = self.clean_bytes + self.dirty_bytes
        return self.dirty_bytes / total if total else 0.0

    def is_due(self, config: TopicConfig) -> bool:
        """Whether it is worth compacting by the topic's settings."""
        if self.dirty_bytes == 0:
            return False
        return self.is_overdue or self.dirty_ratio > config.min_cleanable_dirty_ratio


@dataclass(frozen=True, slots=True, kw_only=True)
class Cleanable(Dirtiness):
    """The part of one log that may be compacted now."""

    segments: tuple[SegmentToClean, ...]  # compacted ones first
    dirty_from: int


def find_cleanable(
    segments: Sequence[SegmentToClean], config: TopicConfig, *, dirty_from: int, now_ms: int
) -> Cleanable:
    """Return the settled segments that may be compacted; from ``dirty_from`` on they are dirty."""
    lagging: list[SegmentToClean] = []
    for segment in segments:
        is_dirty = segment.end_offset > dirty_from
        is_young = segment.max_timestamp_ms > now_ms - config.min_compaction_lag_ms
        if is_dirty and is_young and config.min_compaction_lag_ms > 0:
            break
        lagging.append(segment)
    dirty = [segment for segment in lagging if segment.end_offset > dirty_from]
    times = [one.first_timestamp_ms for one in dirty if one.first_timestamp_ms > 0]
    oldest_ms = min(times, default=now_ms)
    dirty_bytes = sum(segment.size_bytes for segment in dirty)
    return Cleanable(
        segments=tuple(lagging),
        dirty_from=dirty_from,
        clean_bytes=sum(segment.size_bytes for segment in lagging) - dirty_bytes,
        dirty_bytes=dirty_bytes,
        is_overdue=now_ms - oldest_ms > config.max_compaction_lag_ms,
    )


def next_check_ms(
    segments: Sequence[SegmentToClean], cleanable: Cleanable, config: TopicConfig
) -> int | None:
    """Return when a log that is not due may become due if its segments do not change.

    ``cleanable`` was found in these segments. ``None``: never.
    """
    times = [
        segment.first_timestamp_ms + config.max_compaction_lag_ms + 1
        for segment in cleanable.segments
        if segment.end_offset > cleanable.dirty_from and segment.first_timestamp_ms > 0
    ]
    lagging_count = len(cleanable.segments)
    if lagging_count < len(segments):
        times.append(segments[lagging_count].max_timestamp_ms + config.min_compaction_lag_ms)
    return min(times, default=None)


class SegmentExtent(Protocol):
    """A segment, or several without a gap, that may become part of a compacted one."""

    @property
    def base_offset(self) -> int:
        """The first offset."""

    @property
    def end_offset(self) -> int:
        """The end offset, exclusive."""

    @property
    def size_bytes(self) -> int:
        """Its current size."""


@dataclass(frozen=True, slots=True)
class SegmentLimits:
    """The limits of one compacted segment, on a node's disk or in the tier."""

    size_bytes_max: int
    index_entries_max: int
    apart_at: int = 0  # none holds offsets on both sides of it, if a segment ends there

    @classmethod
    def of(cls, config: TopicConfig, *, apart_at: int = 0) -> SegmentLimits:
        """Return the limits that the topic sets."""
        entries_max = config.segment_index_bytes // ENTRY_SIZE_BYTES
        return cls(config.segment_bytes, entries_max, apart_at)

    def allow(
        self,
        segment: SegmentExtent,
        *,
        base_offset: int,
        size_bytes: int,
        entry_count: int,
        has_records: bool,
    ) -> bool:
        """Whether the whole segment may be joined to the remaining batches of those before it.

        Those begin at ``base_offset`` and take ``size_bytes``; ``entry_count`` counts the index
        entries of both. If they have no records (``has_records``), a segment that is full may
        outgrow the limit by their size: as a segment of their own they would be fetched in vain,
        and librdkafka reports an error after ten answers without a record.
        """
        size_bytes_max = self.size_bytes_max if has_records else POSITION_MAX
        return (
            segment.base_offset != self.apart_at
            and size_bytes + segment.size_bytes <= size_bytes_max
            and entry_count <= self.index_entries_max
            and segment.end_offset - 1 - base_offset <= RELATIVE_OFFSET_MAX
        )
