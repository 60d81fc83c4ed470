"""Hands out fetched batches as Arrow. Imported at the first ``poll_arrow``, as it loads numba."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from tidelog_core.errors import CorruptRecordBatch
from tidelog_core.model import TopicPartition

from tidelog.arrow.columns import arrow_schema
from tidelog.arrow.native import kernels
from tidelog.arrow.native.kernels import TIMESTAMP_MS_MAX, TIMESTAMP_MS_MIN
from tidelog.arrow.row_decoder import RowDecoder
from tidelog.consuming.batch_runs import BatchRun, next_run
from tidelog.consuming.positions import UNKNOWN, PartitionState, Positions
from tidelog.consuming.records import ConsumerRecord
from tidelog.errors import TidelogError

if TYPE_CHECKING:
    from tidelog.arrow.values.schema_values import SchemaDecoder

# A run is decoded at once, on the event loop: 4 MiB take one to three milliseconds, with gzip 20. A
# fetch brings so much if ``max_partition_fetch_bytes`` says so; by default it brings a quarter. A
# partition whose runs expand to too much gets shorter ones.
RUN_SIZE_BYTES_MAX = 4 * 1024 * 1024
RUN_SIZE_BYTES_MIN = 16 * 1024
EXPANDED_BYTES_MAX = 16 * 1024 * 1024  # of the columns of a run, beside its last Arrow batch


def take_arrow(
    positions: Positions, *, include_headers: bool, size_bytes_max: int
) -> tuple[list[pa.RecordBatch], list[PartitionState]]:
    """Return the next records and their partitions, whose positions advance past them.

    Partitions take turns. Once the columns have ``size_bytes_max`` the rest stays. Raises a
    partition's error if no partition before it in turn has records.
    """
    found: list[pa.RecordBatch] = []
    states: list[PartitionState] = []
    size_bytes = 0
    waiting = [state for state in positions if not (state.is_held or state.is_paused)]
    while waiting and size_bytes < size_bytes_max:
        state = waiting.pop(0)
        try:
            batches = _take_run(state, include_headers=include_headers)
        except TidelogError as error:
            if not found:
                raise
            state.error = error
            continue
        if batches is None:
            continue
        positions.rotate(state.partition)
        waiting.append(state)
        if batches:
            found += batches
            size_bytes += sum(batch.nbytes for batch in batches)
            if state not in states:
                states.append(state)
    return found, states


class RunRows:
    """The run's visible records with offsets in ``[start, end)``, in lists of limited size.

    Rows before a malformed batch come before its error. A run of writable memory is decoded in
    place: it cannot be read again.
    """

    def __init__(
        self,
        partition: TopicPartition,
        run: BatchRun,
        offsets: tuple[int, int],
        *,
        include_headers: bool,
    ) -> None:
        self.bad_offset: int | None = None  # the base offset of a malformed batch that was met
        self._partition = partition
        self._error: CorruptRecordBatch | None = None
        decoder = RowDecoder(*partition, include_headers=include_headers, corrupt=self._corrupt)
        self._table = _wanted_batches(run, offsets)
        self._batches = decoder.decode(run.data, self._table, offsets, is_own=not run.data.readonly)

    def next(self) -> list[pa.RecordBatch]:
        """Return some of the rows, of about ``EXPANDED_BYTES_MAX`` at most; none: the end.

        Raises ``CorruptRecordBatch``.
        """
        if self._error is not None:
            raise self._error
        found: list[pa.RecordBatch] = []
        size_bytes = 0
        try:
            for batch in self._batches:
                found.append(batch)
                size_bytes += batch.nbytes
                if size_bytes >= EXPANDED_BYTES_MAX:
                    break
        except CorruptRecordBatch as error:
            if not found:
                raise
            self._error = error.with_traceback(None)  # Its frames have views of the run.
        return found

    def _corrupt(self, position: int, problem: str) -> TidelogError:
        row = self._table[np.searchsorted(self._table[:, kernels.POSITION], position)]
        self.bad_offset = int(row[kernels.BASE_OFFSET])
        return CorruptRecordBatch(
            f"{self._partition}: batch at offset {self.bad_offset}: {problem}"
        )


def decode_values(
    batches: Sequence[pa.RecordBatch],
    decoder: SchemaDecoder,
    *,
    size_bytes_max: int,
    is_stopped: Callable[[], bool] = lambda: False,
) -> tuple[list[pa.RecordBatch], Sequence[pa.RecordBatch]]:
    """Return batches with values as structs, and what is left once those have so many bytes.

    Or once it ``is_stopped``. Raises ``InvalidRecord``.
    """
    found: list[pa.RecordBatch] = []
    size_bytes = 0
    for number, batch in enumerate(batches):
        row_count = 0
        for part in decoder.parts(batch):
            found.append(part)
            size_bytes += part.nbytes
            row_count += part.num_rows
            if size_bytes >= size_bytes_max or is_stopped():
                rest = [batch.slice(row_count)] if row_count < batch.num_rows else []
                return found, [*rest, *batches[number + 1 :]]
    return found, ()


def _wanted_batches(run: BatchRun, offsets: tuple[int, int]) -> kernels.Longs:
    """Return the headers of the run's batches with such records."""
    table = run.table
    wanted = (
        (table[:, kernels.LAST_OFFSET] >= offsets[0])
        & (table[:, kernels.BASE_OFFSET] < offsets[1])
        & (table[:, kernels.RECORD_COUNT] > 0)
    )
    return table[wanted]


