"""The committed files of a Parquet table, for programs that read it (``docs/jobs.md``)."""

from __future__ import annotations

from tidelog_spark.jobs.formats.parquet_commits import read_log
from tidelog_spark.jobs.tables.table_state import with_state


def committed_files(location: str) -> list[str]:
    """Return the URLs of the committed files, in the order of their commits.

    Read them with ``spark.read.option("basePath", location).parquet(*files)``.
    """
    location = location.rstrip("/")
    return [f"{location}/{path}" for path in with_state(location, read_log).files]
