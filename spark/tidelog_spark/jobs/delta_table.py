"""A Delta table to export to, through ``deltalake``.

The next offset of each partition is the version of an application transaction of the
table (``txn`` in the protocol), named after the partition. Files and versions are in one
commit, checkpoints keep the versions forever, and if two concurrent commits set the
version of the same application, the later one fails. Source: Delta transaction log
protocol, transaction identifiers.

RESTORE brings files of an older version back, and leaves the transactions as they are. So a commit
tells the offsets in its information, too: if none has followed a RESTORE, those of the older
version count.
"""

from __future__ import annotations

import json
import posixpath
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Schema, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, RemoveAction
from tidelog_core.clock import wall_clock_ms

from tidelog_spark.jobs.columns import merged_schema, require_distinct
from tidelog_spark.jobs.erasable_table import Expiry, delete_files, existing_files
from tidelog_spark.jobs.erased_rows import Replacement, TableFile, UnreadableTableFile
from tidelog_spark.jobs.export_table import (
    CorruptExport,
    ExportConflict,
    Offsets,
    SchemaConflict,
    TimePartitions,
    WrittenFile,
    offsets_to_text,
    partition_fields,
)
from tidelog_spark.jobs.table_access import named_permission
from tidelog_spark.jobs.table_places import check_location

APPLICATION = "tidelog-export/"
ERASING_APPLICATION = "tidelog-erasure/"  # and the run's id: the mark of its commit
RUN = "tidelog.run"  # in a commit's information
OFFSETS = "tidelog.offsets"  # of an export's commit: of all its partitions, after it
ERASED = "tidelog.erased-rows"  # of an erasure's commit
COMMIT_ATTEMPTS_MAX = 10
COMMITS_LOOKED_AT = 100
_LOOKS = (1, 10, COMMITS_LOOKED_AT)  # the last commit most often tells enough


class DeltaLakeTable:
    """A Delta table, created by the first export."""

    has_partition_columns = True

    def __init__(self, location: str, partitions: TimePartitions) -> None:
        self._location = location.rstrip("/")
        self._partitions = partitions
        self._columns = [field.name for field in partition_fields(partitions)]
        self._table: DeltaTable | None = None
        self._exported: Offsets = {}  # as last told
        # Of the files as of ``open``, by path: their partition's values.
        self._values: dict[str, dict[str, str | None]] = {}

    @property
    def location(self) -> str:
        """Return the table's URL."""
        return self._location

    def prepare(self, schema: pa.Schema, *, segments: str | None = None) -> pa.Schema:
        """Create the table or add columns, in a commit without files."""
        check_location(self._location, segments)
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
            return DeltaTable.create(
                self._location, schema=Schema.from_arrow(schema), partition_by=self._columns
            )
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
            self._exported = _held_offsets(self._location, self._table, partitions)
        return self._exported

    def commit(self, files: Sequence[WrittenFile], offsets: Offsets, *, run_id: str) -> None:
        """Add the files and set the versions; retries after unrelated commits."""
        with named_permission(self._location, "write", DeltaError):
            self._commit(files, offsets, run_id)

    def _commit(self, files: Sequence[WrittenFile], offsets: Offsets, run_id: str) -> None:
        assert self._table is not None
        expected, schema = _offsets(self._table, offsets), self._table.schema()
        for _ in range(COMMIT_ATTEMPTS_MAX):
            try:
                self._commit_once(self._table, files, offsets, run_id)
            except CommitFailedError as error:
                # Another export, or only a change of a table setting.
                self._table = DeltaTable(self._location)
                if _has_commit_of(self._table, run_id):
                    return  # The store's client has sent this commit twice.
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
        """Return none: the log does not tell them, once it is cleaned up."""
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
        """Return none: the log tells which versions a RESTORE has left out."""
        return {}

    def undone(self, recorded: Mapping[str, int]) -> set[str]:
        """Return the runs of versions that a RESTORE has left out."""
        del recorded
        assert self._table is not None
        found, restored = set[str](), None
        for entry in self._table.history(COMMITS_LOOKED_AT):
            if restored is not None and entry["version"] > restored:
                if RUN in entry:
                    found.add(entry[RUN])
                continue
            restored = None
            if _is_restore(entry):
                number = str(_parameters(entry).get("version"))
                is_known = number.isdecimal()
                restored = int(number) if is_known else _restored(self._location, entry).version()
        return found

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


def _has_commit_of(table: DeltaTable, run_id: str) -> bool:
    """Return whether one of the last commits is the run's: its files must stay."""
    return any(one.get(RUN) == run_id for one in table.history(COMMITS_LOOKED_AT))


def _offsets(table: DeltaTable, partitions: Collection[str]) -> dict[str, int]:
    found = {}
    for partition in partitions:
        version = table.transaction_version(APPLICATION + partition)
        if version is not None:
            found[partition] = version
    return found


def _held_offsets(location: str, table: DeltaTable, partitions: Collection[str]) -> dict[str, int]:
    """Return the offsets up to which the table has its rows."""
    known = _offsets(table, partitions)  # The others were never exported.
    found: dict[str, int] = {}
    state, pending = table, {*known}
    for count in _LOOKS:
        entries = table.history(count)
        found, state, pending = _told(location, table, entries, {*known})
        if not pending or len(entries) < count:
            break
    return {**found, **_offsets(state, pending)}


def _told(
    location: str,
    table: DeltaTable,
    entries: Sequence[Mapping[str, Any]],
    pending: set[str],
) -> tuple[dict[str, int], DeltaTable, set[str]]:
    """Return the offsets that exports have told, the newest first.

    And of partitions of which none has told any: the state whose transactions count, and which.
    """
    found: dict[str, int] = {}
    for entry in entries:
        if not pending:
            break
        if entry["version"] > table.version():
            continue  # Left out by a RESTORE.
        if RUN in entry and ERASED not in entry:
            # An earlier program told only that it was a run.
            told = {*json.loads(entry[OFFSETS])} & pending if OFFSETS in entry else pending
            found |= _offsets(table, told)
            pending = pending - told
        elif _is_restore(entry):
            table = _restored(location, entry)
            pending = {*_offsets(table, pending)}
    return found, table, pending


def _is_restore(entry: Mapping[str, Any]) -> bool:
    return str(entry.get("operation", "")).upper() == "RESTORE"


def _parameters(entry: Mapping[str, Any]) -> Mapping[str, Any]:
    parameters: Mapping[str, Any] = entry.get("operationParameters") or {}
    return parameters


def _restored(location: str, restore: Mapping[str, Any]) -> DeltaTable:
    """Return the version that the RESTORE has brought back. Raises ``CorruptExport``."""
    version = _parameters(restore).get("version")
    time = _parameters(restore).get("timestamp") or _parameters(restore).get("datetime")
    table = DeltaTable(location)
    try:
        if version is not None and str(version).isdecimal():
            table.load_as_version(int(version))
        elif time is not None:
            table.load_as_version(str(time))
        else:
            raise ValueError("it does not tell to which version")
    except (DeltaError, ValueError) as error:
        raise CorruptExport(
            f"version {restore.get('version')} of {location} is a RESTORE whose version cannot be"
            f" read any more: {error}; export into another table"
        ) from None
    return table
