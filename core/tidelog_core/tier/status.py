"""The state of a partition's tier, from the items of its segments."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tidelog_core.metadata.records import Partition, SegmentMeta, SegmentState
from tidelog_core.tier.planning import finished_segments, tiered_end_offset


@dataclass(frozen=True, slots=True, kw_only=True)
class TierStatus:
    """A partition's tiered range, ``[start, end)``; None if nothing is tiered."""

    partition: int
    is_tiered: bool  # remote.storage.enable
    log_start_offset: int
    segments: int  # readable ones
    tiered_bytes: int
    tiered_start: int | None
    tiered_end: int | None
    covered_end: int  # every record below it is tiered
    copying: int  # segments with an unfinished copy
    deleting: int


def tier_status(
    partition: Partition, metas: Sequence[SegmentMeta], *, is_tiered: bool
) -> TierStatus:
    """Return the partition's status."""
    start = partition.log_start_offset
    finished = finished_segments(metas)
    states = [meta.state for meta in metas]
    return TierStatus(
        partition=partition.partition,
        is_tiered=is_tiered,
        log_start_offset=start,
        segments=len(finished),
        tiered_bytes=sum(meta.size_bytes + meta.index_size_bytes for meta in finished),
        tiered_start=max(finished[0].base_offset, start) if finished else None,
        tiered_end=max(meta.end_offset for meta in finished) if finished else None,
        covered_end=tiered_end_offset(finished, start),
        copying=states.count(SegmentState.COPY_STARTED),
        deleting=states.count(SegmentState.DELETE_STARTED),
    )
