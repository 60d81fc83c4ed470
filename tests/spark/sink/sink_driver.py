"""A Spark of its own that writes to a topic, to be killed: ``python -m tests.spark.sink.sink_driver``.

    write ADDRESS TOPIC FOLDER     1000 rows, by tasks some of whose workers die
    stream ADDRESS TOPIC FOLDER    the files in FOLDER/in, one a micro-batch
    dying-stream …                 the same, by tasks some of whose workers die
    holding-stream … BATCH         the same; the sink commits the batch, and never says so to Spark
    waiting-stream … NAME          the same; writes the id of its run into the file NAME.run, touches
                                   NAME.written before its first commit, and waits for NAME.go

Workers die as by ``kill -9``: in the middle of their rows, and when all is done but said.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceStreamWriter,
    DataSourceWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType
from tidelog_spark.sink.options import SinkOptions, parse_sink_options
from tidelog_spark.sink.writers import RowsWritten, TaskDone, TidelogStreamWriter, TidelogWriter
from tidelog_spark.source import TidelogDataSource

from tests.support.waiting import eventually
from tools.local_spark import local_session

ROW_COUNT = 1000
TASK_COUNT = 3


def die() -> None:
    """End this process at once."""
    os.kill(os.getpid(), signal.SIGKILL)


def dying_midway(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield some rows, and die while they are sent."""
    yield next(batches)
    time.sleep(0.2)
    die()


def is_first_attempt(remainder: int) -> bool:
    context = TaskContext.get()
    assert context is not None
    return context.attemptNumber() == 0 and context.partitionId() % 3 == remainder


class DyingWriter(TidelogWriter):
    """Every third task dies midway, every third when it has committed."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> RowsWritten:
        written = super().write(dying_midway(iterator) if is_first_attempt(0) else iterator)
        if is_first_attempt(1):
            die()
        return written


class DyingStreamWriter(TidelogStreamWriter):
    """Every third task dies midway, every third when its rows are left to the driver."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskDone:
        done = super().write(dying_midway(iterator) if is_first_attempt(0) else iterator)
        if is_first_attempt(1):
            die()
        return done


class HoldingStreamWriter(TidelogStreamWriter):
    """Commits one of the batches, touches the file ``held`` and does not return."""

    def __init__(self, options: SinkOptions, batch_id: int, held: Path) -> None:
        super().__init__(options)
        self._batch_id, self._held = batch_id, held

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        super().commit(messages, batchId)
        if batchId == self._batch_id:
            parent = os.getppid()
            self._held.touch()
            # Spark's daemon, which ends with the JVM, may not see to its processes any more.
            while os.getppid() == parent:
                time.sleep(0.05)


class HoldingDataSource(TidelogDataSource):
    """The data source, with the writer above; it has two more options."""

    @classmethod
    def name(cls) -> str:
        return "holding"

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        given = {name.lower(): text for name, text in self.options.items()}
        batch_id, held = int(given.pop("batch")), Path(given.pop("held"))
        return HoldingStreamWriter(parse_sink_options(given), batch_id, held)


class WaitingStreamWriter(TidelogStreamWriter):
    """Waits before its first commit: the rows of all tasks are written then."""

    def __init__(self, options: SinkOptions, prefix: str) -> None:
        super().__init__(options)
        self._prefix = prefix

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        Path(f"{self._prefix}.written").touch()
        eventually(Path(f"{self._prefix}.go").exists, "it may commit", 300.0)
        super().commit(messages, batchId)


class WaitingDataSource(TidelogDataSource):
    """The data source, with the writer above; it has one more option."""

    @classmethod
    def name(cls) -> str:
        return "waiting"

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        given = {name.lower(): text for name, text in self.options.items()}
        prefix = given.pop("prefix")
        return WaitingStreamWriter(parse_sink_options(given), prefix)


class DyingDataSource(TidelogDataSource):
    """The data source, with the writers above."""

    @classmethod
    def name(cls) -> str:
        return "dying"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        return DyingWriter(parse_sink_options(self.options))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        return DyingStreamWriter(parse_sink_options(self.options))


def main(what: str, address: str, topic: str, folder: Path, *more: str) -> None:
    # Four attempts a task.
    settings = {"spark.sql.execution.arrow.maxRecordsPerBatch": "50"}
    spark = local_session("tidelog-sink", master="local[2,4]", settings=settings)
    spark.dataSource.register(DyingDataSource)
    spark.dataSource.register(HoldingDataSource)
    spark.dataSource.register(WaitingDataSource)
    options = {"kafka.bootstrap.servers": address, "topic": topic}
    if what == "write":
        table = spark.range(ROW_COUNT, numPartitions=TASK_COUNT)
        rows = table.selectExpr("cast(id as string) as value")
        rows.write.format("dying").options(**options).mode("append").save()
        return
    files = spark.readStream.format("text").option("maxFilesPerTrigger", 1)
    data_source = what.removesuffix("-stream").replace("stream", "tidelog")
    if data_source == "holding":
        options |= {"batch": more[0], "held": str(folder / f"held-{more[0]}")}
    if data_source == "waiting":
        options |= {"prefix": str(folder / more[0])}
    query = (
        files.load(str(folder / "in"))
        .repartition(TASK_COUNT)
        .writeStream.format(data_source)
        .options(**options)
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    if data_source == "waiting":
        (folder / f"{more[0]}.run").write_text(str(query.runId))
    query.awaitTermination()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], Path(sys.argv[4]), *sys.argv[5:])
