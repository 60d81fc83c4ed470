"""Whole reads over real stores, without a Spark session: options in, rows out."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tidelog.arrow.columns import arrow_schema
from tidelog_core.config import TopicConfig
from tidelog_core.errors import (
    CorruptItem,
    CorruptObject,
    InvalidConfig,
    ObjectNotFound,
    UnknownTopicOrPartition,
)
from tidelog_core.log.local_log import LocalLog
from tidelog_core.log.values import AbortedTransaction, AppendOrigin
from tidelog_core.metadata.location import opened_metadata_store
from tidelog_core.metadata.records import partition_key, topic_key
from tidelog_core.model import TopicPartition
from tidelog_core.objects.location import open_object_store
from tidelog_core.records.batch import CompressionType, Record, build_batch
from tidelog_core.records.control import (
    ControlType,
    EndTransactionMarker,
    build_end_transaction_marker,
)
from tidelog_spark.options.read_options import parse_options
from tidelog_spark.planning.table_planner import plan_read
from tidelog_spark.reading import split_reader as reading
from tidelog_spark.reading.reader_process import kept_store
from tidelog_spark.reading.splits import DataLost, Split
from tidelog_spark.split_rows import read_rows

from tests.support.tiered_cluster import TieredCluster


@pytest.fixture
def cluster(tmp_path: Path) -> TieredCluster:
    return TieredCluster(tmp_path)


def records(start: int, count: int) -> list[Record]:
    return [Record(0, 1000 + i, b"k%d" % i, b"v%d" % i) for i in range(start, start + count)]


def batches(start: int, count: int, size: int = 10, **how: Any) -> list[bytes]:
    """Batches of ``size`` records, whose timestamps are their offsets plus 1000."""
    return [
        build_batch(records(base, size), base_offset=base, **how)
        for base in range(start, start + count, size)
    ]


def rows(cluster: TieredCluster, **given: str) -> pa.Table:
    options = parse_options({**cluster.options, **given})
    found = [batch for split in plan_read(options).splits for batch in read_rows(options, split)]
    return pa.Table.from_batches(found, arrow_schema(include_headers=options.include_headers))


def offsets(cluster: TieredCluster, **given: str) -> list[int]:
    return rows(cluster, **{"subscribe": "t", **given})["offset"].to_pylist()


def at(offset: int, partition: int = 0) -> str:
    return json.dumps({"t": {str(partition): offset}})


def test_segments_sealed_by_a_log_are_read_back_row_by_row(cluster, tmp_path):
    config = TopicConfig(segment_bytes=4000)
    log = LocalLog.open(tmp_path / "t-0", TopicPartition("t", 0), config=config)
    for number in range(60):
        codec = CompressionType(number % 5)
        batch = build_batch(records(number * 10, 10), compression=codec)
        log.append_as_leader(bytearray(batch), leader_epoch=0)
    log.roll()
    log.advance_high_watermark(log.log_end_offset)
    cluster.create_topic("t")
    sealed = log.sealed_segments()
    assert len(sealed) > 2
    for segment in sealed:
        cluster.add_sealed("t", segment)
    log.close()
    found = rows(cluster, subscribe="t", minPartitions="7")
    assert found["offset"].to_pylist() == list(range(600))
    assert found["key"].to_pylist() == [b"k%d" % i for i in range(600)]
    assert found["value"].to_pylist() == [b"v%d" % i for i in range(600)]
    assert found["timestamp"].cast(pa.int64()).to_pylist() == [
        (1000 + i) * 1000 for i in range(600)
    ]


def test_any_range_of_offsets_gives_just_its_rows_every_time(cluster):
    cluster.create_topic("t")
    cluster.add_segment("t", batches(0, 100))
    cluster.add_segment("t", batches(100, 100, compression=CompressionType.LZ4))
    for start, end in ((0, 200), (5, 6), (95, 105), (0, 100), (100, 200), (99, 101), (7, 7)):
        limits = {"startingOffsets": at(start), "endingOffsets": at(end)}
        assert offsets(cluster, **limits) == list(range(start, end))
        assert offsets(cluster, minPartitions="20", **limits) == list(range(start, end))


def test_rows_below_the_log_start_offset_are_not_there(cluster):
    cluster.create_topic("t")
    cluster.add_segment("t", batches(0, 100))
    cluster.set_log_start_offset("t", 0, 37)
    assert offsets(cluster) == list(range(37, 100))
    with pytest.raises(DataLost, match=r"\[30, 37\) of t-0 were deleted"):
        offsets(cluster, startingOffsets=at(30))
    assert offsets(cluster, startingOffsets=at(30), failOnDataLoss="false") == list(range(37, 100))


@pytest.mark.parametrize("codec", [CompressionType.NONE, CompressionType.ZSTD])
def test_times_select_rows_to_the_record(cluster, codec):
    cluster.create_topic("t")
    cluster.add_segment("t", batches(0, 100, compression=codec))
    cluster.add_segment("t", batches(100, 100, compression=codec))
    for start, end in ((0, 200), (5, 6), (95, 105), (13, 17), (99, 100), (120, 120), (199, 500)):
        limits = {"startingTimestamp": str(1000 + start), "endingTimestamp": str(1000 + end)}
        assert offsets(cluster, **limits) == list(range(start, min(end, 200)))
    by_partition = {"startingOffsetsByTimestamp": at(1042), "endingOffsetsByTimestamp": at(1043)}
    assert offsets(cluster, **by_partition) == [42]


def test_times_out_of_order_start_at_the_first_record_that_is_new_enough(cluster):
    times = [50, 10, 90, 20, 95, 30, 99, 5]
    cluster.create_topic("t")
    whole = [Record(0, time, None, None) for time in times]
    cluster.add_segment("t", [build_batch(whole[:4]), build_batch(whole[4:], base_offset=4)])
    assert offsets(cluster, startingTimestamp="60") == [2, 3, 4, 5, 6, 7]
    assert offsets(cluster, endingTimestamp="91") == [0, 1, 2, 3]
    assert offsets(cluster, startingTimestamp="60", endingTimestamp="95") == [2, 3]
    assert offsets(cluster, startingOffsets=at(3), endingTimestamp="60") == []


def test_topics_are_selected_by_name_pattern_and_partition(cluster):
    for name in ("a.1", "a.2", "b"):
        cluster.create_topic(name, partition_count=2)
        for partition in range(2):
            cluster.add_segment(name, batches(0, 10), partition=partition)
    cluster.create_topic("a.internal", is_internal=True)

    def found(**given: str) -> list[tuple[str, int]]:
        table = rows(cluster, **given)
        pairs = zip(table["topic"].to_pylist(), table["partition"].to_pylist(), strict=True)
        return list(dict.fromkeys(pairs))

    assert found(subscribe="b,a.1") == [("a.1", 0), ("a.1", 1), ("b", 0), ("b", 1)]
    assert found(subscribePattern=r"a\..*") == [("a.1", 0), ("a.1", 1), ("a.2", 0), ("a.2", 1)]
    assert found(subscribePattern="nothing") == []
    assert found(assign='{"b": [1], "a.2": [0]}') == [("a.2", 0), ("b", 1)]
    with pytest.raises(UnknownTopicOrPartition, match="no topic 'c', 'd'"):
        rows(cluster, subscribe="c,b,d")
    with pytest.raises(UnknownTopicOrPartition, match="no partition b-2, b-7"):
        rows(cluster, assign='{"b": [1, 2, 7]}')
    with pytest.raises(InvalidConfig, match=r"'startingOffsets' must name every partition .* b-1"):
        rows(cluster, subscribe="b", startingOffsets='{"b": {"0": 0}}')
    with pytest.raises(InvalidConfig, match=r"'endingOffsets' names a\.1-0, not among"):
        rows(cluster, assign='{"b": [0]}', endingOffsets='{"b": {"0": -1}, "a.1": {"0": 5}}')


@pytest.mark.parametrize("damaged", ["partition", "topic"])
def test_damaged_metadata_stops_only_reads_that_name_what_it_describes(cluster, caplog, damaged):
    topic = cluster.create_topic("a.1", partition_count=2)
    cluster.create_topic("a.2")
    cluster.add_segment("a.1", batches(0, 10))
    cluster.add_segment("a.2", batches(0, 20))
    key = partition_key(topic.topic_id, 1) if damaged == "partition" else topic_key("a.1")
    cluster.damage(key)
    assert rows(cluster, assign='{"a.2": [0]}').num_rows == 20
    pattern = rows(cluster, subscribePattern=r"a\..*")
    read = set(zip(pattern["topic"].to_pylist(), pattern["partition"].to_pylist(), strict=True))
    assert read == ({("a.1", 0), ("a.2", 0)} if damaged == "partition" else {("a.2", 0)})
    assert "cannot be read, left out" in caplog.text
    with pytest.raises(CorruptItem, match=f"{key.collection}/{key.key} is corrupt"):
        rows(cluster, subscribe="a.2,a.1")


def test_a_store_without_a_cluster_is_an_error_and_not_an_empty_read(cluster, tmp_path):
    given = {"metadata": f"sqlite:///{tmp_path}/other.db", "subscribe": "t"}

    async def make_store() -> None:
        async with opened_metadata_store(given["metadata"], may_be_new=True) as store:
            assert await store.get(topic_key("t")) is None

    asyncio.run(make_store())
    with pytest.raises(InvalidConfig, match="'metadata' names a store without a cluster"):
        rows(cluster, **given)


def test_read_committed_leaves_out_what_was_aborted(cluster, tmp_path):
    """Two producers' transactions interleave over two segments; a log finds what is aborted."""
    config = TopicConfig()
    log = LocalLog.open(tmp_path / "t-0", TopicPartition("t", 0), config=config)

    def send(producer_id: int, sequence: int, *, is_transactional: bool = True) -> None:
        batch = build_batch(
            [Record(0, 1, None, b"%d" % producer_id)] * 2,
            producer_id=producer_id,
            producer_epoch=0,
            base_sequence=sequence,
            is_transactional=is_transactional,
        )
        log.append_as_leader(bytearray(batch), leader_epoch=0)

    def end(producer_id: int, kind: ControlType) -> None:
        marker = build_end_transaction_marker(
            EndTransactionMarker(kind, 0), producer_id=producer_id, producer_epoch=0, timestamp_ms=1
        )
        log.append_as_leader(bytearray(marker), leader_epoch=0, origin=AppendOrigin.COORDINATOR)

    send(1, 0)  # 0, 1: aborted
    send(2, 0)  # 2, 3: committed
    send(3, 0, is_transactional=False)  # 4, 5
    log.roll()
    send(1, 2)  # 6, 7: aborted
    end(1, ControlType.ABORT)  # 8
    end(2, ControlType.COMMIT)  # 9
    send(1, 4)  # 10, 11: committed
    end(1, ControlType.COMMIT)  # 12
    log.roll()
    log.advance_high_watermark(log.log_end_offset)
    cluster.create_topic("t")
    for segment in log.sealed_segments():
        read = log.read(
            segment.base_offset,
            max_bytes=segment.size_bytes,
            up_to=segment.end_offset,
            include_aborted=True,
        )
        assert [a.first_offset for a in read.aborted_transactions] == [0]
        cluster.add_sealed("t", segment, aborted=read.aborted_transactions)
    log.close()
    everything = [0, 1, 2, 3, 4, 5, 6, 7, 10, 11]
    assert offsets(cluster) == everything
    assert offsets(cluster, isolation="read_uncommitted") == everything
    committed = {"isolation": "read_committed"}
    assert offsets(cluster, **committed) == [2, 3, 4, 5, 10, 11]
    assert offsets(cluster, startingOffsets=at(6), **committed) == [10, 11]
    assert offsets(cluster, startingOffsets=at(3), minPartitions="9", **committed) == [
        3,
        4,
        5,
        10,
        11,
    ]


