"""What an export asks of the table that it writes to, and the values it does it with.

Every table keeps, in the commit that makes a run's files visible, up to which offset
each partition is in it. A run reads that, writes files that nobody sees, and commits
them together with the new offsets, unless the offsets are others by then. So whatever
crashes or is tried twice, each record is in the table once.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol
from uuid import UUID

import pyarrow as pa
from tidelog_core.errors import ErrorCode, TidelogError

DATE_COLUMN = "kafka_date"
HOUR_COLUMN = "kafka_hour"
TIMESTAMP_COLUMN = "kafka_timestamp"

Offsets = Mapping[str, int]
"""The next offset to export of each partition, by ``partition_id``."""


class TimePartitions(Enum):
    """By what of their timestamps records are kept apart. UTC."""

    NONE = "none"
    DAY = "day"
    HOUR = "hour"


class ExportConflict(TidelogError):
    """Another export into the table was faster. Nothing of this run is in the table."""

    code = ErrorCode.concurrent_transactions


class SchemaConflict(TidelogError):
    """The table has columns that the records no longer fit; columns may only be added."""

    code = ErrorCode.invalid_config

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("; ".join(problems))
        self.problems = tuple(problems)


class CorruptExport(TidelogError):
    """What the table says of its exports cannot be read."""

    code = ErrorCode.corrupt_message


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A Parquet file that is whole and that nobody sees yet."""

    path: str  # from the table's location on
    size_bytes: int
    row_count: int
    hour: int | None  # since 1970, of all its records; with TimePartitions.DAY the day's first

    def partition_values(self, partitions: TimePartitions) -> dict[str, str]:
        """Return the values of the partition columns, as Hive and Delta have them."""
        if self.hour is None:
            return {}
        return partition_values(self.hour, partitions)


class ExportTable(Protocol):
    """A table to add to. One driver, one thread."""

    @property
    def location(self) -> str:
        """The URL below which files are written; known once the table is prepared."""

    @property
    def has_partition_columns(self) -> bool:
        """Whether date and hour are columns of the table, which are then not in its files."""

    def prepare(self, schema: pa.Schema) -> pa.Schema:
        """Make the table, or add the columns that it lacks; return the schema to write.

        The schema is without partition columns. Raises ``SchemaConflict``.
        """

    def offsets(self, partitions: Collection[str]) -> Offsets:
        """Return what is exported of these, as of ``prepare``; none for what never was.

        Raises ``CorruptExport``.
        """

    def commit(self, files: Sequence[WrittenFile], offsets: Offsets, *, run_id: str) -> None:
        """Make the files visible, and the offsets those given, in one step.

        Offsets of partitions that are not given stay. Raises ``ExportConflict`` where
        those of one that is given changed since ``prepare``, or may have.
        """


def partition_id(topic_id: UUID, partition: int) -> str:
    """Return by what a partition is known: a topic created anew is another one."""
    return f"{topic_id}-{partition}"


def partition_values(hour: int, partitions: TimePartitions) -> dict[str, str]:
    """Return date and, where asked for, hour of the day of an hour since 1970."""
    values = {}
    if partitions is not TimePartitions.NONE:
        date = pa.scalar(hour // 24, pa.int32()).cast(pa.date32())
        values[DATE_COLUMN] = str(date)
    if partitions is TimePartitions.HOUR:
        values[HOUR_COLUMN] = str(hour % 24)
    return values


def partition_fields(partitions: TimePartitions) -> list[pa.Field]:
    """Return the partition columns."""
    fields = []
    if partitions is not TimePartitions.NONE:
        fields.append(pa.field(DATE_COLUMN, pa.date32()))
    if partitions is TimePartitions.HOUR:
        fields.append(pa.field(HOUR_COLUMN, pa.int32()))
    return fields


def merged_schema(table: pa.Schema, wanted: pa.Schema) -> pa.Schema:
    """Return the table's columns with those that are new; pure.

    A column that is no longer wanted stays, and is null. Raises ``SchemaConflict``
    naming every column whose type is another one.
    """
    problems = [
        f"column {field.name!r} is {table.field(field.name).type} in the table and"
        f" {field.type} in what is exported"
        for field in wanted
        if field.name in table.names and table.field(field.name).type != field.type
    ]
    if problems:
        raise SchemaConflict(problems)
    new = [field for field in wanted if field.name not in table.names]
    return pa.schema([*table, *(field.with_nullable(True) for field in new)])


def offsets_to_text(offsets: Offsets) -> str:
    """Return the offsets as a table keeps them."""
    return json.dumps(dict(sorted(offsets.items())), separators=(",", ":"))
