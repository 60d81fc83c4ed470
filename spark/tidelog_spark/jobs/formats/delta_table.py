"""A Delta table to export to, through ``deltalake``.

The next offset of each partition is the version of an application transaction of the
table (``txn`` in the protocol), named after the partition. Files and versions are in one
commit, checkpoints keep the versions forever, and if two concurrent commits set the
version of the same application, the later one fails. Source: Delta transaction log
protocol, transaction identifiers.
After a RESTORE the offsets of the older version count: see ``delta_history``.
"""

from __future__ import annotations

import json
import posixpath
from collections.abc import Collection, Mapping, Sequence

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Schema, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, RemoveAction
from tidelog_core.clock import wall_clock_ms
from tidelog_core.errors import InvalidConfig

from tidelog_spark.jobs.formats.delta_history import (
    APPLICATION,
    ERASED,
    OFFSETS,
    RUN,
    has_commit_of,
    stored_offsets,
    transaction_offsets,
    undone_runs,
)
from tidelog_spark.jobs.tables.columns import merged_schema, require_distinct
from tidelog_spark.jobs.tables.erasable_table import Expiry, delete_files, existing_files
from tidelog_spark.jobs.tables.erased_rows import Replacement, TableFile, UnreadableTableFile
from tidelog_spark.jobs.tables.export_table import (
    ExportConflict,
    Offsets,
    SchemaConflict,
    TimePartitions,
    WrittenFile,
    offsets_to_text,
    partition_fields,
)
from tidelog_spark.jobs.tables.table_access import named_permission
from tidelog_spark.jobs.tables.table_places import check_location

ERASING_APPLICATION = "tidelog-erasure/"  # and the run's id: the mark of its commit
COMMIT_ATTEMPTS_MAX = 10
_PERCENT = "%25"  # delta-rs decodes it twice: a%2520b would be the folder "a b" of another table


