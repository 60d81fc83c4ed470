"""Streams through Spark itself: triggers, checkpoints, sinks, and what users see of errors."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from tidelog_core.records.batch import Record, build_batch

from tests.support.tiered_cluster import TieredCluster

Found = list[tuple[int, int, str]]


@pytest.fixture
def cluster(tmp_path: Path) -> TieredCluster:
    built = TieredCluster(tmp_path / "tiered")
    built.create_topic("t", partition_count=2)
    for partition in range(2):
        fill(built, partition, 0, 100)
    return built


def fill(cluster: TieredCluster, partition: int, start: int, end: int) -> None:
    batches = [
        build_batch(
            [Record(0, 1, None, b"%d" % i) for i in range(base, base + 10)], base_offset=base
        )
        for base in range(start, end, 10)
    ]
    cluster.add_segment("t", batches, partition=partition)


def stream(spark: SparkSession, cluster: TieredCluster, **given: str) -> DataFrame:
    reader = spark.readStream.format("tidelog").options(**cluster.options)
    return reader.options(**{"subscribe": "t", "startingOffsets": "earliest", **given}).load()


def rows_of(table: DataFrame) -> Found:
    columns = table.selectExpr("partition", "offset", "cast(value as string)")
    return sorted(tuple(row) for row in columns.collect())


def expected(*ranges: tuple[int, int, int]) -> Found:
    return [(p, i, str(i)) for p, start, end in ranges for i in range(start, end)]


def run(table: DataFrame, folder: Path) -> Any:
    """Write what is there now to a table of files, and return the query when it has ended."""
    query = (
        table.writeStream.format("parquet")
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(folder / "table"))
    )
    assert query.awaitTermination(60)
    return query


def ends_in(folder: Path) -> list[Any]:
    """The ends of the micro-batches in the checkpoint."""
    logs = sorted((folder / "checkpoint" / "offsets").glob("[0-9]*"), key=lambda p: int(p.name))
    return [json.loads(log.read_text().splitlines()[-1]) for log in logs]


def test_a_table_of_files_grows_by_each_row_once(spark, cluster, tmp_path):
    query = run(stream(spark, cluster, maxOffsetsPerTrigger="120"), tmp_path)
    assert rows_of(spark.read.parquet(str(tmp_path / "table"))) == expected(
        (0, 0, 100), (1, 0, 100)
    )
    batches = [p for p in query.recentProgress if p["numInputRows"]]
    assert [p["numInputRows"] for p in batches] == [120, 80]
    assert json.loads(batches[-1]["sources"][0]["endOffset"])["t"] == {"0": 100, "1": 100}
    fill(cluster, 1, 100, 150)
    cluster.add_partitions("t", 3)
    fill(cluster, 2, 0, 30)
    run(stream(spark, cluster), tmp_path)
    assert rows_of(spark.read.parquet(str(tmp_path / "table"))) == expected(
        (0, 0, 100), (1, 0, 150), (2, 0, 30)
    )
    ends = ends_in(tmp_path)
    assert ends[-1]["t"] == {"0": 100, "1": 150, "2": 30}
    assert len(ends) == 3


def test_a_batch_that_failed_is_run_again_with_the_same_rows(spark, cluster, tmp_path):
    seen: list[tuple[int, Found]] = []

    def take(table: DataFrame, batch: int) -> None:
        seen.append((batch, rows_of(table)))
        if len(seen) == 2:
            raise RuntimeError("the sink is away")

    def start() -> Any:
        return (
            stream(spark, cluster, maxOffsetsPerTrigger="100", includeHeaders="true")
            .writeStream.foreachBatch(take)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )

    with pytest.raises(StreamingQueryException, match="the sink is away"):
        start().awaitTermination(60)
    fill(cluster, 0, 100, 200)
    assert start().awaitTermination(60)
    batches = [batch for batch, _ in seen]
    assert batches == [0, 1, 1, 2]
    assert seen[1] == seen[2]
    assert sorted(row for _, rows in (seen[0], *seen[2:]) for row in rows) == expected(
        (0, 0, 200), (1, 0, 100)
    )


def test_a_running_stream_takes_what_comes(spark, cluster, tmp_path):
    query = (
        stream(spark, cluster, startingOffsets="latest")
        .writeStream.format("memory")
        .queryName("arrived")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .start()
    )
    try:
        # The first batch is without rows: it keeps where the stream begins.
        while not query.recentProgress:
            assert query.isActive, query.exception()
            query.awaitTermination(0.1)
        fill(cluster, 0, 100, 130)
        query.processAllAvailable()
        while spark.table("arrived").count() < 30:
            assert query.isActive, query.exception()
            query.awaitTermination(0.1)
        assert rows_of(spark.table("arrived")) == expected((0, 100, 130))
    finally:
        query.stop()


def test_lost_data_ends_the_stream_with_a_clear_message(spark, cluster, tmp_path):
    run(stream(spark, cluster), tmp_path)
    fill(cluster, 0, 100, 150)
    cluster.set_log_start_offset("t", 0, 120)
    with pytest.raises(StreamingQueryException, match=r"offsets \[100, 120\) of t-0 were deleted"):
        run(stream(spark, cluster), tmp_path)
    run(stream(spark, cluster, failOnDataLoss="false"), tmp_path)
    assert rows_of(spark.read.parquet(str(tmp_path / "table"))) == expected(
        (0, 0, 100), (0, 120, 150), (1, 0, 100)
    )


def test_wrong_options_of_a_stream_fail_before_it_runs(spark, cluster, tmp_path):
    with pytest.raises(AnalysisException, match="did you mean 'maxOffsetsPerTrigger'"):
        stream(spark, cluster, maxOffsetPerTrigger="5")
    with pytest.raises(StreamingQueryException, match="'endingOffsets' is for batch reads"):
        run(stream(spark, cluster, endingOffsets="latest"), tmp_path)
    reader = spark.read.format("tidelog").options(**cluster.options, subscribe="t")
    with pytest.raises(AnalysisException, match="'maxOffsetsPerTrigger' is for streaming reads"):
        reader.option("maxOffsetsPerTrigger", "5").load().collect()


@pytest.fixture(autouse=True)
def no_stream_is_left(spark: SparkSession) -> Iterator[None]:
    yield
    for query in spark.streams.active:
        query.stop()
