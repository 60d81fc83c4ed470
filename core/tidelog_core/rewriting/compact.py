"""Compacts the tiered segments of one partition.

A round reads the dirty part into a map of every key's newest offset, then walks over all
segments from the log start on and swaps in, group by group and in order of offset, what is
left of them. Each swap is right alone, so a round may stop after any: what comes next begins
anew, and finds less to do. A map that is full before the dirty part ends takes another round.

A swap that is lost ends the round: a tombstone behind it must not go while the older records
that it deletes have stayed.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from uuid import UUID

from tidelog_core.compaction.offset_map import OffsetMap
from tidelog_core.compaction.rewrite import DeleteRule, LastBatch, Rewrite, last_batches
from tidelog_core.compaction.selection import SegmentLimits
from tidelog_core.compaction.transactions import CleanedTransactions
from tidelog_core.log.producer_snapshot import CorruptSnapshot, decode_snapshot
from tidelog_core.metadata.records import SegmentMeta
from tidelog_core.model import TopicPartition
from tidelog_core.rewriting.choice import CompactionChoice, choose_compaction
from tidelog_core.rewriting.groups import SegmentGroup, group_segments
from tidelog_core.rewriting.partition_tier import (
    GroupOutcome,
    LiveTier,
    PartitionTier,
    SegmentFacts,
    all_aborted,
)
from tidelog_core.rewriting.segment_files import stretch_batches
from tidelog_core.rewriting.swap import PartitionClaimed, SegmentSwaps

MAP_SIZE_BYTES = 128 << 20  # of the map of keys. Source: Kafka's log.cleaner.dedupe.buffer.size.
ROUNDS_MAX = 100
_NEVER_MS = 2**62


class CompactionOutcome(Enum):
    """What became of a partition."""

    COMPACTED = "compacted"
    NOT_DUE = "not due"
    CLAIMED = "claimed"  # someone else is at it


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionReport:
    """What compacting a partition has come to."""

    partition: TopicPartition
    outcome: CompactionOutcome
    dirty_ratio: float  # before
    compacted_up_to: int  # no key has an older record below this offset
    segments_before: int
    segments_after: int
    bytes_before: int
    bytes_after: int
    removed_records: int

    def document(self) -> dict[str, object]:
        """Return the report for JSON."""
        fields = dataclasses.asdict(self)
        del fields["partition"]
        return {
            "topic": self.partition.topic,
            "partition": self.partition.partition,
            **fields,
            "outcome": self.outcome.value,
        }


async def compact_partition(
    tier: PartitionTier, *, is_forced: bool = False, map_size_bytes: int = MAP_SIZE_BYTES
) -> CompactionReport:
    """Compact what is due; with ``is_forced`` whatever is dirty and old enough.

    Raises ``UnknownTopicOrPartition``, ``CorruptObject``, ``CorruptRecordBatch`` and what the
    stores raise: whatever was swapped until then is right, and calling again goes on.
    """
    before = await tier.live()
    choice = _choose(tier, before.segments)
    is_due = choice.is_due(tier.config) or (is_forced and choice.dirty_bytes > 0)
    outcome, removed = CompactionOutcome.NOT_DUE, 0
    if is_due or before.has_leftovers:
        try:
            async with tier.claimed() as swaps:
                if is_due:
                    removed = await _compact(tier, swaps, map_size_bytes)
                    outcome = CompactionOutcome.COMPACTED
        except PartitionClaimed:
            outcome = CompactionOutcome.CLAIMED
    after = await tier.live()
    return CompactionReport(
        partition=TopicPartition(tier.topic.name, tier.partition),
        outcome=outcome,
        dirty_ratio=choice.dirty_ratio,
        compacted_up_to=_choose(tier, after.segments).first_dirty_offset,
        segments_before=len(before.segments),
        segments_after=len(after.segments),
        bytes_before=_size_bytes(before),
        bytes_after=_size_bytes(after),
        removed_records=removed,
    )


async def _compact(tier: PartitionTier, swaps: SegmentSwaps, map_size_bytes: int) -> int:
    """Return how many records were removed, after as many rounds as it takes."""
    removed = 0
    for number in range(ROUNDS_MAX):
        if number:
            await swaps.next_round()
        segments = (await tier.live()).segments
        choice = _choose(tier, segments)
        if not choice.dirty_bytes:
            break
        removed += await _Round(tier, swaps, segments, choice).run(map_size_bytes)
    return removed


class _Round:
    def __init__(
        self,
        tier: PartitionTier,
        swaps: SegmentSwaps,
        segments: Sequence[SegmentMeta],
        choice: CompactionChoice,
    ) -> None:
        self._tier = tier
        self._swaps = swaps
        self._segments = segments
        self._choice = choice
        # What is too young stays in segments of its own.
        self._walked = [one for one in segments if one.end_offset <= choice.end_offset]
        self._groups = tuple(group_segments(self._walked))

    async def run(self, map_size_bytes: int) -> int:
        """Return how many records the round has removed."""
        facts = await self._tier.facts_of(self._segments)
        offsets = await self._map(facts, map_size_bytes)
        rewrite = Rewrite(
            end_offset=offsets.end_offset,
            keep=offsets.keeps,
            transactions=_transactions(facts, self._walked[0].base_offset),
            deletes=self._delete_rule(),
            last_batches=_last_batches(facts[self._segments[-1].segment_id].producer_snapshot),
        )
        left = deque(one for one in self._groups if one.base_offset < offsets.end_offset)
        removed = 0
        while left:
            done = await self._tier.rewrite(
                self._swaps,
                left,
                rewrite.batch,
                facts=facts,
                compacted_up_to=offsets.end_offset,
                limits=SegmentLimits.of(self._tier.config),
            )
            removed += done.removed_offsets
            if done.outcome is GroupOutcome.LOST:
                break
            if done.outcome is GroupOutcome.UNCHANGED and _is_dirty(done.group):
                (segment,) = done.group.segments
                await self._swaps.mark_compacted(segment, offsets.end_offset)
        return removed

    async def _map(self, facts: Mapping[UUID, SegmentFacts], map_size_bytes: int) -> OffsetMap:
        start, end = self._choice.first_dirty_offset, self._choice.end_offset
        offsets = OffsetMap(start_offset=start, size_bytes_max=map_size_bytes)
        transactions = _transactions(facts, start)
        for stretch in (stretch for group in self._groups for stretch in group.stretches):
            if stretch.end_offset <= start or stretch.start_offset >= end or offsets.is_full:
                continue
            await self._swaps.renew()
            async with self._tier.reading(stretch) as (log, index):
                batches = stretch_batches(log, index, stretch)
                offsets.add_segment(
                    (batch for batch in batches if batch[2].next_offset <= end),
                    transactions,
                    end_offset=min(stretch.end_offset, end),
                )
        return offsets

    def _delete_rule(self) -> DeleteRule | None:
        """Return when tombstones and markers go: only where every older record is met."""
        edges = [group.base_offset for group in self._groups[1:]]
        ends = [group.end_offset for group in self._groups[:-1]]
        if edges != ends or sum(len(g.segments) for g in self._groups) != len(self._walked):
            return None
        return DeleteRule(self._tier.clock_ms(), self._tier.config.delete_retention_ms)


def _choose(tier: PartitionTier, segments: Sequence[SegmentMeta]) -> CompactionChoice:
    return choose_compaction(segments, tier.config, now_ms=tier.clock_ms())


def _transactions(facts: Mapping[UUID, SegmentFacts], start_offset: int) -> CleanedTransactions:
    """Return what a walk from there on needs: one that it does not see ended would never end."""
    found = all_aborted(facts.values())
    return CleanedTransactions(one for one in found if one.last_offset >= start_offset)


def _is_dirty(group: SegmentGroup) -> bool:
    return any(segment.compacted_up_to < segment.end_offset for segment in group.segments)


def _last_batches(producer_snapshot: bytes) -> Mapping[int, LastBatch]:
    try:
        state = decode_snapshot(producer_snapshot, expiration_ms=_NEVER_MS)
    except CorruptSnapshot:
        return {}  # Whoever begins a log with it does so without its producers too.
    return last_batches(state.items())


def _size_bytes(tier: LiveTier) -> int:
    return sum(segment.size_bytes for segment in tier.segments)
