"""Compacting a tier with several workers, against the oracle and against what one leaves."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tidelog_core.compaction.offset_map import ENTRY_OVERHEAD_BYTES, OffsetMap
from tidelog_core.compaction.transactions import CleanedTransactions
from tidelog_core.errors import StoreUnavailable
from tidelog_core.metadata.records import SegmentState
from tidelog_core.records.batch import parse_header
from tidelog_core.tier_compaction.compact import CompactionOutcome, compact_partition
from tidelog_core.tier_compaction.partition_tier import PartitionTier, PreparedGroup
from tidelog_core.tier_compaction.spread import (
    MapPart,
    RewritePart,
    RewritePlan,
    map_part,
    rewrite_part,
)
from tidelog_core.tier_compaction.swap import CLAIM_MS, PartitionClaimed

from tests.support.compacted_tier import CUTS, DELAY_MS, compacted, plain, read_rows, rows_of
from tests.support.offset_maps import kept_from
from tests.support.random_logs import (
    OPERATIONS,
    RandomLog,
    apply,
    committed_records,
    oracle,
)
from tests.support.tiered_partition import TieredPartition, tiered_partition


class TasksOfOneLoop:
    """Workers that work beside each other in this process, the last part first."""

    def __init__(self, tier: PartitionTier, part_count: int) -> None:
        self.tier = tier
        self.part_count = part_count
        self.rewritten_counts: list[int] = []  # how many parts, by round

    async def map(self, parts: Sequence[MapPart]) -> list[OffsetMap]:
        return await asyncio.gather(*(map_part(self.tier, part) for part in parts))

    async def rewrite(
        self, plan: RewritePlan, parts: Sequence[RewritePart]
    ) -> list[list[PreparedGroup]]:
        self.rewritten_counts.append(len(parts))
        done = await asyncio.gather(
            *(rewrite_part(self.tier, plan, part) for part in reversed(parts))
        )
        return list(reversed(done))


@settings(max_examples=12, deadline=None)
@given(
    growths=st.lists(OPERATIONS, min_size=1, max_size=3),
    cuts=CUTS,
    part_count=st.integers(1, 4),
    map_bytes=st.sampled_from((1, 500, 2**20)),
    retention_ms=st.sampled_from((0, 10 * DELAY_MS)),
)
async def test_what_workers_leave_is_what_the_oracle_leaves(
    growths: list[list[tuple[object, ...]]],
    cuts: list[int],
    part_count: int,
    map_bytes: int,
    retention_ms: int,
) -> None:
    """Where tombstones go, what readers believe of every key is what the oracle leaves."""

    log = RandomLog()
    with tempfile.TemporaryDirectory() as name:
        configs = {"segment.bytes": "400", "delete.retention.ms": str(retention_ms)}
        async with tiered_partition(Path(name), configs=configs) as partition:
            for operations in growths:
                count = len(log.batches)
                apply(log, operations)
                if not log.batches[count:]:
                    continue
                await partition.copy_all(log.batches[count:], cuts)
                partition.clock.now_ms += DELAY_MS
                workers = TasksOfOneLoop(partition.tier(), part_count)
                report = await compacted(partition, workers=workers, map_size_bytes=map_bytes)
                assert report.compacted_up_to == log.end_offset
                expected = rows_of(oracle(committed_records(log.batches), log.end_offset))
                found = read_rows(partition)
                if retention_ms:
                    assert found == expected
                else:
                    assert [row for row in found if row[3] is not None] == [
                        row for row in expected if row[3] is not None
                    ]
                    assert all(row in expected for row in found)
                assert await partition.problems() == []
                assert not await started(partition)


async def started(partition: TieredPartition) -> list[object]:
    """Return the segments that were begun and are not there yet."""
    live = await partition.store.list(f"segment:{partition.topic.topic_id}:0000000000")
    return [item for item in live if item.body["state"] == SegmentState.COPY_STARTED.value]


async def filled(partition: TieredPartition) -> RandomLog:
    """Copy eight segments, in which two keys stand again and again."""
    log = RandomLog()
    for number in range(8):
        await partition.copy([plain(log, "a", f"k{number}"), plain(log, "b", "a")])
    return log


async def test_each_worker_has_a_run_of_segments_and_they_become_one_order(tmp_path: Path) -> None:
    async with tiered_partition(tmp_path) as partition:
        log = await filled(partition)
        workers = TasksOfOneLoop(partition.tier(), 3)
        report = await compacted(partition, workers=workers)
        assert workers.rewritten_counts == [3]
        assert report.segments_after == 3
        assert read_rows(partition) == rows_of(
            oracle(committed_records(log.batches), log.end_offset)
        )


class DyingWorkers(TasksOfOneLoop):
    """Workers of which one is gone after it has put its segments."""

    async def rewrite(
        self, plan: RewritePlan, parts: Sequence[RewritePart]
    ) -> list[list[PreparedGroup]]:
        for part in parts:
            await rewrite_part(self.tier, plan, part)
            await rewrite_part(self.tier, plan, part)  # as a task that is tried again
        raise StoreUnavailable("a worker is gone")


async def test_what_is_not_swapped_in_is_removed_and_the_next_run_does_it(tmp_path: Path) -> None:
    async with tiered_partition(tmp_path) as partition:
        log = await filled(partition)
        before = await partition.object_keys()
        with pytest.raises(StoreUnavailable):
            await compacted(partition, workers=DyingWorkers(partition.tier(), 3))
        assert await partition.object_keys() == before
        assert not await started(partition)
        assert read_rows(partition) == rows_of(committed_records(log.batches))
        workers = TasksOfOneLoop(partition.tier(), 3)
        assert (await compacted(partition, workers=workers)).segments_after == 3
        assert await partition.problems() == []


class SlowWorkers(TasksOfOneLoop):
    """Workers that are late: meanwhile the claim has run out, and another compacts."""

    def __init__(self, partition: TieredPartition, part_count: int) -> None:
        super().__init__(partition.tier(), part_count)
        self.partition = partition
        self.refused = 0

    async def rewrite(
        self, plan: RewritePlan, parts: Sequence[RewritePart]
    ) -> list[list[PreparedGroup]]:
        prepared = [await rewrite_part(self.tier, plan, part) for part in parts[:-1]]
        self.partition.clock.now_ms += CLAIM_MS
        await compacted(self.partition)
        with pytest.raises(PartitionClaimed):
            await rewrite_part(self.tier, plan, parts[-1])
        self.refused += 1
        return prepared


async def test_workers_that_are_late_begin_nothing_and_swap_nothing(tmp_path: Path) -> None:
    async with tiered_partition(tmp_path) as partition:
        log = await filled(partition)
        workers = SlowWorkers(partition, 3)
        report = await compact_partition(partition.tier(), is_forced=True, workers=workers)
        assert report.outcome is CompactionOutcome.CLAIMED
        assert workers.refused == 1
        assert read_rows(partition) == rows_of(
            oracle(committed_records(log.batches), log.end_offset)
        )
        assert not await started(partition)
        assert await partition.problems() == []


def test_maps_become_one_as_far_as_there_is_room() -> None:
    def mapped(log: RandomLog, first: int, size_bytes_max: int = 2**20) -> OffsetMap:
        offsets = OffsetMap(start_offset=first, size_bytes_max=size_bytes_max)
        for batch in log.batches:
            if parse_header(batch).base_offset >= first:
                offsets.add(batch, 0, parse_header(batch), CleanedTransactions())
        return offsets

    log = RandomLog()
    plain(log, "a", "b")
    first = mapped(log, 0, 2 * (ENTRY_OVERHEAD_BYTES + 1))
    plain(log, "a")
    second = mapped(log, 2)
    plain(log, "c")
    third = mapped(log, 3)
    first.merge(second)
    assert (kept_from(first, b"a"), first.end_offset, first.is_full) == (2, 3, False)
    first.merge(third)
    assert (kept_from(first, b"c"), first.end_offset, first.is_full) == (0, 3, True)
    empty = OffsetMap(start_offset=3, size_bytes_max=1)
    empty.merge(third)
    assert (kept_from(empty, b"c"), empty.end_offset) == (3, 4)
