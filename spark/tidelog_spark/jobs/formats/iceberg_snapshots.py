"""The files that snapshots of an Iceberg table name: data files, manifests and their lists."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from pyiceberg.io import FileIO
from pyiceberg.manifest import ManifestFile
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot


def heads(table: Table) -> set[int]:
    """Return the snapshots of branches and tags."""
    return {ref.snapshot_id for ref in table.metadata.refs.values()}


def snapshots_with(table: Table, paths: Collection[str]) -> Iterator[Snapshot]:
    """Yield the snapshots that have one of the files."""
    wanted, seen = {*paths}, dict[str, frozenset[str]]()
    for snapshot in table.metadata.snapshots:
        if _reached(table, snapshot, wanted, seen):
            yield snapshot


def named_files(table: Table, snapshots: Iterable[Snapshot], names: Collection[str]) -> set[str]:
    """Return those of the files, data and metadata, that one of the snapshots names."""
    wanted, found, seen = {*names}, set[str](), dict[str, frozenset[str]]()
    for one in snapshots:
        found |= metadata_files(table.io, one) & wanted
        found |= _reached(table, one, wanted, seen)
    return found


def live_files(io: FileIO, manifest: ManifestFile) -> set[str]:
    """Return the files that the manifest has and does not delete."""
    entries = manifest.fetch_manifest_entry(io, discard_deleted=True)
    return {entry.data_file.file_path for entry in entries}


def metadata_files(io: FileIO, snapshot: Snapshot) -> set[str]:
    """Return the snapshot's manifest list and manifests."""
    return {snapshot.manifest_list, *(one.manifest_path for one in snapshot.manifests(io))}


def _reached(
    table: Table,
    snapshot: Snapshot,
    paths: Collection[str],
    seen: dict[str, frozenset[str]],
) -> set[str]:
    """Return those of the files that the snapshot has; ``seen`` keeps them by manifest."""
    found: set[str] = set()
    for manifest in snapshot.manifests(table.io):
        if manifest.manifest_path not in seen:
            seen[manifest.manifest_path] = frozenset(
                live_files(table.io, manifest).intersection(paths)
            )
        found |= seen[manifest.manifest_path]
    return found
