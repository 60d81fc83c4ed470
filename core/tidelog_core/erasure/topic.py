"""Erases a key's records from all of a topic.

1. a request for each partition      the leader adds an end offset; every replica evicts its
                                     local records below that, or, without tiering, rewrites
                                     them (``requests``)
2. the tier is rewritten             ``tier``; with tiering, it has all records below the
                                     offset by then
3. the old objects are deleted       file.delete.delay.ms later
4. chains have no copy of them       of diskless topics: ``wal_copies``
5. the receipt is put into the bucket, and completed requests are removed

After an interruption the requests stay: a replica that is down carries them out when it starts.
Running the erasure again does the remaining steps. With ``ErasureProgress`` another process goes on
where it was stopped, and its receipt has everything.
"""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import json
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import TypeVar
from uuid import UUID

from tidelog_core.diskless.wal.epoch_chains import PartitionName
from tidelog_core.erasure.progress import Checkpoint, ErasureProgress, Phase
from tidelog_core.erasure.receipt import ErasureReceipt, PartitionErasure
from tidelog_core.erasure.requests import (
    ReplicaProgress,
    end_eviction,
    end_rewrite,
    eviction_progress,
    request_eviction,
    request_rewrite,
    rewrite_progress,
)
from tidelog_core.erasure.tier import ErasedSegment, delete_replaced, erase_from_tier
from tidelog_core.erasure.wal_copies import WalCopies
from tidelog_core.errors import Interrupted, OutcomeUnknown, StoreUnavailable, TidelogError
from tidelog_core.metadata.store import KeyRange
from tidelog_core.tier.keys import erasure_receipt_key
from tidelog_core.tier.lifecycle import read_segments
from tidelog_core.tier_compaction.partition_tier import PartitionTier
from tidelog_core.tier_compaction.swap import PartitionClaimed

T = TypeVar("T")

PROBLEMS_TOLD_MAX = 3  # in one sentence
CHAINS_POLL_SECONDS = 10.0  # between two looks at chains
# For chains; by default their objects go after an hour, those of a dead node soon after.
CHAINS_WAIT_SECONDS = 7_200.0
DISKLESS_SETTING = "diskless.enable"  # in the settings of every topic that is or was diskless
WAL_COPIES_LEFT = (
    "{} objects of chains may still have copies, which go after diskless.wal.max.age.ms: give the"
    " erasure a longer timeout than that"
)
POLL_SECONDS = 0.5  # between two readings of the replicas' progress
# What ends a step that may be continued, instead of being a problem of its partition.
_CONTINUABLE = (Interrupted, StoreUnavailable, OutcomeUnknown)

Sleep = Callable[[float], Awaitable[None]]
OnStep = Callable[[str], None]
"""Gets a sentence when a step begins, or waits for something else."""


def _ignore(_sentence: str) -> None:
    pass


async def erase_key(
    tiers: Sequence[PartitionTier],
    key: bytes,
    *,
    erasure_id: UUID,
    wait_seconds: float,
    sleep: Sleep = asyncio.sleep,
    on_step: OnStep = _ignore,
) -> ErasureReceipt:
    """Erase the key's records from these partitions of one topic.

    Waits at most ``wait_seconds`` for replicas, the same again for each partition that another
    process is rewriting, and then until replaced objects may be deleted.
    An error of one partition is noted in the receipt and does not stop the others. Raises the
    errors of the stores if the receipt cannot be put.
    """
    progress = ErasureProgress(erasure_id, None, tiers[0].clock_ms())
    run = ErasureRun(tiers, key, progress, wait_seconds=wait_seconds, sleep=sleep, on_step=on_step)
    return await run.run()


