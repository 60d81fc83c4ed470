"""Which records a partition no longer keeps, and which a node no longer keeps locally.

Source: Kafka's log retention; KIP-405 for local and remote retention.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from tidelog_core.config import LOCAL_AS_TOTAL, UNLIMITED, TopicConfig
from tidelog_core.log.values import SealedSegment
from tidelog_core.metadata.records import SegmentMeta
from tidelog_core.model import NO_TIMESTAMP


@dataclass(frozen=True, slots=True)
class RetainedSegment:
    """A sealed run of offsets ``[base_offset, end_offset)``, wherever it lies."""

    base_offset: int
    end_offset: int
    size_bytes: int
    newest_ms: int  # the newest record's timestamp, or when it was written if none has one


@dataclass(frozen=True, slots=True)
class Limits:
    """How much may be kept; ``UNLIMITED`` (-1) for no limit."""

    retention_ms: int
    retention_bytes: int

    def without_time(self) -> Limits:
        """Return the limits for when no clock can be trusted."""
        return dataclasses.replace(self, retention_ms=UNLIMITED)


def total_limits(config: TopicConfig) -> Limits:
    """Return the limits of a partition, local and tiered together.

    A topic that is only compacted keeps everything.
    """
    if "delete" not in config.cleanup_policy:
        return Limits(UNLIMITED, UNLIMITED)
    return Limits(config.retention_ms, config.retention_bytes)


def local_limits(config: TopicConfig) -> Limits:
    """Return the limits of a node's copy of what is tiered; -2 follows the total's."""
    retention_ms, retention_bytes = config.local_retention_ms, config.local_retention_bytes
    total = total_limits(config)
    return Limits(
        total.retention_ms if retention_ms == LOCAL_AS_TOTAL else retention_ms,
        total.retention_bytes if retention_bytes == LOCAL_AS_TOTAL else retention_bytes,
    )


def retained_segments(
    tiered: Sequence[SegmentMeta], local: Sequence[SealedSegment]
) -> list[RetainedSegment]:
    """Return the partition's sealed segments in order, each stretch of offsets once.

    Segments overlap where another leader has rolled elsewhere. What the tier has counts there,
    and of its segments the one that begins first: it goes first, and the log then starts where
    it ends. Of the next one only the rest counts, with the part of its bytes that this is of
    its offsets: where in it the rest begins only its index knows.
    """
    in_tier = [
        RetainedSegment(
            meta.base_offset,
            meta.end_offset,
            meta.size_bytes,
            meta.created_ms if meta.max_timestamp_ms == NO_TIMESTAMP else meta.max_timestamp_ms,
        )
        for meta in sorted(tiered, key=lambda meta: (meta.base_offset, meta.end_offset))
    ]
    on_disk = map(_of_local, sorted(local, key=lambda segment: segment.base_offset))
    found: list[RetainedSegment] = []
    end = 0
    for segment in (*in_tier, *on_disk):
        if segment.end_offset > end:
            found.append(_from(segment, end))
            end = segment.end_offset
    return found


def select_expired(
    segments: Sequence[RetainedSegment], *, now_ms: int, retention_ms: int
) -> list[RetainedSegment]:
    """Return the oldest segments whose newest record is older than the retention.

    Stops at the first segment to keep, so offsets stay contiguous.
    """
    expired: list[RetainedSegment] = []
    if retention_ms == UNLIMITED:
        return expired
    for segment in segments:
        if now_ms - segment.newest_ms <= retention_ms:
            break
        expired.append(segment)
    return expired


def select_excess(
    segments: Sequence[RetainedSegment], *, active_size_bytes: int, retention_bytes: int
) -> list[RetainedSegment]:
    """Return the oldest segments without which the partition still has the bytes it may keep.

    ``active_size_bytes`` counts, but the active segment is never removed.
    """
    excess: list[RetainedSegment] = []
    if retention_bytes == UNLIMITED:
        return excess
    total = active_size_bytes + sum(segment.size_bytes for segment in segments)
    for segment in segments:
        total -= segment.size_bytes
        if total < retention_bytes:
            break
        excess.append(segment)
    return excess


def log_start_after_retention(
    segments: Sequence[RetainedSegment],
    limits: Limits,
    *,
    log_start_offset: int,
    active_size_bytes: int,
    now_ms: int,
) -> int:
    """Return where the log starts once everything past its limits is gone; never goes back."""
    # What lies below the log start is gone already, and its bytes no longer count.
    kept = [segment for segment in segments if segment.end_offset > log_start_offset]
    expired = select_expired(kept, now_ms=now_ms, retention_ms=limits.retention_ms)
    excess = select_excess(
        kept, active_size_bytes=active_size_bytes, retention_bytes=limits.retention_bytes
    )
    ends = (segment.end_offset for segment in (*expired, *excess))
    return max(ends, default=log_start_offset)


def log_start_after_tier_retention(
    finished: Sequence[SegmentMeta], limits: Limits, *, log_start_offset: int, now_ms: int
) -> int:
    """Return the same for who knows the tier alone, and not what lies on the leader's disk.

    Never further than the leader itself would go: what is not tiered yet only adds to the
    bytes that are kept, and nothing is removed behind a gap, whose records may be on a disk.
    """
    end, known = log_start_offset, []
    for segment in retained_segments(finished, ()):
        if segment.base_offset > end:
            break
        known.append(segment)
        end = max(end, segment.end_offset)
    return log_start_after_retention(
        known, limits, log_start_offset=log_start_offset, active_size_bytes=0, now_ms=now_ms
    )


def eviction_end_offset(
    local: Sequence[SealedSegment],
    limits: Limits,
    *,
    tiered_end: int,
    active_size_bytes: int,
    now_ms: int,
) -> int | None:
    """Return the offset below which the node drops its local segments, ``None`` for none.

    Only segments that are wholly in the tier are dropped, oldest first.
    """
    ordered = [_of_local(s) for s in sorted(local, key=lambda segment: segment.base_offset)]
    expired = select_expired(ordered, now_ms=now_ms, retention_ms=limits.retention_ms)
    excess = select_excess(
        ordered, active_size_bytes=active_size_bytes, retention_bytes=limits.retention_bytes
    )
    chosen = expired if len(expired) > len(excess) else excess
    ends = [segment.end_offset for segment in chosen if segment.end_offset <= tiered_end]
    return max(ends, default=None)


def _from(segment: RetainedSegment, offset: int) -> RetainedSegment:
    """Return what the segment holds from the offset on, which lies before its end."""
    if offset <= segment.base_offset:
        return segment
    part, whole = segment.end_offset - offset, segment.end_offset - segment.base_offset
    return dataclasses.replace(
        segment, base_offset=offset, size_bytes=segment.size_bytes * part // whole
    )


def _of_local(segment: SealedSegment) -> RetainedSegment:
    newest_ms = segment.max_timestamp_ms
    if newest_ms == NO_TIMESTAMP:
        newest_ms = segment.last_modified_ms
    return RetainedSegment(segment.base_offset, segment.end_offset, segment.size_bytes, newest_ms)
