"""Finding offsets by time in the local segments."""

from __future__ import annotations

import os
from collections.abc import Callable

from tidelog_core.log.segments.log_segments import LogSegments
from tidelog_core.log.segments.segment import BatchSpan, LogSegment

BatchSearch = Callable[[bytes, int | None, int], tuple[int, int] | None]
"""Searches a batch as ``find_record`` does, which may take long: the caller picks the thread."""


def find_offset_by_time(
    segments: LogSegments,
    timestamp_ms: int,
    *,
    start_offset: int,
    end_offset: int,
    search: BatchSearch,
) -> tuple[int, int] | None:
    """Return timestamp and offset of the first record at or after both arguments.

    «First» is by offset. None if there is no such record in the local segments below
    ``end_offset``. Nothing is read from there on.
    Raises ``CorruptRecordBatch`` if a client has stored records that cannot be read.
    """
    for segment in segments.all:
        if segment.end_offset <= start_offset or segment.max_timestamp_ms < timestamp_ms:
            continue
        segments.note_open(segment)
        indexes = segment.indexes
        first_offset = max(indexes.time.lookup(timestamp_ms), start_offset)
        for span in segment.spans(indexes.offset.lookup(first_offset)):
            if span.base_offset >= end_offset:
                return None
            if span.max_timestamp_ms < timestamp_ms or span.last_offset < start_offset:
                continue
            found = search(_batch(segment, span), timestamp_ms, start_offset)
            if found is not None:
                return found
    return None


def find_max_timestamp(
    segments: LogSegments, *, start_offset: int, end_offset: int, search: BatchSearch
) -> tuple[int, int] | None:
    """Return the greatest timestamp and the offset of the first record that has it.

    None if no local record has a timestamp. From ``end_offset`` on nothing is read: the offset is
    that of the record's batch.
    """
    found: tuple[int, int] | None = None
    for segment in segments.all:
        is_older = segment.max_timestamp_ms <= (-1 if found is None else found[0])
        if is_older or segment.end_offset <= start_offset:
            continue
        if segment.max_timestamp_offset >= end_offset:
            found = segment.max_timestamp_ms, segment.max_timestamp_offset
            continue
        segments.note_open(segment)
        newest = _newest_record(segment, start_offset, end_offset, search)
        if newest is not None and (found is None or newest[0] > found[0]):
            found = newest
    return found


def _newest_record(
    segment: LogSegment, start_offset: int, end_offset: int, search: BatchSearch
) -> tuple[int, int] | None:
    first_offset = max(segment.max_timestamp_offset, start_offset)
    spans = segment.spans(segment.indexes.offset.lookup(first_offset))
    found: tuple[int, int] | None = None
    if start_offset <= segment.max_timestamp_offset:
        for span in spans:
            if span.base_offset >= first_offset:
                found = search(_batch(segment, span), span.max_timestamp_ms, start_offset)
                break
        if found is not None:
            return found
        spans = segment.spans()
    # The record with the segment's greatest timestamp may be deleted or compacted away, so
    # search the remaining records.
    for span in spans:
        if span.base_offset >= end_offset:
            break
        if span.last_offset < start_offset or span.max_timestamp_ms < 0:
            continue
        if found is None or span.max_timestamp_ms > found[0]:
            newest = search(_batch(segment, span), None, start_offset)
            if newest is not None and (found is None or newest[0] > found[0]):
                found = newest
    return found


def _batch(segment: LogSegment, span: BatchSpan) -> bytes:
    return os.pread(segment.reader.fileno(), span.size_bytes, span.position)
