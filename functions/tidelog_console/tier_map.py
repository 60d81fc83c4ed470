"""The tier map of a partition: a bar of its local, tiered and moving records. Pure.

Local ranges come from the leader, segments from the metadata store, in one order: the leader first.
A segment that is evicted between the two is shown as tiered and local; the next look has it right.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any
from uuid import UUID

from tidelog_core.batched import batched
from tidelog_core.metadata.records import SegmentMeta, SegmentState
from tidelog_core.tier.status import tier_status

from tidelog_console.stores import PartitionTier

LOCAL, BOTH, TIERED = "local", "both", "tiered"
COPYING, REWRITING, REWRITTEN, ERASED, DELETING = (
    "copying",
    "rewriting",
    "rewritten",
    "erased",
    "deleting",
)
MEANINGS = {
    BOTH: "tiered, and on the leader's disk",
    TIERED: "in the object store alone",
    LOCAL: "on nodes alone",
    COPYING: "being copied to the object store",
    REWRITING: "being rewritten now",
    REWRITTEN: "rewritten by compaction or an erasure",
    ERASED: "rewritten because a key was erased",
    DELETING: "objects to be removed",
}
WIDTH = 1000.0


@dataclass(frozen=True, slots=True)
class Bar:
    """A run of segments in one state, ``[base, end)``."""

    state: str
    base: int
    end: int
    size_bytes: int
    segment_count: int  # 0: local records, whose segments only the node knows


@dataclass(frozen=True, slots=True)
class PlacedBar:
    """A bar with its place in a picture of ``WIDTH``."""

    bar: Bar
    x: float
    width: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionMap:
    """A partition for the page, with the fields of ``tidelog tier status --json``."""

    status: dict[str, Any]
    bars: tuple[PlacedBar, ...]
    deleting: tuple[Bar, ...]  # not drawn: other segments have their offsets
    unreadable_count: int
    is_claimed: bool  # some process may rewrite its segments now


def partition_map(
    tier: PartitionTier,
    *,
    local_start: int | None,
    log_end: int | None,
    erased: Collection[UUID],
    now_ms: int,
    bars_max: int,
) -> PartitionMap:
    """Return the map; neighbours are drawn as one bar if there are too many."""
    status = tier_status(tier.partition, tier.segments, is_tiered=tier.is_tiered)
    row = {name: getattr(status, name) for name in status.__slots__}
    covered = row.pop("covered_end")
    is_known = log_end is not None and tier.is_tiered
    row["local_start"], row["log_end"] = local_start, log_end
    row["backlog"] = max(0, (log_end or 0) - covered) if is_known else None
    is_claimed = tier.claim is not None and tier.claim.expires_ms > now_ms
    bars = [
        Bar(
            _state(meta, local_start, erased),
            meta.base_offset,
            meta.end_offset,
            meta.size_bytes,
            1,
        )
        for meta in tier.segments
    ]
    kept = _without_overlaps([bar for bar in bars if bar.state != DELETING])
    first = max(covered, local_start or 0)
    if log_end is not None and local_start is not None and first < log_end:
        copied_to = max((bar.end for bar in kept), default=first)
        if max(first, copied_to) < log_end:
            kept.append(Bar(LOCAL, max(first, copied_to), log_end, 0, 0))
    return PartitionMap(
        status=row,
        bars=_placed(_merged(kept, bars_max), tier.partition.log_start_offset),
        deleting=tuple(bar for bar in bars if bar.state == DELETING),
        unreadable_count=tier.unreadable_count,
        is_claimed=is_claimed,
    )


def _state(meta: SegmentMeta, local_start: int | None, erased: Collection[UUID]) -> str:
    if meta.state is SegmentState.DELETE_STARTED:
        return DELETING
    if meta.state is SegmentState.COPY_STARTED:
        return REWRITING if meta.rewrite_epoch else COPYING
    if meta.segment_id in erased:
        return ERASED
    if meta.rewrite_epoch:
        return REWRITTEN
    is_local = local_start is not None and meta.end_offset > local_start
    return BOTH if is_local else TIERED


def _without_overlaps(bars: Sequence[Bar]) -> list[Bar]:
    """Return the bars in order; of two copies of one segment, the finished one."""
    busy = (COPYING, REWRITING)
    kept: list[Bar] = []
    for bar in sorted(bars, key=lambda one: (one.base, one.state in busy)):
        if kept and bar.base < kept[-1].end:
            if kept[-1].end >= bar.end and bar.state == REWRITING:
                # What is rewritten now is what the picture is to show.
                kept[-1] = Bar(REWRITING, kept[-1].base, kept[-1].end, kept[-1].size_bytes, 1)
            continue
        kept.append(bar)
    return kept


def _merged(bars: Sequence[Bar], bars_max: int) -> list[Bar]:
    """Return at most twice ``bars_max`` bars."""
    if len(bars) <= bars_max:
        return list(bars)
    runs = [list(run) for _, run in groupby(bars, key=lambda bar: bar.state)]
    if len(runs) > bars_max:
        runs = [list(bars)]  # States alternate: a bar has the most frequent one of its part.
    size = -(-len(bars) // bars_max)
    return [
        Bar(
            Counter(bar.state for bar in part).most_common(1)[0][0],
            part[0].base,
            part[-1].end,
            sum(bar.size_bytes for bar in part),
            sum(bar.segment_count for bar in part),
        )
        for run in runs
        for part in batched(run, size)
    ]


def _placed(bars: Sequence[Bar], log_start: int) -> tuple[PlacedBar, ...]:
    """Place the bars by offset; deleted segments are not drawn."""
    drawn = [bar for bar in bars if bar.end > log_start]
    if not drawn:
        return ()
    start = max(log_start, drawn[0].base)
    span = max(1, drawn[-1].end - start)
    placed = []
    for bar in drawn:
        x = WIDTH * (max(bar.base, start) - start) / span
        width = WIDTH * (bar.end - max(bar.base, start)) / span
        placed.append(PlacedBar(bar, round(x, 2), round(max(width, 0.5), 2)))
    return tuple(placed)