def test_an_aborted_marker_in_a_later_segment_than_the_range_counts(cluster):
    aborted = AbortedTransaction(7, 0, 10, 0)
    how = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0, "is_transactional": True}
    cluster.create_topic("t")
    cluster.add_segment("t", batches(0, 10, **how), aborted=[aborted])
    assert offsets(cluster, isolation="read_committed") == []


def test_damage_raises_and_names_the_object_and_the_position(cluster):
    cluster.create_topic("t")
    log = batches(0, 50)
    meta = cluster.add_segment("t", log)
    key = cluster.keys("t", meta).log
    damaged = bytearray(b"".join(log))
    position = len(log[0]) + len(log[1])
    damaged[position + 70] ^= 1
    (cluster.objects / key).write_bytes(damaged)
    with pytest.raises(CorruptObject) as raised:
        offsets(cluster, failOnDataLoss="false")
    assert raised.value.key == key
    assert f"batch at byte {position}" in raised.value.problem
    # What lies before and after in other splits can still be read.
    assert offsets(cluster, endingOffsets=at(20)) == list(range(20))
    assert offsets(cluster, startingOffsets=at(30)) == list(range(30, 50))

    (cluster.objects / key).write_bytes(b"".join(log)[:-1])
    with pytest.raises(CorruptObject, match="it ends at byte"):
        offsets(cluster)


