"""The work of an erasure, and of the search that only counts a key's records.

The position of an erasure is in the job, and what it has replaced in the receipt in the bucket,
which is put first. Every run has a receipt of its own, so that one which has lost its hold cannot
overwrite another's; the position names the receipt that counts.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

from tidelog_core.clock import wall_clock_ms
from tidelog_core.erasure.progress import ErasureProgress, Phase, Position
from tidelog_core.erasure.receipt import ErasureReceipt, PartitionErasure
from tidelog_core.erasure.tier import NOTHING_FOUND, KeyInTier, find_in_tier
from tidelog_core.erasure.topic import ErasureRun
from tidelog_core.errors import ErrorCode, Interrupted, TidelogError
from tidelog_core.metadata.stored_cluster import opened_cluster
from tidelog_core.rewriting.partition_tier import PartitionTier
from tidelog_core.rewriting.targets import rewrite_targets
from tidelog_core.tier.keys import erasure_receipt_key

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
        self._progress, self._old_key = ErasureProgress(uuid4(), run.job.job_id, 0), ""
        self._put: Mapping[int, PartitionErasure] = {}  # as the receipt has them
        self._noted: dict[str, Any] = {}  # the position
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
            await self._store()
            raise
        await self._store()
        await self._run.save()
        await self._remove_old()
        return json.dumps({**_bounded(receipt.summary()), "receipt_key": self._key()})

    async def _resume(self) -> None:
        """Take over what earlier runs have done."""
        if not self._run.job.position:
            self._progress.requested_ms = wall_clock_ms()
            return
        fields = json.loads(self._run.job.position)
        # What was done for another topic counts for nothing.
        if fields.pop("topic_id", self._topic_id()) != self._topic_id():
            raise TopicReplaced(self._request.topic)
        self._progress.requested_ms = fields["requested_ms"]
        self._old_key, stale_key = fields.pop("receipt_key"), fields.pop("stale_key")
        if stale_key:
            await self._run.objects.delete([stale_key])
        self._noted = {
            **fields,
            "topic_id": self._topic_id(),
            "receipt_key": self._old_key,
            "stale_key": "",
        }
        self._progress.position = Position(
            Phase(fields["phase"]),
            fields["partition"],
            fields["after"],
            fields.get("wait_ends_ms"),  # not of runs of an older version
        )
        if self._old_key:
            document = json.loads(await self._run.objects.get(self._old_key))
            self._progress.resume(ErasureReceipt.parse(document, key=self._old_key))

    async def _checkpoint(self, at_once: bool) -> None:
        if at_once or self._run.is_save_due():
            await self._store()
            await self._run.save()
            await self._remove_old()
        # Not before a step has come to its end: every run has to get a step further.
        if not at_once:
            self._run.require_time()

    async def _store(self) -> None:
        """Put the receipt, if it has changed, and note the position."""
        assert self._erasure is not None
        if self._progress.partitions and self._progress.partitions != self._put:
            if not self._put:  # Whoever continues removes it if it does not come to count.
                self._note(self._noted | {"stale_key": self._key()})
                await self._run.save()
            await self._erasure.put_receipt()
            self._put = dict(self._progress.partitions)
        at = self._progress.position
        self._note(
            {
                "topic_id": self._topic_id(),
                "phase": at.phase.value,
                "partition": at.partition,
                "after": at.after,
                "wait_ends_ms": at.wait_ends_ms,
                "requested_ms": self._progress.requested_ms,
                "receipt_key": self._key() if self._put else self._old_key,
                "stale_key": self._old_key if self._put else "",  # to be removed
            }
        )

    def _note(self, fields: dict[str, Any]) -> None:
        self._noted = fields
        self._run.move_to(json.dumps(fields, separators=(",", ":")))

    async def _remove_old(self) -> None:
        """Remove the receipt of the run before, once the job names this run's."""
        if self._old_key and self._put:
            await self._run.objects.delete([self._old_key])
            self._old_key = ""

    def _topic_id(self) -> str:
        return str(self._tiers[0].topic.topic_id)

    def _key(self) -> str:
        first, erasure_id = self._tiers[0], self._progress.erasure_id
        return erasure_receipt_key(
            first.cluster_id, first.topic.name, first.topic.topic_id, erasure_id
        )


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
