"""What the tier and retention are told of a sealed segment."""

from __future__ import annotations

from collections.abc import Callable

from tidelog_core.log.leader_epochs import LeaderEpochs
from tidelog_core.log.local_log import LocalLog
from tidelog_core.log.paths import (
    OFFSET_INDEX_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    segment_path,
)
from tidelog_core.log.producer_snapshots import snapshot_path, write_snapshot
from tidelog_core.log.producer_state import ProducerState
from tidelog_core.log.segment import LogSegment
from tidelog_core.log.values import SealedSegment


def describe_sealed(
    local: LocalLog,
    segment: LogSegment,
    epochs: LeaderEpochs,
    producers_at: Callable[[int], ProducerState],
) -> SealedSegment:
    """Return the segment's facts, after making sure that all its files are there and right."""
    directory, base_offset = local.directory, segment.base_offset
    # Loading the indexes checks their files, or writes them anew; both are let go again.
    _ = segment.indexes
    segment.release()
    snapshot = snapshot_path(directory, segment.end_offset)
    if not snapshot.exists():
        write_snapshot(directory, producers_at(segment.end_offset))
    return SealedSegment(
        base_offset=base_offset,
        end_offset=segment.end_offset,
        size_bytes=segment.size_bytes,
        max_timestamp_ms=segment.max_timestamp_ms,
        path=segment.path,
        offset_index=segment_path(directory, base_offset, OFFSET_INDEX_SUFFIX),
        time_index=segment_path(directory, base_offset, TIME_INDEX_SUFFIX),
        txn_index=segment_path(directory, base_offset, TXN_INDEX_SUFFIX),
        producer_snapshot=snapshot,
        leader_epochs=epochs.within(base_offset, segment.end_offset),
        last_modified_ms=segment.path.stat().st_mtime_ns // 1_000_000,
    )