def test_a_damaged_or_foreign_index_object_raises(cluster):
    cluster.create_topic("t")
    metas = [cluster.add_segment("t", batches(base, 50)) for base in (0, 50)]
    first, second = (cluster.objects / cluster.keys("t", meta).index for meta in metas)
    limits = {"startingOffsets": at(25)}
    first.write_bytes(second.read_bytes())
    with pytest.raises(CorruptObject, match=r"\.index' is corrupt: it describes segment"):
        offsets(cluster, **limits)
    content = bytearray(second.read_bytes())
    content[-20] ^= 1
    first.write_bytes(content)
    with pytest.raises(CorruptObject, match=r"\.index' is corrupt"):
        offsets(cluster, **limits)


def test_an_index_object_that_is_gone_raises_and_names_it(cluster):
    cluster.create_topic("t")
    key = cluster.keys("t", cluster.add_segment("t", batches(0, 50))).index
    (cluster.objects / key).unlink()
    with pytest.raises(ObjectNotFound, match=key):
        offsets(cluster, startingOffsets=at(5), failOnDataLoss="false")


def test_an_object_deleted_after_planning_raises_or_is_skipped(cluster):
    cluster.create_topic("t")
    metas = [cluster.add_segment("t", batches(base, 50)) for base in (0, 50, 100)]
    (cluster.objects / cluster.keys("t", metas[1]).log).unlink()
    with pytest.raises(DataLost, match=r"offsets \[50, 100\) of t-0 are gone: object"):
        offsets(cluster)
    assert offsets(cluster, failOnDataLoss="false") == [*range(50), *range(100, 150)]


