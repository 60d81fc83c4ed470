"""Makes Arrow's columns of the records of scanned batches.

One compiled loop does so: no Python object is made for a record. Values that lie in memory of the
decoder's own are moved together there, and the column is a view of it: nothing is copied to memory
that is not in the processor's cache, and no page is touched for the first time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from tidelog_core.errors import CorruptRecordBatch, TidelogError
from tidelog_core.records.codecs import (
    DECOMPRESSED_SIZE_BYTES_MAX,
    CompressionType,
)

from tidelog.arrow import kernels
from tidelog.arrow.columns import HEADER_TYPE, HEADERS_TYPE, TIMESTAMP_TYPE, arrow_schema
from tidelog.arrow.kernels import Bytes, Longs
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
# Columns are views of memory of which they need no less than this part.
_VIEW_PART = 4

_PROBLEMS = {
    kernels.BAD_LENGTH: "a record's length disagrees with its fields",
    kernels.BAD_OFFSET: "a record's offset is outside the batch",
    kernels.BAD_KEY: "a record's key runs past its end",
    kernels.BAD_VALUE: "a record's value runs past its end",
    kernels.BAD_HEADERS: "a record's headers are malformed",
    kernels.TRAILING_BYTES: "bytes follow the last record",
}


Number = TypeVar("Number", np.uint8, np.int32, np.int64)


@dataclass(slots=True)
class _Group:
    """Batches that form one Arrow batch: a buffer and the records' places in it."""

    data: Bytes
    sections: Longs
    positions: list[int]
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
        """Decompress and collect batches until they make one Arrow batch."""
        sections: list[tuple[int, ...]] = []
        positions: list[int] = []
        row_count = size_bytes = 0
        is_compressed = bool(np.any(table[:, kernels.ATTRIBUTES] & _CODEC_MASK))
        # What is neither copied nor decompressed has a usual size already.
        size_bytes_max = len(view) if is_own and not is_compressed else BYTES_PER_BATCH
        scratch: Scratch | None = None

        def gathered() -> _Group:
            own_size_bytes = None
            source = view  # Uncompressed records are decoded in place.
            if scratch is not None:
                source, own_size_bytes = scratch.room[:size_bytes], len(scratch.room)
            elif is_own:
                own_size_bytes = memoryview(view.obj).nbytes
            places = np.array(sections, dtype=np.int64).reshape(-1, 8)
            return _Group(np.frombuffer(source, np.uint8), places, positions, own_size_bytes)

        for start, size, base, last, attributes, records, base_ms, max_ms, _, _ in table.tolist():
            where = position + start
            section = view[start + kernels.HEADER_SIZE : start + size]
            begin, section_size = start + kernels.HEADER_SIZE, len(section)
            try:
                if is_compressed:
                    scratch = scratch or Scratch(thread_memory())
                    begin = size_bytes
                    section_size = self._decompress(
                        attributes & _CODEC_MASK, section, scratch, begin, where
                    )
                if records * kernels.RECORD_SIZE_MIN > section_size:
                    raise self._corrupt(
                        where, f"{records} records do not fit in {section_size} bytes"
                    )
            except TidelogError:
                if sections:
                    yield gathered()
                raise
            is_stamped = int(attributes & _LOG_APPEND_TIME != 0)
            end = begin + section_size
            sections.append((begin, end, base, last, base_ms, max_ms, is_stamped, records))
            positions.append(where)
            row_count += records
            size_bytes += section_size
            if row_count >= ROWS_PER_BATCH or size_bytes >= size_bytes_max:
                yield gathered()
                scratch = None  # Columns may be views of it.
                sections, positions = [], []
                row_count = size_bytes = 0
        if sections:
            yield gathered()

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
        longs = _room(2 * row_max, np.int64).reshape(2, row_max)
        header_starts = _room(row_max, np.int64)
        timestamp_types = _room(row_max, np.int32)
        keys = _BinaryColumn(row_max, _room(content_max, np.uint8))
        values = _BinaryColumn(row_max, self._room_of_values(group, content_max))
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
        columns = [
            keys.array(rows, pa.binary()),
            values.array(rows, pa.binary()),
            _numbers(longs[0, :rows], pa.int64()),
            _numbers(longs[1, :rows], TIMESTAMP_TYPE),
            _numbers(timestamp_types[:rows], pa.int32()),
        ]
        if self._include_headers:
            columns.append(
                _headers(data, header_starts[:rows], headers, header_key_bytes, header_value_bytes)
            )
        yield from self._batches(columns, rows)
        if problem:
            raise self._corrupt(group.positions[section], _PROBLEMS[problem])

    def _room_of_values(self, group: _Group, content_max: int) -> Bytes:
        """Return where values are moved together: where they are, or in other memory."""
        own = group.own_size_bytes
        # Headers are read after the values have been moved.
        if own is None or self._include_headers or content_max * _VIEW_PART < own:
            return _room(content_max, np.uint8)
        return group.data[group.sections[0, 0] :]

    def _batches(self, columns: list[pa.Array], rows: int) -> Iterator[pa.RecordBatch]:
        # A small batch may decompress to millions of rows: the topic's name in each of them would
        # have more bytes than Arrow can address, so they share one column of names.
        topics, partitions = _places(self._topic, self._partition, min(rows, TOPIC_ROWS_MAX))
        for start in range(0, rows, TOPIC_ROWS_MAX):
            key, value, *others = (one.slice(start, TOPIC_ROWS_MAX) for one in columns)
            count = len(key)
            some = [key, value, topics.slice(0, count), partitions.slice(0, count), *others]
            yield pa.RecordBatch.from_arrays(some, schema=self._schema)


class _BinaryColumn:
    """The buffers of a binary column, filled by a kernel."""

    def __init__(self, row_max: int, content: Bytes) -> None:
        self.ends = _room(row_max + 1, np.int32)
        self.ends[0] = 0
        self.content = content
        self.valid = _room(row_max, np.uint8)

    def array(self, rows: int, type: pa.DataType) -> pa.Array:
        content = self.content[: self.ends[rows]]
        if len(content) * _VIEW_PART < len(self.content):  # It would keep much more in memory.
            content = _room(len(content), np.uint8)
            content[:] = self.content[: len(content)]
        buffers = [
            _validity(self.valid[:rows]),
            pa.py_buffer(self.ends[: rows + 1]),
            pa.py_buffer(content),
        ]
        return pa.Array.from_buffers(type, rows, buffers)


def _room(count: int, dtype: type[Number]) -> NDArray[Number]:
    """Return a writable array in memory of Arrow's pool, which reuses freed memory."""
    return np.frombuffer(pa.allocate_buffer(count * np.dtype(dtype).itemsize), dtype)


def _numbers(numbers: NDArray[Any], type: pa.DataType) -> pa.Array:
    """Return the numbers as a column. ``pa.array`` would load pandas, in a third of a second."""
    return pa.Array.from_buffers(type, len(numbers), [None, pa.py_buffer(numbers)])


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
    return topics, _numbers(np.full(rows, partition, np.int32), pa.int32())


# Most batches have about as many rows as those before.
_kept_places = lru_cache(maxsize=4)(_made_places)


def _headers(
    data: Bytes, starts: Longs, count: int, key_size_bytes: int, value_size_bytes: int
) -> pa.Array:
    rows = len(starts)
    list_ends = np.empty(rows + 1, np.int32)
    list_ends[0] = 0
    list_valid = np.empty(rows, np.uint8)
    keys = _BinaryColumn(count, _room(key_size_bytes, np.uint8))
    values = _BinaryColumn(count, _room(value_size_bytes, np.uint8))
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
