"""Reads whose segments are replaced or deleted after planning: the same rows, or a loss that is told."""

from __future__ import annotations

import asyncio
import json
import pickle
import tempfile
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.datasource import InputPartition
from tidelog_core.erasure.tier import erase_from_tier
from tidelog_core.model import TopicPartition
from tidelog_core.records.batch import Record, build_batch
from tidelog_core.tier.lifecycle import AT_ONCE, below_log_start, start_deletions
from tidelog_spark.options.positions import Positions
from tidelog_spark.options.read_options import ReadOptions, parse_options
from tidelog_spark.planning.replanning import replan
from tidelog_spark.planning.table_planner import plan_read
from tidelog_spark.reading import split_reader as reading
from tidelog_spark.reading.splits import DataLost, Slice, Split
from tidelog_spark.split_rows import read_rows
from tidelog_spark.streaming.stream_reader import TidelogStreamReader

from tests.support.clock import NOW_MS
from tests.support.compacted_tier import CUTS, compacted, pass_time, plain
from tests.support.random_logs import KEYS, OPERATIONS, RandomLog, apply, committed_records, oracle
from tests.support.tiered_cluster import TieredCluster
from tests.support.tiered_partition import TOPIC, TieredPartition, tiered_partition

Row = tuple[int, int, bytes | None, bytes | None]
Rewrite = Callable[[TieredPartition], Awaitable[object]]


class PlannedRead:
    """A read as its tasks got it, before anything happened to the segments."""

    def __init__(self, partition: TieredPartition, **given: str) -> None:
        self.options = parse_options({**stores(partition), "subscribe": TOPIC, **given})
        self.splits = plan_read(self.options).splits

    def batches(self) -> Iterator[pa.RecordBatch]:
        options, splits = pickle.loads(pickle.dumps((self.options, self.splits)))
        for split in splits:
            yield from read_rows(options, split)

    def rows(self) -> list[Row]:
        return [row for batch in self.batches() for row in rows_of(batch)]


def stores(partition: TieredPartition) -> dict[str, str]:
    folder = partition.folder
    return {"metadata": f"sqlite:///{folder}/metadata.db", "objects": f"file://{folder}/objects"}


