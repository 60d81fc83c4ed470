"""A folder of Parquet files with a commit log beside them.

    <location>/run=<run id>/kafka_date=2026-11-21/kafka_hour=13/<name>.parquet
    <location>/_tidelog/commits/<number, 20 digits>.json

Each run writes into its own folder. Its files are valid once a commit names them: commits
are numbered without gaps, each number is written once, by the first writer, and contains
the end offsets of all partitions. A run folder without a commit is left over from a crash,
or belongs to a running export; ``committed_files`` omits it. A program that lists the
folders without reading the log may see such files.

    {"format_version": 1, "kind": "export", "run_id": …, "committed_ms": …,
     "files": [{"path": …, "size_bytes": …, "row_count": …}],
     "offsets": {"<topic id>-<partition>": next offset}, "schema": <base64 of Arrow's>}

A commit of an erasure has format version 2 and ``"removed": [path, …]``: files of earlier commits
that are no longer valid, because its own files replace them.
"""

from __future__ import annotations

import base64
import json
import posixpath
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import partial

import pyarrow as pa
from tidelog_core.clock import wall_clock_ms
from tidelog_core.errors import ObjectExists
from tidelog_core.objects.store import ObjectStore

from tidelog_spark.jobs.erasable_table import Expiry, delete_files, existing_files
from tidelog_spark.jobs.erased_rows import Replacement, TableFile
from tidelog_spark.jobs.export_table import (
    CorruptExport,
    ExportConflict,
    Offsets,
    WrittenFile,
    merged_schema,
)
from tidelog_spark.jobs.table_state import with_state

COMMITS = "commits/"
FORMAT_VERSION = 1
REMOVING_FORMAT_VERSION = 2  # of commits that remove files
RUN_FOLDER = "run="
COMMIT_ATTEMPTS_MAX = 10


@dataclass(frozen=True, slots=True)
class Commit:
    """The content of one commit."""

    number: int
    run_id: str
    files: tuple[WrittenFile, ...]
    offsets: Offsets
    schema: pa.Schema
    removed: tuple[str, ...] = ()  # paths of earlier commits' files


class ParquetTable:
    """A folder as the target of exports."""

    has_partition_columns = True

    def __init__(self, location: str) -> None:
        self._location = location.rstrip("/")
        self._last: Commit | None = None
        self._schema: pa.Schema | None = None
        self._commits: list[Commit] = []  # as of ``open``

    @property
    def location(self) -> str:
        """Return the folder's URL."""
        return self._location

    def prepare(self, schema: pa.Schema) -> pa.Schema:
        """Read the last commit; nothing is written before the next one."""
        self._last = with_state(self._location, _last_commit)
        known = schema if self._last is None else self._last.schema
        self._schema = merged_schema(known, schema)
        return self._schema

    def offsets(self, partitions: Collection[str]) -> Offsets:
        """Return the offsets in the last commit."""
        known = {} if self._last is None else self._last.offsets
        return {one: known[one] for one in partitions if one in known}

    def commit(self, files: Sequence[WrittenFile], offsets: Offsets, *, run_id: str) -> None:
        """Write the next commit, unless it exists."""
        assert self._schema is not None
        number = 0 if self._last is None else self._last.number + 1
        known = {} if self._last is None else self._last.offsets
        commit = Commit(number, run_id, tuple(files), {**known, **offsets}, self._schema)

        async def write(store: ObjectStore) -> None:
            if not await _put_new(store, commit):
                raise ExportConflict(
                    f"commit {number} of {self._location} was written by another export"
                )

        with_state(self._location, write)

    # -- erasing --

    run_folder = RUN_FOLDER + "{}"

    def open(self) -> bool:
        """Read all commits."""
        self._commits = with_state(self._location, _all_commits)
        self._last = self._commits[-1] if self._commits else None
        return self._last is not None

    def files(self) -> list[TableFile]:
        """Return the committed files."""
        return [
            TableFile(
                path=one.path,
                url=f"{self._location}/{one.path}",
                folder=posixpath.dirname(one.path).partition("/")[2],
                hour=one.hour,
            )
            for one in _valid(self._commits).values()
        ]

    def replace(self, replaced: Sequence[Replacement], *, run_id: str) -> None:
        """Write a commit that removes the files and adds their copies."""
        for _ in range(COMMIT_ATTEMPTS_MAX):
            valid = _valid(self._commits)
            if any(one.old.path not in valid for one in replaced):
                break
            assert self._last is not None
            commit = Commit(
                self._last.number + 1,
                run_id,
                tuple(one.new for one in replaced if one.new is not None),
                self._last.offsets,
                self._last.schema,
                tuple(one.old.path for one in replaced),
            )
            if with_state(self._location, partial(_put_new, commit=commit)):
                self.open()
                return
            self.open()
        raise ExportConflict(f"other runs have changed {self._location} meanwhile")

    def has_run(self, run_id: str) -> bool:
        """Return whether a commit has this run's id."""
        return any(one.run_id == run_id for one in self._commits)

    def reached_by(self, paths: Collection[str]) -> list[str]:
        """Return the last commit before the files were removed, while one of them exists."""
        urls = [f"{self._location}/{path}" for path in paths]
        if not existing_files(urls):
            return []
        removed = [one.number for one in self._commits if not {*paths}.isdisjoint(one.removed)]
        return [f"commits before {number}, and programs that list the folder" for number in removed]

    def expiry(self, paths: Collection[str]) -> Expiry:
        """Return the files; commits stay, since they have only names."""
        return Expiry(files=tuple(f"{self._location}/{path}" for path in paths))

    def expire(self, expiry: Expiry) -> None:
        """Delete the files."""
        delete_files(expiry.files)


