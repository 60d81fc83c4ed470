"""A Delta table to export to, through ``deltalake``.

The next offset of each partition is the version of an application transaction of the
table (``txn`` in the protocol), named after the partition. Files and versions are in one
commit, checkpoints keep the versions forever, and if two concurrent commits set the
version of the same application, the later one fails. Source: Delta transaction log
protocol, transaction identifiers.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Schema, Transaction
from deltalake.exceptions import CommitFailedError, TableNotFoundError
from deltalake.transaction import AddAction
from tidelog_core.clock import wall_clock_ms

from tidelog_spark.jobs.export_table import (
    ExportConflict,
    Offsets,
    SchemaConflict,
    TimePartitions,
    WrittenFile,
    merged_schema,
    partition_fields,
)

APPLICATION = "tidelog-export/"
COMMIT_ATTEMPTS_MAX = 10


class DeltaLakeTable:
    """A Delta table, created by the first export."""

    has_partition_columns = True

    def __init__(self, location: str, partitions: TimePartitions) -> None:
        self._location = location.rstrip("/")
        self._partitions = partitions
        self._columns = [field.name for field in partition_fields(partitions)]
        self._table: DeltaTable | None = None

    @property
    def location(self) -> str:
        """Return the table's URL."""
        return self._location

    def prepare(self, schema: pa.Schema) -> pa.Schema:
        """Create the table or add columns, in a commit without files."""
        wanted = pa.schema([*schema, *partition_fields(self._partitions)])
        try:
            table = DeltaTable(self._location)
        except TableNotFoundError:
            table = DeltaTable.create(
                self._location, schema=Schema.from_arrow(wanted), partition_by=self._columns
            )
        has = table.metadata().partition_columns
        if has != self._columns:
            raise SchemaConflict([f"the table is partitioned by {has}, not by {self._columns}"])
        known = pa.schema(table.schema().to_arrow())
        merged = merged_schema(known, wanted)
        if merged != known:
            fields = Schema.from_arrow(pa.schema(list(merged)[len(known) :])).fields
            table.alter.add_columns(fields)
        self._table = table
        return pa.schema([field for field in merged if field.name not in self._columns])

    def offsets(self, partitions: Collection[str]) -> Offsets:
        """Return the versions of the partitions' transactions."""
        assert self._table is not None
        return _offsets(self._table, partitions)

    def commit(self, files: Sequence[WrittenFile], offsets: Offsets, *, run_id: str) -> None:
        """Add the files and set the versions; retries after unrelated commits."""
        assert self._table is not None
        expected, schema = _offsets(self._table, offsets), self._table.schema()
        for _ in range(COMMIT_ATTEMPTS_MAX):
            try:
                self._commit_once(self._table, files, offsets, run_id)
            except CommitFailedError as error:
                # Another export, or only a change of a table setting.
                self._table = DeltaTable(self._location)
                is_same = _offsets(self._table, offsets) == expected
                if not is_same or self._table.schema() != schema:
                    raise ExportConflict(f"{self._location}: {error}") from None
            else:
                return
        raise ExportConflict(f"{self._location}: other writers commit too often; try again later")

    def _commit_once(
        self, table: DeltaTable, files: Sequence[WrittenFile], offsets: Offsets, run_id: str
    ) -> None:
        now_ms = wall_clock_ms()
        table.create_write_transaction(
            [
                AddAction(
                    path=one.path,
                    size=one.size_bytes,
                    partition_values=one.partition_values(self._partitions),
                    modification_time=now_ms,
                    data_change=True,
                    stats=json.dumps({"numRecords": one.row_count}),
                )
                for one in files
            ],
            mode="append",
            schema=table.schema(),
            partition_by=self._columns,
            commit_properties=CommitProperties(
                app_transactions=[
                    Transaction(APPLICATION + partition, offset, now_ms)
                    for partition, offset in offsets.items()
                ],
                custom_metadata={"tidelog.run": run_id},
            ),
        )


def _offsets(table: DeltaTable, partitions: Collection[str]) -> dict[str, int]:
    found = {}
    for partition in partitions:
        version = table.transaction_version(APPLICATION + partition)
        if version is not None:
            found[partition] = version
    return found