class DeltaLakeTable:
    """A Delta table, created by the first export."""

    has_partition_columns = True

    def __init__(self, location: str, partitions: TimePartitions) -> None:
        self._location = location.rstrip("/")
        self._partitions = partitions
        self._columns = [field.name for field in partition_fields(partitions)]
        self._table: DeltaTable | None = None
        self._exported: Offsets = {}  # as of ``offsets``
        # Of the files as of ``open``, by path: their partition's values.
        self._values: dict[str, dict[str, str | None]] = {}

    @property
    def location(self) -> str:
        """Return the table's URL."""
        return self._location

    def prepare(self, schema: pa.Schema, *, segments: str | None = None) -> pa.Schema:
        """Create the table or add columns, in a commit without files."""
        check_location(self._location, segments)
        if _PERCENT in self._location:
            raise InvalidConfig(
                [
                    f"no Delta table can be at {self._location}: its name has a % (written %25),"
                    " which delta-rs takes for another name; give a location without"
                ]
            )
        with named_permission(self._location, "write", DeltaError):
            return self._prepare(schema)

    def _prepare(self, schema: pa.Schema) -> pa.Schema:
        wanted = pa.schema([*schema, *partition_fields(self._partitions)])
        try:
            table = DeltaTable(self._location)
        except TableNotFoundError:
            table = self._create(wanted)
        has = table.metadata().partition_columns
        if has != self._columns:
            raise SchemaConflict([f"the table is partitioned by {has}, not by {self._columns}"])
        self._table = table
        known = pa.schema(table.schema().to_arrow())
        merged = merged_schema(known, wanted)
        if merged != known:
            fields = Schema.from_arrow(pa.schema(list(merged)[len(known) :])).fields
            table.alter.add_columns(fields)
        return pa.schema([field for field in merged if field.name not in self._columns])

    def _create(self, schema: pa.Schema) -> DeltaTable:
        require_distinct(schema)
        try:
            # A folder that may not be written raises the same class as an unknown scheme.
            with named_permission(self._location, "write", DeltaError):
                return DeltaTable.create(
                    self._location, schema=Schema.from_arrow(schema), partition_by=self._columns
                )
        except TableNotFoundError as error:  # It knows no such scheme.
            reason = str(error).partition(". ")[0]
            raise InvalidConfig(
                [
                    f"no Delta table can be at {self._location}: {reason}; give a URL such as"
                    " s3://bucket/folder or file:///folder"
                ]
            ) from None
        except DeltaError:
            if DeltaTable.is_deltatable(self._location):
                raise ExportConflict(
                    f"another run has created {self._location} meanwhile: run this again"
                ) from None
            raise

    def offsets(self, partitions: Collection[str]) -> Offsets:
        """Return the versions of the partitions' transactions, older ones after a RESTORE."""
        assert self._table is not None
        with named_permission(self._location, "write", DeltaError):
            self._exported = stored_offsets(self._location, self._table, partitions)
        return self._exported

    def commit(self, files: Sequence[WrittenFile], offsets: Offsets, *, run_id: str) -> None:
        """Add the files and set the versions; retries after unrelated commits."""
        with named_permission(self._location, "write", DeltaError):
            self._commit(files, offsets, run_id)

    def _commit(self, files: Sequence[WrittenFile], offsets: Offsets, run_id: str) -> None:
        assert self._table is not None
        expected, schema = transaction_offsets(self._table, offsets), self._table.schema()
        for _ in range(COMMIT_ATTEMPTS_MAX):
            try:
                self._commit_once(self._table, files, offsets, run_id)
            except CommitFailedError as error:
                # Another export, or only a change of a table setting.
                self._table = DeltaTable(self._location)
                if has_commit_of(self._table, run_id):
                    return  # The store's client has sent this commit twice.
                is_same = transaction_offsets(self._table, offsets) == expected
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
                custom_metadata={
                    RUN: run_id,
                    OFFSETS: offsets_to_text({**self._exported, **offsets}),
                },
            ),
        )

    # -- erasing --

    run_folder = "run={}"

    def open(self) -> bool:
        """Read the table's last version."""
        if not DeltaTable.is_deltatable(self._location):
            return False
        self._table = DeltaTable(self._location)
        self._values = _partition_values(self._table)
        return True

    def files(self) -> list[TableFile]:
        """Return the files of the last version."""
        assert self._table is not None
        if self._table.deletion_vectors().read_all().num_rows:
            raise UnreadableTableFile(
                f"{self._location} has deletion vectors: remove them first, with"
                " REORG TABLE … APPLY (PURGE)"
            )
        return [
            TableFile(
                path=path,
                url=f"{self._location}/{path}",
                folder=posixpath.join("", *(f"{name}={value}" for name, value in values.items())),
            )
            for path, values in self._values.items()
        ]

    def older_files(self) -> list[TableFile]:
        """Return none: the log does not have them, once it is cleaned up."""
        return []

    def replace(
        self, replaced: Sequence[Replacement], *, run_id: str, recorded: Collection[str]
    ) -> None:
        """Remove the files and add their copies in one version."""
        del recorded  # ``delta.setTransactionRetentionDuration`` says how long marks stay.
        with named_permission(self._location, "write", DeltaError):
            self._replace(replaced, run_id)

    def _replace(self, replaced: Sequence[Replacement], run_id: str) -> None:
        for _ in range(COMMIT_ATTEMPTS_MAX):
            if any(one.old.path not in self._values for one in replaced):
                break
            try:
                self._replace_once(replaced, run_id)
            except CommitFailedError:
                self.open()
                if self.has_run(run_id):
                    return  # The store's client has sent this commit twice.
            else:
                self.open()
                return
        raise ExportConflict(f"other writers have changed {self._location} meanwhile")

    def has_run(self, run_id: str) -> bool:
        """Return whether the table has the run's transaction."""
        assert self._table is not None
        return self._table.transaction_version(ERASING_APPLICATION + run_id) is not None

    def commit_numbers(self) -> Mapping[str, int]:
        """Return none: the log shows which versions a RESTORE has left out."""
        return {}

    def undone(self, recorded: Mapping[str, int]) -> set[str]:
        """Return the runs of versions that a RESTORE has left out."""
        del recorded
        assert self._table is not None
        return undone_runs(self._location, self._table)

    def reached_by(self, paths: Collection[str]) -> list[str]:
        """Return the versions with one of the files, while one exists."""
        assert self._table is not None
        if not existing_files(f"{self._location}/{path}" for path in paths):
            return []
        return [f"versions before {self._table.version()}"]

    def expiry(self, paths: Collection[str]) -> Expiry:
        """Return the files; versions stay, and cannot be read without their files."""
        return Expiry(files=tuple(f"{self._location}/{path}" for path in paths))

    def expire(self, expiry: Expiry) -> None:
        """Delete the files, as VACUUM does, but none that a restored table has again."""
        self.open()
        current = {f"{self._location}/{path}" for path in self._values}
        delete_files(one for one in expiry.files if one not in current)

    def _replace_once(self, replaced: Sequence[Replacement], run_id: str) -> None:
        assert self._table is not None
        now_ms = wall_clock_ms()
        removed_count = sum(one.removed_count for one in replaced)
        removed = [
            RemoveAction(one.old.path, True, now_ms, None, self._values[one.old.path])
            for one in replaced
        ]
        added = [
            AddAction(
                path=one.new.path,
                size=one.new.size_bytes,
                partition_values=self._values[one.old.path],
                modification_time=now_ms,
                data_change=True,
                stats=json.dumps({"numRecords": one.new.row_count}),
            )
            for one in replaced
            if one.new is not None
        ]
        self._table.create_write_transaction(
            [*removed, *added],
            mode="append",
            schema=self._table.schema(),
            partition_by=self._table.metadata().partition_columns,
            commit_properties=CommitProperties(
                app_transactions=[Transaction(ERASING_APPLICATION + run_id, 1, now_ms)],
                custom_metadata={RUN: run_id, ERASED: str(removed_count)},
            ),
        )


def _partition_values(table: DeltaTable) -> dict[str, dict[str, str | None]]:
    actions = pa.table(table.get_add_actions(flatten=False))
    names = table.metadata().partition_columns
    return {
        row["path"]: {
            name: None if (value := row["partition"][name]) is None else str(value)
            for name in names
        }
        for row in actions.to_pylist()
    }
