"""Erases the rows of erased keys from a table that topics are exported to.

1. a receipt that was left as a plan      is completed if its run is in the table; receipts of runs
                                          that a restored table does not have do not count
2. the erasures that the table lacks      from the topics' receipts in the bucket (``erasures``)
3. copies of files without these rows     in tasks (``erased_rows``); nothing is visible yet; older
                                          states' files with such rows are found, too
4. the receipt, as a plan
5. one commit that replaces the files     with the run's mark
6. the receipt again                      as committed, with what still reaches the old files
7. old states given up, files deleted     if asked; the receipt names them before and after

A run that is killed has done a beginning of this, and the next run does the rest. A table follows
an erasure up to the offset that it has exported: an export that began before the erasure may still
append rows from old segments, at offsets from there on, and then the next run looks at those.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial
from uuid import UUID, uuid4

from tidelog_core.clock import wall_clock_ms
from tidelog_core.errors import UnknownTopicOrPartition
from tidelog_core.metadata.location import opened_metadata_store
from tidelog_core.metadata.records import Cluster, Topic, cluster_key, topic_key
from tidelog_core.objects.location import opened_object_store

from tidelog_spark.jobs.erasure.erasure_receipts import (
    FollowedErasure,
    FollowedPartition,
    ReplacedFile,
    TableReceipt,
    put_receipt,
)
from tidelog_spark.jobs.erasure.erasures import Erasure, ExportedTopic, load_erasures
from tidelog_spark.jobs.erasure.followed_runs import Followed, FollowedRun, read_receipts, remember
from tidelog_spark.jobs.outside_loops import outside_loops
from tidelog_spark.jobs.tables.erasable_table import ErasableTable, delete_uncommitted
from tidelog_spark.jobs.tables.erased_rows import (
    ErasedKeys,
    EraseSettings,
    UnreadableTableFile,
    files_with_erased,
    replaced_files,
)
from tidelog_spark.jobs.tables.export_table import ExportConflict, Offsets, partition_id
from tidelog_spark.jobs.tables.table_places import check_location
from tidelog_spark.jobs.tables.table_state import check_state_is_here, with_state
from tidelog_spark.jobs.task_runner import TaskRunner

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class EraseRequest:
    """The topics whose erasures a table follows."""

    metadata: str
    objects: str
    topics: tuple[str, ...]
    expires: bool = False  # give up old states of the table, and delete the old files


@dataclass(frozen=True, slots=True)
class EraseResult:
    """The result of a run."""

    receipts: tuple[TableReceipt, ...]  # that this run has put or changed
    waiting: tuple[str, ...]  # erasures that are not complete, with the reason

    @property
    def row_count(self) -> int:
        """The number of erased rows."""
        return sum(one.row_count for one in self.receipts)

    @property
    def reached_by(self) -> list[str]:
        """The older states of the table that still have erased rows."""
        return sorted({name for one in self.receipts for name in one.reached_by})


def apply_erasures(runner: TaskRunner, request: EraseRequest, table: ErasableTable) -> EraseResult:
    """Erase from the table what was erased from the topics; see the module.

    Raises ``ExportConflict`` if another commit has changed a file meanwhile: nothing is erased
    then, and another run may be started. Raises ``InvalidConfig`` for a location that a table may
    not have, ``UnknownTopicOrPartition``, ``CorruptObject`` for a receipt,
    ``UnreadableTableFile``, and the stores' errors.
    """
    return outside_loops(partial(_apply, runner, request, table))


def _apply(runner: TaskRunner, request: EraseRequest, table: ErasableTable) -> EraseResult:
    if not table.open():
        return EraseResult((), ())
    # An earlier version put the files of some of these at other keys: a receipt would say that they
    # are deleted while they are there.
    check_location(table.location, None)
    numbers = table.commit_numbers()
    stored = with_state(table.location, partial(read_receipts, with_unsettled=request.expires))
    # As they are in the store before this run: what it writes is for the next one.
    recorded = [one for one in numbers if stored.is_recorded(one)]
    receipts = list(stored.read)
    if not receipts and not stored.remembered:
        check_state_is_here(table.location)
    changed: dict[str, TableReceipt] = {}
    for number, receipt in enumerate(receipts):
        if not receipt.is_committed and table.has_run(receipt.run_id):
            receipts[number] = changed[receipt.run_id] = _committed(table, receipt)
        elif receipt.is_committed and receipt.commit_number is None and receipt.run_id in numbers:
            receipts[number] = _numbered(table, receipt)  # of an earlier program
    followed = _followed(table, stored.remembered, receipts)
    erasures = asyncio.run(_erasures(request, followed))
    ids = [one for erasure in erasures for one in erasure.partition_ids()]
    offsets = table.offsets(ids)
    steps = [_following(erasure, offsets) for erasure in erasures]
    if any(_is_step(one, followed) for one in steps):
        erased = _erased_keys(erasures, offsets, followed)
        receipt = _erase(runner, table, tuple(steps), erased, recorded)
        receipts.append(receipt)
        changed[receipt.run_id] = receipt
    if request.expires:
        for receipt in receipts:
            if receipt.is_committed and not receipt.is_settled:
                changed[receipt.run_id] = _expire(table, receipt)
    now = [changed.get(one.run_id, one) for one in receipts]
    with_state(table.location, partial(remember, stored=stored, now=now))
    waiting = [
        f"erasure {one.erasure_id} of {erasure.topic}: {_reason(erasure)}"
        for erasure, one in zip(erasures, steps, strict=True)
        if not one.is_complete
    ]
    return EraseResult(tuple(changed.values()), tuple(waiting))


def _followed(
    table: ErasableTable, remembered: Sequence[FollowedRun], receipts: Sequence[TableReceipt]
) -> Followed:
    """Return what the table follows: not by runs that a restored older state does not have."""
    runs = [*remembered, *(FollowedRun.of(one) for one in receipts if one.is_committed)]
    recorded = {one.run_id: one.commit_number for one in runs if one.commit_number is not None}
    undone = table.undone(recorded) if runs else set()
    followed = Followed(one for one in runs if one.run_id not in undone)
    for one in runs:
        if one.run_id in undone and not followed.has_all_of(one):
            logger.warning("erasure is repeated in a restored table", extra={"run_id": one.run_id})
    return followed


async def _erasures(request: EraseRequest, followed: Followed) -> list[Erasure]:
    """Return the erasures of all topics that the table does not follow completely."""
    found: list[Erasure] = []
    known = {UUID(one) for one in followed.complete}
    async with (
        opened_metadata_store(request.metadata) as metadata,
        opened_object_store(request.objects) as objects,
    ):
        cluster = await metadata.get(cluster_key())
        for name in request.topics:
            item = await metadata.get(topic_key(name))
            if item is None or cluster is None:
                raise UnknownTopicOrPartition(f"there is no topic {name!r}")
            topic = ExportedTopic(
                Cluster.from_item(cluster).cluster_id, name, Topic.from_item(item).topic_id
            )
            found += await load_erasures(objects, topic, known=known)
    return found


def _following(erasure: Erasure, offsets: Offsets) -> FollowedErasure:
    """Return how far the table follows the erasure after this run."""
    partitions = tuple(
        FollowedPartition(
            number, up_to, min(up_to, offsets.get(partition_id(erasure.topic_id, number), 0))
        )
        for number, up_to in sorted(erasure.up_to.items())
    )
    return FollowedErasure(
        erasure_id=str(erasure.erasure_id),
        topic=erasure.topic,
        topic_id=str(erasure.topic_id),
        key_sha256=erasure.key_sha256,
        is_complete=erasure.is_done and all(one.applied_to >= one.up_to for one in partitions),
        partitions=partitions,
    )


def _is_step(one: FollowedErasure, followed: Followed) -> bool:
    """Return whether the table follows the erasure further after this run than before."""
    return one.is_complete or any(
        each.applied_to > followed.applied_to(one.erasure_id, each.partition)
        for each in one.partitions
    )


def _erased_keys(
    erasures: Sequence[Erasure], offsets: Offsets, followed: Followed
) -> tuple[ErasedKeys, ...]:
    """Return the rows to look for, by partition."""
    starts: dict[tuple[str, int], int] = {}
    keys: dict[tuple[str, int], dict[bytes, int]] = {}
    for erasure in erasures:
        for number, up_to in erasure.up_to.items():
            start = followed.applied_to(str(erasure.erasure_id), number)
            if start >= min(up_to, offsets.get(partition_id(erasure.topic_id, number), 0)):
                continue
            place = (erasure.topic, number)
            starts[place] = min(start, starts.get(place, start))
            ends = keys.setdefault(place, {})
            sha256 = bytes.fromhex(erasure.key_sha256)
            ends[sha256] = max(up_to, ends.get(sha256, 0))
    return tuple(
        ErasedKeys(topic, number, starts[topic, number], ends)
        for (topic, number), ends in sorted(keys.items())
    )


def _erase(
    runner: TaskRunner,
    table: ErasableTable,
    steps: tuple[FollowedErasure, ...],
    erased: tuple[ErasedKeys, ...],
    recorded: Collection[str],
) -> TableReceipt:
    run_id = str(uuid4())
    settings = EraseSettings(
        location=table.location, run_folder=table.run_folder.format(run_id), erased=erased
    )
    files = table.files() if erased else []
    replaced = runner.run(files, partial(replaced_files, settings=settings))
    older_files = table.older_files() if erased else []
    older = runner.run(older_files, partial(files_with_erased, settings=settings))
    receipt = TableReceipt(
        run_id=run_id,
        table=table.location,
        started_ms=wall_clock_ms(),
        is_committed=not replaced,
        erasures=steps,
        replaced=tuple(
            ReplacedFile(one.old.path, one.new.path if one.new else None, one.removed_count)
            for one in replaced
        ),
        older=tuple(one.path for one in older),
    )
    with_state(table.location, lambda store: put_receipt(store, receipt))
    if not replaced:
        return _committed(table, receipt) if older else receipt
    try:
        table.replace(replaced, run_id=run_id, recorded=recorded)
    except (ExportConflict, UnreadableTableFile) as error:
        copies = (one.new for one in replaced)
        left = delete_uncommitted(
            f"{table.location}/{one.path}" for one in copies if one is not None
        )
        raise type(error)(f"{error}{left}") from None
    return _committed(table, receipt)


def _committed(table: ErasableTable, receipt: TableReceipt) -> TableReceipt:
    reached_by = tuple(table.reached_by(receipt.old_files))
    done = replace(receipt, is_committed=True, reached_by=reached_by)
    return _numbered(table, done)


def _numbered(table: ErasableTable, receipt: TableReceipt) -> TableReceipt:
    """Put a committed receipt with the number of its commit, if that has one."""
    done = replace(receipt, commit_number=table.commit_numbers().get(receipt.run_id))
    with_state(table.location, lambda store: put_receipt(store, done))
    return done


def _expire(table: ErasableTable, receipt: TableReceipt) -> TableReceipt:
    """Give up the states that reach the receipt's old files, and delete these."""
    old = receipt.old_files
    expiry = table.expiry(old)
    if receipt.expiry is not None:
        # A run was killed in the middle: states that are gone no longer name their files.
        expiry = receipt.expiry.joined(expiry)
    planned = replace(receipt, expiry=expiry)
    with_state(table.location, lambda store: put_receipt(store, planned))
    table.expire(expiry)
    reached_by = tuple(table.reached_by(old))
    done = replace(
        planned,
        reached_by=reached_by,
        files_deleted_ms=None if reached_by else wall_clock_ms(),
    )
    with_state(table.location, lambda store: put_receipt(store, done))
    return done


def _reason(erasure: Erasure) -> str:
    if not erasure.is_done:
        return "it is not complete in the topic: run tidelog erase again"
    return "the table has not exported all that it is about: apply it again after the next export"
