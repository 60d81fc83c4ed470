"""Exports to Parquet files: what counts, what does not, and what is in them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from tidelog_spark.jobs.export.exporting import grouped
from tidelog_spark.jobs.formats.parquet_table import ParquetTable
from tidelog_spark.jobs.parquet_table import committed_files
from tidelog_spark.jobs.tables.export_table import ExportConflict, SchemaConflict, TimePartitions
from tidelog_spark.jobs.values.decoding import DecoderSpec
from tidelog_spark.planning.limits import OtherTopic
from tidelog_spark.reading.splits import DataLost, Slice, Split

from tests.spark.jobs.exported import Source, time_of


def read(spark: SparkSession, location: str) -> DataFrame:
    return spark.read.option("basePath", location).parquet(*committed_files(location))


def rows_of(location: str) -> list[tuple[int, int]]:
    """Return the partition and offset of every record that counts."""
    found = []
    for file in committed_files(location):
        table = pq.read_table(
            file.removeprefix("file://"),
            columns=["kafka_partition", "kafka_offset"],
            partitioning=None,
        )
        found += zip(*(column.to_pylist() for column in table.columns), strict=True)
    return sorted(found)


@pytest.fixture
def target(tmp_path: Path) -> str:
    return (tmp_path / "export").as_uri()


def test_all_that_is_tiered_is_exported_and_then_what_has_come_since(spark, tmp_path, target):
    source = Source(tmp_path)
    source.grow(500)
    source.grow(100, partition=1)
    first = source.export(spark, ParquetTable(target))
    assert first.row_count == 600
    assert rows_of(target) == source.all()

    assert source.export(spark, ParquetTable(target)).ranges == ()
    source.grow(70)
    second = source.export(spark, ParquetTable(target))
    assert [(one.start, one.end) for one in second.ranges] == [(500, 570)]
    assert rows_of(target) == source.all()


class Recreating(ParquetTable):
    """A table at whose opening the topic is deleted and created again, with other records."""

    def __init__(self, location: str, source: Source) -> None:
        super().__init__(location)
        self._source = source

    def prepare(self, schema: pa.Schema, *, segments: str | None = None) -> pa.Schema:
        self._source.cluster.delete_topic("t")
        self._source.topic = self._source.cluster.create_topic("t", partition_count=2)
        self._source.ends = [0, 0]
        self._source.grow(200)
        return super().prepare(schema, segments=segments)


def test_records_of_a_topic_that_is_created_again_are_not_taken_for_those_before(tmp_path, target):
    """Else they would be exported as the old topic's, and once more as their own."""
    source = Source(tmp_path)
    source.grow(100)
    with pytest.raises(OtherTopic, match="topic 't' was deleted and created again"):
        source.export(None, Recreating(target, source))
    assert source.export(None, ParquetTable(target)).row_count == 200
    assert rows_of(target) == source.all()


def test_records_are_apart_by_hour_with_the_columns_of_hive(spark, tmp_path, target):
    source = Source(tmp_path)
    source.grow(300)
    source.export(spark, ParquetTable(target), partitions=TimePartitions.HOUR)
    table = read(spark, target)
    by_hour = table.groupBy("kafka_date", "kafka_hour").count().orderBy("kafka_hour").collect()
    start = time_of(0)
    assert [tuple(map(str, row)) for row in by_hour] == [
        (str(start.date()), str(start.hour + hour), "60") for hour in range(5)
    ]
    row = table.where("kafka_offset = 61").collect()[0]
    assert row.kafka_timestamp.astimezone(start.tzinfo) == time_of(61)
    assert (row.kafka_key, row.kafka_value, row.kafka_topic) == (b"k61", b"v61", "t")
    assert row.kafka_hour == start.hour + 1


class CrashingTable(ParquetTable):
    """A table whose driver dies at its commit: before it, or after it."""

    def __init__(self, location: str, *, is_committed: bool) -> None:
        super().__init__(location)
        self._is_committed = is_committed

    def commit(self, files, offsets, *, run_id):
        if self._is_committed:
            super().commit(files, offsets, run_id=run_id)
        raise KeyboardInterrupt


@pytest.mark.parametrize("is_committed", [False, True])
def test_a_run_that_breaks_off_at_its_commit_is_there_whole_or_not_at_all(
    spark, tmp_path, target, is_committed
):
    source = Source(tmp_path)
    source.grow(100)
    source.export(spark, ParquetTable(target))
    source.grow(100)
    with pytest.raises(KeyboardInterrupt):
        source.export(spark, CrashingTable(target, is_committed=is_committed))
    assert len(rows_of(target)) == (200 if is_committed else 100)
    # Its files lie in a folder of the run, which counts if a commit names it.
    folders = {path.name for path in (tmp_path / "export").iterdir()}
    assert len(folders - {"_tidelog"}) == 2

    source.export(spark, ParquetTable(target))
    assert rows_of(target) == source.all()


class OvertakenTable(ParquetTable):
    """A table that another export commits to while this one writes."""

    def __init__(self, location: str, overtake: Callable[[], object]) -> None:
        super().__init__(location)
        self._overtake = overtake

    def commit(self, files, offsets, *, run_id):
        self._overtake()
        super().commit(files, offsets, run_id=run_id)


def test_of_two_exports_at_once_one_commits_and_the_other_leaves_nothing(spark, tmp_path, target):
    source = Source(tmp_path)
    source.grow(100)
    overtaken = OvertakenTable(target, lambda: source.export(spark, ParquetTable(target)))
    with pytest.raises(ExportConflict):
        source.export(spark, overtaken)
    assert rows_of(target) == source.all()
    assert len(list((tmp_path / "export").rglob("*.parquet"))) == len(committed_files(target))


