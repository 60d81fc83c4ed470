"""Reads through Spark itself: the data source, ``scan``, and what users see of errors."""

from __future__ import annotations

import datetime
import json
from pathlib import Path

import pytest
from pyspark.errors import AnalysisException, PythonException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from tidelog_core.records.batch import CompressionType, Record, build_batch
from tidelog_spark import bookmark, scan

from tests.support.tiered_cluster import TieredCluster

KAFKA_COLUMNS = [
    ("key", "binary"),
    ("value", "binary"),
    ("topic", "string"),
    ("partition", "int"),
    ("offset", "bigint"),
    ("timestamp", "timestamp"),
    ("timestampType", "int"),
    ("headers", "array<struct<key:string,value:binary>>"),
]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> TieredCluster:
    """Two topics: every codec, nulls, headers, both kinds of timestamps, an empty partition."""
    folder: Path = tmp_path_factory.mktemp("tiered")
    built = TieredCluster(folder)
    built.create_topic("events", partition_count=3)
    built.create_topic("other")
    for partition in range(2):
        for segment, base in enumerate(range(0, 1000, 250)):
            batches = [
                build_batch(
                    records(start, 25),
                    base_offset=start,
                    compression=CompressionType((segment + start // 25) % 5),
                    log_append_time_ms=5000 if start == 0 else None,
                )
                for start in range(base, base + 250, 25)
            ]
            built.add_segment("events", batches, partition=partition)
    built.add_segment("other", [build_batch([Record(0, 1, None, None)])])
    return built


def records(start: int, count: int) -> list[Record]:
    return [
        Record(
            0,
            1_700_000_000_000 + i,
            None if i % 7 == 0 else b"k%d" % i,
            None if i % 11 == 0 else b"v%d" % i,
            (("i", b"%d" % i), ("none", None)) if i % 3 == 0 else (),
        )
        for i in range(start, start + count)
    ]


def load(spark: SparkSession, cluster: TieredCluster, **given: str) -> DataFrame:
    return spark.read.format("tidelog").options(**cluster.options, **given).load()


def check_events(table: DataFrame) -> None:
    found = sorted(table.collect(), key=lambda row: (row.partition, row.offset))
    assert [(row.partition, row.offset) for row in found] == [
        (partition, offset) for partition in range(2) for offset in range(1000)
    ]
    utc = datetime.UTC
    for row, record in zip(found, records(0, 1000) * 2, strict=True):
        assert row.key == record.key
        assert row.value == record.value
        assert row.topic == "events"
        assert row.timestampType == (1 if row.offset < 25 else 0)
        time_ms = 5000 if row.offset < 25 else record.timestamp_ms
        assert row.timestamp.astimezone(utc) == datetime.datetime(
            1970, 1, 1, tzinfo=utc
        ) + datetime.timedelta(milliseconds=time_ms)
        headers = [(header.key, header.value) for header in row.headers or []]
        assert tuple(headers) == record.headers
        assert (row.headers is None) == (not record.headers)


def test_columns_are_those_of_sparks_kafka_source(spark, cluster):
    assert load(spark, cluster, subscribe="events", includeHeaders="true").dtypes == KAFKA_COLUMNS
    assert load(spark, cluster, subscribe="events").dtypes == KAFKA_COLUMNS[:-1]
    table = load(spark, cluster, subscribe="events", includeHeaders="true")
    assert all(field.nullable for field in table.schema)


def test_every_row_arrives_as_it_was_produced(spark, cluster):
    given = {"subscribe": "events", "includeHeaders": "true", "minPartitions": "5"}
    table = load(spark, cluster, **given)
    assert table.rdd.getNumPartitions() >= 5
    check_events(table)


def test_scan_returns_the_same_rows_without_the_data_source(spark, cluster):
    given = {"subscribe": "events", "includeHeaders": "true", "minPartitions": "5"}
    table = scan(spark, {**cluster.options, **given})
    assert table.dtypes == KAFKA_COLUMNS
    check_events(table)
    nothing = {**cluster.options, "assign": '{"events": [2]}'}
    assert scan(spark, nothing).count() == 0


def test_timestamps_do_not_depend_on_the_sessions_time_zone(spark, cluster):
    given = {"subscribe": "other"}
    tables = [load(spark, cluster, **given), scan(spark, {**cluster.options, **given})]
    zone = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    try:
        assert [table.select(F.unix_millis("timestamp")).first()[0] for table in tables] == [1, 1]
    finally:
        spark.conf.set("spark.sql.session.timeZone", zone)


def test_filters_and_aggregates_work_on_the_rows(spark, cluster):
    table = load(spark, cluster, subscribe="events,other")
    assert table.where("offset >= 990 and partition = 1").count() == 10
    # Another query on the same DataFrame is not bound to the filter of the first.
    by_topic = table.groupBy("topic").agg(F.count("*"), F.max("offset")).sort("topic").collect()
    assert [tuple(row) for row in by_topic] == [("events", 2000, 999), ("other", 1, 0)]
    assert table.select(F.sum(F.length("value"))).first()[0] == 2 * sum(
        len(record.value or b"") for record in records(0, 1000)
    )


def test_ranges_of_offsets_and_times(spark, cluster):
    limits = {
        "assign": '{"events": [0, 2]}',
        "startingOffsets": json.dumps({"events": {"0": 240, "2": -2}}),
        "endingOffsets": json.dumps({"events": {"0": 260, "2": -1}}),
    }
    found = load(spark, cluster, **limits).select("offset").collect()
    assert [row.offset for row in found] == list(range(240, 260))
    by_time = {
        "assign": '{"events": [1]}',
        "startingTimestamp": "1700000000100",
        "endingTimestamp": "1700000000103",
    }
    found = load(spark, cluster, **by_time).select("offset").collect()
    assert [row.offset for row in found] == [100, 101, 102]


def test_bookmarks_and_keys_mean_the_same_to_the_data_source_and_to_scan(spark, cluster):
    saved = bookmark({**cluster.options, "subscribe": "events"})
    given = {"asOf": saved, "keys": '["k13", "k999", "none"]'}
    for table in (load(spark, cluster, **given), scan(spark, {**cluster.options, **given})):
        found = sorted(tuple(row) for row in table.select("partition", "offset", "key").collect())
        assert found == [
            (partition, offset, b"k%d" % offset) for partition in range(2) for offset in (13, 999)
        ]


def test_a_partition_without_segments_is_empty(spark, cluster):
    table = load(spark, cluster, assign='{"events": [2]}', includeHeaders="true")
    assert table.count() == 0
    assert table.collect() == []


def test_wrong_options_fail_at_load_with_every_problem(spark, cluster):
    with pytest.raises(AnalysisException) as raised:
        load(spark, cluster, subscribeTo="events", minPartitions="none")
    text = str(raised.value)
    assert "did you mean 'subscribe'?" in text
    assert "give one of the options 'assign', 'subscribe', 'subscribePattern'" in text
    assert "it must be a whole number of at least 1" in text


def test_a_schema_of_ones_own_is_refused(spark, cluster):
    reader = spark.read.format("tidelog").options(**cluster.options, subscribe="events")
    with pytest.raises(AnalysisException, match="the columns are fixed"):
        reader.schema("value string").load().collect()


def test_lost_data_fails_the_query_unless_told_otherwise(spark, tmp_path):
    cluster = TieredCluster(tmp_path)
    cluster.create_topic("t")
    metas = [
        cluster.add_segment("t", [build_batch(records(base, 10), base_offset=base)])
        for base in (0, 10, 30)
    ]
    with pytest.raises(AnalysisException, match=r"offsets \[20, 30\) of t-0 are in no tiered"):
        load(spark, cluster, subscribe="t").count()
    assert load(spark, cluster, subscribe="t", failOnDataLoss="false").count() == 30

    (cluster.objects / cluster.keys("t", metas[1]).log).unlink()
    limits = {"subscribe": "t", "endingOffsets": '{"t": {"0": 20}}'}
    with pytest.raises(PythonException, match=r"offsets \[10, 20\) of t-0 are gone"):
        load(spark, cluster, **limits).collect()
    assert load(spark, cluster, failOnDataLoss="false", **limits).count() == 10
