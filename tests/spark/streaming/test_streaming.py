"""Streams through their reader: where they begin, how far they go, what they refuse."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
)
from tidelog_core.errors import CorruptItem, InvalidConfig, InvalidRequest, UnknownTopicOrPartition
from tidelog_core.metadata.records import partition_key, topic_key
from tidelog_core.records.batch import Record, build_batch
from tidelog_spark.options.read_options import parse_options
from tidelog_spark.planning.limits import OtherTopic
from tidelog_spark.reading.splits import DataLost
from tidelog_spark.streaming.stream_planner import StreamPlanner

from tests.spark.micro_batches import MicroBatches
from tests.support.tiered_cluster import TieredCluster


@pytest.fixture
def cluster(tmp_path: Path) -> TieredCluster:
    return TieredCluster(tmp_path)


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


def fill(
    cluster: TieredCluster, start: int, end: int, topic: str = "t", partition: int = 0
) -> None:
    """Add a segment of these offsets, ten a batch, whose timestamps are their offsets plus 1000."""
    batches = [
        build_batch(
            [Record(0, 1000 + i, b"k%d" % i, b"v%d" % i) for i in range(base, min(base + 10, end))],
            base_offset=base,
        )
        for base in range(start, end, 10)
    ]
    cluster.add_segment(topic, batches, partition=partition)


def test_positions_are_kept_in_the_form_of_sparks_kafka_source(cluster, stream):
    topic = cluster.create_topic("t", partition_count=11)
    fill(cluster, 0, 30, partition=10)
    found = stream()
    assert found.next_offsets() == {"t-10": list(range(30))}
    offsets = {**dict.fromkeys(map(str, range(10)), 0), "10": 30}
    ids = {"@topicIds": {"t": str(topic.topic_id)}}
    (end,) = map(json.loads, found.checkpoint)
    begun = end.pop("@start")
    assert end == {"t": offsets, **ids}
    assert begun == {"t": dict.fromkeys(offsets, 0), **ids}
    fill(cluster, 30, 40, partition=10)
    assert found.next_offsets() == {"t-10": list(range(30, 40))}
    assert json.loads(found.checkpoint[-1]) == {"t": {**offsets, "10": 40}, **ids}


def test_a_checkpoint_of_sparks_kafka_source_is_gone_on_from(cluster, stream):
    cluster.create_topic("t", partition_count=2)
    for partition in range(2):
        fill(cluster, 0, 30, partition=partition)
    found = stream()
    found.checkpoint.append('{"t":{"0":30,"1":25}}')
    assert found.next_offsets() == {"t-1": [25, 26, 27, 28, 29]}
    assert found.next_offsets() is None


def test_a_stream_begins_with_what_comes_after_it_was_started(cluster, stream):
    """Also when its driver dies before it has seen a row, and records come meanwhile."""
    cluster.create_topic("t")
    fill(cluster, 0, 50)
    found = stream(startingOffsets="latest")
    assert found.next_offsets() == {}
    assert found.next_offsets() is None
    found.restart()
    fill(cluster, 50, 60)
    assert found.next_offsets() == {"t-0": list(range(50, 60))}


def test_a_crash_in_the_first_batch_does_not_move_the_start(cluster, stream):
    cluster.create_topic("t")
    fill(cluster, 0, 50)
    found = stream(startingOffsets="latest")
    assert found.plan() is True
    found.checkpoint.clear()  # It was never written.
    fill(cluster, 50, 60)
    assert found.plan()
    fill(cluster, 60, 70)
    found.restart()
    assert found.read() == {("t", 0): [(i, b"v%d" % i) for i in range(50, 60)]}
    assert found.next_offsets() == {"t-0": list(range(60, 70))}


def test_starts_are_offsets_and_times_of_each_partition(cluster, stream):
    cluster.create_topic("t", partition_count=3)
    for partition in range(3):
        fill(cluster, 0, 30, partition=partition)
        fill(cluster, 30, 50, partition=partition)
    mixed = stream(startingOffsets='{"t": {"0": -2, "1": -1, "2": 44}}')
    assert mixed.next_offsets() == {"t-0": list(range(50)), "t-2": list(range(44, 50))}
    timed = stream(startingTimestamp="1037")
    assert timed.next_offsets() == {f"t-{p}": list(range(37, 50)) for p in range(3)}
    late = stream(startingTimestamp="2000", startingOffsetsByTimestampStrategy="latest")
    assert late.next_offsets() == {}
    fill(cluster, 50, 60)
    assert late.next_offsets() == {"t-0": list(range(50, 60))}


def test_the_text_of_a_checkpoint_is_where_another_stream_starts(cluster, stream):
    cluster.create_topic("t")
    fill(cluster, 0, 30)
    first = stream()
    first.next_rows()
    fill(cluster, 30, 50)
    second = stream(startingOffsets=first.checkpoint[-1])
    assert second.next_offsets() == {"t-0": list(range(30, 50))}
    cluster.delete_topic("t")
    cluster.create_topic("t")
    with pytest.raises(OtherTopic, match="topic 't' was deleted and created again"):
        stream(startingOffsets=first.checkpoint[-1]).plan()


def test_a_topic_of_many_partitions_is_read_like_one_of_few(cluster, stream):
    cluster.create_topic("t", partition_count=9)
    for partition in range(9):
        fill(cluster, 0, 10, partition=partition)
    assert stream().next_offsets() == {f"t-{p}": list(range(10)) for p in range(9)}


def test_a_limit_is_shared_by_what_the_partitions_have(cluster, stream):
    cluster.create_topic("t", partition_count=3)
    fill(cluster, 0, 300, partition=0)
    fill(cluster, 0, 100, partition=1)
    found = stream(maxOffsetsPerTrigger="40")
    assert found.reader.getDefaultReadLimit() == ReadMaxRows(40)
    assert found.next_offsets() == {"t-0": list(range(30)), "t-1": list(range(10))}
    assert found.next_offsets(ReadMaxRows(1)) == {"t-0": [30], "t-1": [10]}
    rest = found.next_offsets(ReadAllAvailable())
    assert rest == {"t-0": list(range(31, 300)), "t-1": list(range(11, 100))}


def test_few_rows_wait_for_more_but_not_longer_than_the_delay(cluster, stream, monkeypatch):
    now = 1000.0
    monkeypatch.setattr("tidelog_spark.streaming.stream_reader.monotonic", lambda: now)
    cluster.create_topic("t")
    fill(cluster, 0, 5)
    found = stream(minOffsetsPerTrigger="20", maxTriggerDelay="60s")
    assert found.reader.getDefaultReadLimit() == ReadMinRows(20)
    assert found.next_offsets() == {"t-0": list(range(5))}
    fill(cluster, 5, 24)
    assert found.next_offsets() is None
    fill(cluster, 24, 25)
    assert found.next_offsets() == {"t-0": list(range(5, 25))}
    fill(cluster, 25, 26)
    now += 59
    assert found.next_offsets() is None
    now += 2
    assert found.next_offsets() == {"t-0": [25]}


def test_the_metadata_is_looked_at_once_a_second_at_the_most(cluster, monkeypatch):
    now = 1000.0
    monkeypatch.setattr("tidelog_spark.streaming.stream_planner.monotonic", lambda: now)
    cluster.create_topic("t")
    fill(cluster, 0, 10)
    options = parse_options({**cluster.options, "subscribe": "t"}, is_stream=True)
    planner = StreamPlanner(options)
    try:
        assert [log.end_offset for log in planner.read_catalog().logs] == [10]
        fill(cluster, 10, 20)
        now += 0.9
        assert [log.end_offset for log in planner.read_catalog().logs] == [10]
        now += 0.2
        assert [log.end_offset for log in planner.read_catalog().logs] == [20]
    finally:
        planner.close()


def test_available_now_ends_where_the_logs_ended_when_it_began(cluster, stream):
    cluster.create_topic("t")
    fill(cluster, 0, 30)
    found = stream(maxOffsetsPerTrigger="20", minOffsetsPerTrigger="15")
    found.restart(is_available_now=True)
    fill(cluster, 30, 60)
    cluster.add_partitions("t", 2)
    fill(cluster, 0, 10, partition=1)
    assert found.next_offsets() == {"t-0": list(range(20))}
    assert found.next_offsets() == {"t-0": list(range(20, 30))}
    assert found.next_offsets() is None
    found.restart(is_available_now=True)
    assert found.next_offsets(ReadAllAvailable()) == {
        "t-0": list(range(30, 60)),
        "t-1": list(range(10)),
    }
    assert found.next_offsets() is None


def test_what_retention_took_is_named_and_left_out_only_if_told_so(cluster, stream):
    cluster.create_topic("t")
    fill(cluster, 0, 50)
    found = stream(maxOffsetsPerTrigger="10")
    assert found.next_offsets() == {"t-0": list(range(10))}
    cluster.set_log_start_offset("t", 0, 25)
    assert found.plan(ReadAllAvailable())
    with pytest.raises(DataLost, match=r"offsets \[10, 25\) of t-0 were deleted.*failOnDataLoss"):
        found.read()
    found.restart(failOnDataLoss="false")
    assert found.read() == {("t", 0): [(i, b"v%d" % i) for i in range(25, 50)]}


def test_a_topic_that_is_deleted_is_a_loss(cluster, stream):
    for name in ("t1", "t2"):
        cluster.create_topic(name)
        fill(cluster, 0, 20, topic=name)
    found = stream(subscribePattern="t.*", maxOffsetsPerTrigger="10")
    found.next_rows()
    cluster.delete_topic("t1")
    assert found.plan(ReadAllAvailable())
    with pytest.raises(DataLost, match="t1-0 was deleted, or the options select it no more"):
        found.read()
    found.restart(failOnDataLoss="false")
    assert set(found.read()) == {("t2", 0)}


def test_a_topic_that_was_created_again_is_read_from_its_start(cluster, stream):
    cluster.create_topic("t")
    fill(cluster, 0, 20)
    found = stream()
    found.next_rows()
    cluster.delete_topic("t")
    cluster.create_topic("t")
    fill(cluster, 0, 40)
    assert found.plan()
    with pytest.raises(DataLost, match="topic 't' was deleted and created again"):
        found.read()
    found.restart(failOnDataLoss="false")
    rows = found.read()
    assert [offset for offset, _ in rows["t", 0]] == list(range(40))
    assert found.next_rows() is None


def test_a_stream_that_may_lose_records_waits_until_its_topic_is_created_again(
    cluster, stream, caplog
):
    cluster.create_topic("t")
    fill(cluster, 0, 20)
    found = stream(failOnDataLoss="false")
    found.next_rows()
    cluster.delete_topic("t")
    assert found.next_offsets() == {}
    assert found.next_offsets() is None
    assert [one.message for one in caplog.records].count("cannot be read, will wait for it") == 1
    cluster.create_topic("t")
    fill(cluster, 0, 10)
    assert found.next_offsets() == {"t-0": list(range(10))}


def test_a_batch_planned_before_its_topic_was_created_again_does_not_read_the_new_one(
    cluster, stream
):
    cluster.create_topic("t")
    fill(cluster, 0, 20)
    found = stream()
    assert found.plan()
    cluster.delete_topic("t")
    cluster.create_topic("t")
    fill(cluster, 0, 40)
    found.restart()
    with pytest.raises(DataLost, match=r"offsets \[0, 20\) of t-0 are gone: it was deleted"):
        found.read()


def test_a_topic_that_is_not_there_is_named(cluster, stream):
    with pytest.raises(UnknownTopicOrPartition, match="there is no topic 't'"):
        stream().plan()


@pytest.mark.parametrize("damaged", ["partition", "topic", "segment"])
def test_damage_makes_a_pattern_wait_for_what_is_damaged_and_read_the_rest(
    cluster, stream, damaged
):
    topic = cluster.create_topic("t1")
    cluster.create_topic("t2")
    meta = cluster.add_segment("t1", [build_batch([Record(0, 1, None, b"first")])])
    fill(cluster, 0, 10, topic="t2")
    found = stream(subscribePattern="t.*")
    found.next_rows()
    key = {
        "partition": partition_key(topic.topic_id, 0),
        "topic": topic_key("t1"),
        "segment": meta.item_id,
    }[damaged]
    before = cluster.damage(key)
    fill(cluster, 1, 10, topic="t1")
    fill(cluster, 10, 20, topic="t2")
    assert found.next_offsets() == {"t2-0": list(range(10, 20))}
    assert found.next_offsets() is None
    with pytest.raises(CorruptItem, match=f"{key.collection}/{key.key} is corrupt"):
        stream(subscribe="t1").plan()
    cluster.put_item(key, before.body)
    assert found.next_offsets() == {"t1-0": list(range(1, 10))}


def test_a_batch_of_what_is_damaged_now_raises_and_is_not_passed_over(cluster, stream):
    topic = cluster.create_topic("t1")
    fill(cluster, 0, 10, topic="t1")
    found = stream(subscribePattern="t.*", failOnDataLoss="false")
    assert found.plan()
    cluster.damage(partition_key(topic.topic_id, 0))
    found.restart()
    with pytest.raises(CorruptItem, match="partition:"):
        found.read()


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"endingOffsets": "latest"}, "'endingOffsets' is for batch reads: a stream has no end"),
        ({"asOf": "{}"}, "'asOf' is for batch reads"),
        ({"maxOffsetsPerTrigger": "0"}, "it must be a whole number of at least 1"),
        ({"maxTriggerDelay": "soon"}, "it must be a time like 500ms, 30s"),
        ({"maxOffsetPerTrigger": "5"}, "did you mean 'maxOffsetsPerTrigger'?"),
        (
            {"maxOffsetsPerTrigger": "5", "minOffsetsPerTrigger": "6"},
            "'minOffsetsPerTrigger' is 6, more than 'maxOffsetsPerTrigger', 5",
        ),
    ],
)
def test_wrong_options_of_a_stream_name_the_right_ones(cluster, given, says):
    with pytest.raises(InvalidConfig) as raised:
        parse_options({**cluster.options, "subscribe": "t", **given}, is_stream=True)
    assert says in str(raised.value)


def test_other_limits_than_of_rows_are_refused(cluster, stream):
    cluster.create_topic("t")
    with pytest.raises(InvalidRequest, match="ReadMaxBytes"):
        stream().plan(ReadMaxBytes(5))
