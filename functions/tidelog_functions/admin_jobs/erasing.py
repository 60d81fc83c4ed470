"""The work of an erasure, and of the search that only counts a key's records.

The position of an erasure is in the job, and what it has replaced in the receipt in the bucket
(``receipts``), which is put first. Every run has a receipt of its own, so that one which has lost
its hold cannot overwrite another's; the position names the receipt that counts.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

from tidelog_core.clock import wall_clock_ms
from tidelog_core.erasure.progress import ErasureProgress, Phase, Position
from tidelog_core.erasure.receipt import PartitionErasure
from tidelog_core.erasure.tier import NOTHING_FOUND, KeyInTier, find_in_tier
from tidelog_core.erasure.topic import ErasureRun
from tidelog_core.erasure.wal_copies import Frontier
from tidelog_core.errors import ErrorCode, Interrupted, TidelogError
from tidelog_core.metadata.stored_cluster import opened_cluster
from tidelog_core.rewriting.partition_tier import PartitionTier
from tidelog_core.rewriting.targets import rewrite_targets
from tidelog_core.tier.keys import erasure_receipt_key

from tidelog_functions.admin_jobs.receipts import ReceiptParts, StoredReceipt
from tidelog_functions.admin_jobs.requests import ErasureRequest
from tidelog_functions.admin_jobs.run import Run
from tidelog_functions.admin_jobs.store import HoldLost

ROWS_MAX = 1_000  # partitions of a result; with more, only those where something was found
ROWS_CHARACTERS_MAX = 200_000  # of them as JSON; the receipt has all partitions


class TopicReplaced(TidelogError):
    """The topic that an erasure was asked for is gone, and another one has its name."""

    code = ErrorCode.unknown_topic_id
    hint = "start another erasure if the new topic has the key too"

    def __init__(self, topic: str) -> None:
        super().__init__(f"topic {topic} was deleted and created again during the erasure")


async def erase(run: Run) -> str:
    """Go on with the erasure from the job's position; return the result as JSON."""
    request = ErasureRequest.parse(run.job.request)
    if request.is_dry_run:
        return await _count(run, request)
    async with _opened(run, request.topic) as tiers:
        return await _Erasing(run, request, tiers).work()