@pytest.mark.parametrize("loss", ["true", "false"])
def test_a_store_of_another_cluster_is_never_an_empty_topic(cluster, tmp_path, loss):
    """As on an executor that lacks the driver's folder."""
    cluster.create_topic("t")
    cluster.add_segment("t", batches(0, 50))
    elsewhere = tmp_path / "elsewhere"
    with pytest.raises(InvalidConfig, match=f"option 'objects': no object store at {elsewhere}: "):
        offsets(cluster, objects=elsewhere.as_uri(), failOnDataLoss=loss)
    planned = parse_options({**cluster.options, "subscribe": "t"})
    split = plan_read(planned).splits[0]
    with pytest.raises(InvalidConfig, match="option 'objects'"):
        list(read_rows(replace(planned, objects=elsewhere.as_uri()), split))
    elsewhere.mkdir()
    with pytest.raises(InvalidConfig, match="without any object of cluster tiered-test"):
        offsets(cluster, objects=elsewhere.as_uri(), failOnDataLoss=loss)


def test_metadata_that_are_not_there_are_refused_and_not_made(cluster, tmp_path):
    path = tmp_path / "folder" / "metadata.db"
    with pytest.raises(InvalidConfig, match=f"option 'metadata': no metadata store at /{path}: "):
        offsets(cluster, metadata=f"sqlite:///{path}")
    assert not path.parent.exists()


def test_chunks_may_cut_batches_anywhere(cluster, monkeypatch):
    cluster.create_topic("t")
    cluster.add_segment("t", batches(0, 200, compression=CompressionType.SNAPPY))
    cluster.add_segment("t", batches(200, 200))
    for size in (61, 100, 333, 5000):
        monkeypatch.setattr(reading, "CHUNK_SIZE_BYTES", size)
        assert offsets(cluster) == list(range(400))


def test_a_reader_that_stops_early_leaves_nothing_running(cluster, monkeypatch):
    monkeypatch.setattr(reading, "CHUNK_SIZE_BYTES", 300)
    cluster.create_topic("t")
    cluster.add_segment("t", batches(0, 500))
    options = parse_options({**cluster.options, "subscribe": "t"})
    (split,) = plan_read(options).splits
    assert isinstance(split, Split)
    found = read_rows(options, split)
    assert next(found).num_rows > 0
    found.close()


def test_only_a_store_that_is_kept_is_there_for_the_next_split(cluster):
    cluster.create_topic("t")
    [meta] = [cluster.add_segment("t", batches(0, 100))]
    options = parse_options({**cluster.options, "subscribe": "t"})
    (split,) = plan_read(options).splits
    store = kept_store(options.objects)
    assert kept_store(options.objects) is store
    for is_kept in (True, True, False):
        found = reading.read_split(
            split,
            lambda: store,
            is_kept=is_kept,
            include_headers=False,
            fail_on_data_loss=True,
            replan=lambda _: split,
        )
        assert sum(batch.num_rows for batch in found) == 100
    with pytest.raises(RuntimeError, match="after shutdown"):
        asyncio.run(store.head(cluster.keys("t", meta).log))


def test_where_leaders_overlap_no_row_comes_twice(cluster):
    cluster.create_topic("t")
    cluster.add_segment("t", batches(0, 100))
    cluster.add_segment("t", batches(50, 100), leader_epoch=1)
    assert offsets(cluster) == list(range(150))


def test_a_store_that_is_a_typo_is_named(cluster):
    with pytest.raises(InvalidConfig, match="object store 'ftp://x' must be s3://"):
        rows(cluster, objects="ftp://x", subscribe="t")
    with pytest.raises(InvalidConfig, match="must be s3://"):
        open_object_store("nothing")
