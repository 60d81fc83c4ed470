"""An Iceberg table to export to, through ``pyiceberg``.

A run's files are appended by one commit, which also sets a table property for each
partition: its next offset. The same offsets are in the snapshot's summary, for readers of
the history. The property is authoritative, because snapshots expire. A commit is based on
the snapshot that the offsets were read with; after another commit the offsets are read
again, and only if they are unchanged is the commit repeated.
Source: Iceberg table spec, optimistic concurrency and snapshot summaries.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence

import pyarrow as pa
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import (
    CommitFailedException,
    NamespaceAlreadyExistsError,
    NoSuchTableError,
    TableAlreadyExistsError,
)
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.table import Table, TableProperties
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.transforms import DayTransform, HourTransform
from tidelog_core.errors import InvalidConfig

from tidelog_spark.jobs.formats.catalog_errors import mapped_errors, text_of
from tidelog_spark.jobs.tables.columns import merged_schema, require_distinct
from tidelog_spark.jobs.tables.export_table import (
    DATE_COLUMN,
    HOUR_COLUMN,
    TIMESTAMP_COLUMN,
    CorruptExport,
    ExportConflict,
    Offsets,
    SchemaConflict,
    TimePartitions,
    WrittenFile,
    offsets_to_text,
)
from tidelog_spark.jobs.tables.table_places import catalog_url, check_location

PROPERTY = "tidelog.export."
# And a partition: the sequence number of the snapshot of its first export.
SINCE_PROPERTY = "tidelog.export-since."
SUMMARY_OFFSETS = "tidelog.offsets"
SUMMARY_RUN = "tidelog.run"
COMMIT_ATTEMPTS_MAX = 10

_TRANSFORMS = {
    TimePartitions.DAY: (DayTransform(), DATE_COLUMN),
    TimePartitions.HOUR: (HourTransform(), HOUR_COLUMN),
}


def open_catalog(properties: Mapping[str, str]) -> Catalog:
    """Return the catalog with these properties. Raises ``InvalidConfig``."""
    try:
        with mapped_errors("catalog"):
            return load_catalog("tidelog", **properties)
    except ValueError as error:
        raise InvalidConfig([f"the Iceberg catalog cannot be opened: {text_of(error)}"]) from None


class IcebergTable:
    """An Iceberg table, created by the first export. Partitioned by hidden timestamp columns."""

    has_partition_columns = False

    def __init__(self, catalog: Catalog, name: str, partitions: TimePartitions) -> None:
        self._catalog = catalog
        self._name = name
        self._partitions = partitions
        self._table: Table | None = None

    @property
    def catalog(self) -> Catalog:
        """Return the table's catalog."""
        return self._catalog

    @property
    def name(self) -> str:
        """Return the table's name in its catalog."""
        return self._name

    @property
    def location(self) -> str:
        """Return the URL of the location that the table's metadata have."""
        assert self._table is not None
        return catalog_url(location_in(self._table))

    def prepare(self, schema: pa.Schema, *, segments: str | None = None) -> pa.Schema:
        """Create the table, add columns or widen them, in a commit without files."""
        try:
            with mapped_errors(self._name):
                return self._prepare(schema, segments)
        except (
            CommitFailedException,
            NamespaceAlreadyExistsError,
            TableAlreadyExistsError,
        ) as error:
            raise ExportConflict(
                f"another run has created or changed {self._name} meanwhile: run this again"
                f" ({error})"
            ) from None

    def _prepare(self, schema: pa.Schema, segments: str | None) -> pa.Schema:
        if "." not in self._name.strip("."):
            raise InvalidConfig([f"the table {self._name!r} must be NAMESPACE.NAME"])
        table = self._table = self._load() or self._create(schema, segments)
        check_location(self.location, segments)
        known = _plain_schema(table)
        merged = merged_schema(known, schema, evolves=True)
        if merged != known:
            with table.update_schema() as update:
                update.union_by_name(merged)
        return merged

    def offsets(self, partitions: Collection[str]) -> Offsets:
        """Return the offsets in the table's properties."""
        assert self._table is not None
        return stored_offsets(self._table, partitions)

    def commit(self, files: Sequence[WrittenFile], offsets: Offsets, *, run_id: str) -> None:
        """Append the files and set the properties; retries after unrelated commits."""
        with mapped_errors(self._name, is_commit=True):
            self._commit(files, offsets, run_id)

    def _commit(self, files: Sequence[WrittenFile], offsets: Offsets, run_id: str) -> None:
        assert self._table is not None
        expected = stored_offsets(self._table, offsets)
        for _ in range(COMMIT_ATTEMPTS_MAX):
            try:
                self._commit_once(self._table, files, offsets, {*expected}, run_id)
            except CommitFailedException:
                self._table = self._catalog.load_table(self._name)
                if _has_commit_of(self._table, run_id):
                    return  # The catalog's client has sent this commit twice.
                if stored_offsets(self._table, offsets) != expected:
                    break
            else:
                return
        raise ExportConflict(f"another commit to {self._name} was faster")

    def _commit_once(
        self,
        table: Table,
        files: Sequence[WrittenFile],
        offsets: Offsets,
        known: Collection[str],  # partitions that were exported before
        run_id: str,
    ) -> None:
        without_retries(table)
        number = str(table.metadata.next_sequence_number())
        with table.transaction() as transaction:
            transaction.set_properties(
                {
                    **{PROPERTY + name: str(offset) for name, offset in offsets.items()},
                    **{SINCE_PROPERTY + name: number for name in {*offsets} - {*known}},
                }
            )
            transaction.add_files(
                [f"{location_in(table)}/{one.path}" for one in files],
                snapshot_properties={
                    SUMMARY_OFFSETS: offsets_to_text(offsets),
                    SUMMARY_RUN: run_id,
                },
                # Their names are new in every run, so there are no duplicates to look for.
                check_duplicate_files=False,
            )

    def _load(self) -> Table | None:
        try:
            table = self._catalog.load_table(self._name)
        except NoSuchTableError:
            return None
        has = [
            (table.schema().find_column_name(field.source_id), str(field.transform))
            for field in table.spec().fields
        ]
        wanted = []
        if self._partitions in _TRANSFORMS:
            wanted = [(TIMESTAMP_COLUMN, str(_TRANSFORMS[self._partitions][0]))]
        if has != wanted:
            raise SchemaConflict([f"the table is partitioned by {has}, not by {wanted}"])
        return table

    def _create(self, schema: pa.Schema, segments: str | None) -> Table:
        require_distinct(schema)
        self._catalog.create_namespace_if_not_exists(self._name.rpartition(".")[0])
        try:
            creation = self._catalog.create_table_transaction(self._name, schema=schema)
        except ValueError as error:
            raise InvalidConfig(
                [
                    f"the table {self._name} cannot be created: {text_of(error)}; the catalog may"
                    " need the property warehouse, such as warehouse=s3://bucket/folder"
                ]
            ) from None
        with creation as transaction:
            # An error in this block creates no table.
            check_location(catalog_url(transaction.table_metadata.location), segments)
            if self._partitions in _TRANSFORMS:
                transform, name = _TRANSFORMS[self._partitions]
                with transaction.update_spec() as spec:
                    spec.add_field(TIMESTAMP_COLUMN, transform, name)
        return self._catalog.load_table(self._name)


