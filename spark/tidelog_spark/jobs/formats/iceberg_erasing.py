"""Erases rows from an Iceberg table: files replaced in one snapshot, old snapshots expired.

The snapshot of an erasure sets the table property ``tidelog.erasure.<run id>``, and its sequence
number as ``tidelog.erasure-since.<run id>``. The run's receipt has both once it is committed, so
the next erasure removes the properties. Snapshots before it still have the old files.
``expire`` removes these snapshots, then deletes what only they name: the old files, and the
manifests, which have the least and the greatest key of each file. Heads of branches and tags are
never removed: the receipt names them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

import pyarrow.parquet as pq
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import (
    CommitFailedException,
    NoSuchNamespaceError,
    NoSuchTableError,
    ValidationException,
)
from pyiceberg.io import FileIO
from pyiceberg.io.pyarrow import (
    _read_deletes,
    compute_statistics_plan,
    data_file_statistics_from_parquet_metadata,
    parquet_path_to_id_mapping,
)
from pyiceberg.manifest import (
    DATA_FILE_TYPE,
    DEFAULT_READ_VERSION,
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
)
from pyiceberg.table import FileScanTask, Table
from pyiceberg.table.snapshots import Operation, Snapshot
from pyiceberg.table.update.snapshot import _OverwriteFiles

from tidelog_spark.jobs.formats.catalog_errors import mapped_errors
from tidelog_spark.jobs.formats.iceberg_snapshots import (
    heads,
    live_files,
    metadata_files,
    named_files,
    snapshots_with,
)
from tidelog_spark.jobs.formats.iceberg_table import (
    COMMIT_ATTEMPTS_MAX,
    SUMMARY_RUN,
    ancestors,
    location_in,
    stored_offsets,
    without_retries,
)
from tidelog_spark.jobs.tables.erasable_table import Expiry, delete_files
from tidelog_spark.jobs.tables.erased_rows import Replacement, TableFile, UnreadableTableFile
from tidelog_spark.jobs.tables.export_table import ExportConflict, Offsets
from tidelog_spark.jobs.tables.table_places import catalog_url

ERASURE_PROPERTY = "tidelog.erasure."  # and the run's id: the mark of its commit
# And the run's id: the sequence number of its snapshot, to be known when that has expired.
SINCE_PROPERTY = "tidelog.erasure-since."
SUMMARY_ERASED = "tidelog.erased-rows"
_BOUNDS = tuple(
    number
    for number, field in enumerate(DATA_FILE_TYPE[DEFAULT_READ_VERSION].fields)
    if field.name in ("lower_bounds", "upper_bounds")
)


class IcebergErasing:
    """An Iceberg table whose rows are erased."""

    run_folder = "data/{}"

    def __init__(self, catalog: Catalog, name: str) -> None:
        self._catalog = catalog
        self._name = name
        self._table: Table | None = None
        self._files: dict[str, DataFile] = {}  # as of ``files``, by path

    @property
    def location(self) -> str:
        """Return the URL of the location that the table's metadata have."""
        return catalog_url(location_in(self._opened()))

    def open(self) -> bool:
        """Load the table."""
        try:
            with mapped_errors(self._name):
                self._table = self._catalog.load_table(self._name)
        except (NoSuchTableError, NoSuchNamespaceError):
            return False
        return True

    def offsets(self, partitions: Collection[str]) -> Offsets:
        """Return the offsets in the table's properties."""
        return stored_offsets(self._opened(), partitions)

    def files(self) -> list[TableFile]:
        """Return the data files of the current snapshot, with the rows deleted from them."""
        table = self._opened()
        try:
            tasks: list[FileScanTask] = list(table.scan().plan_files())
        except ValueError as error:
            raise UnreadableTableFile(
                f"{self._name}: {error}; rewrite the table's data files first"
            ) from None
        deletes: dict[str, Mapping[str, Sequence[int]]] = {}
        self._files, found = {}, []
        for task in tasks:
            deleted: set[int] = set()
            for file in task.delete_files:
                if file.file_path not in deletes:
                    deletes[file.file_path] = _positions(table.io, file)
                deleted.update(deletes[file.file_path].get(task.file.file_path, ()))
            self._files[task.file.file_path] = task.file
            path = task.file.file_path
            found.append(
                TableFile(
                    path=path,
                    url=catalog_url(path),
                    folder="",
                    deleted_rows=tuple(sorted(deleted)),
                )
            )
        return found

    def older_files(self) -> list[TableFile]:
        """Return the data files of older snapshots that the current one lacks.

        Another program may have rewritten them before, so no erasure has looked at them.
        """
        table, found, seen = self._opened(), dict[str, TableFile](), set[str]()
        for snapshot in table.metadata.snapshots:
            for manifest in snapshot.manifests(table.io):
                if manifest.content is not ManifestContent.DATA or manifest.manifest_path in seen:
                    continue
                seen.add(manifest.manifest_path)
                for path in live_files(table.io, manifest) - self._files.keys():
                    found[path] = TableFile(path=path, url=catalog_url(path), folder="")
        return list(found.values())

    def replace(
        self, replaced: Sequence[Replacement], *, run_id: str, recorded: Collection[str]
    ) -> None:
        """Commit a snapshot with the copies instead of the files."""
        with mapped_errors(self._name, is_commit=True):
            self._replace(replaced, run_id, recorded)

    def _replace(
        self, replaced: Sequence[Replacement], run_id: str, recorded: Collection[str]
    ) -> None:
        table = self._opened()
        spec_id = table.spec().spec_id
        if any(self._files[one.old.path].spec_id != spec_id for one in replaced):
            # pyiceberg would name the copies' partitions by the table's present partitioning.
            raise UnreadableTableFile(
                f"{self._name} has files of an earlier partitioning; rewrite its data files first"
            )
        for _ in range(COMMIT_ATTEMPTS_MAX):
            before = table.current_snapshot()
            try:
                self._replace_once(table, replaced, run_id, recorded)
            except ValidationException:
                break
            except CommitFailedException:
                table = self._table = self._catalog.load_table(self._name)
                if self.has_run(run_id):
                    return  # The catalog's client has sent this commit twice.
                if not _has_only_appends(table, before):
                    break
            else:
                self.open()
                return
        raise ExportConflict(f"another commit to {self._name} has changed its files meanwhile")

    def has_run(self, run_id: str) -> bool:
        """Return whether the table has the run's property, or its snapshot."""
        return run_id in self.commit_numbers()

    def commit_numbers(self) -> Mapping[str, int]:
        """Return the sequence numbers in properties, and of snapshots; 0: it is not known."""
        metadata = self._opened().metadata
        numbers: dict[str, int] = {}
        for name, value in metadata.properties.items():
            if name.startswith(ERASURE_PROPERTY):  # Earlier programs set this one only.
                numbers.setdefault(name.removeprefix(ERASURE_PROPERTY), 0)
            elif name.startswith(SINCE_PROPERTY) and value.isdecimal():
                numbers[name.removeprefix(SINCE_PROPERTY)] = int(value)
        return {**numbers, **_erasures(metadata.snapshots)}

    def undone(self, recorded: Mapping[str, int]) -> set[str]:
        """Return the runs whose snapshots the current one does not come after: a rollback.

        Also of snapshots that were expired after the rollback.
        """
        table = self._opened()
        held = list(ancestors(table))
        # What is older than these may come before them, too: snapshots between were expired.
        first = held[-1].sequence_number or 0 if held else 0
        numbers = {**recorded, **self.commit_numbers()}
        in_effect = _erasures(held)
        return {
            run_id
            for run_id, number in numbers.items()
            if run_id not in in_effect and number > first
        }

    def reached_by(self, paths: Collection[str]) -> list[str]:
        """Return the snapshots with one of the files, and their branches and tags."""
        table, found = self._opened(), []
        for snapshot in snapshots_with(table, paths):
            names = [
                name
                for name, ref in table.metadata.refs.items()
                if ref.snapshot_id == snapshot.snapshot_id
            ]
            name = f"snapshot {snapshot.snapshot_id}"
            found.append(f"{name} ({', '.join(sorted(names))})" if names else name)
        return found

    def expiry(self, paths: Collection[str]) -> Expiry:
        """Return the snapshots that reach the files, and all files that only they name."""
        table = self._opened()
        kept_heads = heads(table)
        going = [one for one in snapshots_with(table, paths) if one.snapshot_id not in kept_heads]
        gone = {one.snapshot_id for one in going}
        staying = [one for one in table.metadata.snapshots if one.snapshot_id not in gone]
        files = {name for one in going for name in metadata_files(table.io, one)} | {*paths}
        kept = named_files(table, staying, files)
        return Expiry(tuple(str(one.snapshot_id) for one in going), tuple(sorted(files - kept)))

    def expire(self, expiry: Expiry) -> None:
        """Remove the snapshots from the table, then delete the files that no other one names."""
        table = self._opened()
        removable = {one.snapshot_id for one in table.metadata.snapshots} - heads(table)
        ids = [int(text) for text in expiry.snapshots if int(text) in removable]
        if ids:
            try:
                with mapped_errors(self._name):
                    table.maintenance.expire_snapshots().by_ids(ids).commit()
            except CommitFailedException as error:
                raise ExportConflict(
                    f"other commits to {self._name} were faster: run this again ({error})"
                ) from None
        # Since the plan, a snapshot may have become a branch's or a tag's, or the table's again.
        self.open()
        table = self._opened()
        kept = named_files(table, table.metadata.snapshots, expiry.files)
        delete_files(catalog_url(one) for one in expiry.files if one not in kept)

    def _opened(self) -> Table:
        assert self._table is not None
        return self._table

    def _replace_once(
        self,
        table: Table,
        replaced: Sequence[Replacement],
        run_id: str,
        recorded: Collection[str],
    ) -> None:
        without_retries(table)
        marks = {prefix + one for prefix in (ERASURE_PROPERTY, SINCE_PROPERTY) for one in recorded}
        gone = sorted(marks & table.metadata.properties.keys())
        summary = {
            SUMMARY_RUN: run_id,
            SUMMARY_ERASED: str(sum(one.removed_count for one in replaced)),
        }
        with table.transaction() as transaction:
            transaction.set_properties(
                {
                    ERASURE_PROPERTY + run_id: summary[SUMMARY_ERASED],
                    SINCE_PROPERTY + run_id: str(table.metadata.next_sequence_number()),
                }
            )
            if gone:
                transaction.remove_properties(*gone)
            with _ErasingFiles(
                operation=Operation.OVERWRITE,
                transaction=transaction,
                io=table.io,
                snapshot_properties=summary,
            ) as snapshot:
                for one in replaced:
                    old = self._files[one.old.path]
                    snapshot.delete_data_file(old)
                    if one.new is not None:
                        url = f"{location_in(table)}/{one.new.path}"
                        snapshot.append_data_file(_data_file(table, url, old))


