"""Erases one key's records from a partition's tiered segments.

Only segments whose key filter may hold the key are read, and only those that hold it are
replaced, each by one with the same offsets. The log start, transactions and tombstones do not
change: readers see the same log without the key's records. The old objects are deleted like all
replaced ones; until then the key is still in the bucket.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from uuid import UUID

from tidelog_core.compaction.rewrite import Rewrite, WalkedBatch
from tidelog_core.metadata.records import SegmentMeta, SegmentState
from tidelog_core.records.batch import Record, decode_batch
from tidelog_core.rewriting.groups import SegmentGroup, group_segments
from tidelog_core.rewriting.partition_tier import GroupOutcome, PartitionTier, SegmentFacts
from tidelog_core.rewriting.segment_files import stretch_batches
from tidelog_core.rewriting.swap import SegmentSwaps
from tidelog_core.tier.lifecycle import read_segments

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


async def find_in_tier(tier: PartitionTier, key: bytes) -> KeyInTier:
    """Count the key's tiered records; changes nothing.

    Raises ``UnknownTopicOrPartition``, ``CorruptObject``, ``CorruptRecordBatch`` and the errors
    of the stores, such as ``ObjectNotFound`` while another process replaces segments.
    """
    live = await tier.live()
    holding_count = record_count = 0
    for group in group_segments(live.segments):
        if not await _may_hold(tier, group, key):
            continue
        for stretch in group.stretches:
            async with tier.reading(stretch) as (log, index):
                found = _count(stretch_batches(log, index, stretch), key)
            holding_count += found > 0
            record_count += found
    return KeyInTier(len(live.segments), holding_count, record_count)


async def erase_from_tier(tier: PartitionTier, key: bytes) -> TierErasure:
    """Replace every tiered segment that holds records of the key by one without them.

    Idempotent; after an interruption, replaced segments stay replaced. Raises
    ``PartitionClaimed``, ``UnknownTopicOrPartition``, ``CorruptObject``,
    ``CorruptRecordBatch`` and the errors of the stores.
    """
    erased: list[ErasedSegment] = []
    async with tier.claimed() as swaps:
        for _ in range(ROUNDS_MAX):
            live = await tier.live()
            facts = await tier.facts_of(live.segments)
            is_complete = True
            for group in group_segments(live.segments):
                if await _may_hold(tier, group, key):
                    outcome = await _erase(tier, swaps, group, facts, key)
                    if isinstance(outcome, ErasedSegment):
                        erased.append(outcome)
                    elif outcome is GroupOutcome.LOST:
                        is_complete = False
                        break
            if is_complete:
                break
            await swaps.next_round()
    return TierErasure(
        start_offset=live.segments[0].base_offset if live.segments else live.log_start_offset,
        end_offset=max((s.end_offset for s in live.segments), default=live.log_start_offset),
        segment_count=len(live.segments),
        erased=tuple(erased),
    )


async def delete_replaced(
    tier: PartitionTier, *, sleep: Callable[[float], Awaitable[None]]
) -> None:
    """Wait until every segment in DELETE_STARTED may be deleted, and delete them all.

    Raises ``PartitionClaimed`` and the errors of the stores.
    """
    while waiting := await _waiting(tier):
        wait_ms = min(meta.deletable_ms for meta in waiting) - tier.clock_ms()
        if wait_ms > 0:
            await sleep(wait_ms / 1000)
            continue
        async with tier.claimed():
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
    key: bytes,
) -> ErasedSegment | GroupOutcome:
    removed: list[int] = []

    def keep(record: Record) -> bool:
        if record.key != key:
            return True
        removed.append(record.offset)
        return False

    rewrite = Rewrite(end_offset=group.end_offset, keep=keep)
    done = await tier.rewrite(
        swaps,
        deque((group,)),
        rewrite.batch,
        facts=facts,
        compacted_up_to=min(segment.compacted_up_to for segment in group.segments),
        limits=None,
    )
    if done.new is None:
        return done.outcome
    return ErasedSegment(
        base_offset=group.base_offset,
        end_offset=group.end_offset,
        old_segment_ids=tuple(segment.segment_id for segment in group.segments),
        new_segment_id=done.new.segment_id,
        removed_offsets=tuple(removed),
    )
