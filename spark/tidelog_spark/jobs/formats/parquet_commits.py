"""The commit log of a folder of Parquet files.

    _tidelog/commits/<number, 20 digits>.json
    _tidelog/checkpoint.json                      what all commits up to one say together

Commits are numbered without gaps, each number is written once, by the first writer, and contains
the end offsets of all partitions.

    {"format_version": 1, "kind": "export", "run_id": …, "committed_ms": …,
     "files": [{"path": …, "size_bytes": …, "row_count": …, "hour": …}],
     "offsets": {"<topic id>-<partition>": next offset}, "schema": <base64 of Arrow's>}

A commit of an erasure has format version 2 and ``"removed": [path, …]``: files of earlier commits
that are no longer valid, because its own files replace them.

The checkpoint saves readers from reading all commits. It follows from them, so it may be deleted,
and an older one may replace a newer one.

    {"format_version": 1, "kind": "export-checkpoint", "number": …, "files": […],
     "removals": [{"number": …, "run_id": …, "removed": […]}]}
"""

from __future__ import annotations

import asyncio
import base64
import json
import logging
from collections.abc import AsyncIterator, Collection, Iterable
from dataclasses import asdict, dataclass
from typing import Any

import pyarrow as pa
from tidelog_core.clock import wall_clock_ms
from tidelog_core.errors import ObjectExists, ObjectNotFound
from tidelog_core.objects.store import ObjectStore

from tidelog_spark.jobs.tables.export_table import CorruptExport, Offsets, WrittenFile

logger = logging.getLogger(__name__)

COMMITS = "commits/"
CHECKPOINT = "checkpoint.json"
FORMAT_VERSION = 1
REMOVING_FORMAT_VERSION = 2  # of commits that remove files
CHECKPOINT_FROM = 100  # commits behind the checkpoint, until it is written again
GETS_MAX = 16  # under way at once


@dataclass(frozen=True, slots=True)
class Commit:
    """The content of one commit."""

    number: int
    run_id: str
    files: tuple[WrittenFile, ...]
    offsets: Offsets
    schema: pa.Schema
    removed: tuple[str, ...] = ()  # paths of earlier commits' files


@dataclass(frozen=True, slots=True)
class Removal:
    """The files that a commit has removed."""

    number: int
    run_id: str
    removed: tuple[str, ...]


@dataclass(slots=True)
class CommitLog:
    """The content of all commits up to a number."""

    number: int  # of the last commit; -1: there is none
    files: dict[str, WrittenFile]  # that are valid, by path, in the order of their commits
    removals: list[Removal]
    last: Commit | None = None  # None: there is none, or it was not read

    def add(self, commit: Commit) -> None:
        """Apply the next commit."""
        for path in commit.removed:
            self.files.pop(path, None)
        self.files.update((file.path, file) for file in commit.files)
        if commit.removed:
            self.removals.append(Removal(commit.number, commit.run_id, commit.removed))
        self.number, self.last = commit.number, commit


async def read_log(store: ObjectStore) -> CommitLog:
    """Return what all commits say. Raises ``CorruptExport``."""
    log = await _checkpoint(store)
    # The checkpoint's own commit again, for its offsets and its schema.
    keys = [key async for key in _keys(store, max(log.number, 0))]
    for at in range(0, len(keys), GETS_MAX):
        for commit in await asyncio.gather(
            *(_commit(store, key) for key in keys[at : at + GETS_MAX])
        ):
            if commit.number == log.number:
                log.last = commit
            else:
                log.add(commit)
    if log.number >= 0 and log.last is None:
        raise _absent(log.number)
    return log


async def last_commit(store: ObjectStore) -> Commit | None:
    """Return the last commit; write the checkpoint if it is far behind."""
    number = (await _checkpoint(store)).number
    keys = [key async for key in _keys(store, max(number, 0))]
    if not keys and number >= 0:
        raise _absent(number)
    if not keys:
        return None
    if len(keys) > CHECKPOINT_FROM:
        log = await read_log(store)
        await store.replace(CHECKPOINT, _encode_checkpoint(log))
        return log.last
    return await _commit(store, keys[-1])


async def put_commit(store: ObjectStore, commit: Commit) -> bool:
    """Write the commit; return whether its number was free."""
    try:
        await store.put(_key(commit.number), _encode(commit))
    except ObjectExists:
        return False
    return True


def _absent(number: int) -> CorruptExport:
    return CorruptExport(f"{_key(number)} is not there, and {CHECKPOINT} has read it")


def _key(number: int) -> str:
    return f"{COMMITS}{number:020}.json"


async def _keys(store: ObjectStore, start: int) -> AsyncIterator[str]:
    """Yield the keys of the commits from a number on."""
    after = _key(start - 1) if start else ""
    async for item in store.list(COMMITS, start_after=after):
        yield item.key


async def _commit(store: ObjectStore, key: str) -> Commit:
    return _decode(key, await store.get(key))


async def _checkpoint(store: ObjectStore) -> CommitLog:
    try:
        document = json.loads(await store.get(CHECKPOINT))
        if document["format_version"] == FORMAT_VERSION:
            return CommitLog(
                int(document["number"]),
                {file.path: file for file in _files(document["files"])},
                [
                    Removal(int(one["number"]), one["run_id"], tuple(map(str, one["removed"])))
                    for one in document["removals"]
                ],
            )
    except ObjectNotFound:
        pass
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        # The commits say the same.
        logger.warning("commits are read again", extra={"reason": f"{CHECKPOINT}: {error!r}"})
    return CommitLog(-1, {}, [])


def _encode_checkpoint(log: CommitLog) -> bytes:
    document = {
        "format_version": FORMAT_VERSION,
        "kind": "export-checkpoint",
        "number": log.number,
        "files": [asdict(one) for one in log.files.values()],
        "removals": [asdict(one) for one in log.removals],
    }
    return json.dumps(document, separators=(",", ":")).encode()


def _encode(commit: Commit) -> bytes:
    document = {
        "format_version": REMOVING_FORMAT_VERSION if commit.removed else FORMAT_VERSION,
        "kind": "export",
        "run_id": commit.run_id,
        "committed_ms": wall_clock_ms(),
        "files": [asdict(one) for one in commit.files],
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
            tuple(_files(document["files"])),
            {str(name): int(offset) for name, offset in document["offsets"].items()},
            pa.ipc.read_schema(buffer),
            tuple(map(str, document.get("removed", ()))),
        )
    except (ValueError, KeyError, TypeError, AttributeError, pa.ArrowException) as error:
        raise CorruptExport(f"{key} cannot be read: {error}") from None


def _files(documents: Collection[Any]) -> Iterable[WrittenFile]:
    return [WrittenFile(**one) for one in documents]