class _ErasingFiles(_OverwriteFiles):  # type: ignore[misc]  # pyiceberg is not followed
    """An overwrite whose entries of deleted files lack these files' least and greatest keys."""

    def _deleted_entries(self) -> list[ManifestEntry]:
        entries: list[ManifestEntry] = super()._deleted_entries()
        for entry in entries:
            for number in _BOUNDS:
                entry.data_file[number] = None
        return entries


def _data_file(table: Table, url: str, old: DataFile) -> DataFile:
    """Return the entry of a copy, in the partition of the file that it replaces."""
    source = table.io.new_input(url)
    with source.open() as stream:
        metadata = pq.read_metadata(stream)
    statistics = data_file_statistics_from_parquet_metadata(
        parquet_metadata=metadata,
        stats_columns=compute_statistics_plan(table.schema(), table.metadata.properties),
        parquet_column_mapping=parquet_path_to_id_mapping(table.schema()),
    )
    return DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=url,
        file_format=FileFormat.PARQUET,
        partition=old.partition,
        file_size_in_bytes=len(source),
        sort_order_id=None,
        spec_id=old.spec_id,
        equality_ids=None,
        key_metadata=None,
        **statistics.to_serialized_dict(),
    )


def _positions(io: FileIO, file: DataFile) -> dict[str, Sequence[int]]:
    """Return the deleted rows in a delete file, by the path of their data file."""
    return {path: positions.to_pylist() for path, positions in _read_deletes(io, file).items()}


def _has_only_appends(table: Table, since: Snapshot | None) -> bool:
    """Return whether all snapshots after the one only add files."""
    now = table.current_snapshot()
    while now is not None and since is not None:
        if now.snapshot_id == since.snapshot_id:
            return True
        if now.summary is None or now.summary.operation is not Operation.APPEND:
            return False
        parent = now.parent_snapshot_id
        now = None if parent is None else table.snapshot_by_id(parent)
    return False


def _erasures(snapshots: Iterable[Snapshot]) -> dict[str, int]:
    """Return the sequence numbers of those snapshots that are erasures, by their runs."""
    return {
        str(one.summary[SUMMARY_RUN]): one.sequence_number or 0
        for one in snapshots
        if one.summary is not None and one.summary[SUMMARY_ERASED] is not None
    }
