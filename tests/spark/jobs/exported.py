"""A topic to export, and what should come of it."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import SparkSession
from tidelog_core.records.batch import CompressionType, Record, build_batch
from tidelog_spark.jobs.export.exporting import ExportRequest, ExportResult, export
from tidelog_spark.jobs.tables.export_table import ExportTable
from tidelog_spark.jobs.task_runner import LocalTasks, SparkTasks

from tests.support.tiered_cluster import TieredCluster

EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
FIRST_MS = 1_700_006_400_000  # 2023-11-15, an hour's start
STEP_MS = 60_000


class Source:
    """Topic ``t`` of two partitions. Every record is a minute younger than the one before."""

    def __init__(
        self,
        folder: Path,
        value_of: Callable[[int], bytes | None] | None = None,
        *,
        key_of: Callable[[int], bytes] = lambda offset: b"k%d" % offset,
    ) -> None:
        self.cluster = TieredCluster(folder)
        self.topic = self.cluster.create_topic("t", partition_count=2)
        self.value_of = value_of or (lambda offset: b"v%d" % offset)
        self.key_of = key_of
        self.ends = [0, 0]

    def grow(self, count: int, *, partition: int = 0) -> None:
        """Tier a segment more, of batches of 50 records."""
        start = self.ends[partition]
        batches = [
            build_batch(
                [
                    Record(
                        0,
                        FIRST_MS + offset * STEP_MS,
                        self.key_of(offset),
                        self.value_of(offset),
                    )
                    for offset in range(base, min(base + 50, start + count))
                ],
                base_offset=base,
                compression=CompressionType.LZ4,
            )
            for base in range(start, start + count, 50)
        ]
        self.cluster.add_segment("t", batches, partition=partition)
        self.ends[partition] += count

    def request(self, **given: object) -> ExportRequest:
        return ExportRequest(**{**self.cluster.options, "topics": ("t",), **given})

    def export(
        self, spark: SparkSession | None, table: ExportTable, **given: object
    ) -> ExportResult:
        """Export by Spark, or in this process without it."""
        runner = LocalTasks() if spark is None else SparkTasks(spark)
        return export(runner, self.request(**given), table)

    def all(self) -> list[tuple[int, int]]:
        """Return the partition and offset of every record."""
        return [(p, offset) for p in range(2) for offset in range(self.ends[p])]


def time_of(offset: int) -> datetime.datetime:
    return EPOCH + datetime.timedelta(milliseconds=FIRST_MS + offset * STEP_MS)
