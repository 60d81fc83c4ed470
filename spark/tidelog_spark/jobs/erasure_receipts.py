"""Receipts of the erasures that a table has followed, beside its files.

    <location>/_tidelog/erasures/<run id>.json
    <location>/_tidelog/followed.json               what committed receipts say, in short

A run puts its receipt before its commit, as a plan, and again after it. A plan whose run is not
in the table has never taken effect. The receipts are also how a run knows what is left to do: for
each erasure and partition, the offset below which the table has no row of the key.

``followed.json`` saves later runs from reading all receipts. It may lack some, which are read then,
and it may be deleted.

    {"format_version": 1, "kind": "followed-erasures", "runs":
     [{"run_id": …, "is_settled": …, "commit_number": …, "complete": [erasure id, …],
       "applied": [[erasure id, partition, offset], …]}, …]}
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from tidelog_core.errors import CorruptObject, ObjectNotFound
from tidelog_core.objects.store import ObjectStore

from tidelog_spark.jobs.erasable_table import Expiry

logger = logging.getLogger(__name__)

FORMAT_VERSION = 1
FOLDER = "erasures/"
FOLLOWED = "followed.json"
GETS_MAX = 16  # under way at once
REMEMBERED_FROM = 50  # committed receipts that the file lacks, until it is written again
REMEMBERED_MAX = 100_000  # receipts in the file: the newest of those that it has
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
                commit_number=_number(document.get("commit_number")),  # not in earlier receipts
                expiry=expiry and Expiry(tuple(expiry["snapshots"]), tuple(expiry["files"])),
                files_deleted_ms=document["files_deleted_ms"],
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise CorruptObject(key, f"it is no receipt of a table: {error!r}") from None


@dataclass(frozen=True, slots=True)
class FollowedRun:
    """What a committed receipt says of erasures."""

    run_id: str
    is_settled: bool  # there is no old file to give up
    commit_number: int | None  # None: as of a receipt
    complete: tuple[str, ...]  # erasure ids
    applied: tuple[tuple[str, int, int], ...]  # erasure id, partition, offset

    @classmethod
    def of(cls, receipt: TableReceipt) -> FollowedRun:
        """Return it for a committed receipt."""
        return cls(
            receipt.run_id,
            receipt.is_settled,
            receipt.commit_number,
            tuple(one.erasure_id for one in receipt.erasures if one.is_complete),
            tuple(
                (one.erasure_id, each.partition, each.applied_to)
                for one in receipt.erasures
                for each in one.partitions
            ),
        )


class Followed:
    """What a table has followed, from its receipts."""

    def __init__(self, runs: Iterable[FollowedRun]) -> None:
        self._applied: dict[tuple[str, int], int] = {}
        self.complete: set[str] = set()  # erasure ids
        for run in runs:
            self.complete.update(run.complete)
            for erasure_id, partition, offset in run.applied:
                place = (erasure_id, partition)
                self._applied[place] = max(offset, self._applied.get(place, 0))

    def has_all_of(self, run: FollowedRun) -> bool:
        """Return whether the runs together have followed all that this one has."""
        return self.complete.issuperset(run.complete) and all(
            self.applied_to(erasure_id, partition) >= offset
            for erasure_id, partition, offset in run.applied
        )

    def applied_to(self, erasure_id: str, partition: int) -> int:
        """Return the offset below which the table has no row of the erasure's key."""
        return self._applied.get((erasure_id, partition), 0)


@dataclass(frozen=True, slots=True)
class StoredReceipts:
    """The receipts of a table's state: some read, some remembered."""

    remembered: tuple[FollowedRun, ...]
    read: tuple[TableReceipt, ...]  # the oldest first; some of them are remembered, too

    def is_recorded(self, run_id: str) -> bool:
        """Return whether the table need not keep the run's mark and number any more.

        A run puts its receipt before its commit. So a commit without one was forgotten by a person.
        """
        numbers = [one.commit_number for one in self.remembered if one.run_id == run_id]
        numbers += [one.commit_number for one in self.read if one.run_id == run_id]
        return not numbers or any(one is not None for one in numbers)


async def read_receipts(store: ObjectStore, *, with_unsettled: bool) -> StoredReceipts:
    """Return the receipts; those are read that are not remembered.

    ``with_unsettled``: also those are read whose old files may be given up. Raises
    ``CorruptObject``.
    """
    listed = [
        item.key.removeprefix(FOLDER).removesuffix(".json") async for item in store.list(FOLDER)
    ]
    known = {one.run_id: one for one in await _remembered(store)}
    wanted = [
        one for one in listed if one not in known or (with_unsettled and not known[one].is_settled)
    ]
    read: list[TableReceipt] = []
    for at in range(0, len(wanted), GETS_MAX):
        read += await asyncio.gather(*(_read(store, one) for one in wanted[at : at + GETS_MAX]))
    return StoredReceipts(
        tuple(known[one] for one in listed if one in known),
        tuple(sorted(read, key=lambda one: (one.started_ms, one.run_id))),
    )


async def remember(store: ObjectStore, stored: StoredReceipts, now: Sequence[TableReceipt]) -> None:
    """Write what the receipts say in short, if enough of them are not remembered.

    ``now`` are the receipts as they are by now.
    """
    runs = {one.run_id: one for one in stored.remembered}
    runs_now = {one.run_id: FollowedRun.of(one) for one in now if one.is_committed}
    if sum(runs.get(name) != one for name, one in runs_now.items()) < REMEMBERED_FROM:
        return
    kept = list({**runs, **runs_now}.values())[-REMEMBERED_MAX:]
    document = {
        "format_version": FORMAT_VERSION,
        "kind": "followed-erasures",
        "runs": [
            {
                "run_id": one.run_id,
                "is_settled": one.is_settled,
                "commit_number": one.commit_number,
                "complete": one.complete,
                "applied": one.applied,
            }
            for one in kept
        ],
    }
    await store.replace(FOLLOWED, json.dumps(document, separators=(",", ":")).encode())


async def _remembered(store: ObjectStore) -> Collection[FollowedRun]:
    try:
        document = json.loads(await store.get(FOLLOWED))
        if document["format_version"] != FORMAT_VERSION:
            return ()
        return [
            FollowedRun(
                one["run_id"],
                one["is_settled"] is True,
                _number(one["commit_number"]),
                tuple(map(str, one["complete"])),
                tuple((str(name), int(part), int(offset)) for name, part, offset in one["applied"]),
            )
            for one in document["runs"]
            # Earlier programs write no number, and no other place but the receipt may have it.
            if "commit_number" in one
        ]
    except ObjectNotFound:
        return ()
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        # The receipts say the same.
        logger.warning("receipts are read again", extra={"reason": f"{FOLLOWED}: {error!r}"})
        return ()


async def _read(store: ObjectStore, run_id: str) -> TableReceipt:
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


def _number(value: Any) -> int | None:
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