def rows_of(batch: pa.RecordBatch) -> list[Row]:
    times = batch.column("timestamp").cast(pa.int64()).to_pylist()
    columns = [batch.column(name).to_pylist() for name in ("offset", "key", "value")]
    return [
        (row[0], time // 1000, *row[1:])
        for time, row in zip(times, zip(*columns, strict=True), strict=True)
    ]


def at(offset: int) -> str:
    return json.dumps({TOPIC: {"0": offset}})


def in_tier(
    folder: Path, check: Callable[[TieredPartition], Coroutine[Any, Any, None]], **configs: str
) -> None:
    async def run() -> None:
        async with tiered_partition(folder, configs=configs) as partition:
            await check(partition)

    asyncio.run(run())


async def erase(partition: TieredPartition, key: bytes) -> None:
    await erase_from_tier(partition.tier(), key)


async def fill(partition: TieredPartition, segments: int = 4) -> RandomLog:
    """Copy segments of two batches of four records; each key is overwritten in every one."""
    log = RandomLog()
    for number in range(segments):
        keys = ["a", "b", "c", f"only-{number}"]
        await partition.copy([plain(log, *keys, value=b"%d" % number) for _ in range(2)])
    return log


@settings(max_examples=5, deadline=None)
@given(
    OPERATIONS,
    CUTS,
    st.tuples(st.integers(0, 60), st.integers(0, 60)),
    st.sampled_from(KEYS),
    st.booleans(),
    st.booleans(),
)
def test_a_read_has_the_rows_it_would_have_had_but_for_those_that_a_rewrite_removed(
    operations: list[tuple[object, ...]],
    cuts: list[int],
    limits: tuple[int, int],
    key: bytes,
    is_erasure: bool,
    is_merging: bool,
) -> None:
    log = RandomLog()
    apply(log, operations)
    if not log.batches:
        return
    start, end = sorted(min(limit, log.end_offset) for limit in limits)
    ranges = {"startingOffsets": at(start), "endingOffsets": at(end)}
    times = {"startingTimestamp": str(NOW_MS + start), "endingTimestamp": str(NOW_MS + end)}
    times["startingOffsetsByTimestampStrategy"] = "latest"
    keys = {"key": key.decode(), "isolation": "read_committed"}
    kept = committed_records(log.batches)
    if is_erasure:
        kept = [record for record in kept if record.key != key]
    else:
        kept = oracle(kept, log.end_offset)
    offsets = {record.offset for record in kept}

    async def check(partition: TieredPartition) -> None:
        # No segment is tiered before its transactions are decided.
        partition.batches = list(log.batches)
        await partition.copy_all(log.batches, cuts)
        reads = [
            PlannedRead(partition, isolation="read_committed", **more)
            for more in ({}, {"minPartitions": "5"}, ranges, times)
        ]
        reads += [PlannedRead(partition, **keys, **more) for more in ({}, ranges, times)]
        before = [read.rows() for read in reads]
        everything = PlannedRead(partition)
        all_rows = everything.rows()
        await (erase(partition, key) if is_erasure else compacted(partition))
        await pass_time(partition)
        for read, rows in zip(reads, before, strict=True):
            assert read.rows() == [row for row in rows if row[0] in offsets]
        # What was aborted is removed by compaction, and stays in an erasure.
        stored = {record.offset for record in await partition.stored_records()}
        assert everything.rows() == [row for row in all_rows if row[0] in stored]

    with tempfile.TemporaryDirectory() as name:
        size = "10000" if is_merging else "150"
        in_tier(Path(name), check, **{"segment.bytes": size})


def test_times_within_a_batch_count_in_its_rewritten_form(tmp_path: Path) -> None:
    async def check(partition: TieredPartition) -> None:
        for base in range(0, 60, 10):
            records = [Record(0, base + i, b"%d" % (i % 9), b"v") for i in range(10)]
            await partition.copy([build_batch(records, base_offset=base, leader_epoch=3)])
        limits = [(13, 47), (19, 20), (0, 59), (20, 30), (8, 9), (57, 1000)]
        reads = [
            PlannedRead(partition, startingTimestamp=str(start), endingTimestamp=str(end))
            for start, end in limits
        ]
        before = [read.rows() for read in reads]
        await compacted(partition)
        await pass_time(partition)
        kept = {record.offset for record in await partition.stored_records()}
        assert 0 < len(kept) < 60
        for read, rows, (start, end) in zip(reads, before, limits, strict=True):
            assert [row[0] for row in rows] == list(range(start, min(end, 60)))
            assert read.rows() == [row for row in rows if row[0] in kept]

    in_tier(tmp_path, check)


def test_a_task_that_has_begun_goes_on_behind_the_row_it_came_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "CHUNK_SIZE_BYTES", 100)

    async def check(partition: TieredPartition) -> None:
        log = RandomLog()
        # Each record is the newest of its key, or a key's that comes in every batch.
        batches = [plain(log, "every", f"one-{n}", f"two-{n}") for n in range(60)]
        await partition.copy(batches[:40])
        await partition.copy(batches[40:])
        (split,) = (read := PlannedRead(partition)).splits
        running = read_rows(read.options, split)
        found = rows_of(next(running))
        await compacted(partition)
        await pass_time(partition)
        read_before = found[-1][0] + 1
        found += [row for batch in running for row in rows_of(batch)]
        offsets = [row[0] for row in found]
        came_to = next(n for n, offset in enumerate(offsets) if offset != n)
        assert read_before <= came_to < 100
        kept = [r.offset for r in oracle(committed_records(log.batches), log.end_offset)]
        # What was fetched before has all rows, what comes after those that compaction left.
        assert offsets == [*range(came_to), *(o for o in kept if o >= came_to)]

    in_tier(tmp_path, check)


def test_segments_that_are_replaced_again_and_again_are_found(tmp_path: Path) -> None:
    async def check(partition: TieredPartition) -> None:
        await fill(partition)
        read = PlannedRead(partition)
        before = read.rows()
        for key in (b"only-0", b"only-2", b"only-3"):
            await erase(partition, key)
            await pass_time(partition)
            before = [row for row in before if row[2] != key]
            assert read.rows() == before

    in_tier(tmp_path, check)


