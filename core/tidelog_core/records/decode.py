"""Decodes the records of a batch.

A record is its size in bytes (varint), attributes (one unused byte), timestamp
delta (varlong), offset delta (varint), key, value (each a size, then that many
bytes; a negative size is null) and headers (a count, then key and value of each).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from tidelog_core.errors import CorruptRecordBatch, UnsupportedCompression
from tidelog_core.records.codecs import DECOMPRESSED_SIZE_BYTES_MAX, CompressionType, decompress
from tidelog_core.records.header import CODEC_MASK, HEADER_SIZE, BatchHeader, Buffer, parse_header
from tidelog_core.records.record import Headers, Record
from tidelog_core.records.varint import read_varint, read_zigzag

T = TypeVar("T")

RECORD_SIZE_BYTES_MIN = 7  # size, attributes, two deltas, two nulls, no headers


def decode_records(
    buffer: Buffer, position: int = 0, *, size_bytes_max: int = DECOMPRESSED_SIZE_BYTES_MAX
) -> list[Record]:
    """Return the records of the batch at ``position``, decompressed.

    The CRC is not checked. Raises ``CorruptRecordBatch`` if the batch is cut, does
    not decompress within ``size_bytes_max``, or is not exactly its records.
    """
    return decode_batch(buffer, position, parse_header(buffer, position), size_bytes_max)


def decode_batch(
    buffer: Buffer,
    position: int,
    header: BatchHeader,
    size_bytes_max: int = DECOMPRESSED_SIZE_BYTES_MAX,
) -> list[Record]:
    """As ``decode_records``, for a caller that has the header already."""
    return decode_batch_as(Record, buffer, position, header, size_bytes_max=size_bytes_max)


def decode_batch_as(
    cls: type[T],
    buffer: Buffer,
    position: int,
    header: BatchHeader,
    *,
    before: tuple[object, ...] = (),
    after: tuple[object, ...] = (),
    size_bytes_max: int = DECOMPRESSED_SIZE_BYTES_MAX,
) -> list[T]:
    """Return the records as instances of ``cls``, a named tuple.

    It has the fields of ``Record`` between ``before`` and ``after``. One object is made for each
    record, and no others that Python's garbage collector follows.
    """
    start, end = position + HEADER_SIZE, position + header.size_bytes
    if end > len(buffer):
        raise CorruptRecordBatch(
            f"batch at {position} is cut: {len(buffer) - position} of {header.size_bytes} bytes"
        )
    if not header.attributes & CODEC_MASK and type(buffer) is bytes:
        return _decode_body(cls, buffer, start, end, header, before, after)
    body = records_body(buffer, position, header, size_bytes_max)
    return _decode_body(cls, body, 0, len(body), header, before, after)


def records_body(
    buffer: Buffer,
    position: int,
    header: BatchHeader,
    size_bytes_max: int = DECOMPRESSED_SIZE_BYTES_MAX,
) -> bytes:
    """Return the records section of a whole batch, decompressed but not parsed."""
    try:
        codec = header.compression
    except UnsupportedCompression as error:
        raise CorruptRecordBatch(str(error)) from None
    with (
        memoryview(buffer) as view,
        view[position + HEADER_SIZE : position + header.size_bytes] as body,
    ):
        if codec is CompressionType.NONE:
            return bytes(body)
        return decompress(codec, body, size_bytes_max=size_bytes_max)


def _decode_body(  # noqa: PLR0917
    cls: type[T],
    data: bytes,
    position: int,
    end: int,
    header: BatchHeader,
    before: tuple[object, ...],
    after: tuple[object, ...],
) -> list[T]:
    count = header.record_count
    if count < 0 or count * RECORD_SIZE_BYTES_MIN > end - position:
        raise CorruptRecordBatch(f"{end - position} bytes cannot hold {count} records")
    try:
        records, position = _decode_run(cls, data, position, header, before, after)
    except (IndexError, OverflowError, ValueError) as error:  # Compiled code has the second.
        raise CorruptRecordBatch(f"a record's fields do not add up: {error}") from None
    # Positions only grow, so a record that reaches past the end shows here at the latest.
    if position != end:
        raise CorruptRecordBatch(f"{count} records end {position - end} bytes off the batch's end")
    return records


def _decode_run(  # noqa: PLR0915, PLR0912, PLR0917 - one loop, unrolled: it runs for every record
    cls: type[T],
    data: bytes,
    position: int,
    header: BatchHeader,
    before: tuple[object, ...],
    after: tuple[object, ...],
) -> tuple[list[T], int]:
    base_offset = header.base_offset
    base_timestamp = header.base_timestamp_ms
    append_time = header.max_timestamp_ms if header.is_log_append_time else None
    records: list[T] = []
    append = records.append
    new: Callable[[type[T], tuple[object, ...]], T] = tuple.__new__  # type: ignore[assignment]
    names: dict[bytes, str] = {}
    headers: Headers
    key: bytes | None
    value: bytes | None
    for _ in range(header.record_count):
        # Every number is read the same way: one byte, else two, else the general function.
        size = data[position]
        position += 1
        if size > 127:
            if (byte := data[position]) < 128:
                size += (byte << 7) - 128
                position += 1
            else:
                size, position = read_zigzag(data, position - 1)
        start = position

        delta = data[position + 1]  # behind the attributes
        position += 2
        if delta > 127:
            if (byte := data[position]) < 128:
                delta += (byte << 7) - 128
                position += 1
            else:
                delta, position = read_zigzag(data, position - 1)
        timestamp = base_timestamp + ((delta >> 1) ^ -(delta & 1))

        delta = data[position]
        position += 1
        if delta > 127:
            if (byte := data[position]) < 128:
                delta += (byte << 7) - 128
                position += 1
            else:
                delta, position = read_zigzag(data, position - 1)
        offset = base_offset + ((delta >> 1) ^ -(delta & 1))

        length = data[position]
        position += 1
        if length > 127:
            if (byte := data[position]) < 128:
                length += (byte << 7) - 128
                position += 1
            else:
                length, position = read_zigzag(data, position - 1)
        key = None
        if not length & 1:
            stop = position + (length >> 1)
            key = data[position:stop]
            position = stop

        length = data[position]
        position += 1
        if length > 127:
            if (byte := data[position]) < 128:
                length += (byte << 7) - 128
                position += 1
            else:
                length, position = read_zigzag(data, position - 1)
        value = None
        if not length & 1:
            stop = position + (length >> 1)
            value = data[position:stop]
            position = stop

        if data[position]:
            headers, position = _decode_headers(data, position, names)
        else:
            headers = ()
            position += 1
        # An odd size is a negative one and equals no even number.
        if (position - start) << 1 != size:
            raise ValueError(f"a record of size {size >> 1} takes {position - start} bytes")
        if append_time is not None:
            timestamp = append_time
        # Without ``before`` and ``after`` nothing is copied.
        append(new(cls, before + (offset, timestamp, key, value, headers) + after))  # noqa: RUF005
    return records, position


def _decode_headers(data: bytes, position: int, names: dict[bytes, str]) -> tuple[Headers, int]:
    """Return the headers at ``position`` and the position behind them.

    ``names`` remembers the batch's header keys, which mostly repeat.
    """
    count, position = read_varint(data, position)
    if count < 0 or 2 * count > len(data) - position:
        raise ValueError(f"{count} headers cannot be")
    headers: list[tuple[str, bytes | None]] = []
    for _ in range(count):
        size = data[position]
        position += 1
        if size > 127:
            size, position = read_zigzag(data, position - 1)
        if size & 1:
            raise ValueError("a header has no key")
        stop = position + (size >> 1)
        raw_name = data[position:stop]
        position = stop
        name = names.get(raw_name)
        if name is None:
            name = names[raw_name] = raw_name.decode("utf-8", "surrogateescape")
        size = data[position]
        position += 1
        if size > 127:
            size, position = read_zigzag(data, position - 1)
        content = None
        if not size & 1:
            stop = position + (size >> 1)
            content = data[position:stop]
            position = stop
        headers.append((name, content))
    return tuple(headers), position
