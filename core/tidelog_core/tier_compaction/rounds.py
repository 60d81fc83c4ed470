"""The segments, map and transactions of one round of compacting a tier."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

from tidelog_core.compaction.offset_map import OffsetMap
from tidelog_core.compaction.rewrite import DeleteRule, LastBatch, last_batches
from tidelog_core.compaction.transactions import CleanedTransactions
from tidelog_core.log.producers.producer_snapshot import CorruptSnapshot, decode_snapshot
from tidelog_core.log.values import AbortedTransaction
from tidelog_core.metadata.records import SegmentMeta
from tidelog_core.tier.stretches import Stretch
from tidelog_core.tier_compaction.choice import CompactionChoice
from tidelog_core.tier_compaction.groups import SegmentGroup, group_segments
from tidelog_core.tier_compaction.partition_tier import (
    GroupOutcome,
    PartitionTier,
    RewrittenGroup,
    SegmentFacts,
    all_aborted,
)
from tidelog_core.tier_compaction.segment_files import stretch_batches
from tidelog_core.tier_compaction.swap import SegmentSwaps

NEVER_MS = 2**62


@dataclass(frozen=True, slots=True)
class RoundScope:
    """The segments of one round."""

    segments: Sequence[SegmentMeta]  # all that are live
    choice: CompactionChoice
    walked: Sequence[SegmentMeta]  # without the young ones, which stay segments of their own
    groups: tuple[SegmentGroup, ...]

    @classmethod
    def of(cls, segments: Sequence[SegmentMeta], choice: CompactionChoice) -> RoundScope:
        """Return the scope of the choice."""
        walked = [one for one in segments if one.end_offset <= choice.end_offset]
        return cls(segments, choice, walked, tuple(group_segments(walked)))

    @property
    def base_offset(self) -> int:
        """The first offset of the walk."""
        return self.walked[0].base_offset

    def groups_below(self, end_offset: int) -> list[SegmentGroup]:
        """Return the groups that begin below the end of the map."""
        return [one for one in self.groups if one.base_offset < end_offset]

    def dirty_stretches(self) -> Iterator[Stretch]:
        """Yield the stretches that give the newest offset of every key, in order."""
        for group in self.groups:
            for stretch in group.stretches:
                if (
                    stretch.end_offset > self.choice.first_dirty_offset
                    and stretch.start_offset < self.choice.end_offset
                ):
                    yield stretch

    def delete_rule(self, tier: PartitionTier) -> DeleteRule | None:
        """Return the rule for tombstones and markers, if the walk passes all older records."""
        edges = [group.base_offset for group in self.groups[1:]]
        ends = [group.end_offset for group in self.groups[:-1]]
        if edges != ends or sum(len(g.segments) for g in self.groups) != len(self.walked):
            return None
        return DeleteRule(tier.clock_ms(), tier.config.delete_retention_ms)

    def last_batches(self, facts: Mapping[UUID, SegmentFacts]) -> Mapping[int, LastBatch]:
        """Return every producer's last batch in the whole tier."""
        try:
            snapshot = facts[self.segments[-1].segment_id].producer_snapshot
            state = decode_snapshot(snapshot, expiration_ms=NEVER_MS)
        except CorruptSnapshot:
            return {}  # A log that begins with this snapshot has no producers either.
        return last_batches(state.items())


def aborted_from(
    facts: Mapping[UUID, SegmentFacts], start_offset: int
) -> tuple[AbortedTransaction, ...]:
    """Return the aborted transactions with markers from there on: a walk ends only those."""
    return tuple(one for one in all_aborted(facts.values()) if one.last_offset >= start_offset)


async def add_stretch(
    tier: PartitionTier,
    offsets: OffsetMap,
    transactions: CleanedTransactions,
    stretch: Stretch,
    *,
    end_offset: int,
) -> None:
    """Take the batches of a stretch that end at or below an offset into the map."""
    async with tier.reading(stretch) as (log, index):
        batches = stretch_batches(log, index, stretch)
        offsets.add_segment(
            (batch for batch in batches if batch[2].next_offset <= end_offset),
            transactions,
            end_offset=min(stretch.end_offset, end_offset),
        )


async def mark_if_unchanged(
    swaps: SegmentSwaps, rewritten: RewrittenGroup, compacted_up_to: int
) -> None:
    """Mark a segment as compacted if compaction has left it unchanged."""
    is_dirty = any(one.compacted_up_to < one.end_offset for one in rewritten.group.segments)
    if rewritten.outcome is GroupOutcome.UNCHANGED and is_dirty:
        (segment,) = rewritten.group.segments
        await swaps.mark_compacted(segment, compacted_up_to)