class _Erasing:
    """One run's part of an erasure."""

    def __init__(self, run: Run, request: ErasureRequest, tiers: list[PartitionTier]) -> None:
        self._run, self._request, self._tiers = run, request, tiers
        self._progress = ErasureProgress(uuid4(), run.job.job_id, 0)
        self._found: Mapping[int, PartitionErasure] = {}  # what the run before has left
        self._old: StoredReceipt | None = None  # that run's receipt
        self._parts = ReceiptParts(run.objects, self._key())
        self._stale: StoredReceipt | None = None  # to be removed once the position is stored
        self._at: dict[str, Any] = {}  # the progress as the position has it
        self._erasure: ErasureRun | None = None

    async def work(self) -> str:
        """Erase; return the result as JSON."""
        await self._resume()
        self._erasure = erasure = ErasureRun(
            self._tiers,
            self._request.key,
            self._progress,
            wait_seconds=self._request.timeout_seconds,
            sleep=self._run.wait,
            on_step=self._run.step,
            checkpoint=self._checkpoint,
        )
        try:
            self._run.require_time()
            receipt = await erasure.run()
        except HoldLost:
            raise
        except Interrupted:
            await self._close()
            raise
        await self._close()
        return json.dumps({**_bounded(receipt.summary()), "receipt_key": self._parts.stored.key})

    async def _resume(self) -> None:
        """Take over what earlier runs have done."""
        if not self._run.job.position:
            self._progress.requested_ms = wall_clock_ms()
            return
        fields = json.loads(self._run.job.position)
        # What was done for another topic counts for nothing.
        if fields.get("topic_id", self._topic_id()) != self._topic_id():
            raise TopicReplaced(self._request.topic)
        self._stale = _stored(fields, "stale")
        self._old = _stored(fields, "receipt")
        await self._remove_stale()
        self._progress.requested_ms = fields["requested_ms"]
        self._progress.position = Position(
            Phase(fields["phase"]),
            fields["partition"],
            fields["after"],
            fields.get("wait_ends_ms"),  # not of runs of an older version
            _frontier(fields.get("frontier")),
        )
        if self._old is not None:
            await self._old.read_into(self._progress, self._run.objects)
        self._found = dict(self._progress.partitions)
        self._at = self._progress_fields()

    async def _checkpoint(self, at_once: bool) -> None:
        if at_once or self._run.is_save_due():
            await self._store()
            await self._run.save()
            await self._remove_stale()
        # Not before a step has come to its end: every run has to get a step further.
        if not at_once:
            self._run.require_time()

    async def _store(self) -> None:
        """Put what has changed of the receipt, and note the position."""
        partitions, phase = self._progress.partitions, self._progress.position.phase
        if self._parts.has_begun:
            if not self._parts.has(partitions):
                await self._parts.put(partitions)
        elif partitions != self._found or phase is Phase.ENDED:
            await self._begin()
        self._at = self._progress_fields()
        self._move()

    async def _begin(self) -> None:
        """Put this run's receipt, whole, which counts from the next position on."""
        assert self._erasure is not None
        # Whoever continues removes it if it does not come to count. What has come since the last
        # position counts only with the receipt.
        self._stale = self._parts.stored
        self._move()
        await self._run.save()
        await self._erasure.put_receipt()
        self._parts.begin(self._progress.partitions)
        self._stale = self._old

    async def _close(self) -> None:
        """Store the progress at the end of the run, with a whole receipt."""
        await self._store()
        if self._parts.stored.part_count:
            assert self._erasure is not None
            await self._erasure.put_receipt()
            self._stale = self._parts.stored
            self._parts.begin(self._progress.partitions)
            self._move()
        await self._run.save()
        await self._remove_stale()

    def _move(self) -> None:
        """Note the position: the progress, and the receipts that it goes with."""
        receipt = self._counted()
        fields = {
            **self._at,
            "receipt_key": "" if receipt is None else receipt.key,
            "receipt_part_count": 0 if receipt is None else receipt.part_count,
            "stale_key": "" if self._stale is None else self._stale.key,
            "stale_part_count": 0 if self._stale is None else self._stale.part_count,
        }
        self._run.move_to(json.dumps(fields, separators=(",", ":")))

    def _progress_fields(self) -> dict[str, Any]:
        at = self._progress.position
        return {
            "topic_id": self._topic_id(),
            "phase": at.phase.value,
            "partition": at.partition,
            "after": at.after,
            "wait_ends_ms": at.wait_ends_ms,
            "frontier": at.frontier,
            "requested_ms": self._progress.requested_ms,
        }

    def _counted(self) -> StoredReceipt | None:
        """Return the receipt that has what was found so far."""
        return self._parts.stored if self._parts.has_begun else self._old

    async def _remove_stale(self) -> None:
        """Remove the receipt of the run before, or the parts of this run's, once none counts."""
        if self._stale is not None:
            counted = self._counted()
            keys = list(self._stale.part_keys)
            if counted is None or counted.key != self._stale.key:
                keys.append(self._stale.key)
            await self._run.objects.delete(keys)
            self._stale = None

    def _topic_id(self) -> str:
        return str(self._tiers[0].topic.topic_id)

    def _key(self) -> str:
        first, erasure_id = self._tiers[0], self._progress.erasure_id
        return erasure_receipt_key(
            first.cluster_id, first.topic.name, first.topic.topic_id, erasure_id
        )


def _frontier(stored: list[list[Any]] | None) -> Frontier | None:
    if stored is None:
        return None
    return tuple((broker_id, chain_id, last) for broker_id, chain_id, last in stored)


