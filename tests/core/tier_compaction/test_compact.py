"""Compacting a tier, against the oracle of ``random_logs`` and through every reader there is."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st
from tidelog_core.metadata.records import SegmentState
from tidelog_core.records.batch import CompressionType
from tidelog_core.tier_compaction.compact import CompactionOutcome, compact_partition

from tests.support.compacted_tier import (
    CUTS,
    DELAY_MS,
    compacted,
    let_replaced_go,
    plain,
    read_rows,
    rows_of,
)
from tests.support.random_logs import (
    OPERATIONS,
    RandomLog,
    apply,
    committed_records,
    oracle,
)
from tests.support.tiered_partition import tiered_partition


@settings(max_examples=25, deadline=None)
@given(OPERATIONS, CUTS, st.sampled_from((150, 400, 10_000)), st.sampled_from((1, 500, 2**20)))
async def test_what_is_left_of_a_random_tier_is_what_the_oracle_leaves(
    operations: list[tuple[object, ...]], cuts: list[int], segment_bytes: int, map_bytes: int
) -> None:
    log = RandomLog()
    apply(log, operations)
    if not log.batches:
        return

    with tempfile.TemporaryDirectory() as name:
        configs = {"segment.bytes": str(segment_bytes)}
        async with tiered_partition(Path(name), configs=configs) as partition:
            await partition.copy_all(log.batches, cuts)
            report = await compacted(partition, map_size_bytes=map_bytes)
            expected = rows_of(oracle(committed_records(log.batches), log.end_offset))
            assert read_rows(partition) == expected
            assert report.compacted_up_to == log.end_offset
            assert await partition.problems() == []
            selected = {s.meta.segment_id for s in (await partition.select()).segments}
            assert selected == {meta.segment_id for meta in await partition.finished()}
            await let_replaced_go(partition)
            assert read_rows(partition) == expected
            assert await partition.problems() == []


@settings(max_examples=12, deadline=None)
@given(st.lists(OPERATIONS, min_size=2, max_size=4), CUTS)
async def test_a_tier_that_grows_between_compactions_ends_as_if_compacted_once(
    growths: list[list[tuple[object, ...]]], cuts: list[int]
) -> None:
    log = RandomLog()
    with tempfile.TemporaryDirectory() as name:
        async with tiered_partition(Path(name)) as partition:
            for operations in growths:
                count = len(log.batches)
                apply(log, operations)
                if log.batches[count:]:
                    await partition.copy_all(log.batches[count:], cuts)
                partition.clock.now_ms += DELAY_MS
                await compacted(partition)
                expected = rows_of(oracle(committed_records(log.batches), log.end_offset))
                if log.batches:
                    assert read_rows(partition) == expected
                    assert await partition.problems() == []


async def test_a_leader_that_has_not_seen_the_swap_goes_on_with_the_chain(tmp_path: Path) -> None:
    """It chains its next segment to the one that is replaced meanwhile, however often."""
    log = RandomLog()
    async with tiered_partition(tmp_path) as partition:
        first = await partition.copy([plain(log, "a", "b")])
        last = await partition.copy([plain(log, "a", "c")])
        await compacted(partition)
        (second,) = await partition.finished()
        await partition.copy([plain(log, "a", "d")], previous=last)
        await compacted(partition)
        (third,) = await partition.finished()
        await partition.copy([plain(log, "b", "d")], previous=second)
        assert await partition.problems() == []
        await partition.copy([plain(log, "c")], previous=third)
        await let_replaced_go(partition)
        assert await partition.problems() == []
        assert first.segment_id not in {meta.segment_id for meta in await partition.metas()}
        keys = [record.key for record in partition.read_bucket()]
        assert sorted(keys) == [b"a", b"b", b"c", b"d"]


async def test_segments_of_leaders_that_rolled_elsewhere_become_one(tmp_path: Path) -> None:
    """Each offset is read from one of them, and what a third leader copies still follows."""
    log = RandomLog()
    batches = [plain(log, key, "x") for key in "abcdefgh"]
    async with tiered_partition(tmp_path, configs={"segment.bytes": "14"}) as partition:
        await partition.copy(batches[:4])
        await partition.copy(batches[2:6], leader_epoch=4)
        await compacted(partition)
        (new,) = await partition.finished()
        assert (new.base_offset, new.end_offset, new.leader_epoch) == (0, 12, 4)
        assert [r.offset for r in partition.read_bucket()] == [0, 2, 4, 6, 8, 10, 11]
        assert await partition.problems() == []
        await partition.copy(batches[5:8], leader_epoch=5)
        await compacted(partition)
        expected = rows_of(oracle(committed_records(log.batches), log.end_offset))
        assert read_rows(partition) == expected
        assert await partition.problems() == []
        await let_replaced_go(partition)
        assert read_rows(partition) == expected


async def test_tombstones_go_after_their_time_in_the_next_compaction(tmp_path: Path) -> None:
    log = RandomLog()
    async with tiered_partition(tmp_path, configs={"delete.retention.ms": "1000"}) as partition:
        await partition.copy([plain(log, "a", "b")])
        await partition.copy([plain(log, "a", value=None)])
        await compacted(partition)
        assert [(r.key, r.value) for r in partition.read_bucket()] == [
            (b"b", b"v"),
            (b"a", None),
        ]
        partition.clock.now_ms += 999
        await partition.copy([plain(log, "c")])
        await compacted(partition)
        assert b"a" in [record.key for record in partition.read_bucket()]
        partition.clock.now_ms += 1
        await partition.copy([plain(log, "d")])
        await compacted(partition)
        assert [record.key for record in partition.read_bucket()] == [b"b", b"c", b"d"]


async def test_a_clean_tier_is_left_alone(tmp_path: Path) -> None:
    log = RandomLog()
    async with tiered_partition(tmp_path, configs={"segment.bytes": "150"}) as partition:
        await partition.copy([plain(log, "a", "b")])
        await partition.copy([plain(log, "c", "d")])
        report = await compacted(partition)
        assert (report.removed_records, report.segments_after) == (0, 2)
        before = await partition.object_keys()
        report = await compacted(partition)
        assert report.outcome is CompactionOutcome.NOT_DUE
        assert await partition.object_keys() == before


async def test_segments_are_joined_by_what_is_left_of_them(tmp_path: Path) -> None:
    """Each was as full as one may be; next to nothing of them is left."""
    log = RandomLog()
    async with tiered_partition(tmp_path, configs={"segment.bytes": "400"}) as partition:
        for _ in range(12):
            await partition.copy([plain(log, *"abcd") for _ in range(4)])
        assert min(meta.size_bytes for meta in await partition.finished()) > 400 // 2
        report = await compacted(partition)
        assert (report.segments_before, report.segments_after) == (12, 1)
        (new,) = await partition.finished()
        assert (new.base_offset, new.end_offset) == (0, log.end_offset)
        assert read_rows(partition) == rows_of(
            oracle(committed_records(log.batches), log.end_offset)
        )
        assert await partition.problems() == []
        await let_replaced_go(partition)
        assert await partition.problems() == []


async def test_no_segment_outgrows_the_limit_by_joining(tmp_path: Path) -> None:
    log = RandomLog()
    batches = [plain(log, key) for key in "abcdefgh"]
    two = str(2 * len(batches[0]))
    async with tiered_partition(tmp_path, configs={"segment.bytes": two}) as partition:
        for batch in batches:
            await partition.copy([batch])
        report = await compacted(partition)
        assert (report.segments_before, report.segments_after) == (8, 4)
        assert [meta.size_bytes for meta in await partition.finished()] == [int(two)] * 4
        assert await partition.problems() == []


async def test_segments_without_records_are_joined_to_one_that_is_full(tmp_path: Path) -> None:
    """Each has only its producer's last sequence; a reader would fetch each of them in vain."""
    log = RandomLog()
    for producer_id in range(100, 120):
        log.append([(b"key", b"v" * 20)], producer_id, CompressionType.NONE)
    full = str(len(log.batches[-1]))
    async with tiered_partition(tmp_path, configs={"segment.bytes": full}) as partition:
        for batch in log.batches:
            await partition.copy([batch])
        report = await compacted(partition)
        assert (report.segments_before, report.segments_after) == (20, 1)
        assert [record.offset for record in partition.read_bucket()] == [19]
        assert await partition.problems() == []


