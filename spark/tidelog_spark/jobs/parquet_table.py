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
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TypeVar

import pyarrow as pa
from tidelog_core.clock import wall_clock_ms
from tidelog_core.errors import ObjectExists
from tidelog_core.objects.location import open_object_store
from tidelog_core.objects.store import ObjectStore

from tidelog_spark.jobs.export_table import (
    CorruptExport,
    ExportConflict,
    Offsets,
    WrittenFile,
    merged_schema,
)

LOG_FOLDER = "_tidelog"  # names that start with _ are ignored by programs that list the folder
COMMITS = "commits/"
FORMAT_VERSION = 1
RUN_FOLDER = "run="

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Commit:
    """The content of one commit."""

    number: int
    run_id: str
    files: tuple[WrittenFile, ...]
    offsets: Offsets
    schema: pa.Schema


class ParquetTable:
    """A folder as the target of exports."""

    has_partition_columns = True

    def __init__(self, location: str) -> None:
        self._location = location.rstrip("/")
        self._last: Commit | None = None
        self._schema: pa.Schema | None = None

    @property
    def location(self) -> str:
        """Return the folder's URL."""
        return self._location

    def prepare(self, schema: pa.Schema) -> pa.Schema:
        """Read the last commit; nothing is written before the next one."""
        self._last = _with_store(self._location, _last_commit)
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
            try:
                await store.put(f"{COMMITS}{number:020}.json", _encode(commit))
            except ObjectExists:
                raise ExportConflict(
                    f"commit {number} of {self._location} was written by another export"
                ) from None

        _with_store(self._location, write)


def committed_files(location: str) -> list[str]:
    """Return the URLs of the committed files, in the order of their commits.

    Read them with ``spark.read.option("basePath", location).parquet(*files)``.
    """
    location = location.rstrip("/")

    async def read(store: ObjectStore) -> list[str]:
        found = []
        async for item in store.list(COMMITS):
            commit = _decode(item.key, await store.get(item.key))
            found += [f"{location}/{file.path}" for file in commit.files]
        return found

    return _with_store(location, read)


async def _last_commit(store: ObjectStore) -> Commit | None:
    last = None
    async for item in store.list(COMMITS):
        last = item.key
    return None if last is None else _decode(last, await store.get(last))


def _encode(commit: Commit) -> bytes:
    document = {
        "format_version": FORMAT_VERSION,
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
        "offsets": dict(sorted(commit.offsets.items())),
        "schema": base64.b64encode(commit.schema.serialize().to_pybytes()).decode(),
    }
    return json.dumps(document, indent=1).encode()


def _decode(key: str, data: bytes) -> Commit:
    try:
        document = json.loads(data)
        if document["format_version"] != FORMAT_VERSION:
            raise CorruptExport(f"{key} has format version {document['format_version']}")
        buffer = pa.py_buffer(base64.b64decode(document["schema"]))
        return Commit(
            int(key.removeprefix(COMMITS).removesuffix(".json")),
            document["run_id"],
            tuple(WrittenFile(**one) for one in document["files"]),
            {str(name): int(offset) for name, offset in document["offsets"].items()},
            pa.ipc.read_schema(buffer),
        )
    except (ValueError, KeyError, TypeError, AttributeError, pa.ArrowException) as error:
        raise CorruptExport(f"{key} cannot be read: {error}") from None


def _with_store(location: str, call: Callable[[ObjectStore], Awaitable[T]]) -> T:
    async def run() -> T:
        store = open_object_store(f"{location}/{LOG_FOLDER}")
        try:
            return await call(store)
        finally:
            await store.close()

    return asyncio.run(run())
