"""Turns the rows of Arrow batches into record batches of each partition.

Rows are collected until they fill a few batches of every partition, then ordered by
partition and encoded: no row is ever a Python object. Rows of one partition keep their
order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import numpy as np
import pyarrow as pa
from tidelog_core.errors import MessageTooLarge
from tidelog_core.model import TopicPartition
from tidelog_core.records.batch import HEADER_SIZE
from tidelog_core.records.codecs import compress
from tidelog_core.records.record import record_size_bytes_max

from tidelog.arrow.native.encode_kernels import encode_records, order_by_group
from tidelog.arrow.native.kernels import Longs
from tidelog.arrow.rows import COLUMNS, Rows, assign_partitions, read_rows
from tidelog.producing.batch_options import BatchOptions
from tidelog.producing.encoded import EncodedRecords

GATHERED_SIZE_BYTES = 16 * 1024 * 1024
_RECORD_OVERHEAD_BYTES = record_size_bytes_max(None, None)

PartitionCount = Callable[[str], int]
"""Returns the topic's partition count; raises ``TidelogError`` if it does not exist."""


class BatchBuilder:
    """Builds the batches of one table, or of one of Spark's tasks."""

    def __init__(
        self,
        options: BatchOptions,
        partition_count: PartitionCount,
        *,
        clock_ms: Callable[[], int],
        first_partition: int = 0,
    ) -> None:
        """``first_partition``, any number, is the first one for rows that name none."""
        self._options = options
        self._partition_count = partition_count
        self._clock_ms = clock_ms
        self._first_filled = first_partition * options.batch_size_bytes
        self._filled: dict[str, int] = {}  # bytes of rows without a partition, by topic
        self._out = np.empty(options.batch_size_bytes, np.uint8)
        self.row_count = 0

    def build(
        self, batches: Iterable[pa.RecordBatch]
    ) -> Iterator[tuple[TopicPartition, EncodedRecords]]:
        """Yield the rows as batches. Raises ``InvalidRow``, ``MessageTooLarge``."""
        for gathered in _gather(batches):
            rows = read_rows(
                gathered,
                topic=self._options.topic,
                include_headers=self._options.include_headers,
                now_ms=self._clock_ms(),
            )
            yield from self._encode(rows)
            self.row_count += rows.count

    def _encode(self, rows: Rows) -> Iterator[tuple[TopicPartition, EncodedRecords]]:
        names = rows.topic_names
        counts = [self._partition_count(name) for name in names]
        filled = np.array([self._filled.get(n, self._first_filled) for n in names], np.int64)
        partitions = assign_partitions(
            rows, counts, filled, batch_size_bytes=self._options.batch_size_bytes
        )
        self._filled.update(zip(names, filled.tolist(), strict=True))
        starts = np.concatenate(([0], np.cumsum(counts))).astype(np.int64)
        ends = np.empty(int(starts[-1]), np.int64)
        order = np.empty(rows.count, np.int64)
        order_by_group(starts[rows.topics] + partitions, ends, order)
        start = 0
        for group in np.flatnonzero(np.diff(ends, prepend=0)).tolist():
            topic = int(np.searchsorted(starts, group, side="right")) - 1
            target = TopicPartition(names[topic], group - int(starts[topic]))
            end = int(ends[group])
            for encoded in self._encode_partition(rows, order[start:end], target):
                yield target, encoded
            start = end

    def _encode_partition(
        self, rows: Rows, order: Longs, target: TopicPartition
    ) -> Iterator[EncodedRecords]:
        done = 0
        while done < len(order):
            count, size_bytes, max_timestamp = self._encode_batch(rows, order[done:])
            if count == 0:
                self._make_room(int(rows.sizes[order[done]]), target)
                continue
            yield EncodedRecords(
                compress(
                    self._options.compression,
                    self._out[:size_bytes].tobytes(),
                    self._options.compression_level,
                ),
                self._options.compression,
                count,
                int(rows.timestamps_ms[order[done]]),
                max_timestamp,
            )
            done += count

    def _encode_batch(self, rows: Rows, order: Longs) -> tuple[int, int, int]:
        columns = (rows.keys, rows.values, rows.headers, rows.timestamps_ms, rows.sizes)
        count, size_bytes, max_timestamp = encode_records(
            *columns, order, self._out[: self._options.batch_size_bytes]
        )
        if count == 0:  # A record larger than a batch gets its own batch.
            count, size_bytes, max_timestamp = encode_records(*columns, order[:1], self._out)
        return count, size_bytes, max_timestamp

    def _make_room(self, size_bytes: int, target: TopicPartition) -> None:
        needed = size_bytes + _RECORD_OVERHEAD_BYTES
        if needed + HEADER_SIZE > self._options.record_size_bytes_max:
            raise MessageTooLarge(
                f"a row for {target} takes {needed + HEADER_SIZE} bytes as a record, more than"
                f" the {self._options.record_size_bytes_max} that request_size_bytes_max allows"
                " ('kafka.max.request.size' in Spark)"
            )
        self._out = np.empty(needed, np.uint8)


def _gather(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the rows in larger batches, with many rows for each partition."""
    gathered: list[pa.RecordBatch] = []
    size_bytes = 0
    for batch in batches:
        if not batch.num_rows:
            continue
        used = batch.select([name for name in batch.schema.names if name in COLUMNS])
        if gathered and size_bytes + used.nbytes > 2 * GATHERED_SIZE_BYTES:
            yield pa.concat_batches(gathered)  # Together they might have too many bytes for Arrow.
            gathered, size_bytes = [], 0
        gathered.append(used)
        size_bytes += used.nbytes
        if size_bytes >= GATHERED_SIZE_BYTES:
            yield pa.concat_batches(gathered)
            gathered, size_bytes = [], 0
    if gathered:
        yield pa.concat_batches(gathered)