async def test_no_segments_offset_index_outgrows_its_limit_by_joining(tmp_path: Path) -> None:
    log = RandomLog()
    # Every batch but a segment's first has an entry; there is room for three.
    configs = {"index.interval.bytes": "0", "segment.index.bytes": "36"}
    async with tiered_partition(tmp_path, configs=configs) as partition:
        for pair in ("ab", "cd", "ef", "gh"):
            await partition.copy([plain(log, key) for key in pair])
        report = await compacted(partition)
        assert (report.segments_before, report.segments_after) == (4, 2)
        indexes = [await partition.tier().index_of(m) for m in await partition.finished()]
        assert [len(index.batches) for index in indexes] == [4, 4]
        assert await partition.problems() == []


async def test_small_segments_that_were_compacted_before_are_joined_as_well(tmp_path: Path) -> None:
    """A reader asks for each of them, and what lies behind them may never be joined to them."""
    log = RandomLog()
    async with tiered_partition(tmp_path, configs={"segment.bytes": "100"}) as partition:
        await partition.copy([plain(log, "a")])
        await partition.copy([plain(log, "b")])
        await compacted(partition)
        large = await partition.copy([plain(log, *"cdefghijklmnopqrstuvwxyz")])
        tier = partition.tier()
        roomy = replace(tier.config, segment_bytes=large.size_bytes)
        await compact_partition(replace(tier, config=roomy), is_forced=True)
        ends = [meta.end_offset for meta in await partition.finished()]
        assert ends == [large.base_offset, large.end_offset]
        assert read_rows(partition) == rows_of(committed_records(log.batches))
        assert await partition.problems() == []


