"""The time of the first record at or after an offset, from the batches that a Fetch returned."""

from __future__ import annotations

from tidelog_core.errors import CorruptRecordBatch
from tidelog_core.records.batch import BatchHeader, decode_batch, parse_header
from tidelog_core.records.header import HEADER_SIZE, Buffer

ONLY_MARKERS = -1  # instead of a time


def first_time(data: Buffer, offset: int) -> tuple[int | None, int]:
    """Return the time of the first record at or after the offset, None if there are only markers.

    The second value is the offset behind the batches without such a record.
    """
    position = 0
    while len(data) - position >= HEADER_SIZE:
        header = parse_header(data, position)
        if not header.is_control and header.next_offset > offset:
            return _timestamp(data, position, offset), offset
        offset = max(offset, header.next_offset)
        position += header.size_bytes
    return None, offset


def _timestamp(data: Buffer, position: int, offset: int) -> int:
    """Return the time of the batch's first record at or after the offset."""
    header: BatchHeader = parse_header(data, position)
    if header.is_log_append_time:
        return header.max_timestamp_ms
    if header.base_offset >= offset and header.delete_horizon_ms is None:
        return header.base_timestamp_ms
    try:
        for record in decode_batch(data, position, header):
            if record.offset >= offset:
                return record.timestamp_ms
    except CorruptRecordBatch:
        # Truncated: Kafka cuts a batch where the partition's share of the answer ends. The
        # batch's base timestamp is earlier by at most the time that the producer lingered.
        return header.base_timestamp_ms
    return header.max_timestamp_ms
