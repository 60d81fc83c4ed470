"""The description of a sealed segment for the tier and retention."""

from __future__ import annotations

import errno
from collections.abc import Callable

from tidelog_core.log.leader_epochs import LeaderEpochs
from tidelog_core.log.paths import (
    OFFSET_INDEX_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    segment_path,
)
from tidelog_core.log.producers.producer_snapshots import snapshot_path, write_snapshot
from tidelog_core.log.producers.producer_state import ProducerState
from tidelog_core.log.segments.log_segments import LogSegments
from tidelog_core.log.segments.segment import LogSegment
from tidelog_core.log.values import SealedSegment


def describe_sealed(
    segments: LogSegments, segment: LogSegment, epochs: LeaderEpochs
) -> SealedSegment:
    """Return the segment's facts. Raises ``OSError``."""
    directory, base_offset = segments.directory, segment.base_offset
    try:
        last_modified_ms = segment.path.stat().st_mtime_ns // 1_000_000
    except FileNotFoundError:
        last_modified_ms = segment.created_ms  # The reader will find that the file is gone.
    return SealedSegment(
        base_offset=base_offset,
        end_offset=segment.end_offset,
        size_bytes=segment.size_bytes,
        max_timestamp_ms=segment.max_timestamp_ms,
        path=segment.path,
        offset_index=segment_path(directory, base_offset, OFFSET_INDEX_SUFFIX),
        time_index=segment_path(directory, base_offset, TIME_INDEX_SUFFIX),
        txn_index=segment_path(directory, base_offset, TXN_INDEX_SUFFIX),
        producer_snapshot=snapshot_path(directory, segment.end_offset),
        leader_epochs=epochs.within(base_offset, segment.end_offset),
        last_modified_ms=last_modified_ms,
    )


def make_files_whole(
    segments: LogSegments, sealed: SealedSegment, producers_at: Callable[[int], ProducerState]
) -> None:
    """Check that the segment has all its files, undamaged; rebuild index files and snapshot.

    Raises ``CorruptLog`` if its batches are damaged, ``OSError``, also if the segment is
    gone.
    """
    segment = segments.all[segments.floor_index(sealed.base_offset)]
    if (segment.base_offset, segment.end_offset) != (sealed.base_offset, sealed.end_offset):
        raise FileNotFoundError(errno.ENOENT, "the segment is gone", str(sealed.path))
    # Loading the indexes checks their files, or rebuilds them. Both are then released.
    _ = segment.indexes
    segment.release()
    if not sealed.producer_snapshot.exists():
        write_snapshot(segments.directory, producers_at(segment.end_offset))
