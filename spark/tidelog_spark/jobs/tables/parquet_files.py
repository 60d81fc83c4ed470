"""Writes record batches into Parquet files by day or hour, in Spark's tasks."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from tidelog_spark.jobs.tables.export_table import (
    TIMESTAMP_COLUMN,
    TimePartitions,
    WrittenFile,
    partition_values,
)
from tidelog_spark.jobs.tables.table_access import named_permission
from tidelog_spark.jobs.tables.table_places import filesystem_of

# Open files; records of other hours beyond these start new ones.
OPEN_FILES_MAX = 24
# A row group is written at either limit.
ROW_GROUP_ROWS_MAX = 1 << 20
ROW_GROUP_BYTES_MAX = 64 << 20
# Over all files: the memory that a task buffers.
PENDING_BYTES_MAX = 256 << 20
COMPRESSION = "zstd"

_HOUR_US = 3_600_000_000


@dataclass(slots=True)
class _OpenFile:
    path: str
    hour: int | None
    writer: pq.ParquetWriter
    pending: list[pa.RecordBatch] = field(default_factory=list)
    pending_rows: int = 0
    pending_bytes: int = 0
    row_count: int = 0


class ParquetFiles:
    """The files of one task. Close it before reading ``written``."""

    def __init__(
        self, location: str, schema: pa.Schema, partitions: TimePartitions, *, prefix: str
    ) -> None:
        self._location = location
        self._fs, self._root = filesystem_of(location)
        self._schema = schema
        self._partitions = partitions
        self._prefix = prefix  # of every path; unique with the file's number
        self._open: dict[int | None, _OpenFile] = {}  # the least recently written first
        self._file_count = 0
        self.written: list[WrittenFile] = []

    def write(self, batch: pa.RecordBatch) -> None:
        """Add the rows. They are in files after ``close``. Raises ``TableAccessDenied``."""
        with named_permission(self._location, "write"):
            self._write(batch)

    def close(self) -> None:
        """Write buffered rows and finish every file. Raises ``TableAccessDenied``."""
        with named_permission(self._location, "write"):
            for hour in list(self._open):
                self._end(hour)

    def _write(self, batch: pa.RecordBatch) -> None:
        for hour, rows in self._apart(batch):
            file = self._open.pop(hour, None) or self._begin(hour)
            self._open[hour] = file
            file.pending.append(rows)
            file.pending_rows += rows.num_rows
            file.pending_bytes += rows.nbytes
            if file.pending_rows >= ROW_GROUP_ROWS_MAX or file.pending_bytes >= ROW_GROUP_BYTES_MAX:
                _flush(file)
        while sum(one.pending_bytes for one in self._open.values()) > PENDING_BYTES_MAX:
            _flush(max(self._open.values(), key=lambda one: one.pending_bytes))

    def _apart(self, batch: pa.RecordBatch) -> Iterator[tuple[int | None, pa.RecordBatch]]:
        if self._partitions is TimePartitions.NONE:
            yield None, batch
            return
        times = batch.column(TIMESTAMP_COLUMN).cast(pa.int64()).to_numpy()
        step = _HOUR_US * (24 if self._partitions is TimePartitions.DAY else 1)
        numbers = times // step
        for number in np.unique(numbers).tolist():
            hour = number * step // _HOUR_US
            mine = np.flatnonzero(numbers == number)
            yield hour, batch if len(mine) == len(numbers) else batch.take(pa.array(mine))

    def _begin(self, hour: int | None) -> _OpenFile:
        if len(self._open) >= OPEN_FILES_MAX:
            self._end(next(iter(self._open)))
        values = {} if hour is None else partition_values(hour, self._partitions)
        folders = [f"{name}={value}" for name, value in values.items()]
        self._file_count += 1
        folder, name = posixpath.split(self._prefix)
        path = posixpath.join(folder, *folders, f"{name}-{self._file_count:04}.parquet")
        whole = posixpath.join(self._root, path)
        if isinstance(self._fs, fs.LocalFileSystem):
            self._fs.create_dir(posixpath.dirname(whole))
        writer = pq.ParquetWriter(whole, self._schema, filesystem=self._fs, compression=COMPRESSION)
        return _OpenFile(path, hour, writer)

    def _end(self, hour: int | None) -> None:
        file = self._open.pop(hour)
        _flush(file)
        file.writer.close()
        size_bytes = self._fs.get_file_info(posixpath.join(self._root, file.path)).size
        self.written.append(WrittenFile(file.path, size_bytes, file.row_count, hour))


def _flush(file: _OpenFile) -> None:
    if file.pending_rows:
        table = pa.Table.from_batches(file.pending)
        file.writer.write_table(table, row_group_size=ROW_GROUP_ROWS_MAX)
        file.row_count += file.pending_rows
    file.pending.clear()
    file.pending_rows = file.pending_bytes = 0