def _take_run(state: PartitionState, *, include_headers: bool) -> list[pa.RecordBatch] | None:
    """Return the records of the partition's next batches; ``None`` if it has no batches.

    Raises the partition's error, once.
    """
    if state.position == UNKNOWN or not (state.chunks or state.index < len(state.records)):
        if state.error is not None:
            error, state.error = state.error, None
            raise error
        return None
    if state.index < len(state.records):  # ``poll`` has decoded them.
        rest = _records_to_arrow(state.records[state.index :], include_headers=include_headers)
        state.take(len(state.records))
        return [rest]
    chunk = state.chunks[0]
    try:
        run = next_run(chunk, state.run_size_bytes or RUN_SIZE_BYTES_MAX)
        offsets = (state.position, run.next_offset)
        rows = RunRows(state.partition, run, offsets, include_headers=include_headers)
        batches = rows.next()
    except BaseException:
        state.reject()
        raise
    if rows.bad_offset is not None:  # The rows before it come first, as from ``poll``.
        state.position, state.last_epoch = rows.bad_offset, run.last_epoch
        state.rewind()
        return batches
    if batches and _has_expanded(batches) and _end_of(batches) < run.next_offset:
        # The rest is fetched again, in shorter runs: in memory it has no limit.
        state.run_size_bytes = max(len(run.data) // 4, RUN_SIZE_BYTES_MIN)
        state.position, state.last_epoch = _end_of(batches), run.last_epoch
        state.rewind()
        return batches
    if not chunk:
        state.chunks.popleft()
    if run.next_offset > state.position:
        state.position, state.last_epoch = run.next_offset, run.last_epoch
    return batches


def _has_expanded(batches: Sequence[pa.RecordBatch]) -> bool:
    size_bytes: int = sum(batch.nbytes for batch in batches)
    return size_bytes >= EXPANDED_BYTES_MAX


def _end_of(batches: Sequence[pa.RecordBatch]) -> int:
    last: int = batches[-1].column("offset")[-1].as_py()
    return last + 1


def _records_to_arrow(
    records: Sequence[ConsumerRecord], *, include_headers: bool
) -> pa.RecordBatch:
    rows = [
        {
            "key": record.key,
            "value": record.value,
            "topic": record.topic,
            "partition": record.partition,
            "offset": record.offset,
            "timestamp": min(max(record.timestamp_ms, TIMESTAMP_MS_MIN), TIMESTAMP_MS_MAX) * 1000,
            "timestampType": int(record.is_log_append_time),
            "headers": [{"key": _valid_text(key), "value": value} for key, value in record.headers]
            or None,
        }
        for record in records
    ]
    return pa.RecordBatch.from_pylist(rows, schema=arrow_schema(include_headers=include_headers))


def _valid_text(name: str) -> str:
    """Return a header's key; what is not UTF-8 is replaced, as ``RowDecoder`` does."""
    return name.encode(errors="surrogateescape").decode(errors="replace")
