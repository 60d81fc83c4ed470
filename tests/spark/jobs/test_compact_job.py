"""The job ``compact`` in Spark: a task for each partition, and what Spark reads after it."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest
from pyspark.sql import SparkSession
from tidelog_cli.storage.jobs import spark_job_command
from tidelog_core.config import NodeConfig, topic_config
from tidelog_core.records.batch import CompressionType
from tidelog_core.tier_compaction.compact import CompactionOutcome
from tidelog_core.tier_compaction.targets import RewriteTarget
from tidelog_spark.jobs.compacting import compact_all, compact_in_task

from tests.support.random_logs import RandomLog, committed_records, oracle
from tests.support.tiered_partition import CLUSTER_ID, TOPIC, TieredPartition, tiered_partition


def filled(folder: Path) -> tuple[TieredPartition, RandomLog]:
    """Return a partition of several segments and what was written to it."""
    log = RandomLog()

    async def fill() -> TieredPartition:
        async with tiered_partition(folder) as partition:
            for number in range(6):
                count = len(log.batches)
                records = [(b"k%d" % (n % 5), b"%d" % number) for n in range(number, number + 4)]
                log.append(records, -1, CompressionType.ZSTD)
                await partition.copy(log.batches[count:])
            return partition

    return asyncio.run(fill()), log


def target(partition: TieredPartition, number: int = 0) -> RewriteTarget:
    return RewriteTarget(
        metadata=f"sqlite://{partition.folder}/metadata.db",
        objects=f"file://{partition.folder}/objects",
        cluster_id=CLUSTER_ID,
        topic=partition.topic,
        partition=number,
        config=topic_config(partition.topic.configs, NodeConfig()),
        key_filter_records_max=1000,
    )


def spark_rows(spark: SparkSession, partition: TieredPartition) -> list[tuple[int, bytes]]:
    one = target(partition)
    frame = spark.read.format("tidelog").options(
        metadata=one.metadata, objects=one.objects, subscribe=TOPIC
    )
    rows = frame.load().select("offset", "key").collect()
    return sorted((row["offset"], bytes(row["key"])) for row in rows)


def test_tasks_compact_and_spark_reads_what_the_oracle_leaves(
    spark: SparkSession, tmp_path: Path
) -> None:
    partition, log = filled(tmp_path)
    assert len(spark_rows(spark, partition)) == log.end_offset
    results = compact_all(spark, [target(partition), target(partition, 7)], is_forced=True)
    assert results[0].problem is None
    assert results[0].report is not None
    assert results[0].report.outcome is CompactionOutcome.COMPACTED
    assert results[1].problem == "events-7: UnknownTopicOrPartition: partition events-7 is gone"
    expected = oracle(committed_records(log.batches), log.end_offset)
    assert spark_rows(spark, partition) == [(r.offset, r.key) for r in expected]
    again = compact_in_task(target(partition), is_forced=True)  # a task that runs twice
    assert again.report is not None
    assert again.report.outcome is CompactionOutcome.NOT_DUE


def test_several_tasks_compact_one_partition(spark: SparkSession, tmp_path: Path) -> None:
    partition, log = filled(tmp_path)
    (result,) = compact_all(spark, [target(partition)], is_forced=True, split_bytes=200)
    assert result.problem is None
    assert result.report is not None
    assert result.report.outcome is CompactionOutcome.COMPACTED
    assert 1 < result.report.segments_after < result.report.segments_before
    expected = oracle(committed_records(log.batches), log.end_offset)
    assert spark_rows(spark, partition) == [(r.offset, r.key) for r in expected]


def test_what_is_wrong_in_a_task_is_told_and_nothing_is_swapped(
    spark: SparkSession, tmp_path: Path
) -> None:
    partition, _ = filled(tmp_path)
    objects = sorted(path for path in (tmp_path / "objects").rglob("*.log"))
    content = bytearray(objects[2].read_bytes())
    content[70] ^= 1
    objects[2].write_bytes(content)
    (result,) = compact_all(spark, [target(partition)], is_forced=True, split_bytes=200)
    assert result.problem is not None
    assert result.problem.startswith("events-0: PartFailed: CorruptObject: ")
    assert sorted((tmp_path / "objects").rglob("*.log")) == objects


@pytest.mark.slow
def test_spark_submit_compacts_what_is_due(tmp_path: Path) -> None:
    """A Spark of its own, with executors' workers that import the package for themselves."""
    partition, log = filled(tmp_path)
    one = target(partition)
    submit = (
        str(Path(pyspark.__file__).parent / "bin" / "spark-submit"),
        *("--master", "local[2]", "--conf", "spark.ui.enabled=false"),
        *("--conf", "spark.driver.host=127.0.0.1", "--driver-memory", "512m"),
    )
    stores = ["--metadata", one.metadata, "--objects", one.objects]
    arguments = [*stores, "--force", "--json", "--split-bytes", "200"]
    done = subprocess.run(
        spark_job_command("compact", arguments, submit=submit),
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        env={
            **os.environ,
            "PYSPARK_PYTHON": sys.executable,
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        },
    )
    assert done.returncode == 0, done.stderr
    (report,) = json.loads(done.stdout)
    assert report["outcome"] == "compacted"
    expected = oracle(committed_records(log.batches), log.end_offset)
    found = partition.read_bucket()
    assert [(r.offset, r.key) for r in found] == [(r.offset, r.key) for r in expected]


def test_the_module_is_a_job_of_its_own(tmp_path: Path) -> None:
    partition, _ = filled(tmp_path)
    one = target(partition)
    stores = ["--metadata", one.metadata, "--objects", one.objects]
    command = spark_job_command("compact", [*stores, "--topic", "absent"])
    assert command[:3] == [sys.executable, "-m", "tidelog_cli.spark_jobs.compact"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "there is no topic 'absent'" in done.stderr
    submitted = spark_job_command("compact", stores, submit="spark-submit --master x")
    assert submitted[:3] == ["spark-submit", "--master", "x"]
    assert submitted[3].endswith("tidelog_cli/spark_jobs/compact.py")
