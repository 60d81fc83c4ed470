"""Finds the rows of erased keys in a table's Parquet files, and writes files without them.

A task gets files by name. It reads the four columns that identify a record, and only if a row is
to be erased does it copy the file: row group by row group, all columns, without these rows. The
Parquet schema of the copy is the file's own, field ids included. Old files are never changed.
"""

from __future__ import annotations

import hashlib
import posixpath
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import fs
from tidelog_core.errors import ErrorCode, TidelogError

from tidelog_spark.jobs.tables.export_table import WrittenFile
from tidelog_spark.jobs.tables.parquet_files import COMPRESSION, ROW_GROUP_ROWS_MAX
from tidelog_spark.jobs.tables.table_access import named_permission
from tidelog_spark.jobs.tables.table_places import filesystem_of

TOPIC, PARTITION, OFFSET, KEY = "kafka_topic", "kafka_partition", "kafka_offset", "kafka_key"
_COLUMNS = (TOPIC, PARTITION, OFFSET, KEY)


class UnreadableTableFile(TidelogError):
    """A file of the table lacks the columns that identify the record of a row."""

    code = ErrorCode.corrupt_message


@dataclass(frozen=True, slots=True)
class ErasedKeys:
    """The keys erased from one partition of a topic, by name."""

    topic: str
    partition: int
    # Rows at lower offsets were looked at before, so files with only such rows are not read.
    start: int
    up_to: Mapping[bytes, int]  # by SHA-256 of the key: the offset, exclusive

    @property
    def end(self) -> int:
        """The end offset of the rows that may be erased, exclusive."""
        return max(self.up_to.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFile:
    """A Parquet file of a table."""

    path: str  # as the table names it
    url: str
    folder: str  # of a copy, below the run's folder: the partition's in Hive's form, or empty
    hour: int | None = None
    deleted_rows: tuple[int, ...] = ()  # row numbers that the table has deleted, ascending


@dataclass(frozen=True, slots=True)
class Replacement:
    """A file with erased rows, and its copy without them."""

    old: TableFile
    new: WrittenFile | None  # None: no row is left
    removed_count: int  # rows, without those that the table had deleted


@dataclass(frozen=True, slots=True, kw_only=True)
class EraseSettings:
    """What all tasks of a run have in common."""

    location: str  # of the table; new files are below it
    run_folder: str
    erased: tuple[ErasedKeys, ...]


def replaced_files(files: Iterable[TableFile], settings: EraseSettings) -> Iterator[Replacement]:
    """Yield a replacement for each file that has rows of erased keys.

    Raises ``UnreadableTableFile``, ``TableAccessDenied`` and the file systems' errors.
    """
    with named_permission(settings.location, "write"):
        yield from _replaced_files(files, settings)


def _replaced_files(files: Iterable[TableFile], settings: EraseSettings) -> Iterator[Replacement]:
    target, root = filesystem_of(settings.location)
    for file in files:
        source, path = filesystem_of(file.url)
        with source.open_input_file(path) as stream, pq.ParquetFile(stream) as parquet:
            absent = sorted({*_COLUMNS} - {*parquet.schema_arrow.names})
            if absent:
                raise UnreadableTableFile(f"{file.url} has no column {', '.join(absent)}")
            if not _has_erased(parquet, settings.erased):
                continue
            name = posixpath.join(settings.run_folder, file.folder, f"kept-{uuid4()}.parquet")
            copy = posixpath.join(root, name)
            if isinstance(target, fs.LocalFileSystem):
                target.create_dir(posixpath.dirname(copy))
            removed, kept = _copy(parquet, target, copy, settings.erased, file.deleted_rows)
        if not kept:
            target.delete_file(copy)
            yield Replacement(file, None, removed)
            continue
        size_bytes = target.get_file_info(copy).size
        yield Replacement(file, WrittenFile(name, size_bytes, kept, file.hour), removed)


def files_with_erased(files: Iterable[TableFile], settings: EraseSettings) -> Iterator[TableFile]:
    """Yield those of the files that have rows of erased keys. A file that is gone has none."""
    for file in files:
        source, path = filesystem_of(file.url)
        try:
            with source.open_input_file(path) as stream, pq.ParquetFile(stream) as parquet:
                is_export = {*_COLUMNS} <= {*parquet.schema_arrow.names}
                if is_export and _has_erased(parquet, settings.erased):
                    yield file
        except FileNotFoundError:
            continue


def erased_rows(rows: pa.Table, erased: Sequence[ErasedKeys]) -> np.ndarray:
    """Return for each row whether it is to be erased. No I/O."""
    found = np.zeros(rows.num_rows, dtype=bool)
    offsets = rows.column(OFFSET).to_numpy()
    for one in erased:
        mask = pc.and_(
            pc.equal(rows.column(PARTITION), one.partition),
            pc.and_(
                pc.less(rows.column(OFFSET), one.end),
                pc.and_(pc.equal(rows.column(TOPIC), one.topic), rows.column(KEY).is_valid()),
            ),
        )
        numbers = pc.indices_nonzero(mask).to_numpy()
        if not len(numbers):
            continue
        keys = rows.column(KEY).take(pa.array(numbers)).cast(pa.binary())
        coded = keys.combine_chunks().dictionary_encode()
        ends = np.array(
            [one.up_to.get(hashlib.sha256(key).digest(), 0) for key in coded.dictionary.to_pylist()]
        )
        found[numbers[offsets[numbers] < ends[coded.indices.to_numpy()]]] = True
    return found


def _has_erased(parquet: pq.ParquetFile, erased: Sequence[ErasedKeys]) -> bool:
    """Return whether a row is to be erased; rows that the table has deleted count too."""
    for number in range(parquet.num_row_groups):
        if _may_have(parquet.metadata.row_group(number), erased):
            rows = parquet.read_row_group(number, columns=list(_COLUMNS))
            if erased_rows(rows, erased).any():
                return True
    return False


def _copy(
    parquet: pq.ParquetFile,
    target: fs.FileSystem,
    path: str,
    erased: Sequence[ErasedKeys],
    deleted: Sequence[int],
) -> tuple[int, int]:
    """Write the rows to keep; return the number of erased and of kept rows."""
    before = removed_count = kept_count = 0
    with pq.ParquetWriter(
        path, parquet.schema_arrow, filesystem=target, compression=COMPRESSION
    ) as writer:
        for number in range(parquet.num_row_groups):
            rows = parquet.read_row_group(number)
            removed = erased_rows(rows, erased)
            gone = _within(deleted, before, rows.num_rows)
            removed[gone] = False
            removed_count += int(removed.sum())
            removed[gone] = True
            before += rows.num_rows
            kept = rows.filter(pa.array(~removed))
            kept_count += kept.num_rows
            if kept.num_rows:
                writer.write_table(kept, row_group_size=ROW_GROUP_ROWS_MAX)
    return removed_count, kept_count


def _within(deleted: Sequence[int], start: int, count: int) -> np.ndarray:
    """Return the deleted rows of a row group, counted from its start."""
    numbers = np.asarray(deleted, dtype=np.int64) - start
    return numbers[(numbers >= 0) & (numbers < count)]


def _may_have(group: pq.RowGroupMetaData, erased: Sequence[ErasedKeys]) -> bool:
    """Return whether the row group's statistics allow a row to be erased."""
    ranges = {}
    for number in range(group.num_columns):
        column = group.column(number)
        if column.path_in_schema in (PARTITION, OFFSET):
            stats = column.statistics
            if stats is None or not stats.has_min_max:
                return True
            ranges[column.path_in_schema] = (stats.min, stats.max)
    first_partition, last_partition = ranges[PARTITION]
    first_offset, last_offset = ranges[OFFSET]
    return any(
        first_partition <= one.partition <= last_partition
        and first_offset < one.end
        and last_offset >= one.start
        for one in erased
    )
