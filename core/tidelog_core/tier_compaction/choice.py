"""Selects the part of a partition's tier to compact, and decides whether it is due.

The log is clean up to the first segment that was never compacted, and dirty from there on. As with
Kafka's log cleaner, a partition is due when enough of it is dirty, or when its oldest dirty record
has waited for ``max.compaction.lag.ms``. Records younger than ``min.compaction.lag.ms`` are not
compacted.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tidelog_core.compaction.selection import Dirtiness
from tidelog_core.config import TopicConfig
from tidelog_core.metadata.records import SegmentMeta
from tidelog_core.model import NO_TIMESTAMP


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionChoice(Dirtiness):
    """The part of a partition's tier that may be compacted: offsets below ``end_offset``."""

    first_dirty_offset: int
    end_offset: int  # exclusive; the first offset that is too young, or the tier's end


def choose_compaction(
    segments: Sequence[SegmentMeta], config: TopicConfig, *, now_ms: int
) -> CompactionChoice:
    """Return the choice for a partition's finished segments, by base offset.

    The caller leaves out segments below the log start.
    """
    first_dirty = _first_dirty(segments)
    first_dirty_offset = compacted_end(segments)
    if first_dirty is None:
        return CompactionChoice(
            first_dirty_offset=first_dirty_offset,
            end_offset=first_dirty_offset,
            clean_bytes=sum(segment.size_bytes for segment in segments),
            dirty_bytes=0,
            is_overdue=False,
        )
    clean = dirty = end = 0
    is_overdue = False
    for segment in segments:
        if segment.end_offset <= first_dirty.base_offset:
            clean += segment.size_bytes
            continue
        if segment.end_offset > first_dirty_offset and _is_young(segment, config, now_ms):
            end = max(first_dirty_offset, segment.base_offset)
            break
        dirty += segment.size_bytes
        end = max(end, segment.end_offset)
        is_overdue |= now_ms - _newest_ms(segment) > config.max_compaction_lag_ms
    return CompactionChoice(
        first_dirty_offset=first_dirty_offset,
        end_offset=end,
        clean_bytes=clean,
        dirty_bytes=dirty,
        is_overdue=is_overdue,
    )


def compacted_end(segments: Iterable[SegmentMeta]) -> int:
    """Return the offset below which no key has two records in the tier, 0 for an empty tier.

    ``segments`` are the finished ones, by base offset. Compaction takes them in this order, so
    all segments before a compacted one are compacted too.
    """
    end_offset = 0
    for segment in segments:
        if _is_dirty(segment):
            return max(segment.base_offset, segment.compacted_up_to)
        end_offset = max(end_offset, segment.end_offset)
    return end_offset


def _first_dirty(segments: Sequence[SegmentMeta]) -> SegmentMeta | None:
    return next(filter(_is_dirty, segments), None)


def _is_dirty(segment: SegmentMeta) -> bool:
    return segment.compacted_up_to < segment.end_offset


def _is_young(segment: SegmentMeta, config: TopicConfig, now_ms: int) -> bool:
    lag_ms = config.min_compaction_lag_ms
    return lag_ms > 0 and now_ms - _newest_ms(segment) < lag_ms


def _newest_ms(segment: SegmentMeta) -> int:
    """Return the newest record's time, or when the segment was copied if none has one."""
    if segment.max_timestamp_ms == NO_TIMESTAMP:
        return segment.created_ms
    return segment.max_timestamp_ms
