"""The rows of a table as the buffers that the encoding kernels work on.

The columns are those of Spark's Kafka sink, and ``timestamp``; others are ignored, so
rows that were read can be written unchanged.
Source: the sink's table of columns in Spark's Kafka integration guide.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from tidelog_core.model import TopicPartition

from tidelog.arrow.native.encode_kernels import (
    NULL_HEADER,
    NULL_HEADER_KEY,
    OK,
    UNASSIGNED,
    BinaryColumn,
    HeadersColumn,
    choose_partitions,
    measure_rows,
    spread_partitions,
)
from tidelog.arrow.native.kernels import Bytes, Ints, Longs
from tidelog.errors import InvalidRow

COLUMNS = ("topic", "partition", "key", "value", "headers", "timestamp")  # those used

_PROBLEMS = {NULL_HEADER: "is null", NULL_HEADER_KEY: "has no key"}


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows as columns, with each row's topic."""

    keys: BinaryColumn
    values: BinaryColumn
    headers: HeadersColumn
    timestamps_ms: Longs
    sizes: Longs  # encoded size of key, value and headers
    topics: Ints  # index into topic_names
    topic_names: tuple[str, ...]
    partitions: Longs  # UNASSIGNED if the row has none

    @property
    def count(self) -> int:
        """Return the number of rows."""
        return len(self.sizes)


def read_rows(
    batch: pa.RecordBatch, *, topic: str | None, include_headers: bool, now_ms: int
) -> Rows:
    """Return the batch's rows. ``topic``, if given, overrides the column.

    Rows without a timestamp get ``now_ms``. Raises ``InvalidRow`` for a row that has no
    topic or a header without a key.
    """
    count = batch.num_rows
    names = set(batch.schema.names)
    keys = _binary(batch.column("key") if "key" in names else pa.nulls(count, pa.binary()))
    values = _binary(batch.column("value"))
    headers = _no_headers(count)
    if include_headers and "headers" in names:
        headers = _headers(batch.column("headers"))
    sizes = np.empty(count, np.int64)
    row, problem = measure_rows(keys, values, headers, sizes)
    if problem != OK:
        raise InvalidRow(f"a header of row {row} {_PROBLEMS[problem]}")
    topics = np.zeros(count, np.int32)
    topic_names: tuple[str, ...] = (topic,) if topic is not None else ()
    if topic is None:
        topics, topic_names = _topics(batch.column("topic"))
    partitions: Longs = np.full(count, UNASSIGNED, np.int64)
    if "partition" in names:
        partitions = _partitions(batch.column("partition"))
    timestamps: Longs = np.full(count, now_ms, np.int64)
    if "timestamp" in names:
        timestamps = _timestamps(batch.column("timestamp"), now_ms)
    return Rows(keys, values, headers, timestamps, sizes, topics, topic_names, partitions)


def assign_partitions(
    rows: Rows, partition_counts: Sequence[int], filled: Longs, *, batch_size_bytes: int
) -> Longs:
    """Return every row's partition: its own, its key's, or the next in turn.

    ``partition_counts`` and ``filled`` (see ``spread_partitions``) are indexed by topic.
    Raises ``InvalidRow`` for a partition that the topic does not have.
    """
    counts = np.array(partition_counts, np.int64)
    partitions = rows.partitions.copy()
    wrong = (partitions >= counts[rows.topics]) | (partitions < UNASSIGNED)
    if wrong.any():
        row = int(wrong.argmax())
        topic = rows.topic_names[rows.topics[row]]
        raise InvalidRow(
            f"a row names {TopicPartition(topic, int(partitions[row]))}, and the topic has"
            f" partitions 0 to {partition_counts[rows.topics[row]] - 1}"
        )
    choose_partitions(rows.keys, rows.topics, counts, partitions)
    spread_partitions(rows.sizes, rows.topics, counts, partitions, filled, batch_size_bytes)
    return partitions


def _binary(array: pa.Array) -> BinaryColumn:
    """Return a column of binary or string values, in any of Arrow's layouts."""
    if not pa.types.is_large_binary(array.type):
        if pa.types.is_string(array.type):
            array = array.cast(pa.binary())
        array = array.cast(pa.large_binary())
    _, offsets, data = array.buffers()
    ends = np.zeros(1, np.int64)
    if offsets is not None and offsets.size:
        ends = np.frombuffer(offsets, np.int64, len(array) + 1, array.offset * 8)
    content = np.zeros(0, np.uint8) if data is None else np.frombuffer(data, np.uint8)
    return BinaryColumn(read_only(ends), read_only(content), _valid(array))


def _headers(array: pa.ListArray) -> HeadersColumn:
    ends = np.array(array.offsets, np.int64) if len(array) else np.zeros(1, np.int64)
    first, last = int(ends[0]), int(ends[-1])
    entries = array.values.slice(first, last - first)  # A slice has the headers of all rows.
    return HeadersColumn(
        ends - first,
        _valid(array),
        _valid(entries),
        _binary(entries.field(0)),
        _binary(entries.field(1)),
    )


def _no_headers(row_count: int) -> HeadersColumn:
    nothing = _binary(pa.nulls(0, pa.binary()))
    return HeadersColumn(
        np.zeros(row_count + 1, np.int64),
        np.zeros(row_count, np.uint8),
        np.zeros(0, np.uint8),
        nothing,
        nothing,
    )


def _topics(array: pa.Array) -> tuple[Ints, tuple[str, ...]]:
    if array.null_count:
        raise InvalidRow("a row has no topic: give the option 'topic', or a topic in every row")
    encoded = pc.dictionary_encode(array)
    return np.array(encoded.indices, np.int32), tuple(encoded.dictionary.to_pylist())


def _partitions(array: pa.Array) -> Longs:
    if array.null_count != len(array) and pc.min(array).as_py() < 0:
        raise InvalidRow(f"a row names partition {pc.min(array).as_py()}; they count from 0")
    return np.array(pc.fill_null(array.cast(pa.int64()), UNASSIGNED), np.int64)


def _timestamps(array: pa.Array, now_ms: int) -> Longs:
    times = np.asarray(pc.fill_null(array.cast(pa.int64()), now_ms * 1000), np.int64) // 1000
    if len(times) and times.min() < 0:
        raise InvalidRow("a row has a timestamp before 1970, which a record cannot have")
    return times


def _valid(array: pa.Array) -> Bytes:
    if array.null_count == 0:
        return np.ones(len(array), np.uint8)
    flags: NDArray[Any] = array.is_valid().to_numpy(zero_copy_only=False)
    return flags.view(np.uint8)


def read_only(array: NDArray[Any]) -> NDArray[Any]:
    """Return the array as read-only.

    Arrow's buffers may be either, and the kernels are compiled for read-only arrays.
    """
    array.flags.writeable = False
    return array