def test_a_run_may_be_bounded_and_the_next_goes_on(spark, tmp_path, target):
    source = Source(tmp_path)
    source.grow(250)
    ends = []
    while ranges := source.export(
        spark, ParquetTable(target), offsets_per_partition_max=120
    ).ranges:
        ends.append(ranges[0].end)
    assert ends == [120, 240, 250]
    assert rows_of(target) == source.all()


def test_what_retention_removed_before_it_was_exported_fails_unless_told_otherwise(
    spark, tmp_path, target
):
    source = Source(tmp_path)
    source.grow(100)
    source.export(spark, ParquetTable(target))
    source.grow(100)
    source.grow(100)
    source.cluster.set_log_start_offset("t", 0, 200)
    with pytest.raises(DataLost, match=r"offsets \[100, 200\) of t-0 were deleted"):
        source.export(spark, ParquetTable(target))
    source.export(spark, ParquetTable(target), fail_on_data_loss=False)
    assert [offset for _, offset in rows_of(target)] == [*range(100), *range(200, 300)]


def test_a_topic_created_anew_is_exported_from_its_start(spark, tmp_path, target):
    source = Source(tmp_path)
    source.grow(100)
    source.export(spark, ParquetTable(target))
    again = Source(tmp_path / "again")
    again.grow(30)
    again.export(spark, ParquetTable(target))
    assert len(rows_of(target)) == 130


JSON = {
    "type": "object",
    "properties": {"n": {"type": "integer"}, "text": {"type": "string"}},
    "required": ["n"],
}


def decoder(schema: object) -> DecoderSpec:
    return DecoderSpec(format="json", schema=json.dumps(schema).encode())


def test_columns_may_be_added_and_no_other_change_is_made(spark, tmp_path, target):
    source = Source(tmp_path, lambda offset: json.dumps({"n": offset, "more": offset / 2}).encode())
    source.grow(50)
    source.export(spark, ParquetTable(target), decoder=decoder(JSON))
    wider = {**JSON, "properties": {**JSON["properties"], "more": {"type": "number"}}}
    source.grow(50)
    source.export(spark, ParquetTable(target), decoder=decoder(wider))
    table = spark.read.option("mergeSchema", "true").option("basePath", target)
    sums = table.parquet(*committed_files(target)).selectExpr("sum(n)", "sum(more)", "count(text)")
    assert tuple(sums.collect()[0]) == (sum(range(100)), sum(range(50, 100)) / 2, 0)

    other = {**JSON, "properties": {"n": {"type": "string"}}}
    source.grow(50)
    with pytest.raises(SchemaConflict, match="column 'n' is int64 in the table and string"):
        source.export(spark, ParquetTable(target), decoder=decoder(other))
    assert len(rows_of(target)) == 100


def test_a_bad_record_fails_the_run_or_is_kept_with_what_is_wrong(spark, tmp_path, target):
    def value_of(offset: int) -> bytes | None:
        if offset == 7:
            return b'{"n": "seven"}'
        return None if offset == 8 else b'{"n": %d}' % offset

    source = Source(tmp_path, value_of)
    source.grow(50)
    with pytest.raises(Exception, match="the value at offset 7 of t-0: JSON parse error"):
        source.export(spark, ParquetTable(target), decoder=decoder(JSON))
    assert committed_files(target) == []
    source.export(spark, ParquetTable(target), decoder=decoder(JSON), keeps_bad_records=True)
    table = read(spark, target)
    [bad] = table.where("kafka_error IS NOT NULL").collect()
    assert (bad.kafka_offset, bad.kafka_value, bad.n) == (7, b'{"n": "seven"}', None)
    assert "JSON parse error" in bad.kafka_error
    assert table.where("kafka_error IS NULL AND n = kafka_offset").count() == 48
    # A record without a value is not a bad one.
    [empty] = table.where("kafka_offset = 8").collect()
    assert (empty.kafka_error, empty.kafka_value, empty.n) == (None, None, None)


def test_small_splits_share_a_task_and_large_ones_have_their_own():
    def split(size_bytes: int) -> Split:
        return Split("t", 0, (Slice("key", 0, size_bytes, 0, 1),))

    sizes = [60, 30, 20, 200, 5, 5]
    tasks = grouped([split(size) for size in sizes], 100)
    assert [[one.slices[0].size_bytes for one in task.splits] for task in tasks] == [
        [60, 30],
        [20],
        [200],
        [5, 5],
    ]
    assert grouped([], 100) == []


@pytest.mark.slow
def test_the_command_exports_to_every_format_and_tells_how_much(tmp_path):
    source = Source(tmp_path)
    source.grow(50)
    command = [sys.executable, "-m", "tidelog_cli", "job", "export"]
    stores = [f"--{name}={url}" for name, url in source.cluster.options.items()]
    target = (tmp_path / "export").as_uri()

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*command, *arguments], capture_output=True, text=True, check=False)

    iceberg = [
        *("--table-format", "iceberg", "--table", "lake.t", "--catalog", "type=sql"),
        *("--catalog", f"uri=sqlite:///{tmp_path}/catalog.db"),
        *("--catalog", f"warehouse={tmp_path.as_uri()}/lake"),
    ]
    delta = ["--table-format", "delta", "--to", f"{target}-delta"]
    for options in (["--to", target], delta, iceberg):
        done = run(*stores, "t", *options, "--json")
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["rows"] == 50
    assert rows_of(target) == source.all()
    for wrong, told in (
        (["--to", target, "--value-format", "json"], "--schema"),
        (["--table-format", "delta"], "--to"),
        (["--table-format", "iceberg", "--to", target], "--table"),
        (["--to", target, "--partition-by", "week"], "none, day, hour"),
    ):
        failed = run(*stores, "t", *wrong)
        assert (failed.returncode, told in failed.stderr) == (2, True), failed.stderr
