"""A round of compacting one partition's tier with many workers.

1. each worker maps a part of the dirty log: the newest offset of every key in it
2. the maps are merged in the order of the log
3. each worker rewrites a run of segments with the merged map: it puts objects, but swaps nothing
4. the new segments are swapped in, one by one and in the order of the log

Only step 4 changes what readers see. One process does it, under the claim, in the same order as
without workers: a tombstone must not be removed before the older records that it deletes. A worker
begins a segment only while its driver holds the claim (``BegunSegments``). So the objects of a
worker that is killed, late or run twice are found and removed, by the driver or by the claim's
next holder.

A worker sees only a part of the log. Aborted transactions are known from the index objects of all
segments; transactions open at the start of its part, from the producers' state before that. The
first marker of such a producer stays until another round.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol, TypeVar
from uuid import UUID

from tidelog_core.compaction.offset_map import OffsetMap
from tidelog_core.compaction.rewrite import DeleteRule, LastBatch, Rewrite
from tidelog_core.compaction.selection import SegmentLimits
from tidelog_core.compaction.transactions import CleanedTransactions
from tidelog_core.errors import VersionConflict
from tidelog_core.log.producers.producer_snapshot import CorruptSnapshot, decode_snapshot
from tidelog_core.log.values import AbortedTransaction
from tidelog_core.metadata import records
from tidelog_core.metadata.records import SegmentMeta
from tidelog_core.metadata.rewrite_claims import RewriteClaim
from tidelog_core.metadata.update import retried
from tidelog_core.model import NO_OFFSET
from tidelog_core.tier.stretches import Stretch
from tidelog_core.tier_compaction.groups import SegmentGroup
from tidelog_core.tier_compaction.partition_tier import (
    GroupOutcome,
    PartitionTier,
    PreparedGroup,
    SegmentFacts,
)
from tidelog_core.tier_compaction.rounds import (
    NEVER_MS,
    RoundScope,
    aborted_from,
    add_stretch,
    mark_if_unchanged,
)
from tidelog_core.tier_compaction.swap import (
    CLAIM_MS,
    PartitionClaimed,
    SegmentSwaps,
    check_of_partition,
)

T = TypeVar("T")

RENEW_SECONDS = CLAIM_MS / 1000 / 10  # how often to check the claim while workers work


@dataclass(frozen=True, slots=True)
class MapPart:
    """The part of the dirty log that one worker maps."""

    stretches: tuple[Stretch, ...]
    start_offset: int
    end_offset: int  # exclusive
    aborted: tuple[AbortedTransaction, ...]
    size_bytes_max: int  # of the map


@dataclass(frozen=True, slots=True)
class RewritePart:
    """The run of segments that one worker rewrites."""

    groups: tuple[SegmentGroup, ...]
    before: SegmentMeta | None  # the segment that ends at its start; None at the log's start


@dataclass(frozen=True, slots=True, kw_only=True)
class RewritePlan:
    """The values that all workers share."""

    claim: RewriteClaim
    offsets: OffsetMap
    facts: Mapping[UUID, SegmentFacts]
    deletes: DeleteRule | None
    last_batches: Mapping[int, LastBatch]


class Workers(Protocol):
    """Run the parts. Raise their errors, or a ``TidelogError`` for them."""

    @property
    def part_count(self) -> int:
        """Into how many parts to cut."""

    async def map(self, parts: Sequence[MapPart]) -> list[OffsetMap]:
        """Return ``map_part`` of each."""

    async def rewrite(
        self, plan: RewritePlan, parts: Sequence[RewritePart]
    ) -> list[list[PreparedGroup]]:
        """Return ``rewrite_part`` of each."""


class BegunSegments:
    """The segments that a worker begins under its driver's claim."""

    def __init__(self, tier: PartitionTier, claim: RewriteClaim) -> None:
        self._tier = tier
        self._claim = claim
        self._swaps = tier.swaps_under(claim)  # Only puts objects, which takes no claim.

    @property
    def rewrite_epoch(self) -> int:
        """The claim's epoch, which the new segments have."""
        return self._claim.rewrite_epoch

    async def renew(self) -> None:
        """Raise ``PartitionClaimed`` if the driver has lost the claim."""
        await self._held()

    async def start(self, segment: SegmentMeta) -> SegmentMeta:
        """Record that the new segment's objects may exist from now on.

        Raises ``PartitionClaimed``, ``UnknownTopicOrPartition`` if the topic is deleted.
        """
        tier = self._tier

        async def attempt() -> SegmentMeta:
            claim = await self._held()
            owner = await check_of_partition(tier.store, tier.topic.topic_id, tier.partition)
            await tier.store.commit(
                [records.put(segment, is_logged=False)], checks=[owner, records.check(claim)]
            )
            return replace(segment, version=segment.version + 1)

        # The driver has renewed its claim, or has lost it.
        return await retried(attempt, on=(VersionConflict,))

    async def put(self, segment: SegmentMeta, log: Path, index: bytes) -> None:
        """Store the new segment's objects, the index last; durable on return."""
        await self._swaps.put(segment, log, index)

    async def _held(self) -> RewriteClaim:
        item = await self._tier.store.get(self._claim.item_id)
        found = None if item is None else RewriteClaim.from_item(item)
        is_held = (
            found is not None
            and (found.holder, found.rewrite_epoch)
            == (self._claim.holder, self._claim.rewrite_epoch)
            and found.expires_ms > self._tier.clock_ms()
        )
        if found is None or not is_held:
            raise PartitionClaimed(self._claim.topic_id, self._claim.partition)
        return found


