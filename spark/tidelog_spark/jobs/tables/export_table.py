"""The interface of an export's target table, and its values.

Every table stores, in the commit that makes a run's files visible, the end offset of each
partition. A run reads these offsets, writes invisible files, and commits the files with the
new offsets, unless the stored offsets have changed. So after any crash or retry, each
record is in the table once.
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
    """The time unit that separates records into partitions, by timestamp. UTC."""

    NONE = "none"
    DAY = "day"
    HOUR = "hour"


class ExportConflict(TidelogError):
    """Another export into the table came first. Nothing of this run is in the table."""

    code = ErrorCode.concurrent_transactions


class TableBusy(ExportConflict):
    """Another run is at work on the table, by its lease. This one has exported nothing since."""


class SchemaConflict(TidelogError):
    """The records do not match the table's columns; columns can only be added."""

    code = ErrorCode.invalid_config

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("; ".join(problems))
        self.problems = tuple(problems)


class ColumnConflict(SchemaConflict):
    """A column of the records has a type that the table's column cannot take."""


class CorruptExport(TidelogError):
    """The table's export state cannot be read."""

    code = ErrorCode.corrupt_message


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A complete Parquet file that is not yet visible."""

    path: str  # relative to the table's location
    size_bytes: int
    row_count: int
    hour: int | None  # since 1970, of all its records; with TimePartitions.DAY the day's first

    def partition_values(self, partitions: TimePartitions) -> dict[str, str]:
        """Return the values of the partition columns, in Hive's and Delta's form."""
        if self.hour is None:
            return {}
        return partition_values(self.hour, partitions)


class ExportTable(Protocol):
    """A table to append to. For one thread of the driver."""

    @property
    def location(self) -> str:
        """The URL below which files are written; known after ``prepare``."""

    @property
    def has_partition_columns(self) -> bool:
        """Whether the table has columns for date and hour, which its files then omit."""

    def prepare(self, schema: pa.Schema, *, segments: str | None = None) -> pa.Schema:
        """Create the table, or add missing columns; return the schema to write.

        The schema is without partition columns. Raises ``SchemaConflict``; after ``ColumnConflict``
        ``offsets`` may be called. Raises ``InvalidConfig``, and creates nothing, if the table's
        location and the URL ``segments`` are one within the other.
        """

    def offsets(self, partitions: Collection[str]) -> Offsets:
        """Return the partitions' exported offsets as of ``prepare``; none for new ones.

        Raises ``CorruptExport``.
        """

    def commit(self, files: Sequence[WrittenFile], offsets: Offsets, *, run_id: str) -> None:
        """Make the files visible and set the offsets, atomically.

        Offsets of other partitions stay. Raises ``ExportConflict`` if an offset that is given
        has changed since ``prepare``, or may have.
        """


def partition_id(topic_id: UUID, partition: int) -> str:
    """Return the partition's key; a topic created again has a different one."""
    return f"{topic_id}-{partition}"


def partition_values(hour: int, partitions: TimePartitions) -> dict[str, str]:
    """Return the date, and the hour of the day if required, of an hour since 1970."""
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


def offsets_to_text(offsets: Offsets) -> str:
    """Return the offsets in the form that tables store."""
    return json.dumps(dict(sorted(offsets.items())), separators=(",", ":"))
