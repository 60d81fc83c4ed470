"""Which part of a partition's tier is to be compacted, and whether it is worth it.

The log is clean up to the first segment that compaction has not been through, dirty from
there on. As with Kafka's log cleaner a partition is due when enough of it is dirty, or when
its oldest dirty record has waited for ``max.compaction.lag.ms``; what is younger than
``min.compaction.lag.ms`` is left alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tidelog_core.config import TopicConfig
from tidelog_core.metadata.records import SegmentMeta
from tidelog_core.model import NO_TIMESTAMP


@dataclass(frozen=True, slots=True)
class CompactionChoice:
    """What of a partition's tier may be compacted: offsets below ``end_offset``."""

    first_dirty_offset: int
    end_offset: int  # exclusive; the first offset that is too young, or the tier's end
    clean_bytes: int
    dirty_bytes: int  # of whole segments, up to the end
    is_overdue: bool  # a record has waited for max.compaction.lag.ms

    @property
    def dirty_ratio(self) -> float:
        """The dirty part of it, 0 where nothing is dirty."""
        total = self.clean_bytes + self.dirty_bytes
        return self.dirty_bytes / total if total else 0.0

    def is_due(self, config: TopicConfig) -> bool:
        """Whether it is to be compacted now."""
        if not self.dirty_bytes:
            return False
        return self.is_overdue or self.dirty_ratio > config.min_cleanable_dirty_ratio


def choose_compaction(
    segments: Sequence[SegmentMeta], config: TopicConfig, *, now_ms: int
) -> CompactionChoice:
    """Return the choice for a partition's finished segments, by base offset.

    Those that lie below the log start are left out by the caller.
    """
    first_dirty = next((s for s in segments if s.compacted_up_to < s.end_offset), None)
    if first_dirty is None:
        end = max((segment.end_offset for segment in segments), default=0)
        return CompactionChoice(end, end, sum(s.size_bytes for s in segments), 0, False)
    first_dirty_offset = max(first_dirty.base_offset, first_dirty.compacted_up_to)
    clean = dirty = end = 0
    is_overdue = False
    for segment in segments:
        if segment.end_offset <= first_dirty.base_offset:
            clean += segment.size_bytes
            continue
        if segment.end_offset > first_dirty_offset and _is_young(segment, config, now_ms):
            return CompactionChoice(
                first_dirty_offset,
                max(first_dirty_offset, segment.base_offset),
                clean,
                dirty,
                is_overdue,
            )
        dirty += segment.size_bytes
        end = max(end, segment.end_offset)
        is_overdue |= now_ms - _newest_ms(segment) > config.max_compaction_lag_ms
    return CompactionChoice(first_dirty_offset, end, clean, dirty, is_overdue)


def _is_young(segment: SegmentMeta, config: TopicConfig, now_ms: int) -> bool:
    lag_ms = config.min_compaction_lag_ms
    return lag_ms > 0 and now_ms - _newest_ms(segment) < lag_ms


def _newest_ms(segment: SegmentMeta) -> int:
    """Return the newest record's time, or when the segment was copied if none has one."""
    if segment.max_timestamp_ms == NO_TIMESTAMP:
        return segment.created_ms
    return segment.max_timestamp_ms
