"""A folder of Parquet files with a commit log beside them.

    <location>/run=<run id>/kafka_date=2026-11-21/kafka_hour=13/<name>.parquet
    <location>/_tidelog/commits/<number, 20 digits>.json

Each run writes into its own folder. Its files are valid once a commit names them
(``parquet_commits``). A run folder without a commit is left over from a crash, or belongs to a
running export; ``committed_files`` omits it. A program that lists the folders without reading the
log may see such files.
"""

from __future__ import annotations

import posixpath
from collections.abc import Collection, Mapping, Sequence
from functools import partial

import pyarrow as pa
from tidelog_core.objects.store import ObjectStore

from tidelog_spark.jobs.formats.parquet_commits import (
    Commit,
    CommitLog,
    last_commit,
    put_commit,
    read_log,
)
from tidelog_spark.jobs.tables.columns import merged_schema, require_distinct
from tidelog_spark.jobs.tables.erasable_table import Expiry, delete_files, existing_files
from tidelog_spark.jobs.tables.erased_rows import Replacement, TableFile
from tidelog_spark.jobs.tables.export_table import ExportConflict, Offsets, WrittenFile
from tidelog_spark.jobs.tables.table_places import check_location
from tidelog_spark.jobs.tables.table_state import check_state_is_here, with_state

RUN_FOLDER = "run="
COMMIT_ATTEMPTS_MAX = 10


class ParquetTable:
    """A folder as the target of exports."""

    has_partition_columns = True

    def __init__(self, location: str) -> None:
        self._location = location.rstrip("/")
        self._last: Commit | None = None
        self._schema: pa.Schema | None = None
        self._log = CommitLog(-1, {}, [])  # as of ``open``

    @property
    def location(self) -> str:
        """Return the folder's URL."""
        return self._location

    def prepare(self, schema: pa.Schema, *, segments: str | None = None) -> pa.Schema:
        """Read the last commit; nothing is written before the next one."""
        check_location(self._location, segments)
        self._last = with_state(self._location, last_commit)
        if self._last is None:
            check_state_is_here(self._location)
            require_distinct(schema)
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
            if not await put_commit(store, commit):
                raise ExportConflict(
                    f"commit {number} of {self._location} was written by another export"
                )

        with_state(self._location, write)

    # -- erasing --

    run_folder = RUN_FOLDER + "{}"

    def open(self) -> bool:
        """Read all commits."""
        self._log = with_state(self._location, read_log)
        self._last = self._log.last
        if self._last is None:
            check_state_is_here(self._location)
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
            for one in self._log.files.values()
        ]

    def older_files(self) -> list[TableFile]:
        """Return none: only erasures remove files, and their receipts name them."""
        return []

    def replace(
        self, replaced: Sequence[Replacement], *, run_id: str, recorded: Collection[str]
    ) -> None:
        """Write a commit that removes the files and adds their copies."""
        del recorded  # Commits stay.
        for _ in range(COMMIT_ATTEMPTS_MAX):
            if any(one.old.path not in self._log.files for one in replaced):
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
            if with_state(self._location, partial(put_commit, commit=commit)):
                self.open()
                return
            self.open()
        raise ExportConflict(f"other runs have changed {self._location} meanwhile")

    def has_run(self, run_id: str) -> bool:
        """Return whether an erasure's commit has this run's id."""
        return any(one.run_id == run_id for one in self._log.removals)

    def commit_numbers(self) -> Mapping[str, int]:
        """Return none: no commit is ever undone."""
        return {}

    def undone(self, recorded: Mapping[str, int]) -> set[str]:
        """Return none: commits only follow each other."""
        del recorded
        return set()

    def reached_by(self, paths: Collection[str]) -> list[str]:
        """Return the last commit before the files were removed, while one of them exists."""
        urls = [f"{self._location}/{path}" for path in paths]
        if not existing_files(urls):
            return []
        removed = [one.number for one in self._log.removals if not {*paths}.isdisjoint(one.removed)]
        return [f"commits before {number}, and programs that list the folder" for number in removed]

    def expiry(self, paths: Collection[str]) -> Expiry:
        """Return the files; commits stay, since they have only names."""
        return Expiry(files=tuple(f"{self._location}/{path}" for path in paths))

    def expire(self, expiry: Expiry) -> None:
        """Delete the files."""
        delete_files(expiry.files)
