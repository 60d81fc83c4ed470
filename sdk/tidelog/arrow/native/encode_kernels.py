"""Compiled loops over a table's rows: partitioning, ordering and encoding records.

The functions work on Arrow's buffers. The caller has checked the types, and that every
offset is within its data, as Arrow itself does.

A record is, with every length and delta a zigzag varint:

    length | attributes (1 byte) | timestamp delta | offset delta
    | key length, key | value length, value | header count, headers
    header: key length, key | value length, value       (a length of -1 is null)

Source: the record batch chapter of Kafka's protocol documentation; ``Utils.murmur2``
and the default partitioner of the Kafka clients.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from tidelog.arrow.native.compiled import compiled, copy_bytes
from tidelog.arrow.native.kernel_values import Bytes, Ints, Longs

UNASSIGNED: Final = -1

# Problems, returned with a row's number.
OK: Final = 0
NULL_HEADER_KEY: Final = 1
NULL_HEADER: Final = 2

_SEED: Final = np.uint32(0x9747B28C)
_MULTIPLIER: Final = np.uint32(0x5BD1E995)


class BinaryColumn(NamedTuple):
    """An Arrow column of bytes: row i is ``data[offsets[i]:offsets[i + 1]]`` if ``valid[i]``."""

    offsets: Longs
    data: Bytes
    valid: Bytes


class HeadersColumn(NamedTuple):
    """An Arrow column of lists of headers: row i has the headers ``[ends[i], ends[i + 1])``.

    The row has none if ``valid[i]`` is 0; ``header_valid`` marks the headers that are not null.
    """

    ends: Longs
    valid: Bytes
    header_valid: Bytes
    keys: BinaryColumn
    values: BinaryColumn


@compiled
def _murmur2(data: Bytes, start: int, end: int) -> int:
    """Return the hash without its sign bit."""
    size = end - start
    state = _SEED ^ np.uint32(size)
    position = start
    for _ in range(size >> 2):
        word = (
            np.uint32(data[position])
            | np.uint32(data[position + 1]) << np.uint32(8)
            | np.uint32(data[position + 2]) << np.uint32(16)
            | np.uint32(data[position + 3]) << np.uint32(24)
        )
        word = np.uint32(word * _MULTIPLIER)
        word = np.uint32((word ^ (word >> np.uint32(24))) * _MULTIPLIER)
        state = np.uint32(np.uint32(state * _MULTIPLIER) ^ word)
        position += 4
    if position < end:
        tail = np.uint32(0)
        for index in range(end - position):
            tail |= np.uint32(data[position + index]) << np.uint32(8 * index)
        state = np.uint32(np.uint32(state ^ tail) * _MULTIPLIER)
    state = np.uint32(np.uint32(state ^ (state >> np.uint32(13))) * _MULTIPLIER)
    state = np.uint32(state ^ (state >> np.uint32(15)))
    return np.int64(state & np.uint32(0x7FFFFFFF))  # type: ignore[return-value]


@compiled
def choose_partitions(
    keys: BinaryColumn, topics: Ints, partition_counts: Longs, partitions: Longs
) -> None:
    """Assign every ``UNASSIGNED`` row with a key to the partition of the key's hash.

    ``topics`` holds each row's index into ``partition_counts``.
    """
    for row in range(len(partitions)):
        if partitions[row] == UNASSIGNED and keys.valid[row]:
            hashed = _murmur2(keys.data, keys.offsets[row], keys.offsets[row + 1])
            partitions[row] = hashed % partition_counts[topics[row]]


@compiled
def spread_partitions(  # noqa: PLR0917
    sizes: Longs,
    topics: Ints,
    partition_counts: Longs,
    partitions: Longs,
    filled: Longs,
    batch_size_bytes: int,
) -> None:
    """Assign every remaining ``UNASSIGNED`` row to a partition, so that batches become full.

    ``filled`` holds, for each topic, the bytes assigned so far, and is updated: rows stay with
    a partition for a batch's worth of bytes, then continue with the next.
    """
    for row in range(len(partitions)):
        if partitions[row] == UNASSIGNED:
            topic = topics[row]
            partitions[row] = (filled[topic] // batch_size_bytes) % partition_counts[topic]
            filled[topic] += sizes[row]


@compiled
def order_by_group(groups: Longs, ends: Longs, order: Longs) -> None:
    """Write the rows' numbers group by group into ``order``, and each group's end into ``ends``.

    Rows of a group keep their order. ``groups`` are numbers below ``len(ends)``.
    """
    ends[:] = 0
    for group in groups:
        ends[group] += 1
    total = 0
    for group in range(len(ends)):
        count = ends[group]
        ends[group] = total  # The group's start, until its rows advance it.
        total += count
    for row in range(len(groups)):
        group = groups[row]
        order[ends[group]] = row
        ends[group] += 1


@compiled
def _varint_size(value: int) -> int:
    bits = np.uint64((value << 1) ^ (value >> 63))
    size = 1
    while bits >= np.uint64(0x80):
        bits >>= np.uint64(7)
        size += 1
    return size


@compiled
def _put_varint(value: int, out: Bytes, position: int) -> int:
    """Write the zigzag varint; return its end."""
    bits = np.uint64((value << 1) ^ (value >> 63))
    while bits >= np.uint64(0x80):
        out[position] = np.uint8(bits & np.uint64(0x7F)) | np.uint8(0x80)
        bits >>= np.uint64(7)
        position += 1
    out[position] = np.uint8(bits)
    return position + 1


@compiled
def _binary_size(column: BinaryColumn, row: int) -> int:
    """Return the size of the value with its length."""
    if not column.valid[row]:
        return 1
    size: int = column.offsets[row + 1] - column.offsets[row]
    return _varint_size(size) + size


@compiled
def _put_binary(column: BinaryColumn, row: int, out: Bytes, position: int) -> int:
    """Write the value after its length; return its end."""
    if not column.valid[row]:
        out[position] = 1  # the varint of -1
        return position + 1
    start = column.offsets[row]
    size: int = column.offsets[row + 1] - start
    position = _put_varint(size, out, position)
    copy_bytes(column.data, start, size, out, position)
    return position + size


@compiled
def _headers_size(headers: HeadersColumn, row: int) -> int:
    """Return the size of the row's headers with their count."""
    if not headers.valid[row]:
        return 1
    size = _varint_size(headers.ends[row + 1] - headers.ends[row])
    for header in range(headers.ends[row], headers.ends[row + 1]):
        size += _binary_size(headers.keys, header) + _binary_size(headers.values, header)
    return size