async def test_what_is_younger_than_the_lag_stays_in_its_own_segment(tmp_path: Path) -> None:
    log = RandomLog()
    async with tiered_partition(tmp_path, configs={"min.compaction.lag.ms": "500"}) as partition:
        await partition.copy([plain(log, "a"), plain(log, "a")])
        young = await partition.copy([plain(log, "a"), plain(log, "a")])
        newest = max(meta.max_timestamp_ms for meta in await partition.finished())
        partition.clock.now_ms = newest + 499
        await compacted(partition)
        assert [record.offset for record in partition.read_bucket()] == [1, 2, 3]
        partition.clock.now_ms = newest + 501
        await compacted(partition)
        assert [record.offset for record in partition.read_bucket()] == [3]
        assert young.segment_id not in {meta.segment_id for meta in await partition.finished()}


async def test_only_a_dirty_enough_log_is_due(tmp_path: Path) -> None:
    log = RandomLog()
    configs = {"min.cleanable.dirty.ratio": "0.5", "segment.bytes": "100"}
    async with tiered_partition(tmp_path, configs=configs) as partition:
        for key in "abcd":
            await partition.copy([plain(log, key)])
        await compacted(partition)
        await partition.copy([plain(log, "a")])
        report = await compact_partition(partition.tier())
        assert (report.outcome, report.dirty_ratio) == (CompactionOutcome.NOT_DUE, 0.2)
        for _ in range(4):
            await partition.copy([plain(log, "a")])
        report = await compact_partition(partition.tier())
        assert report.outcome is CompactionOutcome.COMPACTED
        assert [record.key for record in partition.read_bucket()] == [b"b", b"c", b"d", b"a"]


async def test_what_retention_has_taken_is_not_rewritten(tmp_path: Path) -> None:
    log = RandomLog()
    async with tiered_partition(tmp_path) as partition:
        gone = await partition.copy([plain(log, "a", "b")])
        await partition.copy([plain(log, "a", "c")])
        await partition.copy([plain(log, "c")])
        await partition.move_log_start(gone.end_offset)
        await compacted(partition)
        states = {
            meta.base_offset: meta.state
            for meta in await partition.metas()
            if meta.rewrite_epoch == 0
        }
        assert states[gone.base_offset] is SegmentState.COPY_FINISHED  # retention's to take
        (new,) = [meta for meta in await partition.finished() if meta.rewrite_epoch]
        assert (new.base_offset, new.end_offset) == (gone.end_offset, log.end_offset)