class ErasureRun:
    """Carries an erasure on from its progress to its end. For one use."""

    def __init__(
        self,
        tiers: Sequence[PartitionTier],
        key: bytes,
        progress: ErasureProgress,
        *,
        wait_seconds: float,
        sleep: Sleep = asyncio.sleep,
        on_step: OnStep = _ignore,
        checkpoint: Checkpoint | None = None,
    ) -> None:
        """``tiers`` are the partitions of one topic, by number.

        With ``checkpoint`` the run may be continued: then it raises ``Interrupted``, and the errors
        of stores that are away, with the progress as it is to be continued.
        """
        self._tiers = tiers
        self._key = key
        self._key_sha256 = hashlib.sha256(key).hexdigest()
        self.progress = progress
        self._wait_seconds = wait_seconds
        self._sleep = sleep
        self._on_step = on_step
        self._checkpoint = checkpoint

    async def run(self) -> ErasureReceipt:
        """Do the phases that are left, and put the receipt into the bucket.

        Raises the errors of the stores if the receipt cannot be put.
        """
        if self._phase is Phase.REQUESTING:
            await self._of_each(lambda tier: _request(tier, self._key_sha256))
            await self._enter(Phase.WAITING)
        if self._phase is Phase.WAITING:
            await self._await_replicas()
            await self._enter(Phase.SEARCHING)
        if self._phase is Phase.SEARCHING:
            await self._of_each(self._search)
            await self._enter(Phase.DELETING)
        if self._phase is Phase.DELETING:
            await self._of_each(self._delete)
            await self._enter(Phase.CHAINS)
        if self._phase is Phase.CHAINS:
            if DISKLESS_SETTING in self._tiers[0].topic.configs:
                await self._await_chains()
            self.progress.enter(Phase.ENDED)
        await self.store(at_once=True)
        receipt = await self.put_receipt()
        for tier, one in zip(self._tiers, receipt.partitions, strict=True):
            if not one.problems:
                await _end_request(tier, self._key_sha256)
        return receipt

    def receipt(self) -> ErasureReceipt:
        """Return the receipt of the erasure so far."""
        first = self._tiers[0]
        return self.progress.receipt(
            topic=first.topic.name,
            topic_id=first.topic.topic_id,
            key_sha256=self._key_sha256,
            numbers=[tier.partition for tier in self._tiers],
            now_ms=first.clock_ms(),
        )

    async def put_receipt(self) -> ErasureReceipt:
        """Put the receipt of the erasure so far into the bucket, durable on return; return it."""
        first, receipt = self._tiers[0], self.receipt()
        where = erasure_receipt_key(
            first.cluster_id, first.topic.name, first.topic.topic_id, self.progress.erasure_id
        )
        data = json.dumps(receipt.document(), indent=2).encode() + b"\n"
        await first.objects.replace(where, data)
        return receipt

    @property
    def _phase(self) -> Phase:
        return self.progress.position.phase

    async def _enter(self, phase: Phase) -> None:
        self.progress.enter(phase)
        await self.store(at_once=True)

    async def _of_each(self, work: Callable[[PartitionTier], Awaitable[None]]) -> None:
        """Do the phase's work for each partition that it is not done with."""
        for tier in self._tiers[self.progress.position.partition :]:
            await work(tier)
            self.progress.next_partition()
            await self.store(at_once=False)

    async def store(self, *, at_once: bool) -> None:
        """Have the progress stored, if it may be continued."""
        if self._checkpoint is not None:
            await self._checkpoint(at_once)

    async def _await_replicas(self) -> None:
        reported = set[str]()
        while waiting_for := await _problems(self._tiers, self._key_sha256):
            if not self._may_wait():
                return
            if not waiting_for <= reported:
                self._on_step(f"waiting: {_in_short(sorted(waiting_for))}")
            reported = waiting_for
            await self._sleep(POLL_SECONDS)

    def _may_wait(self, seconds_min: float = 0.0) -> bool:
        """Return whether the current wait for other processes goes on."""
        wait_ms = round(max(self._wait_seconds, seconds_min) * 1000)
        return self.progress.may_wait(wait_ms, now_ms=self._tiers[0].clock_ms())

    async def _when_free(self, work: Callable[[], Awaitable[T]]) -> T:
        """Do the work once the claim is free. Raises ``PartitionClaimed`` after the wait."""
        while True:
            try:
                return await work()
            except PartitionClaimed:
                if not self._may_wait():
                    raise
            except Interrupted:
                self.progress.end_wait()  # The claim was free.
                raise
            await self._sleep(POLL_SECONDS)

    async def _search(self, tier: PartitionTier) -> None:
        progress, number = self.progress, tier.partition
        place = f"{progress.position.partition + 1} of {len(self._tiers)}"
        self._on_step(f"searching the tier of {_name(tier)} ({place})")
        replicas = await _progress(tier, self._key_sha256)
        before = progress.partitions[number].erased if number in progress.partitions else ()
        progress.partitions[number] = PartitionErasure(
            partition=number,
            up_to=replicas.up_to,
            erased=before,
            replicas=replicas.replicas,
            problems=replicas.problems,
        )
        if not (tier.config.remote_storage_enable or await _has_segments(tier)):
            return
        steps = _NotedSteps(self, number)
        try:
            erased = await self._when_free(
                lambda: erase_from_tier(
                    tier,
                    self._key,
                    holder=progress.holder,
                    start_offset=progress.position.after,
                    steps=steps,
                )
            )
        except TidelogError as error:
            self._note_problem(number, error)
            return
        if erased.erased:
            delay_s = tier.config.file_delete_delay_ms / 1000
            self._on_step(
                f"{_name(tier)}: {len(erased.erased)} segments replaced, the old ones are deleted "
                f"in {delay_s:g} s (file.delete.delay.ms)"
            )

    async def _delete(self, tier: PartitionTier) -> None:
        holder = self.progress.holder
        try:
            await self._when_free(lambda: delete_replaced(tier, sleep=self._sleep, holder=holder))
        except TidelogError as error:
            self._note_problem(tier.partition, error)

    async def _await_chains(self) -> None:
        """Wait until chains have no copies, and note in each partition whether that is so."""
        names = {
            PartitionName(tier.topic.topic_id, tier.partition): tier.partition
            for tier in self._tiers
        }
        try:
            left, count = await self._chains_left(names.keys())
        except TidelogError as error:
            for number in names.values():
                self._note_problem(number, error, what="chains could not be checked")
            return
        for name, number in names.items():
            found = self.progress.partitions[number]
            if name in left:
                self.progress.add_problem(number, WAL_COPIES_LEFT.format(count))
            elif not found.problems:  # Else records may be in chains that the tier lacks.
                self.progress.wal_gone(number, self._tiers[0].clock_ms())

    async def _chains_left(
        self, names: Collection[PartitionName]
    ) -> tuple[set[PartitionName], int]:
        """Return the partitions that still have copies after the wait, and the count of objects."""
        first, progress, is_reported = self._tiers[0], self.progress, False
        copies = WalCopies(first.store, first.objects, first.cluster_id)
        frontier = progress.position.frontier
        if frontier is None:
            frontier = await copies.frontier()
            progress.position = dataclasses.replace(progress.position, frontier=frontier)
            await self.store(at_once=True)
        while left := await copies.remaining(frontier, names):
            await copies.collect()
            left = await copies.remaining(frontier, names)
            if not left:
                break
            if not self._may_wait(CHAINS_WAIT_SECONDS):
                return left, copies.object_count
            if not is_reported:
                self._on_step(
                    f"waiting: {copies.object_count} objects of chains may have copies, which"
                    " go after diskless.wal.max.age.ms"
                )
                is_reported = True
            await self._sleep(CHAINS_POLL_SECONDS)
        return set(), 0

    def _note_problem(
        self, number: int, error: TidelogError, *, what: str = "the tier is not rewritten"
    ) -> None:
        """Note an error of one partition. Raises it if it ends the run."""
        if self._checkpoint is not None and isinstance(error, _CONTINUABLE):
            raise error
        self.progress.add_problem(number, f"{what}: {type(error).__name__}: {error}")


