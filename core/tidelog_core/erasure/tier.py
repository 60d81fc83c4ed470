"""Erases one key's records from a partition's tiered segments.

Only segments whose key filter may hold the key are read, and only those that hold it are
replaced, each by one with the same offsets. The log start, transactions and tombstones do not
change: readers see the same log without the key's records. The old objects are deleted like all
replaced ones; until then the key is still in the bucket.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Protocol
from uuid import UUID

from tidelog_core.compaction.rewrite import Rewrite, WalkedBatch
from tidelog_core.metadata.records import SegmentMeta, SegmentState
from tidelog_core.records.batch import Record, decode_batch
from tidelog_core.tier.lifecycle import read_segments
from tidelog_core.tier_compaction.groups import SegmentGroup, group_segments
from tidelog_core.tier_compaction.partition_tier import GroupOutcome, PartitionTier, SegmentFacts
from tidelog_core.tier_compaction.segment_files import stretch_batches
from tidelog_core.tier_compaction.swap import SegmentSwaps

ROUNDS_MAX = 100  # with each that is lost retention has taken a segment


@dataclass(frozen=True, slots=True)
class ErasedSegment:
    """A segment that was replaced because it held records of the key."""

    base_offset: int
    end_offset: int  # exclusive
    old_segment_ids: tuple[UUID, ...]
    new_segment_id: UUID
    removed_offsets: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TierErasure:
    """The result of erasing from a partition's tier."""

    start_offset: int  # of the segments that were searched
    end_offset: int  # exclusive
    segment_count: int
    erased: tuple[ErasedSegment, ...]


@dataclass(frozen=True, slots=True)
class KeyInTier:
    """The segments and records of a partition's tier that erasing a key would remove."""

    segment_count: int  # all of them
    holding_count: int  # those with records of the key
    record_count: int


NOTHING_FOUND = KeyInTier(0, 0, 0)


class SearchSteps(Protocol):
    """Observes the progress of a search. May raise ``Interrupted`` to stop it there."""

    async def on_found(self, erased: ErasedSegment) -> None:
        """Note durably that the segment is about to be replaced.

        If the process ends before that, the same records are found again, and noted again.
        """

    def on_lost(self, erased: ErasedSegment) -> None:
        """Note that it was not replaced: another process has changed a segment."""

    async def on_searched(self, end_offset: int) -> None:
        """Note that segments which end at the offset or before hold no record of the key."""


class _IgnoredSteps:
    """The steps of a search that is not continued if it is interrupted."""

    async def on_found(self, erased: ErasedSegment) -> None:
        pass

    def on_lost(self, erased: ErasedSegment) -> None:
        pass

    async def on_searched(self, end_offset: int) -> None:
        pass


async def find_in_tier(
    tier: PartitionTier,
    key: bytes,
    *,
    before: KeyInTier = NOTHING_FOUND,
    after: int = 0,
    on_searched: Callable[[int, KeyInTier], Awaitable[None]] | None = None,
) -> KeyInTier:
    """Count the key's tiered records; changes nothing.

    ``before`` was found in segments that end at ``after`` or before; ``on_searched`` gets both
    after each group of segments. Raises ``UnknownTopicOrPartition``, ``CorruptObject``,
    ``CorruptRecordBatch`` and the errors of the stores, such as ``ObjectNotFound`` while another
    process replaces segments.
    """
    live = await tier.live()
    found = dataclasses.replace(before, segment_count=len(live.segments))
    for group in group_segments(live.segments):
        if group.end_offset <= after:
            continue
        if await _may_hold(tier, group, key):
            for stretch in group.stretches:
                async with tier.reading(stretch) as (log, index):
                    count = _count(stretch_batches(log, index, stretch), key)
                found = KeyInTier(
                    found.segment_count,
                    found.holding_count + (count > 0),
                    found.record_count + count,
                )
        if on_searched is not None:
            await on_searched(group.end_offset, found)
    return found


