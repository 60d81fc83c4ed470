"""``format("tidelog")``: Spark's Python data source for Tidelog."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
)
from pyspark.sql.types import StructType
from pyspark.sql.utils import is_remote
from tidelog_core.errors import InvalidConfig

from tidelog_spark.error_hints import with_hint
from tidelog_spark.options.read_options import ReadOptions, check_options, parse_options
from tidelog_spark.schema import spark_schema

if TYPE_CHECKING:
    import pyarrow as pa

EARLY = str(Path(__file__).parent / "early")  # ``sitecustomize`` of the source's processes

# Spark starts a Python process for the columns, one for the plan, and others for tasks and writes.
# Each imports what it needs.


class TidelogDataSource(DataSource):
    """The topics of a Tidelog cluster, as rows."""

    @classmethod
    def name(cls) -> str:
        """Return the name for ``format``."""
        return "tidelog"

    def schema(self) -> StructType:
        """Return the columns. Raises ``InvalidConfig`` for invalid options, at ``load()``."""
        return spark_schema(include_headers=check_options(self.options).include_headers)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the batch reader. Raises ``InvalidConfig`` for a user-defined schema."""
        return TidelogReader(_with_columns(parse_options(self.options), schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return the stream reader. Raises ``InvalidConfig`` as ``reader``."""
        try:
            from tidelog_spark.streaming.stream_reader import TidelogStreamReader
        except ImportError:
            raise InvalidConfig(["readStream needs Spark 4.2 or newer"]) from None
        return TidelogStreamReader(
            _with_columns(parse_options(self.options, is_stream=True), schema)
        )

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return the batch writer. Raises ``InvalidConfig`` for options and columns."""
        from tidelog_spark.sink.writers import batch_writer

        return batch_writer(self.options, schema, is_overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """Return the stream writer. Raises ``InvalidConfig`` for options and columns."""
        from tidelog_spark.sink.writers import stream_writer

        del overwrite  # A topic can only be appended to.
        return stream_writer(self.options, schema)


class TidelogReader(DataSourceReader):
    """Plans on the driver, reads in tasks. Contains only options, so it is small to pickle."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options

    @with_hint()
    def partitions(self) -> Sequence[InputPartition]:
        """Return one partition for each split."""
        from tidelog_spark.planning.table_planner import plan_read

        return [InputPartition(split) for split in plan_read(self._options).splits]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one split."""
        # Without splits, Spark makes a partition without a value.
        if partition.value is None:
            return iter(())
        from tidelog_spark.split_rows import task_rows

        return task_rows(self._options, partition.value)


def register(spark: SparkSession) -> None:
    """Register ``format("tidelog")`` with the session."""
    if is_remote():
        # The server has the processes, and this program not even their environment.
        spark.dataSource.register(TidelogDataSource)
        return
    environment = spark.sparkContext.environment
    before = environment.get("PYTHONPATH")
    # Spark stores the environment with the source, for its processes alone.
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, (EARLY, before)))
    try:
        spark.dataSource.register(TidelogDataSource)
    finally:
        del environment["PYTHONPATH"]
        if before is not None:
            environment["PYTHONPATH"] = before


def _with_columns(options: ReadOptions, schema: StructType) -> ReadOptions:
    columns = spark_schema(include_headers=options.include_headers)
    if schema != columns:
        raise InvalidConfig(
            [f"the columns are fixed: {columns.simpleString()}; leave .schema(...) out"]
        )
    return options