async def map_part(tier: PartitionTier, part: MapPart) -> OffsetMap:
    """Return the newest offset of every key in the part, as far as there was room for it."""
    offsets = OffsetMap(start_offset=part.start_offset, size_bytes_max=part.size_bytes_max)
    transactions = CleanedTransactions(part.aborted)
    for stretch in part.stretches:
        if not offsets.is_full:
            await add_stretch(tier, offsets, transactions, stretch, end_offset=part.end_offset)
    return offsets


async def rewrite_part(
    tier: PartitionTier, plan: RewritePlan, part: RewritePart
) -> list[PreparedGroup]:
    """Rewrite the part's segments, and return the new ones to swap in, in order.

    Can be repeated. Raises ``PartitionClaimed``, ``CorruptObject``,
    ``CorruptRecordBatch``, ``UnknownTopicOrPartition`` and the errors of the stores.
    """
    begun_before = await _begun_before(tier, part.before)
    start_offset = part.groups[0].base_offset
    rewrite = Rewrite(
        end_offset=plan.offsets.end_offset,
        keep=plan.offsets.keeps,
        transactions=CleanedTransactions(
            aborted_from(plan.facts, start_offset), begun_before=begun_before or ()
        ),
        deletes=None if begun_before is None else plan.deletes,
        last_batches=plan.last_batches,
    )
    starts, left = BegunSegments(tier, plan.claim), deque(part.groups)
    prepared = []
    while left:
        prepared.append(
            await tier.prepare(
                starts,
                left,
                rewrite.batch,
                facts=plan.facts,
                compacted_up_to=plan.offsets.end_offset,
                limits=SegmentLimits.of(tier.config),
            )
        )
    return prepared


async def run_spread_round(
    tier: PartitionTier,
    swaps: SegmentSwaps,
    scope: RoundScope,
    workers: Workers,
    map_size_bytes: int,
) -> int:
    """Return the number of records that one round has removed. Raises as ``rewrite_part``.

    If it stops early, finished swaps stay valid and unfinished segments are removed.
    """
    facts = await tier.facts_of(scope.segments)
    parts = _map_parts(scope, facts, workers.part_count, map_size_bytes)
    async with _renewing(swaps):
        maps = await workers.map(parts)
    offsets = OffsetMap(start_offset=scope.choice.first_dirty_offset, size_bytes_max=map_size_bytes)
    for part_offsets in maps:
        offsets.merge(part_offsets)
    plan = RewritePlan(
        claim=swaps.claim,
        offsets=offsets,
        facts=facts,
        deletes=scope.delete_rule(tier),
        last_batches=scope.last_batches(facts),
    )
    removed = 0
    try:
        async with _renewing(swaps):
            runs = _rewrite_parts(scope.groups_below(offsets.end_offset), workers.part_count)
            prepared = await workers.rewrite(plan, runs)
        for one in (group for run in prepared for group in run):
            done = await tier.swap_in(swaps, one)
            removed += done.removed_offsets
            if done.outcome is GroupOutcome.LOST:
                break
            await mark_if_unchanged(swaps, done, offsets.end_offset)
    finally:
        await swaps.abandon_started()
    return removed


@asynccontextmanager
async def _renewing(swaps: SegmentSwaps) -> AsyncIterator[None]:
    """Keep renewing the claim. If it is lost, the next swap fails."""

    async def renew() -> None:
        while True:
            await asyncio.sleep(RENEW_SECONDS)
            with contextlib.suppress(PartitionClaimed):
                await swaps.renew()

    task = asyncio.create_task(renew())
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def _begun_before(tier: PartitionTier, before: SegmentMeta | None) -> set[int] | None:
    """Return the producers with a transaction that is open behind a segment; None: unknown."""
    if before is None:
        return set()
    index = await tier.index_of(before)
    try:
        state = decode_snapshot(bytes(index.producer_snapshot), expiration_ms=NEVER_MS)
    except CorruptSnapshot:
        return None
    return {
        producer_id
        for producer_id, entry in state.items()
        if entry.transaction_first_offset != NO_OFFSET
    }


def _map_parts(
    scope: RoundScope,
    facts: Mapping[UUID, SegmentFacts],
    part_count: int,
    map_size_bytes: int,
) -> list[MapPart]:
    stretches = [(one, one.segment.size_bytes) for one in scope.dirty_stretches()]
    parts = []
    for run in _cut(stretches, part_count):
        start_offset = max(scope.choice.first_dirty_offset, run[0].start_offset)
        parts.append(
            MapPart(
                tuple(run),
                start_offset,
                scope.choice.end_offset,
                aborted_from(facts, start_offset),
                map_size_bytes,
            )
        )
    return parts


def _rewrite_parts(groups: Sequence[SegmentGroup], part_count: int) -> list[RewritePart]:
    parts = []
    before: SegmentMeta | None = None
    for run in _cut([(group, group.size_bytes) for group in groups], part_count):
        parts.append(RewritePart(tuple(run), before))
        before = run[-1].stretches[-1].segment
    return parts


def _cut(weighed: Iterable[tuple[T, int]], part_count: int) -> list[list[T]]:
    """Cut a sequence into at most ``part_count`` runs of about the same weight."""
    weighed = list(weighed)
    target = max(1, -(-sum(weight for _, weight in weighed) // part_count))
    runs: dict[int, list[T]] = {}
    weight_before = 0
    for one, weight in weighed:
        runs.setdefault(weight_before // target, []).append(one)
        weight_before += weight
    return list(runs.values())