def test_a_micro_batch_that_was_planned_before_has_its_rows(tmp_path: Path) -> None:
    async def check(partition: TieredPartition) -> None:
        await fill(partition)
        given = {**stores(partition), "subscribe": TOPIC}
        reader = TidelogStreamReader(parse_options(given, is_stream=True))
        ends = [Positions({TopicPartition(TOPIC, 0): n}).to_json() for n in (3, 30)]
        tasks = await asyncio.to_thread(reader.partitions, *ends)
        reader.stop()
        await erase(partition, b"b")
        await pass_time(partition)
        task, one = pickle.loads(pickle.dumps((reader, tasks[0])))
        assert isinstance(one, InputPartition)
        assert len(tasks) == 1
        found = [row for batch in task.read(one) for row in rows_of(batch)]
        assert [row[0] for row in found] == [n for n in range(3, 30) if n % 4 != 1]

    in_tier(tmp_path, check)


def test_what_retention_took_is_told_or_left_out_and_the_rest_is_read(tmp_path: Path) -> None:
    async def check(partition: TieredPartition) -> None:
        log = await fill(partition)
        strict, lenient = PlannedRead(partition), PlannedRead(partition, failOnDataLoss="false")
        await partition.move_log_start(17)
        expired = below_log_start(await partition.metas(), 17)
        assert len(expired) == 2
        await start_deletions(partition.store, expired, deletable_ms=AT_ONCE)
        await pass_time(partition)
        with pytest.raises(DataLost, match=r"offsets \[0, 17\) of events-0 were deleted"):
            strict.rows()
        assert [row[0] for row in lenient.rows()] == list(range(17, log.end_offset))

    in_tier(tmp_path, check)


def test_an_index_object_that_is_gone_too_is_no_way_to_other_rows(tmp_path: Path) -> None:
    """The metadata names the segment still: nothing is in its place."""
    cluster = TieredCluster(tmp_path)
    cluster.create_topic("t")
    metas = [cluster.add_segment("t", batches(base)) for base in (0, 20, 40)]
    limits = {"startingOffsets": '{"t": {"0": 5}}', "endingOffsets": '{"t": {"0": 55}}'}
    strict, lenient = (planned(cluster, failOnDataLoss=how, **limits) for how in ("true", "false"))
    for key in (cluster.keys("t", metas[0]).log, cluster.keys("t", metas[0]).index):
        (cluster.objects / key).unlink()
    with pytest.raises(DataLost, match=r"offsets \[5, 20\) of t-0 are gone: object"):
        offsets(*strict)
    assert offsets(*lenient) == list(range(20, 55))


@pytest.mark.parametrize("is_created_again", [True, False])
def test_no_other_topic_of_the_name_is_read(tmp_path: Path, is_created_again: bool) -> None:
    cluster = TieredCluster(tmp_path)
    cluster.create_topic("t")
    meta = cluster.add_segment("t", batches(0))
    strict, lenient = (planned(cluster, failOnDataLoss=how) for how in ("true", "false"))
    (cluster.objects / cluster.keys("t", meta).log).unlink()
    cluster.delete_topic("t")
    if is_created_again:
        cluster.create_topic("t")
        cluster.add_segment("t", batches(0))
    says = "created again" if is_created_again else "no topic 't'"
    with pytest.raises(DataLost, match=rf"offsets \[0, 20\) of t-0 are gone: .*{says}"):
        offsets(*strict)
    assert offsets(*lenient) == []


def test_rows_that_have_all_been_read_are_not_missed(tmp_path: Path) -> None:
    """The object went before its end was fetched, where a transaction's marker lies."""
    cluster = TieredCluster(tmp_path)
    cluster.create_topic("t")
    cluster.add_segment("t", batches(40))
    cluster.set_log_start_offset("t", 0, 40)
    options = parse_options({**cluster.options, "subscribe": "t"})
    read = Split("t", 0, (Slice("gone", 0, 100, 20, 20),))
    assert replan(read, options=options, plan_read=plan_read).slices == ()


def batches(base: int) -> list[bytes]:
    """Two batches of ten records."""
    return [
        build_batch([Record(0, 1, b"k", b"v")] * 10, base_offset=start)
        for start in (base, base + 10)
    ]


def planned(cluster: TieredCluster, **given: str) -> tuple[ReadOptions, Sequence[Split]]:
    options = parse_options({**cluster.options, "subscribe": "t", **given})
    return options, plan_read(options).splits


def offsets(options: ReadOptions, splits: Sequence[Split]) -> list[int]:
    found = [batch for split in splits for batch in read_rows(options, split)]
    return [offset for batch in found for offset in batch.column("offset").to_pylist()]
