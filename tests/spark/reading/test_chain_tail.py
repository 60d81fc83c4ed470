"""Diskless topics are read up to the last acknowledged record, from the bucket alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from tidelog_core.diskless.wal.build import WalSlice
from tidelog_core.diskless.wal.keys import wal_key
from tidelog_core.errors import CorruptObject, InvalidConfig
from tidelog_core.objects.folder import FolderObjectStore
from tidelog_core.tier.keys import cluster_manifest_key
from tidelog_spark import bookmark
from tidelog_spark.options.read_options import ReadOptions, parse_options
from tidelog_spark.planning.plan import Plan
from tidelog_spark.planning.replanning import replan
from tidelog_spark.planning.table_planner import plan_read
from tidelog_spark.reading.splits import DataLost, Split
from tidelog_spark.split_rows import read_rows
from tidelog_spark.streaming.stream_planner import StreamPlanner

from tests.spark.micro_batches import MicroBatches
from tests.support.chain_owner import chain_name
from tests.support.diskless_topic import DISKLESS, DisklessTopic, end_marker, numbered
from tests.support.tiered_cluster import CLUSTER_ID, TieredCluster

A, B, GATEWAY = chain_name(0), chain_name(1), chain_name(2)
Rows = list[tuple[int, bytes]]


@pytest.fixture
def cluster(tmp_path: Path) -> TieredCluster:
    return TieredCluster(tmp_path)


@pytest.fixture
def diskless(cluster: TieredCluster) -> Iterator[DisklessTopic]:
    topic = cluster.create_topic("t", partition_count=2, configs=DISKLESS)
    made = DisklessTopic(topic, CLUSTER_ID, database=cluster.database, objects=cluster.objects)
    # Put by the node that opens a chain, before the item names it.
    manifest = cluster.objects / cluster_manifest_key(CLUSTER_ID)
    manifest.parent.mkdir(parents=True, exist_ok=True)
    manifest.touch()
    made.enter(A)
    yield made
    made.close()


@pytest.fixture
def stream(cluster: TieredCluster) -> Iterator[Callable[..., MicroBatches]]:
    started: list[MicroBatches] = []

    def start(**given: str) -> MicroBatches:
        options = {"subscribe": "t", "startingOffsets": "earliest", **given}
        if "subscribePattern" in given:
            del options["subscribe"]
        started.append(MicroBatches({**cluster.options, **options}))
        return started[-1]

    yield start
    for one in started:
        one.stop()


class Planned:
    """A read, planned now."""

    def __init__(self, cluster: TieredCluster, **given: str) -> None:
        self._options = parse_options({**cluster.options, "subscribe": "t", **given})
        self.splits: Sequence[Split] = plan_read(self._options).splits

    def rows(self) -> Rows:
        return [row for split in self.splits for row in self._rows_of(split)]

    def _rows_of(self, split: Split) -> Rows:
        found: Rows = []
        for batch in read_rows(self._options, split):
            found += zip(values(batch, "offset"), values(batch, "value"), strict=True)
        return found


def values(batch: pa.RecordBatch, name: str) -> list:
    return batch.column(name).to_pylist()


def rows(*ranges: tuple[int, int]) -> Rows:
    return [(i, b"v%d" % i) for start, end in ranges for i in range(start, end)]


# -- tables --


def test_a_table_goes_on_from_the_tier_into_the_chains(cluster, diskless):
    cluster.add_segment("t", [numbered(0, 20)])
    diskless.commit(A, numbered(10, 20), numbered(20, 25))  # Its first batch is tiered.
    diskless.commit(A, numbered(25, 30, compression=1))
    diskless.run(diskless.owners[A].seal(B))
    diskless.enter(B, epoch=1, first_offset=30)
    diskless.commit(B, numbered(30, 32), epoch=1)
    assert Planned(cluster).rows() == rows((0, 32))
    assert Planned(cluster, disklessTail="false").rows() == rows((0, 20))
    assert Planned(cluster, startingOffsets='{"t":{"0":22,"1":0}}').rows() == rows((22, 32))
    one_each = Planned(cluster, minPartitions="100")
    assert len(one_each.splits) == 4
    assert one_each.rows() == rows((0, 32))


def test_a_store_without_the_cluster_is_not_an_empty_tail(cluster, diskless, stream, tmp_path):
    diskless.commit(A, numbered(0, 5))
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    elsewhere = {"objects": folder.as_uri(), "failOnDataLoss": "false"}
    with pytest.raises(InvalidConfig, match="without any object of cluster"):
        Planned(cluster, **elsewhere)
    with pytest.raises(InvalidConfig, match="without any object of cluster"):
        stream(**elsewhere).next_rows()
    assert Planned(cluster, **elsewhere, disklessTail="false").rows() == []


def test_what_is_above_a_gap_is_not_read(cluster, diskless):
    owner = diskless.owners[A]
    diskless.commit(A, numbered(0, 5))
    for start in (5, 10):
        owner.build([WalSlice(*diskless.name(), 0, numbered(start, start + 5))])
    diskless.run(owner.put(2))
    assert Planned(cluster).rows() == rows((0, 5))
    with pytest.raises(DataLost, match=r"offsets \[5, 12\) of t-0 are not written yet"):
        Planned(cluster, endingOffsets='{"t":{"0":12,"1":0}}')
    diskless.run(owner.put(1))
    assert Planned(cluster).rows() == rows((0, 15))


def test_read_committed_ends_at_the_first_open_transaction_and_leaves_out_aborted_ones(
    cluster, diskless
):
    diskless.commit(A, numbered(0, 3), numbered(3, 5, producer_id=7))
    diskless.commit(A, numbered(5, 6), numbered(6, 8, producer_id=8))
    diskless.commit(A, end_marker(8, 7, is_commit=False), numbered(9, 11))
    committed = {"isolation": "read_committed"}
    assert Planned(cluster, **committed).rows() == rows((0, 3), (5, 6))
    assert Planned(cluster).rows() == rows((0, 8), (9, 11))
    saved = bookmark({**cluster.options, "subscribe": "t", **committed})
    diskless.commit(A, end_marker(11, 8, is_commit=True))
    assert Planned(cluster, **committed).rows() == rows((0, 3), (5, 8), (9, 11))
    options = parse_options({**cluster.options, "asOf": saved})
    again = [
        offset
        for split in plan_read(options).splits
        for batch in read_rows(options, split)
        for offset in values(batch, "offset")
    ]
    assert again == [0, 1, 2, 5]


def test_slices_of_gateways_are_read_with_the_offsets_that_the_leader_gave_them(cluster, diskless):
    gateway = diskless.enter(GATEWAY, partition=1)
    data = numbered(0, 3) + numbered(3, 4)
    diskless.run(gateway.commit([WalSlice(*diskless.name(), -1, data, is_foreign=True)]))
    diskless.commit(A, numbered(0, 10))
    leader = diskless.owners[A]
    diskless.run(leader.commit([], references=[gateway.foreign(0, 0, 10)]))
    found = Planned(cluster).rows()
    assert found == rows((0, 10)) + [(10 + i, b"v%d" % i) for i in range(4)]
    timed = Planned(cluster, startingTimestamp="1002", startingOffsetsByTimestampStrategy="latest")
    assert timed.rows()[0] == (2, b"v2")
    from_second = Planned(cluster, startingOffsets='{"t":{"0":12,"1":0}}').rows()
    assert from_second == [(12, b"v2"), (13, b"v3")]


def test_a_time_is_searched_in_the_tail_too(cluster, diskless):
    cluster.add_segment("t", [numbered(0, 10)])
    diskless.commit(A, numbered(10, 20), numbered(20, 30))
    gateway = diskless.enter(GATEWAY, partition=1)
    data = numbered(30, 33) + numbered(33, 36)
    diskless.run(gateway.commit([WalSlice(*diskless.name(), -1, data, is_foreign=True)]))
    diskless.run(diskless.owners[A].commit([], references=[gateway.foreign(0, 0, 30)]))

    def timed(start_ms: int, end_ms: int) -> list[int]:
        planned = Planned(
            cluster,
            startingTimestamp=str(start_ms),
            endingTimestamp=str(end_ms),
            startingOffsetsByTimestampStrategy="latest",
        )
        return [offset for offset, _ in planned.rows()]

    assert timed(1005, 1025) == list(range(5, 25))
    assert timed(1013, 1018) == list(range(13, 18))
    assert timed(1031, 1034) == list(range(31, 34))
    assert timed(1034, 5000) == [34, 35]
    saved = bookmark(
        {
            **cluster.options,
            "subscribe": "t",
            "startingTimestamp": "1034",
            "startingOffsetsByTimestampStrategy": "latest",
        }
    )
    assert '"0":34' in saved


def test_a_damaged_slice_is_named(cluster, diskless):
    diskless.commit(A, numbered(0, 10))
    key = wal_key(CLUSTER_ID, A, 0)
    path = cluster.objects / key
    data = bytearray(path.read_bytes())
    data[112 + 3] ^= 1  # In the base offset, which the batch's own CRC does not cover.
    path.chmod(0o600)
    path.write_bytes(data)
    with pytest.raises(CorruptObject, match=r"the CRC of the .* slice at 112") as caught:
        Planned(cluster).rows()
    assert key in str(caught.value)


def test_an_object_that_is_tiered_and_collected_after_planning_is_read_from_the_tier(
    cluster, diskless
):
    for start in range(0, 30, 10):
        diskless.commit(A, numbered(start, start + 10))
    planned = Planned(cluster)
    cluster.add_segment("t", [numbered(start, start + 10) for start in (0, 10)])
    diskless.run(diskless.owners[A].collect([0, 1]))
    assert planned.rows() == rows((0, 30))
    assert Planned(cluster).rows() == rows((0, 30))


def test_the_tier_is_asked_before_the_chains_for_what_is_gone(cluster, diskless):
    """A look at the chains reads the footers of all objects, in each of many tasks."""
    for start in range(0, 30, 10):
        diskless.commit(A, numbered(start, start + 10))
    options = parse_options({**cluster.options, "subscribe": "t", "failOnDataLoss": "false"})
    (split,) = plan_read(options).splits
    looks: list[bool] = []

    def plan_again(asked: ReadOptions) -> Plan:
        looks.append(asked.is_tail_read)
        return plan_read(asked)

    def ends() -> list[int]:
        found = replan(split, options=options, plan_read=plan_again)
        return [one.end_offset for one in found.slices]

    cluster.add_segment("t", [numbered(0, 20)])
    assert (ends(), looks) == ([20, 30], [False, True])
    looks.clear()
    cluster.add_segment("t", [numbered(20, 30)])
    assert (ends(), looks) == ([20, 30], [False])


def test_an_object_that_is_gone_is_a_loss_that_is_named(cluster, diskless):
    for start in range(0, 40, 10):
        diskless.commit(A, numbered(start, start + 10))
    planned = Planned(cluster)
    diskless.run(diskless.owners[A].collect([1]))
    lost = r"offsets \[10, 20\) of t-0 are in no tiered segment, and in no object of a chain"
    with pytest.raises(DataLost, match=lost):
        planned.rows()
    with pytest.raises(DataLost, match=lost):
        Planned(cluster)
    assert Planned(cluster, failOnDataLoss="false").rows() == rows((0, 10), (20, 40))


# -- streams --


def test_a_stream_sees_a_record_in_the_look_after_its_acknowledgement(cluster, diskless, stream):
    found = stream()
    assert found.next_offsets() == {}
    for start in range(0, 30, 10):
        diskless.commit(A, numbered(start, start + 10))
        assert found.next_offsets() == {"t-0": list(range(start, start + 10))}
        assert found.next_offsets() is None
    diskless.run(diskless.owners[A].seal(B))
    diskless.enter(B, epoch=1, first_offset=30)
    diskless.commit(B, numbered(30, 31), epoch=1)
    assert found.next_offsets() == {"t-0": [30]}
    found.restart()
    cluster.add_segment("t", [numbered(0, 20)])
    diskless.commit(B, numbered(31, 33), epoch=1)
    assert found.next_offsets() == {"t-0": [31, 32]}


def test_a_segment_that_begins_below_those_that_are_listed_is_found(cluster, diskless, stream):
    found = stream()
    for start in (0, 10):
        diskless.commit(A, numbered(start, start + 10))
        cluster.add_segment("t", [numbered(start, start + 10)])
    assert found.next_offsets() == {"t-0": list(range(20))}
    for start in (20, 30):
        diskless.commit(A, numbered(start, start + 10))
    diskless.run(diskless.owners[A].seal(B))
    diskless.enter(B, epoch=1, first_offset=40)
    diskless.commit(B, numbered(40, 50), epoch=1)
    # The new leader's copy begins below what the stream lists.
    batches = [numbered(start, start + 5) for start in range(5, 40, 5)]
    cluster.add_segment("t", batches, leader_epoch=1)
    diskless.forget_tiered_epochs(1)
    assert found.next_offsets() == {"t-0": list(range(20, 50))}


def test_a_batch_that_is_repeated_after_tiering_has_the_same_rows(cluster, diskless, stream):
    found = stream()
    diskless.commit(A, numbered(0, 10))
    diskless.commit(A, numbered(10, 15))
    assert found.plan()
    first = found.read()
    diskless.commit(A, numbered(15, 20))
    cluster.add_segment("t", [numbered(0, 10), numbered(10, 15)])
    diskless.run(diskless.owners[A].collect([0, 1]))
    found.restart()
    assert found.read() == first
    assert found.next_offsets() == {"t-0": list(range(15, 20))}


def test_a_stream_that_reads_committed_waits_for_the_marker(cluster, diskless, stream):
    found = stream(isolation="read_committed")
    diskless.commit(A, numbered(0, 2), numbered(2, 4, producer_id=7))
    assert found.next_offsets() == {"t-0": [0, 1]}
    diskless.commit(A, numbered(4, 6, producer_id=8))
    assert found.next_offsets() is None
    diskless.commit(A, end_marker(6, 7, is_commit=True))
    assert found.next_offsets() == {"t-0": [2, 3]}
    diskless.commit(A, end_marker(7, 8, is_commit=False), numbered(8, 9))
    assert found.next_offsets() == {"t-0": [8]}


def test_a_stream_names_a_gap_or_skips_it(cluster, diskless, stream):
    for start in range(0, 40, 10):
        diskless.commit(A, numbered(start, start + 10))
    diskless.run(diskless.owners[A].collect([1]))
    strict, lenient = stream(), stream(failOnDataLoss="false")
    assert strict.plan()
    with pytest.raises(DataLost, match=r"offsets \[10, 20\) of t-0 are in no tiered segment, and"):
        strict.read()
    assert lenient.next_offsets() == {"t-0": [*range(10), *range(20, 40)]}
    diskless.commit(A, numbered(40, 50))
    assert lenient.next_offsets() == {"t-0": list(range(40, 50))}


def test_records_below_the_log_start_are_no_loss(cluster, diskless, stream):
    for start in range(0, 40, 10):
        diskless.commit(A, numbered(start, start + 10))
    diskless.write_item(log_start_offset=15)
    assert Planned(cluster).rows() == rows((15, 40))
    diskless.run(diskless.owners[A].collect([0]))
    assert Planned(cluster).rows() == rows((15, 40))
    assert stream().next_offsets() == {"t-0": list(range(15, 40))}
    with pytest.raises(DataLost, match=r"offsets \[5, 15\) of t-0 were deleted"):
        Planned(cluster, startingOffsets='{"t":{"0":5,"1":0}}')


def test_a_pattern_finds_a_diskless_topic_that_comes_later(cluster, diskless, stream):
    found = stream(subscribePattern="[tu]")
    diskless.commit(A, numbered(0, 2))
    assert found.next_offsets() == {"t-0": [0, 1]}
    topic = cluster.create_topic("u", configs=DISKLESS)
    later = DisklessTopic(topic, CLUSTER_ID, database=cluster.database, objects=cluster.objects)
    try:
        later.owners = diskless.owners
        later.enter(A)
        diskless.run(
            diskless.owners[A].commit(
                [
                    WalSlice(*later.name(), 0, numbered(0, 3)),
                    WalSlice(*diskless.name(), 0, numbered(2, 4)),
                ]
            )
        )
        assert found.next_offsets() == {"t-0": [2, 3], "u-0": [0, 1, 2]}
    finally:
        later.close()


def test_a_stream_that_goes_on_without_the_tail_says_what_it_needs(cluster, diskless, stream):
    cluster.add_segment("t", [numbered(0, 10)])
    diskless.commit(A, numbered(10, 20))
    found = stream()
    assert found.plan()
    found.restart(disklessTail="false")
    with pytest.raises(
        InvalidConfig, match=r"the bucket has it up to 10.*'disklessTail' as before"
    ):
        found.read()


def test_an_idle_look_lists_each_live_chain_once_and_reads_no_object(
    cluster, diskless, stream, monkeypatch
):
    counts = {"list": 0, "get_range": 0}
    for method in counts:
        original = getattr(FolderObjectStore, method)

        def counted(self, *args, _method=method, _original=original, **given):
            counts[_method] += 1
            return _original(self, *args, **given)

        monkeypatch.setattr(FolderObjectStore, method, counted)

    def take() -> tuple[int, int]:
        found = (counts["list"], counts["get_range"])
        counts.update(list=0, get_range=0)
        return found

    diskless.enter(B, partition=1)
    for start in range(0, 100, 10):
        diskless.commit(A, numbered(start, start + 10))
        diskless.commit(B, numbered(start, start + 10), partition=1)
    found = stream()
    assert found.next_offsets() is not None
    take()
    for _ in range(5):
        assert found.next_offsets() is None
        assert take() == (2, 0)
    diskless.commit(A, numbered(100, 110))
    assert found.plan()
    assert take() == (2, 1)  # the footer of what is new
    assert len(found.read()["t", 0]) == 10
    assert take() == (0, 1)  # its bytes
    diskless.run(diskless.owners[A].seal(B))
    diskless.enter(B, epoch=1, first_offset=110)
    for _ in range(2):  # The seal is read, and counts by a listing after that.
        assert found.next_offsets() is None
    take()
    assert found.next_offsets() is None
    assert take() == (1, 0)


def test_between_two_reads_of_the_metadata_a_stream_follows_the_chains(
    cluster, diskless, monkeypatch
):
    monkeypatch.setattr("tidelog_spark.streaming.stream_planner.CHAIN_READ_INTERVAL_S", 0.0)
    options = parse_options({**cluster.options, "subscribe": "t"}, is_stream=True)
    planner = StreamPlanner(options, read_interval_s=600)

    def ends() -> tuple[int, int]:
        log = planner.read_catalog().logs[0]
        return log.tiered_end_offset, log.end_offset

    try:
        diskless.commit(A, numbered(0, 10))
        assert ends() == (0, 10)
        diskless.commit(A, numbered(10, 20))
        cluster.add_segment("t", [numbered(0, 10)])
        assert ends() == (0, 20)  # The tier is not asked.
        diskless.commit(A, numbered(20, 30))
        diskless.commit(A, numbered(30, 40))
        cluster.add_segment("t", [numbered(10, 30)])
        diskless.run(diskless.owners[A].collect([0, 1, 2]))
        assert ends() == (30, 40)  # Collected objects lead to the tier.
        diskless.run(diskless.owners[A].seal(B))
        diskless.enter(B, epoch=1, first_offset=40)
        diskless.commit(B, numbered(40, 50), epoch=1)
        assert ends() == (30, 40)  # The seal counts in the next look,
        assert ends() == (30, 50)  # and leads to the next chain.
    finally:
        planner.close()


# -- through Spark --


@pytest.mark.slow
def test_spark_reads_the_tail_as_a_table_and_as_a_stream(
    cluster: TieredCluster, diskless: DisklessTopic, spark: SparkSession, tmp_path: Path
) -> None:
    cluster.add_segment("t", [numbered(0, 10)])
    diskless.commit(A, numbered(10, 20))
    options = {**cluster.options, "subscribe": "t", "startingOffsets": "earliest"}
    table = spark.read.format("tidelog").options(**options).load()
    assert table.count() == 20
    query = (
        spark.readStream.format("tidelog")
        .options(**options)
        .load()
        .writeStream.format("parquet")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(tmp_path / "table"))
    )
    query.awaitTermination()
    assert spark.read.parquet(str(tmp_path / "table")).count() == 20