async def erase_from_tier(
    tier: PartitionTier,
    key: bytes,
    *,
    holder: UUID | None = None,
    start_offset: int = 0,
    steps: SearchSteps | None = None,
) -> TierErasure:
    """Replace every tiered segment that holds records of the key by one without them.

    Idempotent; after an interruption, replaced segments stay replaced. Segments that end at
    ``start_offset`` or before are passed over; ``holder`` is that of the claim. Raises
    ``PartitionClaimed``, ``UnknownTopicOrPartition``, ``CorruptObject``,
    ``CorruptRecordBatch`` and the errors of the stores.
    """
    observer: SearchSteps = _IgnoredSteps() if steps is None else steps
    erased: list[ErasedSegment] = []
    async with tier.claimed(holder) as swaps:
        for _ in range(ROUNDS_MAX):
            live = await tier.live()
            facts = await tier.facts_of(live.segments)
            is_overtaken = False
            for group in group_segments(live.segments):
                if group.end_offset <= start_offset:
                    continue
                outcome = await _erase(tier, swaps, group, facts, key=key, steps=observer)
                if outcome is GroupOutcome.LOST:
                    is_overtaken = True
                    break
                if isinstance(outcome, ErasedSegment):
                    erased.append(outcome)
                start_offset = group.end_offset
                await observer.on_searched(start_offset)
            if not is_overtaken:
                break
            await swaps.next_round()
    return TierErasure(
        start_offset=live.segments[0].base_offset if live.segments else live.log_start_offset,
        end_offset=max((s.end_offset for s in live.segments), default=live.log_start_offset),
        segment_count=len(live.segments),
        erased=tuple(erased),
    )


async def delete_replaced(
    tier: PartitionTier,
    *,
    sleep: Callable[[float], Awaitable[None]],
    holder: UUID | None = None,
) -> None:
    """Wait until every segment in DELETE_STARTED may be deleted, and delete them all.

    Raises ``PartitionClaimed`` and the errors of the stores.
    """
    while waiting := await _waiting(tier):
        wait_ms = min(meta.deletable_ms for meta in waiting) - tier.clock_ms()
        if wait_ms > 0:
            await sleep(wait_ms / 1000)
            continue
        async with tier.claimed(holder):
            pass  # The clean-up of a taken claim deletes them.


def _count(batches: Iterable[WalkedBatch], key: bytes) -> int:
    return sum(
        record.key == key
        for buffer, position, header in batches
        if not header.is_control
        for record in decode_batch(buffer, position, header)
    )


async def _waiting(tier: PartitionTier) -> list[SegmentMeta]:
    metas = await read_segments(tier.store, tier.topic.topic_id, tier.partition)
    return [meta for meta in metas if meta.state is SegmentState.DELETE_STARTED]


async def _may_hold(tier: PartitionTier, group: SegmentGroup, key: bytes) -> bool:
    for segment in group.segments:
        key_filter = (await tier.index_of(segment)).key_filter
        if key_filter is None or key_filter.may_contain(key):
            return True
    return False


async def _erase(
    tier: PartitionTier,
    swaps: SegmentSwaps,
    group: SegmentGroup,
    facts: dict[UUID, SegmentFacts],
    *,
    key: bytes,
    steps: SearchSteps,
) -> ErasedSegment | GroupOutcome:
    """Replace the group by a segment without the key; return how that ended if it was not done."""
    if not await _may_hold(tier, group, key):
        return GroupOutcome.UNCHANGED
    removed: list[int] = []

    def keep(record: Record) -> bool:
        if record.key != key:
            return True
        removed.append(record.offset)
        return False

    rewrite = Rewrite(end_offset=group.end_offset, keep=keep)
    prepared = await tier.prepare(
        swaps,
        deque((group,)),
        rewrite.batch,
        facts=facts,
        compacted_up_to=min(segment.compacted_up_to for segment in group.segments),
        limits=None,
    )
    if prepared.new is None:
        return GroupOutcome.UNCHANGED
    erased = ErasedSegment(
        base_offset=group.base_offset,
        end_offset=group.end_offset,
        old_segment_ids=tuple(segment.segment_id for segment in group.segments),
        new_segment_id=prepared.new.segment_id,
        removed_offsets=tuple(removed),
    )
    await steps.on_found(erased)
    done = await tier.swap_in(swaps, prepared)
    if done.new is None:
        steps.on_lost(erased)
        return done.outcome
    return erased
