"""Makes Arrow's columns of the records of scanned batches.

One compiled loop does so: no Python object is made for a record. Values that lie in memory of the
decoder's own are moved together there, and the column is a view of it: nothing is copied to memory
that is not in the processor's cache, and no page is touched for the first time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import pyarrow as pa
from tidelog_core.errors import CorruptRecordBatch, TidelogError
from tidelog_core.records.codecs import (
    DECOMPRESSED_SIZE_BYTES_MAX,
    CompressionType,
)

from tidelog.arrow.columns import HEADER_TYPE, HEADERS_TYPE, TIMESTAMP_TYPE, arrow_schema
from tidelog.arrow.kept_memory import copied, first_items, may_be_view, numbers, part_of, room
from tidelog.arrow.native import kernels
from tidelog.arrow.native.kernels import Bytes, Longs
from tidelog.arrow.scratch import SIZE_BYTES, Scratch
from tidelog.reused_memory import thread_memory

# An Arrow batch ends at either limit; a single record batch may exceed it. Each costs Python's work
# for its columns, as much as to decode 300 KiB: smaller ones halve the speed. What is decompressed
# mostly fits into one ``Scratch``.
ROWS_PER_BATCH = 64 * 1024
BYTES_PER_BATCH = SIZE_BYTES - 256 * 1024
TOPIC_ROWS_MAX = 1024 * 1024  # of one Arrow batch
KEPT_PLACES_BYTES_MAX = 1024 * 1024  # of the names of a topic; four such columns are kept
# Arrow addresses binary columns with 32 bits. A batch decompresses to far less.
assert BYTES_PER_BATCH + DECOMPRESSED_SIZE_BYTES_MAX < 2**31

_CODEC_MASK = 0x07
_LOG_APPEND_TIME = 0x08
_SECTION_COLUMNS = (
    kernels.BASE_OFFSET,
    kernels.LAST_OFFSET,
    kernels.BASE_TIMESTAMP,
    kernels.MAX_TIMESTAMP,
)
_PACKED = (kernels.POSITION, kernels.SIZE, kernels.ATTRIBUTES, kernels.RECORD_COUNT)

_PROBLEMS = {
    kernels.BAD_LENGTH: "a record's length disagrees with its fields",
    kernels.BAD_OFFSET: "a record's offset is outside the batch",
    kernels.BAD_KEY: "a record's key runs past its end",
    kernels.BAD_VALUE: "a record's value runs past its end",
    kernels.BAD_HEADERS: "a record's headers are malformed",
    kernels.TRAILING_BYTES: "bytes follow the last record",
}


@dataclass(slots=True)
class _Group:
    """Batches that form one Arrow batch: a buffer and the records' places in it."""

    data: Bytes
    sections: Longs
    positions: Longs
    own_size_bytes: int | None  # of the memory, if records may be moved and kept in it


