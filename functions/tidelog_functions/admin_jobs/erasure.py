"""The work of an erasure.

The position of an erasure is in the job, and what it has replaced in the receipt in the bucket
(``receipts``), which is put first. Every run has a receipt of its own, so that one which has lost
its hold cannot overwrite another's; the position names the receipt that counts.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any
from uuid import uuid4

from tidelog_core.clock import wall_clock_ms
from tidelog_core.erasure.progress import ErasureProgress, Phase, Position
from tidelog_core.erasure.receipt import PartitionErasure
from tidelog_core.erasure.topic import ErasureRun
from tidelog_core.erasure.wal_copies import Frontier
from tidelog_core.errors import ErrorCode, Interrupted, TidelogError
from tidelog_core.tier.keys import erasure_receipt_key
from tidelog_core.tier_compaction.partition_tier import PartitionTier

from tidelog_functions.admin_jobs.key_count import count_key
from tidelog_functions.admin_jobs.receipts import ReceiptParts, StoredReceipt
from tidelog_functions.admin_jobs.requests import ErasureRequest
from tidelog_functions.admin_jobs.result_rows import bounded_summary
from tidelog_functions.admin_jobs.run import Run
from tidelog_functions.admin_jobs.store import HoldLost
from tidelog_functions.admin_jobs.topic_tiers import opened_tiers


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
        return await count_key(run, request)
    async with opened_tiers(run, request.topic) as tiers:
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
        return json.dumps(
            {**bounded_summary(receipt.summary()), "receipt_key": self._parts.stored.key}
        )

    async def _resume(self) -> None:
        """Take over the results of earlier runs."""
        if not self._run.job.position:
            self._progress.requested_ms = wall_clock_ms()
            return
        fields = json.loads(self._run.job.position)
        # The progress of a topic of this name that was deleted does not count.
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
        """Put the receipt's changes, and note the position."""
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
        # The next run removes this receipt if no position ever names it. Until then the position
        # keeps the progress that the old receipt has.
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
        """Return the receipt with the findings so far."""
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


def _stored(fields: Mapping[str, Any], name: str) -> StoredReceipt | None:
    """Return the receipt that a position names; positions of older runs count no parts."""
    key = fields[f"{name}_key"]
    return StoredReceipt(key, fields.get(f"{name}_part_count", 0)) if key else None
