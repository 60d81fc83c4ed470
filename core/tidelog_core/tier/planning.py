"""Decides which segments to copy, to read and to clean up. No I/O."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from uuid import UUID

from tidelog_core.log.values import SealedSegment
from tidelog_core.metadata.records import SegmentMeta, SegmentState

REWRITE_MS_MAX = 86_400_000  # a longer rewrite is no longer waited for


def finished_segments(metas: Iterable[SegmentMeta]) -> list[SegmentMeta]:
    """Return the segments that may be read, in the order of ``place_in_reading``."""
    finished = (meta for meta in metas if meta.state is SegmentState.COPY_FINISHED)
    return sorted(finished, key=place_in_reading)


def place_in_reading(meta: SegmentMeta) -> tuple[int, int, int, int, int]:
    """Return the segment's sort key among those of its partition: the smallest is read first.

    By base offset. Of segments that begin together, the newest leader's is read first, then the
    longest one, then the one that was rewritten last. All keys are different.
    Source: KIP-405: of copies of two leaders that begin at one offset, the later one is served.
    """
    return (
        meta.base_offset,
        -meta.leader_epoch,
        -meta.end_offset,
        -meta.rewrite_epoch,
        -meta.segment_id.int,
    )


def tiered_end_offset(finished: Iterable[SegmentMeta], log_start_offset: int) -> int:
    """Return the offset up to which every record from the log start on is in the tier."""
    end = log_start_offset
    for meta in sorted(finished, key=lambda meta: meta.base_offset):
        if meta.base_offset > end:
            break
        end = max(end, meta.end_offset)
    return end


def select_copies(
    sealed: Iterable[SealedSegment], *, tiered_end: int, up_to: int
) -> list[SealedSegment]:
    """Return the sealed segments that must be copied now, oldest first.

    ``up_to`` is the lesser of high watermark and last stable offset: below it nothing
    will change and every transaction is decided. If the tier already has the beginning of a
    segment (an earlier leader rolled at other offsets), the whole segment is copied.
    """
    found = [s for s in sealed if s.end_offset > tiered_end and s.end_offset <= up_to]
    return sorted(found, key=lambda segment: segment.base_offset)


def select_leftovers(
    metas: Iterable[SegmentMeta], *, under_way: Collection[UUID], now_ms: int
) -> list[SegmentMeta]:
    """Return the leftovers of a crash: abandoned copies, and unfinished deletions.

    Segments that are being rewritten are left to the holder of the partition's claim, unless
    they are older than ``REWRITE_MS_MAX``.
    """
    return [
        meta
        for meta in metas
        if meta.segment_id not in under_way
        and meta.state is not SegmentState.COPY_FINISHED
        and not _is_being_rewritten(meta, now_ms)
    ]


def _is_being_rewritten(meta: SegmentMeta, now_ms: int) -> bool:
    return (
        meta.state is SegmentState.COPY_STARTED
        and meta.rewrite_epoch > 0
        and now_ms - meta.created_ms <= REWRITE_MS_MAX
    )
