"""``scan``: a batch read without the data source API, also for Spark 3.5."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from tidelog_spark.options.read_options import parse_options
from tidelog_spark.planning.table_planner import plan_read
from tidelog_spark.schema import spark_schema
from tidelog_spark.split_rows import task_rows


def scan(spark: SparkSession, options: Mapping[str, str]) -> DataFrame:
    """Return the rows of ``spark.read.format("tidelog").options(**options).load()``.

    The read is planned now: each use of the DataFrame reads the same offsets.
    """
    parsed = parse_options(options)
    splits = plan_read(parsed).splits
    # One row per split, in its own partition; the row is the split's index.
    numbers = spark.range(0, len(splits), 1, max(1, len(splits)))

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from task_rows(parsed, splits[number])

    return numbers.mapInArrow(read, spark_schema(include_headers=parsed.include_headers))