async def _count(run: Run, request: ErasureRequest) -> str:
    """Count the key's records from the job's position on; return the result as JSON."""
    fields = json.loads(run.job.position) if run.job.position else {}
    rows: list[list[int]] = fields.get("rows", [])
    found = KeyInTier(*fields["found"]) if fields else NOTHING_FOUND
    after: int = fields.get("after", 0)
    done: int = fields.get("done", len(rows))  # partitions

    def move_to(after: int, found: KeyInTier) -> None:
        counts = [found.segment_count, found.holding_count, found.record_count]
        position = {"rows": rows, "done": done, "after": after, "found": counts}
        run.move_to(json.dumps(position, separators=(",", ":")))

    async def searched(end_offset: int, found: KeyInTier) -> None:
        move_to(end_offset, found)
        if run.is_save_due():
            await run.save()
        run.require_time()

    async with _opened(run, request.topic) as tiers:
        for tier in tiers[done:]:
            run.step(f"searching partition {tier.partition} ({done + 1} of {len(tiers)})")
            found = await find_in_tier(
                tier, request.key, before=found, after=after, on_searched=searched
            )
            row = [tier.partition, found.record_count, found.holding_count, found.segment_count]
            done += 1
            rows = _kept_rows([*rows, row], done)
            found, after = NOTHING_FOUND, 0
            await searched(after, found)
    names = ("partition", "records", "segments", "searched_segments")
    answer = [{"topic": request.topic, **dict(zip(names, row, strict=True))} for row in rows]
    shown = _fitting(answer, lambda row: row["records"] > 0)
    return json.dumps({"found": shown, "partition_count": done})


def _kept_rows(rows: list[list[int]], done: int) -> list[list[int]]:
    """Return the rows that a position keeps of the partitions that are done."""
    return rows if done <= ROWS_MAX else [row for row in rows if row[1]][:ROWS_MAX]


def _stored(fields: Mapping[str, Any], name: str) -> StoredReceipt | None:
    """Return the receipt that a position names; positions of older runs count no parts."""
    key = fields[f"{name}_key"]
    return StoredReceipt(key, fields.get(f"{name}_part_count", 0)) if key else None


def _bounded(summary: dict[str, Any]) -> dict[str, Any]:
    """Return the summary with a bounded number of partitions."""
    rows = summary["partitions"]
    if len(rows) > ROWS_MAX:
        rows = [one for one in rows if one["problems"] or one["replaced_segments"]][:ROWS_MAX]
        rows = [{**one, "problems": one["problems"][:1]} for one in rows]
    shown = _fitting(rows, lambda row: bool(row["problems"] or row["replaced_segments"]))
    return {**summary, "partitions": shown, "partition_count": len(summary["partitions"])}


def _fitting(
    rows: list[dict[str, Any]], says_something: Callable[[dict[str, Any]], bool]
) -> list[dict[str, Any]]:
    """Return the rows if an item has room for them, else the first of those that say something."""
    if len(json.dumps(rows)) <= ROWS_CHARACTERS_MAX:
        return rows
    left, kept = ROWS_CHARACTERS_MAX, list[dict[str, Any]]()
    for row in filter(says_something, rows):
        left -= len(json.dumps(row))
        if left < 0:
            break
        kept.append(row)
    return kept


@asynccontextmanager
async def _opened(run: Run, topic: str) -> AsyncIterator[list[PartitionTier]]:
    """Open the tiers of the topic's partitions, in the stores of the run."""
    metadata, objects = run.settings.metadata_url, run.settings.objects_url
    async with opened_cluster(metadata) as (store, image):
        targets = rewrite_targets(
            image,
            topic,
            metadata=metadata,
            objects=objects,
            static_config=run.settings.node_config,
        )
        yield [
            PartitionTier(
                store=store,
                objects=run.objects,
                cluster_id=target.cluster_id,
                topic=target.topic,
                partition=target.partition,
                config=target.config,
                key_filter_records_max=target.key_filter_records_max,
                clock_ms=wall_clock_ms,
            )
            for target in targets
        ]