def committed_files(location: str) -> list[str]:
    """Return the URLs of the committed files, in the order of their commits.

    Read them with ``spark.read.option("basePath", location).parquet(*files)``.
    """
    location = location.rstrip("/")

    commits = with_state(location, _all_commits)
    return [f"{location}/{path}" for path in _valid(commits)]


def _valid(commits: Sequence[Commit]) -> dict[str, WrittenFile]:
    """Return the files that count, by path, in the order of their commits."""
    found: dict[str, WrittenFile] = {}
    for commit in commits:
        for path in commit.removed:
            found.pop(path, None)
        found.update((file.path, file) for file in commit.files)
    return found


async def _all_commits(store: ObjectStore) -> list[Commit]:
    return [_decode(item.key, await store.get(item.key)) async for item in store.list(COMMITS)]


async def _put_new(store: ObjectStore, commit: Commit) -> bool:
    """Write the commit; return whether its number was free."""
    try:
        await store.put(f"{COMMITS}{commit.number:020}.json", _encode(commit))
    except ObjectExists:
        return False
    return True


async def _last_commit(store: ObjectStore) -> Commit | None:
    last = None
    async for item in store.list(COMMITS):
        last = item.key
    return None if last is None else _decode(last, await store.get(last))


def _encode(commit: Commit) -> bytes:
    document = {
        "format_version": REMOVING_FORMAT_VERSION if commit.removed else FORMAT_VERSION,
        "kind": "export",
        "run_id": commit.run_id,
        "committed_ms": wall_clock_ms(),
        "files": [
            {
                "path": one.path,
                "size_bytes": one.size_bytes,
                "row_count": one.row_count,
                "hour": one.hour,
            }
            for one in commit.files
        ],
        **({"removed": list(commit.removed)} if commit.removed else {}),
        "offsets": dict(sorted(commit.offsets.items())),
        "schema": base64.b64encode(commit.schema.serialize().to_pybytes()).decode(),
    }
    return json.dumps(document, indent=1).encode()


def _decode(key: str, data: bytes) -> Commit:
    try:
        document = json.loads(data)
        if document["format_version"] not in (FORMAT_VERSION, REMOVING_FORMAT_VERSION):
            raise CorruptExport(f"{key} has format version {document['format_version']}")
        buffer = pa.py_buffer(base64.b64decode(document["schema"]))
        return Commit(
            int(key.removeprefix(COMMITS).removesuffix(".json")),
            document["run_id"],
            tuple(WrittenFile(**one) for one in document["files"]),
            {str(name): int(offset) for name, offset in document["offsets"].items()},
            pa.ipc.read_schema(buffer),
            tuple(map(str, document.get("removed", ()))),
        )
    except (ValueError, KeyError, TypeError, AttributeError, pa.ArrowException) as error:
        raise CorruptExport(f"{key} cannot be read: {error}") from None