def location_in(table: Table) -> str:
    """Return the location as the table's metadata have it, without a slash at its end."""
    location: str = table.location().rstrip("/")
    return location


def without_retries(table: Table) -> None:
    """Turn pyiceberg's own retries off: they would commit even after another export's commit.

    The setting applies to this object only; it is not written.
    """
    settings = {**table.metadata.properties, TableProperties.COMMIT_NUM_RETRIES: "0"}
    table.metadata = table.metadata.model_copy(update={"properties": settings})


def _has_commit_of(table: Table, run_id: str) -> bool:
    """Return whether a snapshot is the run's: its files must stay.

    A catalog's client that gets no answer sends a commit again, and the catalog refuses the second.
    """
    return any(
        one.summary is not None and one.summary[SUMMARY_RUN] == run_id
        for one in reversed(table.metadata.snapshots)
    )


def stored_offsets(table: Table, partitions: Collection[str]) -> dict[str, int]:
    """Return the offsets in the table's properties. Raises ``CorruptExport``.

    A rollback to an older snapshot leaves the properties as they are: the offsets of the snapshots
    count, if they are lower. A partition that the older snapshot did not have yet has none.
    """
    rows = _offsets_of_snapshots(table, partitions)
    gone = _rolled_back(table, {*partitions} - rows.keys())
    found = {}
    for partition in partitions:
        text = table.metadata.properties.get(PROPERTY + partition)
        if text is None or partition in gone:
            continue
        if not text.isdecimal():
            raise CorruptExport(f"the property {PROPERTY}{partition} is {text!r}, no offset")
        found[partition] = min(int(text), rows.get(partition, int(text)))
    return found


