"""The loops that numba compiles: batch headers into a table, records into Arrow's buffers.

Call them by ``kernels``: its machine code is stored, so few processes import this module.

The functions raise nothing and trust no length that they read: they return a problem's
code and place, and the caller makes the error message.

A record is, with every length and delta a zigzag varint:

    length | attributes (1 byte) | timestamp delta | offset delta
    | key length, key | value length, value | header count, headers
    header: key length, key | value length, value       (a negative length is null)

Source: the record batch chapter of Kafka's protocol documentation.
"""

from __future__ import annotations

import numpy as np

from tidelog.arrow.native.compiled import compiled, copy_bytes
from tidelog.arrow.native.kernel_values import (
    ATTRIBUTES,
    BAD_HEADER,
    BAD_HEADERS,
    BAD_KEY,
    BAD_LENGTH,
    BAD_OFFSET,
    BAD_VALUE,
    BASE_OFFSET,
    BASE_TIMESTAMP,
    CRC,
    HEADER_SIZE,
    LAST_OFFSET,
    MAX_TIMESTAMP,
    OK,
    POSITION,
    PRODUCER_ID,
    RECORD_COUNT,
    SIZE,
    TIMESTAMP_MS_MAX,
    TIMESTAMP_MS_MIN,
    TRAILING_BYTES,
    Bytes,
    Ints,
    Longs,
)


@compiled
def _big_endian(data: Bytes, position: int, size: int) -> int:
    """Return an unsigned number of ``size`` bytes, as the bits of an int64."""
    value = np.uint64(0)
    for index in range(size):
        value = (value << np.uint64(8)) | np.uint64(data[position + index])
    return np.int64(value)  # type: ignore[return-value]


@compiled
def _signed32(data: Bytes, position: int) -> int:
    value = _big_endian(data, position, 4)
    return value - (1 << 32) if value >= (1 << 31) else value


@compiled
def scan_batches(data: Bytes, table: Longs) -> tuple[int, int, int]:
    """Fill ``table`` with the header of every whole batch from the start of ``data``.

    Returns the number of batches, their size in bytes, and ``OK`` or ``BAD_HEADER`` for the
    bytes after them. A truncated last batch is ignored.
    """
    count = 0
    position = 0
    while position + HEADER_SIZE <= len(data) and count < len(table):
        size = _signed32(data, position + 8) + 12
        if size < HEADER_SIZE or data[position + 16] != 2:
            return count, position, BAD_HEADER
        if position + size > len(data):
            break
        base_offset = _big_endian(data, position, 8)
        last_delta = _signed32(data, position + 23)
        record_count = _signed32(data, position + 57)
        if base_offset < 0 or last_delta < 0 or record_count < 0 or record_count - 1 > last_delta:
            return count, position, BAD_HEADER
        if record_count == 0 and size != HEADER_SIZE:
            return count, position, BAD_HEADER
        row = table[count]
        row[POSITION] = position
        row[SIZE] = size
        row[BASE_OFFSET] = base_offset
        row[LAST_OFFSET] = base_offset + last_delta
        row[ATTRIBUTES] = _big_endian(data, position + 21, 2)
        row[RECORD_COUNT] = record_count
        row[BASE_TIMESTAMP] = _big_endian(data, position + 27, 8)
        row[MAX_TIMESTAMP] = _big_endian(data, position + 35, 8)
        row[PRODUCER_ID] = _big_endian(data, position + 43, 8)
        row[CRC] = _big_endian(data, position + 17, 4)
        position += size
        count += 1
    return count, position, OK


@compiled
def _varint(data: Bytes, position: int, end: int) -> tuple[int, int]:
    """Return the zigzag varint at ``position`` and its end, or an end of -1 if truncated."""
    if position >= end:
        return 0, -1
    byte = np.uint64(data[position])
    position += 1
    bits = byte & np.uint64(0x7F)
    shift = np.uint64(7)
    while byte & np.uint64(0x80):
        if position >= end or shift > np.uint64(63):
            return 0, -1
        byte = np.uint64(data[position])
        position += 1
        bits |= (byte & np.uint64(0x7F)) << shift
        shift += np.uint64(7)
    value = np.int64(bits >> np.uint64(1)) ^ -np.int64(bits & np.uint64(1))
    return value, position  # type: ignore[return-value]


@compiled
def _skip_headers(data: Bytes, position: int, end: int) -> tuple[int, int, int, int]:
    """Return the number of headers, the sizes of keys and values, and the end (or -1)."""
    count, position = _varint(data, position, end)
    # A header takes at least two bytes, so no count can make the loop long.
    if position < 0 or count < 0 or count > (end - position) // 2:
        return 0, 0, 0, -1
    key_bytes = 0
    value_bytes = 0
    for _ in range(count):
        size, position = _varint(data, position, end)
        if position < 0 or size < 0 or size > end - position:
            return 0, 0, 0, -1
        key_bytes += size
        size, position = _varint(data, position + size, end)
        if position < 0 or size > end - position:
            return 0, 0, 0, -1
        value_bytes += max(size, 0)
        position += max(size, 0)
    return count, key_bytes, value_bytes, position


