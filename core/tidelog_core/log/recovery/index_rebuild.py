"""Rebuilds a segment's indexes from its file, as far as the batches are undamaged."""

from __future__ import annotations

import sys
from contextlib import closing

from tidelog_core.config import TopicConfig
from tidelog_core.errors import CorruptRecordBatch
from tidelog_core.log.leader_epochs import LeaderEpochs
from tidelog_core.log.paths import CLEANER_OFFSET_FILE
from tidelog_core.log.producers.producer_snapshots import note_batch, producers_at
from tidelog_core.log.producers.producer_state import ProducerState
from tidelog_core.log.segments.batch_scan import scan_file
from tidelog_core.log.segments.log_segments import LogSegments
from tidelog_core.log.segments.segment import BatchSpan, LogSegment
from tidelog_core.log.segments.segment_indexes import SegmentIndexes
from tidelog_core.log.values import CorruptLog
from tidelog_core.model import NO_LEADER_EPOCH
from tidelog_core.records.batch import BatchHeader, Buffer, check_crc

NOTHING_VERIFIED = sys.maxsize  # as an offset from which CRCs are checked


def scan_segment(
    segment: LogSegment,
    size_bytes: int,
    *,
    producers: ProducerState,
    epochs: LeaderEpochs | None,
    verify_from: int,
    config: TopicConfig,
    now_ms: int,
) -> None:
    """Rebuild the segment's indexes from its file, up to the first damaged batch.

    ``size_bytes`` and ``end_offset`` of the segment are then the end of the good batches. Batches
    at ``verify_from`` and above must pass their CRC. ``producers`` (at the segment's
    base offset) and ``epochs`` are advanced.
    """
    segment.start_scan()
    was_compacted = (segment.directory / CLEANER_OFFSET_FILE).exists()
    may_have_gaps = was_compacted or "compact" in config.cleanup_policy
    latest_epoch: int = NO_LEADER_EPOCH
    with closing(scan_file(segment.path, size_bytes)) as batches:
        for buffer, at, position, header in batches:
            base_offset, epoch = header.base_offset, header.partition_leader_epoch
            if not _continues(segment, header):
                break
            if base_offset >= verify_from:
                # The CRC covers neither field. The batches around a torn header expose it.
                is_gap = base_offset != segment.end_offset and not may_have_gaps
                is_older = NO_LEADER_EPOCH < epoch < latest_epoch
                if is_gap or is_older or not _has_right_crc(buffer, at, header):
                    break
            span = BatchSpan(
                position,
                header.size_bytes,
                base_offset,
                header.last_offset,
                header.max_timestamp_ms,
            )
            segment.note_scanned(span, interval_bytes=config.index_interval_bytes)
            latest_epoch = max(latest_epoch, epoch)
            if epochs is not None and epoch > epochs.latest:
                epochs.assign(epoch, base_offset)
            for aborted in note_batch(producers, buffer, at, header, now_ms=now_ms):
                segment.indexes.txn.append(aborted)
    producers.end_offset = segment.end_offset


def rebuild_indexes(
    segments: LogSegments, segment: LogSegment, *, expiration_ms: int
) -> SegmentIndexes:
    """Rebuild a segment's indexes from its file, and write them if it is sealed.

    Raises ``CorruptLog`` if the file has changed since it was last flushed.
    """
    size_bytes, end_offset = segment.size_bytes, segment.end_offset
    now_ms = segments.clock_ms()
    index = segments.all.index(segment)
    producers = producers_at(
        segments.directory,
        segments.all[: index + 1],
        segment.base_offset,
        expiration_ms=expiration_ms,
        now_ms=now_ms,
    )
    scan_segment(
        segment,
        size_bytes,
        producers=producers,
        epochs=None,
        verify_from=NOTHING_VERIFIED,
        config=segments.config,
        now_ms=now_ms,
    )
    valid_size_bytes = segment.size_bytes
    segment.size_bytes = size_bytes
    segment.end_at(end_offset)
    if valid_size_bytes != size_bytes:
        segment.forget_indexes()
        raise CorruptLog(
            f"segment {segment.path} is damaged at position {valid_size_bytes} of {size_bytes}"
        )
    indexes = segment.indexes
    if segment is not segments.active:
        segment.write_indexes()
        segments.seal_file.require_rewrite()
    return indexes


def _continues(segment: LogSegment, header: BatchHeader) -> bool:
    """Return whether a batch may come next in the segment, by its offsets."""
    return (
        header.base_offset >= segment.end_offset
        and header.last_offset_delta >= 0
        and segment.has_room_for(header.last_offset)
    )


def _has_right_crc(buffer: Buffer, position: int, header: BatchHeader) -> bool:
    """Return whether the batch at a position of the buffer has the CRC of its header."""
    try:
        check_crc(buffer, position, header)
    except CorruptRecordBatch:
        return False
    return True
