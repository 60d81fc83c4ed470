"""Receipts of the erasures that a table has followed, beside its files.

    <location>/_tidelog/erasures/<run id>.json

A run puts its receipt before its commit, as a plan, and again after it. A plan whose run is not
in the table has never taken effect. The receipts are also how a run knows what is left to do: for
each erasure and partition, the offset below which the table has no row of the key
(``followed_runs``).
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from tidelog_core.errors import CorruptObject
from tidelog_core.objects.store import ObjectStore

from tidelog_spark.jobs.tables.erasable_table import Expiry

FORMAT_VERSION = 1
FOLDER = "erasures/"
NOT_REACHED = (
    "copies of the table, and tables that were made from it",
    "rows whose key is another one, whatever their value says",
    "older versions of a Delta table whose files another program had rewritten before: VACUUM them",
    "versions that a bucket with versioning keeps, and backups",
    "files of failed runs that no commit names: delete them after a day",
)


@dataclass(frozen=True, slots=True)
class FollowedPartition:
    """How far a table has followed an erasure in one partition."""

    partition: int
    up_to: int  # the erasure's
    applied_to: int  # the table has no row of the key below this offset


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowedErasure:
    """How far a table has followed an erasure."""

    erasure_id: str
    topic: str
    topic_id: str
    key_sha256: str
    is_complete: bool  # nothing is left to do, now or later
    partitions: tuple[FollowedPartition, ...]


@dataclass(frozen=True, slots=True)
class ReplacedFile:
    """A file that left the table."""

    old: str
    new: str | None  # None: no row was left
    row_count: int  # erased rows


@dataclass(frozen=True, slots=True, kw_only=True)
class TableReceipt:
    """The result of a run."""

    run_id: str
    table: str
    started_ms: int
    is_committed: bool
    erasures: tuple[FollowedErasure, ...]
    replaced: tuple[ReplacedFile, ...]
    older: tuple[str, ...] = ()  # files that only older states have, with rows of the keys
    # Older states of the table that still have the rows; empty once the old files are deleted.
    reached_by: tuple[str, ...] = ()
    commit_number: int | None = None  # None: the table's commits have none, or it made none
    expiry: Expiry | None = None  # None: nobody has asked to give up old states
    files_deleted_ms: int | None = None  # None: the old files exist

    @property
    def row_count(self) -> int:
        """The number of erased rows."""
        return sum(one.row_count for one in self.replaced)

    @property
    def old_files(self) -> list[str]:
        """The files with rows of the keys, which older states of the table still name."""
        return [*(one.old for one in self.replaced), *self.older]

    @property
    def is_settled(self) -> bool:
        """Whether there is no old file to give up."""
        return self.is_committed and (not self.old_files or self.files_deleted_ms is not None)

    @property
    def is_gone(self) -> bool:
        """Whether no older state of the table has the rows."""
        return self.is_committed and not self.reached_by

    def document(self) -> dict[str, object]:
        """Return the receipt for JSON."""
        expiry = self.expiry
        return {
            "format_version": FORMAT_VERSION,
            "kind": "export-erasure",
            "run_id": self.run_id,
            "table": self.table,
            "started_ms": self.started_ms,
            "is_committed": self.is_committed,
            "commit_number": self.commit_number,
            "rows_erased": self.row_count,
            "erasures": [
                {
                    "erasure_id": one.erasure_id,
                    "topic": one.topic,
                    "topic_id": one.topic_id,
                    "key_sha256": one.key_sha256,
                    "is_complete": one.is_complete,
                    "partitions": [
                        {
                            "partition": each.partition,
                            "up_to_offset": each.up_to,
                            "applied_to_offset": each.applied_to,
                        }
                        for each in one.partitions
                    ],
                }
                for one in self.erasures
            ],
            "files_replaced": [
                {"old": one.old, "new": one.new, "rows_erased": one.row_count}
                for one in self.replaced
            ],
            "older_files": list(self.older),
            "still_reached_by": list(self.reached_by),
            "expiry": expiry and {"snapshots": list(expiry.snapshots), "files": list(expiry.files)},
            "files_deleted_ms": self.files_deleted_ms,
            "not_reached": list(NOT_REACHED),
        }

    @classmethod
    def parse(cls, document: Any, *, key: str) -> TableReceipt:
        """Return the receipt of a document. Raises ``CorruptObject``."""
        try:
            if document["format_version"] != FORMAT_VERSION:
                raise CorruptObject(key, f"it has format version {document['format_version']}")
            expiry = document["expiry"]
            return cls(
                run_id=document["run_id"],
                table=document["table"],
                started_ms=document["started_ms"],
                is_committed=document["is_committed"],
                erasures=tuple(map(_erasure_of, document["erasures"])),
                replaced=tuple(
                    ReplacedFile(one["old"], one["new"], one["rows_erased"])
                    for one in document["files_replaced"]
                ),
                older=tuple(map(str, document.get("older_files", ()))),  # not in earlier receipts
                reached_by=tuple(document["still_reached_by"]),
                commit_number=commit_number(
                    document.get("commit_number")
                ),  # not in earlier receipts
                expiry=expiry and Expiry(tuple(expiry["snapshots"]), tuple(expiry["files"])),
                files_deleted_ms=document["files_deleted_ms"],
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise CorruptObject(key, f"it is no receipt of a table: {error!r}") from None


async def read_receipt(store: ObjectStore, run_id: str) -> TableReceipt:
    """Return the run's receipt. Raises ``CorruptObject``, ``ObjectNotFound``."""
    key = f"{FOLDER}{run_id}.json"
    try:
        document = json.loads(await store.get(key))
    except ValueError as error:
        raise CorruptObject(key, f"it is no JSON: {error}") from None
    return TableReceipt.parse(document, key=key)


async def put_receipt(store: ObjectStore, receipt: TableReceipt) -> None:
    """Put the receipt, durable on return; it replaces an earlier one of the run."""
    data = json.dumps(receipt.document(), indent=1).encode() + b"\n"
    await store.replace(f"{FOLDER}{receipt.run_id}.json", data)


def commit_number(value: Any) -> int | None:
    """Return the number of a commit from JSON, or none. Raises ``ValueError``, ``TypeError``."""
    return None if value is None else int(value)


def _erasure_of(document: Any) -> FollowedErasure:
    return FollowedErasure(
        erasure_id=document["erasure_id"],
        topic=document["topic"],
        topic_id=document["topic_id"],
        key_sha256=document["key_sha256"],
        is_complete=document["is_complete"],
        partitions=tuple(
            FollowedPartition(one["partition"], one["up_to_offset"], one["applied_to_offset"])
            for one in document["partitions"]
        ),
    )