@compiled
def _read_record(
    data: Bytes, position: int, section_end: int
) -> tuple[int, int, int, int, int, int, int, int]:
    """Return the end of the record at ``position``, or minus the problem; then its fields.

    The fields: timestamp delta, offset delta, start and size of the key, start and size of
    the value, and the start of the headers.
    """
    length, position = _varint(data, position, section_end)
    if position < 0 or length < 0 or length > section_end - position:
        return -BAD_LENGTH, 0, 0, 0, 0, 0, 0, 0
    end = position + length
    timestamp, position = _varint(data, position + 1, end)
    offset, position = _varint(data, position if position >= 0 else end, end)
    key_size, key_start = _varint(data, position if position >= 0 else end, end)
    if key_start < 0 or key_size > end - key_start:
        return -BAD_KEY, 0, 0, 0, 0, 0, 0, 0
    value_size, value_start = _varint(data, key_start + max(key_size, 0), end)
    if value_start < 0 or value_size > end - value_start:
        return -BAD_VALUE, 0, 0, 0, 0, 0, 0, 0
    headers_start = value_start + max(value_size, 0)
    return end, timestamp, offset, key_start, key_size, value_start, value_size, headers_start


@compiled
def decode_records(  # noqa: PLR0917
    data: Bytes,
    sections: Longs,
    offsets_from: int,
    offsets_to: int,
    longs: Longs,
    header_starts: Longs,
    timestamp_types: Ints,
    key_ends: Ints,
    keys: Bytes,
    key_valid: Bytes,
    value_ends: Ints,
    values: Bytes,
    value_valid: Bytes,
) -> tuple[int, int, int, int, int, int]:
    """Write the records of every section with offsets in ``[offsets_from, offsets_to)``.

    A row of ``sections`` is: start and end of the records in ``data``, base offset, last
    offset, base timestamp, max timestamp, 1 if the broker set the batch's timestamp, record
    count. ``longs`` gets two rows: offset, and timestamp in microseconds. ``header_starts`` are
    places in ``data``. ``*_ends[0]`` must be 0. ``values`` may be ``data`` from the first section
    on: a value is never written behind the place that it was read from.

    Returns the numbers of records and headers, the sizes of header keys and header values,
    the problem, and the problem's section. With a problem the records are those of the sections
    before.
    """
    row = key_at = value_at = 0
    header_count = header_key_bytes = header_value_bytes = 0
    for section in range(len(sections)):
        before = (row, header_count, header_key_bytes, header_value_bytes)
        position, section_end = sections[section, 0], sections[section, 1]
        base_offset, last_offset = sections[section, 2], sections[section, 3]
        is_log_append_time = sections[section, 6]
        problem = OK
        for _ in range(sections[section, 7]):
            position, delta, offset, key_start, key_size, value_start, value_size, headers_start = (
                _read_record(data, position, section_end)
            )
            if position < 0:
                problem = -position
                break
            headers, name_bytes, content_bytes, end = _skip_headers(data, headers_start, position)
            if end != position:
                problem = BAD_HEADERS
                break
            offset += base_offset
            if offset < base_offset or offset > last_offset:
                problem = BAD_OFFSET
                break
            if offset < offsets_from or offset >= offsets_to:
                continue
            timestamp = sections[section, 4] + delta
            if is_log_append_time:
                timestamp = sections[section, 5]
            longs[0, row] = offset
            longs[1, row] = min(max(timestamp, TIMESTAMP_MS_MIN), TIMESTAMP_MS_MAX) * 1000
            header_starts[row] = headers_start
            timestamp_types[row] = is_log_append_time
            key_valid[row] = key_size >= 0
            value_valid[row] = value_size >= 0
            if key_size > 0:
                copy_bytes(data, key_start, key_size, keys, key_at)
                key_at += key_size
            if value_size > 0:
                copy_bytes(data, value_start, value_size, values, value_at)
                value_at += value_size
            row += 1
            key_ends[row] = key_at
            value_ends[row] = value_at
            header_count += headers
            header_key_bytes += name_bytes
            header_value_bytes += content_bytes
        if problem == OK and position != section_end:
            problem = TRAILING_BYTES
        if problem != OK:
            return before[0], before[1], before[2], before[3], problem, section
    return row, header_count, header_key_bytes, header_value_bytes, OK, 0


@compiled
def decode_headers(  # noqa: PLR0917
    data: Bytes,
    starts: Longs,
    list_ends: Ints,
    list_valid: Bytes,
    key_ends: Ints,
    keys: Bytes,
    value_ends: Ints,
    values: Bytes,
    value_valid: Bytes,
) -> None:
    """Write the headers at ``starts``. ``decode_records`` has checked every length.

    A record without headers gets a null, not an empty list, as in Spark's Kafka source.
    """
    count = 0
    key_at = 0
    value_at = 0
    for row in range(len(starts)):
        headers, position = _varint(data, starts[row], len(data))
        list_valid[row] = headers > 0
        for _ in range(headers):
            size, position = _varint(data, position, len(data))
            copy_bytes(data, position, size, keys, key_at)
            key_at += size
            size, position = _varint(data, position + size, len(data))
            value_valid[count] = size >= 0
            if size > 0:
                copy_bytes(data, position, size, values, value_at)
                value_at += size
                position += size
            count += 1
            key_ends[count] = key_at
            value_ends[count] = value_at
        list_ends[row + 1] = count
