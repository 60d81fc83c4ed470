"""What a table has followed of erasures, from its receipts, and those receipts in short.

    <location>/_tidelog/followed.json               what committed receipts say, in short

The file saves later runs from reading all receipts. It may lack some, which are read then, and it
may be deleted.

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

from tidelog_core.errors import ObjectNotFound
from tidelog_core.objects.store import ObjectStore

from tidelog_spark.jobs.erasure.erasure_receipts import (
    FOLDER,
    FORMAT_VERSION,
    TableReceipt,
    commit_number,
    read_receipt,
)

logger = logging.getLogger(__name__)

FOLLOWED = "followed.json"
GETS_MAX = 16  # under way at once
REMEMBERED_FROM = 50  # committed receipts that the file lacks, until it is written again
REMEMBERED_MAX = 100_000  # receipts in the file: the newest of those that it has


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
        read += await asyncio.gather(
            *(read_receipt(store, one) for one in wanted[at : at + GETS_MAX])
        )
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
                commit_number(one["commit_number"]),
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