class RowDecoder:
    """Decodes batches of one partition into Arrow batches."""

    def __init__(
        self,
        topic: str,
        partition: int,
        *,
        include_headers: bool,
        corrupt: Callable[[int, str], TidelogError],
    ) -> None:
        """``corrupt`` makes the error for a batch at a position, with its problem."""
        self._topic = topic.encode()
        self._partition = partition
        self._include_headers = include_headers
        self._corrupt = corrupt
        self._schema = arrow_schema(include_headers=include_headers)

    def decode(
        self,
        data: bytes | memoryview,
        table: Longs,
        offsets: tuple[int, int],
        *,
        position: int = 0,
        is_own: bool = False,
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows with offsets in ``[start, end)`` of the batches in ``table``.

        ``table`` has rows as ``scan_batches`` fills them for ``data``, whose first byte is at
        ``position`` for error messages. The caller has checked the CRCs. If the data ``is_own``,
        nobody else may read it: records are moved in it, and columns are views of it. Rows of the
        batches before a damaged one come before its error.
        """
        for group in self._groups(memoryview(data), table, position, is_own=is_own):
            yield from self._decode_group(group, *offsets)

    def _groups(
        self, view: memoryview, table: Longs, position: int, *, is_own: bool
    ) -> Iterator[_Group]:
        """Collect batches until they make one Arrow batch."""
        if np.any(table[:, kernels.ATTRIBUTES] & _CODEC_MASK):
            return self._unpacked_groups(view, table, position)
        return self._plain_groups(view, table, position, is_own=is_own)

    def _plain_groups(
        self, view: memoryview, table: Longs, position: int, *, is_own: bool
    ) -> Iterator[_Group]:
        """Leave the records where they are."""
        starts = table[:, kernels.POSITION]
        sections = _sections(table, starts + kernels.HEADER_SIZE, starts + table[:, kernels.SIZE])
        sizes = sections[:, 1] - sections[:, 0]
        are_too_many = sections[:, 7] * kernels.RECORD_SIZE_MIN > sizes
        fitting = int(are_too_many.argmax()) if are_too_many.any() else len(table)
        data = np.frombuffer(view, np.uint8)
        own_size_bytes = memoryview(view.obj).nbytes if is_own else None
        # What is not copied has a usual size already.
        size_bytes_max = len(view) if is_own else BYTES_PER_BATCH
        for first, end in _cuts(sections[:fitting, 7], sizes[:fitting], size_bytes_max):
            yield _Group(data, sections[first:end], position + starts[first:end], own_size_bytes)
        if fitting < len(table):
            raise self._too_many_records(table[fitting], int(sizes[fitting]), position)

    def _unpacked_groups(self, view: memoryview, table: Longs, position: int) -> Iterator[_Group]:
        """Decompress the records."""
        first, row_count, ends = 0, 0, [0]
        scratch: Scratch | None = None

        def gathered(end: int) -> _Group:
            assert scratch is not None
            places = np.array(ends, np.int64)
            part = table[first:end]
            return _Group(
                np.frombuffer(scratch.room[: ends[-1]], np.uint8),
                _sections(part, places[:-1], places[1:]),
                position + part[:, kernels.POSITION],
                len(scratch.room),
            )

        for number, (start, size, attributes, records) in enumerate(table[:, _PACKED].tolist()):
            section = view[start + kernels.HEADER_SIZE : start + size]
            try:
                scratch = scratch or Scratch(thread_memory())
                unpacked = self._decompress(
                    attributes & _CODEC_MASK, section, scratch, ends[-1], position + start
                )
                if records * kernels.RECORD_SIZE_MIN > unpacked:
                    raise self._too_many_records(table[number], unpacked, position)
            except TidelogError:
                if first < number:
                    yield gathered(number)
                raise
            ends.append(ends[-1] + unpacked)
            row_count += records
            if row_count >= ROWS_PER_BATCH or ends[-1] >= BYTES_PER_BATCH:
                yield gathered(number + 1)
                scratch = None  # Columns may be views of it.
                first, row_count, ends = number + 1, 0, [0]
        if first < len(table):
            yield gathered(len(table))

    def _too_many_records(self, row: Longs, size_bytes: int, position: int) -> TidelogError:
        return self._corrupt(
            position + int(row[kernels.POSITION]),
            f"{row[kernels.RECORD_COUNT]} records do not fit in {size_bytes} bytes",
        )

    def _decompress(
        self, codec_id: int, section: memoryview, scratch: Scratch, start: int, position: int
    ) -> int:
        """Write the records of a section into the scratch, and return their size."""
        try:
            return scratch.decompress(CompressionType(codec_id), section, start)
        except ValueError:
            raise self._corrupt(position, f"unknown codec {codec_id}") from None
        except CorruptRecordBatch as error:
            raise self._corrupt(position, str(error)) from None

    def _decode_group(
        self, group: _Group, start_offset: int, end_offset: int
    ) -> Iterator[pa.RecordBatch]:
        data, sections = group.data, group.sections
        row_max = int(sections[:, 7].sum())
        # Room for the largest size; pages that are never written cost nothing.
        content_max = int((sections[:, 1] - sections[:, 0]).sum())
        longs = room(2 * row_max, np.int64).reshape(2, row_max)
        header_starts = room(row_max, np.int64)
        timestamp_types = room(row_max, np.int32)
        keys = _BinaryColumn(row_max, room(content_max, np.uint8))
        values = self._value_column(group, row_max, content_max)
        rows, headers, header_key_bytes, header_value_bytes, problem, section = (
            kernels.decode_records(
                data,
                sections,
                start_offset,
                end_offset,
                longs,
                header_starts,
                timestamp_types,
                keys.ends,
                keys.content,
                keys.valid,
                values.ends,
                values.content,
                values.valid,
            )
        )
        longs = first_items(longs, rows)
        columns = [
            keys.array(rows, pa.binary()),
            values.array(rows, pa.binary()),
            numbers(longs[0], pa.int64()),
            numbers(longs[1], TIMESTAMP_TYPE),
            numbers(first_items(timestamp_types, rows), pa.int32()),
        ]
        if self._include_headers:
            columns.append(
                _headers(data, header_starts[:rows], headers, header_key_bytes, header_value_bytes)
            )
        yield from self._batches(columns, rows)
        if problem:
            raise self._corrupt(int(group.positions[section]), _PROBLEMS[problem])

    def _value_column(self, group: _Group, row_max: int, content_max: int) -> _BinaryColumn:
        """Return the column, whose values are moved together where they are, or in other memory."""
        own = group.own_size_bytes
        # Headers are read after the values have been moved.
        if own is None or self._include_headers or not may_be_view(content_max, own):
            return _BinaryColumn(row_max, room(content_max, np.uint8))
        return _BinaryColumn(row_max, group.data[group.sections[0, 0] :], kept_bytes=own)

    def _batches(self, columns: list[pa.Array], rows: int) -> Iterator[pa.RecordBatch]:
        # A small batch may decompress to millions of rows: the topic's name in each of them would
        # have more bytes than Arrow can address, so they share one column of names.
        topics, partitions = _places(self._topic, self._partition, min(rows, TOPIC_ROWS_MAX))
        for start in range(0, rows, TOPIC_ROWS_MAX):
            count = min(rows - start, TOPIC_ROWS_MAX)
            key, value, *others = (part_of(one, start, count) for one in columns)
            some = [key, value, topics.slice(0, count), partitions.slice(0, count), *others]
            yield pa.RecordBatch.from_arrays(some, schema=self._schema)


class _BinaryColumn:
    """The buffers of a binary column, filled by a kernel."""

    def __init__(self, row_max: int, content: Bytes, *, kept_bytes: int | None = None) -> None:
        """``kept_bytes`` are what a view of the content keeps in memory; by default all of it."""
        self.ends = room(row_max + 1, np.int32)
        self.ends[0] = 0
        self.content = content
        self.valid = room(row_max, np.uint8)
        self._kept_bytes = len(content) if kept_bytes is None else kept_bytes

    def array(self, rows: int, type: pa.DataType) -> pa.Array:
        content = self.content[: self.ends[rows]]
        if not may_be_view(len(content), self._kept_bytes):
            content = copied(content)
        buffers = [
            _validity(self.valid[:rows]),
            pa.py_buffer(first_items(self.ends, rows + 1)),
            pa.py_buffer(content),
        ]
        return pa.Array.from_buffers(type, rows, buffers)


def _sections(table: Longs, begins: Longs, ends: Longs) -> Longs:
    """Return the batches' rows for ``decode_records``, whose records are at these places."""
    sections = np.empty((len(table), 8), np.int64)
    sections[:, 0], sections[:, 1] = begins, ends
    sections[:, 2:6] = table[:, _SECTION_COLUMNS]
    sections[:, 6] = (table[:, kernels.ATTRIBUTES] & _LOG_APPEND_TIME) != 0
    sections[:, 7] = table[:, kernels.RECORD_COUNT]
    return sections


def _cuts(row_counts: Longs, sizes: Longs, size_bytes_max: int) -> Iterator[tuple[int, int]]:
    """Yield the ranges of batches that make one Arrow batch each."""
    rows_at, bytes_at = np.cumsum(row_counts), np.cumsum(sizes)
    first = rows = size_bytes = 0
    while first < len(row_counts):
        by_rows = rows_at.searchsorted(rows + ROWS_PER_BATCH)
        by_bytes = bytes_at.searchsorted(size_bytes + size_bytes_max)
        last = min(int(by_rows), int(by_bytes), len(row_counts) - 1)
        yield first, last + 1
        first, rows, size_bytes = last + 1, int(rows_at[last]), int(bytes_at[last])


def _validity(valid: Bytes) -> pa.Buffer | None:
    if valid.all():
        return None
    return pa.py_buffer(np.packbits(valid, bitorder="little"))


def _places(topic: bytes, partition: int, rows: int) -> tuple[pa.Array, pa.Array]:
    """Return the columns of topic and partition, with so many rows or more."""
    rounded = 1 << (rows - 1).bit_length() if rows else 0
    if rounded > ROWS_PER_BATCH or rounded * len(topic) > KEPT_PLACES_BYTES_MAX:
        return _made_places(topic, partition, rows)
    return _kept_places(topic, partition, rounded)


def _made_places(topic: bytes, partition: int, rows: int) -> tuple[pa.Array, pa.Array]:
    ends = np.arange(rows + 1, dtype=np.int32) * np.int32(len(topic))
    topics = pa.Array.from_buffers(
        pa.string(), rows, [None, pa.py_buffer(ends), pa.py_buffer(topic * rows)]
    )
    return topics, numbers(np.full(rows, partition, np.int32), pa.int32())


# Most batches have about as many rows as those before.
_kept_places = lru_cache(maxsize=4)(_made_places)


def _headers(
    data: Bytes, starts: Longs, count: int, key_size_bytes: int, value_size_bytes: int
) -> pa.Array:
    rows = len(starts)
    list_ends = np.empty(rows + 1, np.int32)
    list_ends[0] = 0
    list_valid = np.empty(rows, np.uint8)
    keys = _BinaryColumn(count, room(key_size_bytes, np.uint8))
    values = _BinaryColumn(count, room(value_size_bytes, np.uint8))
    kernels.decode_headers(
        data,
        starts,
        list_ends,
        list_valid,
        keys.ends,
        keys.content,
        values.ends,
        values.content,
        values.valid,
    )
    keys.valid[:] = 1
    pairs = pa.StructArray.from_arrays(
        [_text(keys.array(count, pa.binary())), values.array(count, pa.binary())],
        fields=list(HEADER_TYPE),
    )
    return pa.Array.from_buffers(
        HEADERS_TYPE, rows, [_validity(list_valid), pa.py_buffer(list_ends)], children=[pairs]
    )


def _text(names: pa.Array) -> pa.Array:
    """Return the bytes as strings; invalid UTF-8 is replaced, as the Java client does."""
    try:
        return names.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([name.decode(errors="replace") for name in names.to_pylist()], pa.string())