def ancestors(table: Table) -> Iterator[Snapshot]:
    """Yield the current snapshot and those before it, up to the first that was expired."""
    snapshot = table.current_snapshot()
    while snapshot is not None:
        yield snapshot
        parent = snapshot.parent_snapshot_id
        snapshot = None if parent is None else table.snapshot_by_id(parent)


def _offsets_of_snapshots(table: Table, partitions: Collection[str]) -> dict[str, int]:
    """Return each partition's offset in the last ancestor of the current snapshot that has it."""
    wanted, found = {*partitions}, dict[str, int]()
    for snapshot in ancestors(table):
        offsets = _snapshot_offsets(snapshot)
        found = {**{one: offsets[one] for one in wanted & offsets.keys()}, **found}
        if len(found) == len(wanted):
            break
    return found


def _rolled_back(table: Table, missing: Collection[str]) -> set[str]:
    """Return the partitions of which a rollback has left out the first export.

    ``missing`` are those that no ancestor of the current snapshot has offsets of. An ancestor that
    was expired may have had those whose first export is older: for them the properties count.
    """
    held = list(ancestors(table)) if missing else []
    if not held:
        return set()
    ids, first = {one.snapshot_id for one in held}, held[-1].sequence_number or 0
    since = ((one, table.metadata.properties.get(SINCE_PROPERTY + one, "")) for one in missing)
    gone = {one for one, number in since if number.isdecimal() and int(number) > first}
    if held[-1].parent_snapshot_id is not None:
        return gone
    left_out = (
        one
        for one in table.metadata.snapshots
        # Older ones were replaced, as by CREATE OR REPLACE TABLE, which keeps their rows.
        if one.snapshot_id not in ids and (one.sequence_number or 0) > first
    )
    return gone | {name for one in left_out for name in _snapshot_offsets(one).keys() & {*missing}}


def _snapshot_offsets(snapshot: Snapshot) -> dict[str, int]:
    """Return the offsets in an export's snapshot. Raises ``CorruptExport``."""
    text = None if snapshot.summary is None else snapshot.summary[SUMMARY_OFFSETS]
    if text is None:
        return {}
    try:
        return {one: int(offset) for one, offset in json.loads(text).items()}
    except (ValueError, TypeError, AttributeError):
        raise CorruptExport(
            f"snapshot {snapshot.snapshot_id} has {SUMMARY_OFFSETS} {text!r}"
        ) from None


def _plain_schema(table: Table) -> pa.Schema:
    schema = schema_to_pyarrow(table.schema(), include_field_ids=False)
    return pa.schema([pa.field(field.name, _plain(field.type)) for field in schema])


def _plain(arrow: pa.DataType) -> pa.DataType:
    """Return the decoders' type: pyiceberg makes every string a large one."""
    if pa.types.is_large_string(arrow):
        return pa.string()
    if pa.types.is_large_binary(arrow):
        return pa.binary()
    if pa.types.is_large_list(arrow) or pa.types.is_list(arrow):
        return pa.list_(_plain(arrow.value_type))
    if pa.types.is_map(arrow):
        return pa.map_(_plain(arrow.key_type), _plain(arrow.item_type))
    if pa.types.is_struct(arrow):
        return pa.struct([(field.name, _plain(field.type)) for field in arrow])
    return arrow