class _NotedSteps:
    """Notes the steps of one partition's search in the progress."""

    def __init__(self, run: ErasureRun, number: int) -> None:
        self._run, self._number = run, number

    async def on_found(self, erased: ErasedSegment) -> None:
        self._run.progress.note(self._number, erased)
        await self._run.store(at_once=True)

    def on_lost(self, erased: ErasedSegment) -> None:
        self._run.progress.forget(self._number, erased)

    async def on_searched(self, end_offset: int) -> None:
        self._run.progress.searched(end_offset)
        await self._run.store(at_once=False)


def _name(tier: PartitionTier) -> str:
    return f"{tier.topic.name}-{tier.partition}"


async def _problems(tiers: Sequence[PartitionTier], key_sha256: str) -> set[str]:
    found: set[str] = set()
    for tier in tiers:
        progress = await _progress(tier, key_sha256)
        found.update(f"{_name(tier)}: {problem}" for problem in progress.problems)
    return found


def _in_short(problems: Sequence[str]) -> str:
    more = len(problems) - PROBLEMS_TOLD_MAX
    rest = [f"and {more} more"] if more > 0 else []
    return "; ".join([*problems[:PROBLEMS_TOLD_MAX], *rest])


async def _request(tier: PartitionTier, key_sha256: str) -> None:
    where = (tier.store, tier.topic.topic_id, tier.partition)
    if tier.config.remote_storage_enable:
        await request_eviction(*where)
    else:
        await request_rewrite(*where, key_sha256)


async def _progress(tier: PartitionTier, key_sha256: str) -> ReplicaProgress:
    where = (tier.store, tier.topic.topic_id, tier.partition)
    if tier.config.remote_storage_enable:
        return await eviction_progress(*where)
    return await rewrite_progress(*where, key_sha256)


async def _end_request(tier: PartitionTier, key_sha256: str) -> None:
    where = (tier.store, tier.topic.topic_id, tier.partition)
    if tier.config.remote_storage_enable:
        await end_eviction(*where)
    else:
        await end_rewrite(*where, key_sha256)


async def _has_segments(tier: PartitionTier) -> bool:
    one = KeyRange(limit=1)
    return bool(await read_segments(tier.store, tier.topic.topic_id, tier.partition, keys=one))
