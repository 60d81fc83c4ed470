"""Compacts the tiered segments of one partition.

A round reads the dirty part into a map of every key's newest offset. It then reads all segments
from the log start on and swaps in the remaining records, group by group in the order of offsets.
Each swap is valid on its own, so a round may stop after any: the next round starts again and finds
less to do. If the map is full before the dirty part ends, another round is needed.

A swap that conflicts ends the round: a tombstone behind it must stay as long as the older records
that it deletes.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from uuid import UUID

from tidelog_core.compaction.offset_map import OffsetMap
from tidelog_core.compaction.rewrite import Rewrite
from tidelog_core.compaction.selection import SegmentLimits
from tidelog_core.compaction.transactions import CleanedTransactions
from tidelog_core.metadata.records import SegmentMeta
from tidelog_core.model import TopicPartition
from tidelog_core.tier_compaction.choice import CompactionChoice, choose_compaction
from tidelog_core.tier_compaction.partition_tier import (
    GroupOutcome,
    LiveTier,
    PartitionTier,
    SegmentFacts,
)
from tidelog_core.tier_compaction.rounds import (
    RoundScope,
    aborted_from,
    add_stretch,
    mark_if_unchanged,
)
from tidelog_core.tier_compaction.spread import Workers, run_spread_round
from tidelog_core.tier_compaction.swap import PartitionClaimed, SegmentSwaps

MAP_SIZE_BYTES = 128 << 20  # of the map of keys. Source: Kafka's log.cleaner.dedupe.buffer.size.
ROUNDS_MAX = 100


class CompactionOutcome(Enum):
    """The result for a partition."""

    COMPACTED = "compacted"
    NOT_DUE = "not due"
    CLAIMED = "claimed"  # another process has the claim


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionReport:
    """The result of compacting a partition, with figures."""

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
    tier: PartitionTier,
    *,
    is_forced: bool = False,
    map_size_bytes: int = MAP_SIZE_BYTES,
    workers: Workers | None = None,
) -> CompactionReport:
    """Compact a due partition; with ``is_forced`` every dirty segment that is old enough.

    The ``workers`` read and write, if there are any (``spread``).
    Raises ``UnknownTopicOrPartition``, ``CorruptObject``, ``CorruptRecordBatch`` and the errors of
    the stores. Earlier swaps stay valid, and calling again continues.
    """
    before = await tier.live()
    choice = _choose(tier, before.segments)
    is_due = choice.is_due(tier.config) or (is_forced and choice.dirty_bytes > 0)
    outcome, removed = CompactionOutcome.NOT_DUE, 0
    if is_due or before.has_leftovers:
        try:
            async with tier.claimed() as swaps:
                if is_due:
                    removed = await _compact(tier, swaps, map_size_bytes, workers)
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


async def _compact(
    tier: PartitionTier, swaps: SegmentSwaps, map_size_bytes: int, workers: Workers | None
) -> int:
    """Return how many records were removed, after as many rounds as are needed."""
    removed = 0
    for number in range(ROUNDS_MAX):
        if number:
            await swaps.next_round()
        segments = (await tier.live()).segments
        choice = _choose(tier, segments)
        if not choice.dirty_bytes:
            break
        scope = RoundScope.of(segments, choice)
        if workers is None:
            removed += await _run_round(tier, swaps, scope, map_size_bytes)
        else:
            removed += await run_spread_round(tier, swaps, scope, workers, map_size_bytes)
    return removed


async def _run_round(
    tier: PartitionTier, swaps: SegmentSwaps, scope: RoundScope, map_size_bytes: int
) -> int:
    """Return how many records one round has removed."""
    facts = await tier.facts_of(scope.segments)
    offsets = await _map(tier, swaps, scope, facts, map_size_bytes)
    rewrite = Rewrite(
        end_offset=offsets.end_offset,
        keep=offsets.keeps,
        transactions=CleanedTransactions(aborted_from(facts, scope.base_offset)),
        deletes=scope.delete_rule(tier),
        last_batches=scope.last_batches(facts),
    )
    left = deque(scope.groups_below(offsets.end_offset))
    removed = 0
    while left:
        done = await tier.rewrite(
            swaps,
            left,
            rewrite.batch,
            facts=facts,
            compacted_up_to=offsets.end_offset,
            limits=SegmentLimits.of(tier.config),
        )
        removed += done.removed_offsets
        if done.outcome is GroupOutcome.LOST:
            break
        await mark_if_unchanged(swaps, done, offsets.end_offset)
    return removed


async def _map(
    tier: PartitionTier,
    swaps: SegmentSwaps,
    scope: RoundScope,
    facts: Mapping[UUID, SegmentFacts],
    map_size_bytes: int,
) -> OffsetMap:
    start, end = scope.choice.first_dirty_offset, scope.choice.end_offset
    offsets = OffsetMap(start_offset=start, size_bytes_max=map_size_bytes)
    transactions = CleanedTransactions(aborted_from(facts, start))
    for stretch in scope.dirty_stretches():
        if offsets.is_full:
            break
        await swaps.renew()
        await add_stretch(tier, offsets, transactions, stretch, end_offset=end)
    return offsets


def _choose(tier: PartitionTier, segments: Sequence[SegmentMeta]) -> CompactionChoice:
    return choose_compaction(segments, tier.config, now_ms=tier.clock_ms())


def _size_bytes(tier: LiveTier) -> int:
    return sum(segment.size_bytes for segment in tier.segments)