@compiled
def _put_headers(headers: HeadersColumn, row: int, out: Bytes, position: int) -> int:
    """Write the row's headers after their count; return their end."""
    if not headers.valid[row]:
        out[position] = 0
        return position + 1
    position = _put_varint(headers.ends[row + 1] - headers.ends[row], out, position)
    for header in range(headers.ends[row], headers.ends[row + 1]):
        position = _put_binary(headers.keys, header, out, position)
        position = _put_binary(headers.values, header, out, position)
    return position


@compiled
def measure_rows(
    keys: BinaryColumn, values: BinaryColumn, headers: HeadersColumn, sizes: Longs
) -> tuple[int, int]:
    """Write the encoded size of each row's key, value and headers.

    Returns the first row with a problem, and the problem.
    """
    for row in range(len(sizes)):
        if headers.valid[row]:
            for header in range(headers.ends[row], headers.ends[row + 1]):
                if not headers.header_valid[header]:
                    return row, NULL_HEADER
                if not headers.keys.valid[header]:
                    return row, NULL_HEADER_KEY
        sizes[row] = (
            _binary_size(keys, row) + _binary_size(values, row) + _headers_size(headers, row)
        )
    return 0, OK


@compiled
def encode_records(  # noqa: PLR0917
    keys: BinaryColumn,
    values: BinaryColumn,
    headers: HeadersColumn,
    timestamps: Longs,
    sizes: Longs,
    rows: Longs,
    out: Bytes,
) -> tuple[int, int, int]:
    """Encode the first of ``rows`` as one batch's records, as many as fit into ``out``.

    ``sizes`` come from ``measure_rows``. The batch's base timestamp is the first record's.
    Returns the numbers of records and bytes written, and the largest timestamp.
    """
    base_timestamp = timestamps[rows[0]]
    max_timestamp = base_timestamp
    position = 0
    count = 0
    for row in rows:
        delta = timestamps[row] - base_timestamp
        size = 1 + _varint_size(delta) + _varint_size(count) + sizes[row]
        if position + _varint_size(size) + size > len(out):
            break
        position = _put_varint(size, out, position)
        out[position] = 0
        position = _put_varint(delta, out, position + 1)
        position = _put_varint(count, out, position)
        position = _put_binary(keys, row, out, position)
        position = _put_binary(values, row, out, position)
        position = _put_headers(headers, row, out, position)
        max_timestamp = max(max_timestamp, timestamps[row])
        count += 1
    return count, position, max_timestamp
