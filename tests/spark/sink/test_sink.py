"""Writes through Spark itself to a real node: batch writes and what users see of errors."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import AnalysisException, PythonException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tests.spark.sink.sinks import committed, make_topic, open_transactions, values
from tests.support.key_partitions import partition_for_key
from tests.support.node_process import NodeProcess


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A node that the tests of this file share."""
    folder: Path = tmp_path_factory.mktemp("sink")
    with NodeProcess(folder / "node") as node:
        yield node.address


def write(table: DataFrame, address: str, **options: str) -> None:
    writer = table.write.format("tidelog").option("kafka.bootstrap.servers", address)
    writer.options(**options).mode("append").save()


def test_every_column_arrives_and_keys_are_where_kafkas_clients_put_them(spark, address):
    topic = make_topic(address)
    table = spark.range(1000, numPartitions=3).selectExpr(
        "if(id % 7 = 0, null, concat('k', id)) as key",
        "if(id % 11 = 0, null, encode(concat('v', id), 'utf-8')) as value",
        "timestamp_millis(1700000000000 + id) as timestamp",
        "if(id % 5 = 0, array(struct('h' as key, encode(cast(id as string), 'utf-8') as value)),"
        " null) as headers",
        "id as passed_over",
    )
    write(table, address, topic=topic, **{"kafka.compression.type": "lz4"})
    found = {
        record.timestamp_ms - 1_700_000_000_000: record for record in committed(address, topic)
    }
    assert sorted(found) == list(range(1000))
    for number, record in found.items():
        key = None if number % 7 == 0 else b"k%d" % number
        assert record.key == key
        assert record.value == (None if number % 11 == 0 else b"v%d" % number)
        assert record.headers == ((("h", b"%d" % number),) if number % 5 == 0 else ())
        if key is not None:
            assert record.partition == partition_for_key(key, 3)
    assert {record.partition for record in found.values() if record.key is None} == {0, 1, 2}
    assert open_transactions(address) == []


@pytest.mark.slow
def test_rows_name_topics_and_partitions(spark, address):
    topics = [make_topic(address), make_topic(address)]
    table = spark.range(100).select(
        F.element_at(F.array(*map(F.lit, topics)), (F.col("id") % 2 + 1).cast("int")).alias(
            "topic"
        ),
        F.when(F.col("id") % 3 == 0, F.lit(2)).alias("partition"),
        F.col("id").cast("string").alias("value"),
    )
    write(table, address)
    for number, topic in enumerate(topics):
        records = committed(address, topic)
        assert sorted(int(r.value) for r in records) == list(range(number, 100, 2))
        assert all(r.partition == 2 for r in records if int(r.value) % 3 == 0)


@pytest.mark.slow
def test_a_write_under_an_id_is_done_once_however_often_it_is_asked_for(spark, address):
    topic = make_topic(address)
    table = spark.range(50, numPartitions=4).selectExpr("cast(id as string) as value")
    for _ in range(2):
        write(table, address, topic=topic, writeId=f"once-{topic}")
    assert values(address, topic) == list(range(50))
    write(table, address, topic=topic, writeId=f"again-{topic}")
    assert len(values(address, topic)) == 100


def test_everything_wrong_is_said_at_once(spark, address):
    table = spark.range(1).selectExpr("id as key", "id as vlaue", "1L as partition")
    wrong = {"topik": "t", "kafka.acks": "1", "kafka.linger.ms": "5"}
    with pytest.raises(AnalysisException) as raised:
        table.write.format("tidelog").options(**wrong).mode("append").save()
    text = str(raised.value)
    assert "'kafka.bootstrap.servers' is missing" in text
    assert "did you mean 'topic'?" in text
    assert "'kafka.acks' is '1': it must be all" in text
    assert "'kafka.linger.ms' is not needed" in text
    with pytest.raises(AnalysisException) as raised:
        write(table, address)
    text = str(raised.value)
    assert "column 'value' is missing" in text
    assert "give the option 'topic'" in text
    assert "column 'key' is bigint; it must be string or binary" in text
    assert "column 'partition' is bigint; it must be int" in text


def test_a_row_that_cannot_be_written_fails_the_write_and_leaves_nothing_open(spark, address):
    topic = make_topic(address)
    table = spark.range(100, numPartitions=1).selectExpr(
        "cast(id as string) as value", "if(id = 99, 7, null) as partition"
    )
    with pytest.raises(PythonException, match=rf"{topic}-7, and the topic has partitions 0 to 2"):
        write(table, address, topic=topic)
    assert values(address, topic) == []
    assert open_transactions(address) == []


def test_an_error_says_what_to_do(spark, address):
    """Commands print an error's hint; a traceback has it too."""
    topic = make_topic(address)
    table = spark.range(1).selectExpr("cast(id as string) as value")
    with pytest.raises(PythonException, match="hint: lower it, or raise"):
        write(table, address, topic=topic, **{"kafka.transaction.timeout.ms": "2000000000"})
    small = make_topic(address, **{"max.message.bytes": "2000"})
    many = table.selectExpr("explode(sequence(1, 1000)) as value").selectExpr("string(value) value")
    with pytest.raises(PythonException, match="hint: send smaller batches"):
        write(many, address, topic=small)
    write(many, address, topic=small, **{"kafka.batch.size": "1500"})
    assert values(address, small) == list(range(1, 1001))


@pytest.mark.slow
def test_what_was_read_can_be_written_as_it_is(spark, address):
    """The columns of a read are those of a write."""
    topic = make_topic(address)
    now = datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC)
    rows = [(b"k", b"%d" % i, topic, i % 3, i, now, 0, None) for i in range(9)]
    columns = (
        "key binary, value binary, topic string, partition int, offset long,"
        " timestamp timestamp, timestampType int,"
        " headers array<struct<key:string,value:binary>>"
    )
    write(spark.createDataFrame(rows, columns), address)
    records = committed(address, topic)
    assert sorted((r.partition, r.value) for r in records) == sorted(
        (i % 3, b"%d" % i) for i in range(9)
    )
