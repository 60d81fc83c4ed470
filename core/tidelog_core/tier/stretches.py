"""Divides a partition's tiered segments into stretches, so that each offset is read once.

After a change of leader, segments may overlap: the new leader copies a segment that
begins below the end of the old leader's last copy, or copies again what the
old one had not finished. Where they overlap, the newer leader's segment is read. If
a newer epoch began below the end of an older leader's segment, the rest of that
segment was truncated from the log and is not read.
Source: KIP-405, remote log segment lineage.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from tidelog_core.metadata.records import SegmentMeta, SegmentState


@dataclass(frozen=True, slots=True)
class Stretch:
    """The part ``[start_offset, end_offset)`` of a segment that is read from it."""

    segment: SegmentMeta
    start_offset: int
    end_offset: int


def stretches_of(segments: Iterable[SegmentMeta]) -> tuple[Stretch, ...]:
    """Return the part to read of each finished segment of a partition."""
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


def readable_stretches(segments: Iterable[SegmentMeta], start_offset: int) -> tuple[Stretch, ...]:
    """Return the readable stretches of a partition's segments, known from the offset on.

    Segments are copied in parallel: at an unfinished segment between finished ones, the
    tiered log ends. A hole that no copy will fill is a loss, and stays visible as one.
    """
    copying: list[SegmentMeta] = []
    finished: list[SegmentMeta] = []
    for segment in segments:
        if segment.state is SegmentState.COPY_FINISHED:
            finished.append(segment)
        elif segment.state is SegmentState.COPY_STARTED:
            copying.append(segment)
    stretches = stretches_of(finished)
    end = start_offset
    for number, stretch in enumerate(stretches):
        if stretch.end_offset <= start_offset:
            continue
        start = stretch.start_offset
        if start > end and any(one.base_offset < start and one.end_offset > end for one in copying):
            return stretches[:number]
        end = stretch.end_offset
    return stretches


def _age(segment: SegmentMeta) -> tuple[int, int, int, int, int]:
    """Return a sort key that is greater for the segment that is read first."""
    return (
        segment.leader_epoch,
        segment.base_offset,
        segment.end_offset,
        segment.rewrite_epoch,
        segment.segment_id.int,
    )


def _without(stretches: Sequence[Stretch], newer: SegmentMeta) -> list[Stretch]:
    """Return the stretches without the offsets that the newer segment has or proves truncated."""
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
    """Return the offset from which the newer segment shows the older leader's log replaced."""
    return min(
        (start for epoch, start in newer.leader_epochs if epoch > older.leader_epoch),
        default=older.end_offset,
    )
