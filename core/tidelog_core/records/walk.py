"""Reads offsets, timestamps and missing keys from a batch without creating records.

A batch of a megabyte can hold millions of records, which would take gigabytes as objects. The
walk creates none, so it needs only the memory of the decompressed bytes. An ``InspectionBudget``
bounds its time.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator

from tidelog_core.errors import CorruptRecordBatch
from tidelog_core.records.codecs import DecompressedTooLarge
from tidelog_core.records.decode import RECORD_SIZE_BYTES_MIN, records_body
from tidelog_core.records.header import CODEC_MASK, BatchHeader, Buffer, parse_header
from tidelog_core.records.varint import read_varint, read_zigzag

# Of decompressed size to a batch's own, under a budget. Honest batches are below it.
DECOMPRESSED_RATIO_MAX = 32


class InspectionBudget:
    """The remaining bytes and records that may be inspected; every inspection reduces it."""

    __slots__ = ("converted_bytes", "headers", "records", "size_bytes")

    def __init__(
        self, *, records: int, headers: int, size_bytes: int, converted_bytes: int = 0
    ) -> None:
        self.records = records
        self.headers = headers
        self.size_bytes = size_bytes  # decompressed
        self.converted_bytes = converted_bytes  # decompressed, of those that get another codec

    def take_records(self, count: int) -> None:
        """Raise ``InspectionBudgetExceeded`` if fewer than ``count`` are left."""
        self.records -= count
        if self.records < 0:
            raise InspectionBudgetExceeded(f"{count} records")

    def take_headers(self, count: int) -> None:
        """Raise ``InspectionBudgetExceeded`` if fewer than ``count`` are left."""
        self.headers -= count
        if self.headers < 0:
            raise InspectionBudgetExceeded(f"{count} headers")


class InspectionBudgetExceeded(Exception):
    """The batch is over the caller's budget: its records are unchecked."""


def walk_records(
    buffer: Buffer, position: int, header: BatchHeader, budget: InspectionBudget | None = None
) -> Iterator[tuple[int, int, bool]]:
    """Yield offset, timestamp and «has a key» of each record of the batch at ``position``.

    The CRC is not checked. During the iteration raises ``CorruptRecordBatch`` if the batch is
    cut, does not decompress or has other bytes than its records; ``InspectionBudgetExceeded``.
    """
    count = header.record_count
    if position + header.size_bytes > len(buffer):
        raise CorruptRecordBatch(
            f"batch at {position} is cut: {len(buffer) - position} of {header.size_bytes} bytes"
        )
    if budget is None:
        data = records_body(buffer, position, header)
    else:
        budget.take_records(count)
        data = body_within(buffer, position, header, budget.size_bytes)
        budget.size_bytes -= len(data)
    if count < 0 or count * RECORD_SIZE_BYTES_MIN > len(data):
        raise CorruptRecordBatch(f"{len(data)} bytes cannot hold {count} records")
    try:
        end = yield from _walk(data, header, budget)
    except (IndexError, ValueError) as error:
        raise CorruptRecordBatch(f"a record's fields do not add up: {error}") from None
    # Positions only grow, so a record that reaches past the end shows here at the latest.
    if end != len(data):
        raise CorruptRecordBatch(f"{count} records end {end - len(data)} bytes off the batch's end")


def find_record(
    buffer: Buffer,
    timestamp_ms: int | None,
    start_offset: int,
    budget: InspectionBudget | None = None,
) -> tuple[int, int] | None:
    """Return timestamp and offset of the batch's first record at or after both, if any.

    Without a time: of the first record that has the greatest timestamp. Raises as
    ``walk_records``.
    """
    found: tuple[int, int] | None = None
    for offset, timestamp, _ in walk_records(buffer, 0, parse_header(buffer), budget):
        if offset < start_offset:
            continue
        if timestamp_ms is None:
            if found is None or timestamp > found[0]:
                found = (timestamp, offset)
        elif timestamp >= timestamp_ms:
            return timestamp, offset
    return found


def body_within(buffer: Buffer, position: int, header: BatchHeader, size_bytes_max: int) -> bytes:
    """Return the records section of a whole batch, decompressed.

    Raises ``InspectionBudgetExceeded`` if it is larger than that, or than an honest batch of its
    size; ``CorruptRecordBatch`` if it does not decompress.
    """
    if not header.attributes & CODEC_MASK:
        if header.size_bytes > size_bytes_max:
            raise InspectionBudgetExceeded(f"{header.size_bytes} bytes")
        return records_body(buffer, position, header)
    size_bytes_max = min(size_bytes_max, DECOMPRESSED_RATIO_MAX * header.size_bytes)
    try:
        return records_body(buffer, position, header, max(size_bytes_max, 0))
    except DecompressedTooLarge:
        raise InspectionBudgetExceeded(f"more than {size_bytes_max} bytes") from None


def _walk(  # noqa: PLR0915, PLR0912 - one loop, unrolled: it runs for every record of a client
    data: bytes, header: BatchHeader, budget: InspectionBudget | None
) -> Generator[tuple[int, int, bool], None, int]:
    """Yield as ``walk_records``; return the position where the last record ends."""
    base_offset = header.base_offset
    base_timestamp = header.base_timestamp_ms
    append_time = header.max_timestamp_ms if header.is_log_append_time else None
    position = 0
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

        key_size = data[position]
        position += 1
        if key_size > 127:
            if (byte := data[position]) < 128:
                key_size += (byte << 7) - 128
                position += 1
            else:
                key_size, position = read_zigzag(data, position - 1)
        if not key_size & 1:
            position += key_size >> 1

        size_of_value = data[position]
        position += 1
        if size_of_value > 127:
            if (byte := data[position]) < 128:
                size_of_value += (byte << 7) - 128
                position += 1
            else:
                size_of_value, position = read_zigzag(data, position - 1)
        if not size_of_value & 1:
            position += size_of_value >> 1

        if data[position]:
            count, position = read_varint(data, position)
            if budget is not None:
                budget.take_headers(count)
            position = _skip_headers(data, position, count)
        else:
            position += 1
        # An odd size is a negative one and equals no even number.
        if (position - start) << 1 != size:
            raise ValueError(f"a record of size {size >> 1} takes {position - start} bytes")
        yield (
            offset,
            timestamp if append_time is None else append_time,
            not key_size & 1,
        )
    return position


def _skip_headers(data: bytes, position: int, count: int) -> int:
    """Return the position after that many headers."""
    if count < 0 or 2 * count > len(data) - position:
        raise ValueError(f"{count} headers cannot be")
    for _ in range(count):
        size = data[position]
        position += 1
        if size > 127:
            size, position = read_zigzag(data, position - 1)
        if size & 1:
            raise ValueError("a header has no key")
        position += size >> 1
        size = data[position]
        position += 1
        if size > 127:
            size, position = read_zigzag(data, position - 1)
        if not size & 1:
            position += size >> 1
    return position
