"""Selects the segments that a partition or a node's disk no longer keeps.

Source: Kafka's log retention; KIP-405 for local and remote retention.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from tidelog_core.config import LOCAL_AS_TOTAL, UNLIMITED, TopicConfig
from tidelog_core.log.values import SealedSegment
from tidelog_core.model import NO_TIMESTAMP
from tidelog_core.tier.tiered_segments import TieredSegments, bytes_from


@dataclass(frozen=True, slots=True)
class RetainedSegment:
    """A sealed run of offsets ``[base_offset, end_offset)``, on a disk or in the tier."""

    base_offset: int
    end_offset: int
    size_bytes: int
    newest_ms: int  # the newest record's timestamp, or when it was written if none has one


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of retention; ``UNLIMITED`` (-1) for no limit."""

    retention_ms: int
    retention_bytes: int

    def without_time(self) -> Limits:
        """Return the limits for when no clock can be trusted."""
        return dataclasses.replace(self, retention_ms=UNLIMITED)

    def without_size(self) -> Limits:
        """Return the limits to apply while the size is unknown."""
        return dataclasses.replace(self, retention_bytes=UNLIMITED)


def total_limits(config: TopicConfig) -> Limits:
    """Return the limits of a partition, local and tiered together.

    A topic that is only compacted keeps everything.
    """
    if "delete" not in config.cleanup_policy:
        return Limits(UNLIMITED, UNLIMITED)
    return Limits(config.retention_ms, config.retention_bytes)


def local_limits(config: TopicConfig) -> Limits:
    """Return the limits of a node's copy of tiered segments; -2 means the total limit."""
    retention_ms, retention_bytes = config.local_retention_ms, config.local_retention_bytes
    total = total_limits(config)
    return Limits(
        total.retention_ms if retention_ms == LOCAL_AS_TOTAL else retention_ms,
        total.retention_bytes if retention_bytes == LOCAL_AS_TOTAL else retention_bytes,
    )


def retained_segments(
    tiered: TieredSegments, local: Iterable[SealedSegment], *, log_start_offset: int = 0
) -> Iterator[RetainedSegment]:
    """Yield the sealed segments that reach above the log start, each stretch of offsets once.

    ``local`` are in order. Segments overlap if another leader rolled at other offsets. Tiered ones
    take precedence, and among them the one that begins first: it is deleted first, and the
    log then starts at its end. Of the next one only the rest counts.
    """
    for meta, start in tiered.parts_above(log_start_offset):
        yield RetainedSegment(
            start,
            meta.end_offset,
            bytes_from(meta, start),
            meta.created_ms if meta.max_timestamp_ms == NO_TIMESTAMP else meta.max_timestamp_ms,
        )
    yield from _beyond_tier(tiered, local, log_start_offset)


def of_local(segment: SealedSegment) -> RetainedSegment:
    """Return a sealed segment of this node's disk, as retention sees it."""
    newest_ms = segment.max_timestamp_ms
    if newest_ms == NO_TIMESTAMP:
        newest_ms = segment.last_modified_ms
    return RetainedSegment(segment.base_offset, segment.end_offset, segment.size_bytes, newest_ms)


def retained_size_bytes(
    tiered: TieredSegments, local: Iterable[SealedSegment], *, log_start_offset: int = 0
) -> int:
    """Return the total size of ``retained_segments``."""
    beyond = _beyond_tier(tiered, local, log_start_offset)
    return tiered.bytes_above(log_start_offset) + sum(segment.size_bytes for segment in beyond)


def expiry_ms(segment: RetainedSegment, limits: Limits) -> int | None:
    """Return when ``select_unretained`` first yields the segment for its age; ``None``: never."""
    if limits.retention_ms == UNLIMITED:
        return None
    return segment.newest_ms + limits.retention_ms + 1


def select_unretained(
    segments: Iterable[RetainedSegment], limits: Limits, *, size_bytes: int, now_ms: int
) -> Iterator[RetainedSegment]:
    """Yield the oldest segments that exceed a limit, up to the first one to keep.

    A segment exceeds a limit if its newest record is older than the retention, or if the
    partition has enough bytes without it. ``size_bytes`` is the size of the partition, including
    the active segment, which is never removed; it matters only with a limit of bytes.
    """
    is_expired = limits.retention_ms != UNLIMITED
    is_excess = limits.retention_bytes != UNLIMITED
    for segment in segments:
        size_bytes -= segment.size_bytes
        is_expired = is_expired and now_ms - segment.newest_ms > limits.retention_ms
        is_excess = is_excess and size_bytes >= limits.retention_bytes
        if not is_expired and not is_excess:
            return
        yield segment


def log_start_after_retention(
    segments: Iterable[RetainedSegment],
    limits: Limits,
    *,
    log_start_offset: int,
    size_bytes: int,
    now_ms: int,
) -> int:
    """Return the log start once all segments past their limits are removed. Never goes back.

    ``segments`` and ``size_bytes`` are of the log above the log start; the offsets below are
    removed already.
    """
    end = log_start_offset
    for segment in select_unretained(segments, limits, size_bytes=size_bytes, now_ms=now_ms):
        end = max(end, segment.end_offset)
    return end


def log_start_after_tier_retention(
    tiered: TieredSegments, limits: Limits, *, log_start_offset: int, now_ms: int
) -> int:
    """Return the log start after retention of the tier alone, without the leader's local segments.

    Never beyond the leader's own result: untiered records only add to the bytes kept, and no
    segment behind a gap is removed, because the missing records may be on a disk.
    """
    end = tiered.tiered_end(log_start_offset)
    start = log_start_after_retention(
        retained_segments(tiered, (), log_start_offset=log_start_offset),
        limits,
        log_start_offset=log_start_offset,
        # Bytes behind a gap must not count against the size limit of those before it.
        size_bytes=tiered.bytes_above(log_start_offset) - tiered.bytes_above(end),
        now_ms=now_ms,
    )
    return min(start, end)


def eviction_end_offset(
    local: Iterable[SealedSegment],
    limits: Limits,
    *,
    tiered_end: int,
    size_bytes: int,
    now_ms: int,
) -> int | None:
    """Return the offset below which the node drops its local segments, ``None`` for none.

    Only segments that are wholly in the tier are dropped, oldest first. ``local`` are in order,
    ``size_bytes`` is all of the log.
    """
    end = None
    retained = map(of_local, local)
    for segment in select_unretained(retained, limits, size_bytes=size_bytes, now_ms=now_ms):
        if segment.end_offset > tiered_end:
            break
        end = segment.end_offset
    return end


def _beyond_tier(
    tiered: TieredSegments, local: Iterable[SealedSegment], log_start_offset: int
) -> Iterator[RetainedSegment]:
    end = tiered.end_offset
    for sealed in local:
        if sealed.end_offset > max(end, log_start_offset):
            yield _from(of_local(sealed), end)
            end = sealed.end_offset


def _from(segment: RetainedSegment, offset: int) -> RetainedSegment:
    """Return the part of the segment from the offset on, which is below its end."""
    if offset <= segment.base_offset:
        return segment
    part, whole = segment.end_offset - offset, segment.end_offset - segment.base_offset
    return dataclasses.replace(
        segment, base_offset=offset, size_bytes=segment.size_bytes * part // whole
    )
