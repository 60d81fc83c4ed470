"""The interface of a table that can follow erasures, beside ``ExportTable``'s.

Rows leave a table by one commit, which replaces files by copies without them. The commit marks
the table with its run's id, so a run that was killed after it is recognised. Old files stay until
the states of the table that still name them are given up: snapshots, versions, or commits.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from pyarrow import fs
from tidelog_core.errors import TidelogError

from tidelog_spark.jobs.tables.erased_rows import Replacement, TableFile
from tidelog_spark.jobs.tables.export_table import Offsets
from tidelog_spark.jobs.tables.table_access import named_permission
from tidelog_spark.jobs.tables.table_places import filesystem_of


@dataclass(frozen=True, slots=True)
class Expiry:
    """Old states of a table to give up, and the files that go with them."""

    snapshots: tuple[str, ...] = ()  # their ids; empty for tables without snapshots
    files: tuple[str, ...] = ()  # URLs

    def joined(self, other: Expiry) -> Expiry:
        """Return both together."""
        return Expiry(
            tuple(dict.fromkeys((*self.snapshots, *other.snapshots))),
            tuple(dict.fromkeys((*self.files, *other.files))),
        )


class ErasableTable(Protocol):
    """A table whose rows can be erased. For one thread of the driver."""

    @property
    def location(self) -> str:
        """The URL below which files are written; known after ``open``."""

    @property
    def run_folder(self) -> str:
        """The folder of a run's files below the location, to be formatted with the run's id."""

    def open(self) -> bool:
        """Read the table's current state; return whether there is a table."""

    def offsets(self, partitions: Collection[str]) -> Offsets:
        """Return the partitions' exported offsets as of ``open``."""

    def files(self) -> list[TableFile]:
        """Return the table's files as of ``open``."""

    def older_files(self) -> list[TableFile]:
        """Return the files that only older states of the table name, as far as these are known."""

    def replace(
        self, replaced: Sequence[Replacement], *, run_id: str, recorded: Collection[str]
    ) -> None:
        """Replace the files in one commit, which sets the run's mark.

        ``recorded`` are runs whose marks are not needed any more: their receipts have the same.
        Repeated after commits that only append. Raises ``ExportConflict`` if another commit has
        changed one of the files since ``open``.
        """

    def has_run(self, run_id: str) -> bool:
        """Return whether the run's commit is in the table as of ``open``."""

    def commit_numbers(self) -> Mapping[str, int]:
        """Return the numbers of the commits of runs, as far as the table has them as of ``open``.

        Of tables whose commits have numbers by which ``undone`` knows them; others return none.
        """

    def undone(self, recorded: Mapping[str, int]) -> set[str]:
        """Return the runs that an older state, to which the table was restored, does not have.

        Of the last commits, as far as the table's history has them, and of those whose numbers
        are ``recorded`` in receipts.
        """

    def reached_by(self, paths: Collection[str]) -> list[str]:
        """Return the names of older states of the table that still have one of the files."""

    def expiry(self, paths: Collection[str]) -> Expiry:
        """Return the states and files to give up, so that nothing reaches these files."""

    def expire(self, expiry: Expiry) -> None:
        """Give up the states and delete the files. One that is gone already is no error."""


def existing_files(urls: Iterable[str]) -> list[str]:
    """Return the URLs of those files that exist."""
    found = []
    for url in urls:
        filesystem, path = filesystem_of(url)
        if filesystem.get_file_info(path).type is not fs.FileType.NotFound:
            found.append(url)
    return found


def delete_files(urls: Iterable[str]) -> None:
    """Delete the files that exist. Raises ``TableAccessDenied``."""
    for url in existing_files(urls):
        filesystem, path = filesystem_of(url)
        with named_permission(url, "delete"):
            filesystem.delete_file(path)


def delete_uncommitted(urls: Iterable[str]) -> str:
    """Delete files that no commit names; return the end of a message: the reason if it fails.

    For a caller that has an error to raise, which an error of the deletion must not replace.
    """
    try:
        delete_files(urls)
    except (TidelogError, OSError) as error:
        return f"; files that no commit names are left, delete them after a day ({error})"
    return ""
