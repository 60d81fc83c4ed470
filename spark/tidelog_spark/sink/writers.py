"""The writers that Spark calls: on the driver for a write's begin and end, else in tasks.

They hold options only, so they are small to pickle.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType
from tidelog.errors import InvalidConfig

from tidelog_spark.sink.clients import SinkNames, open_admin
from tidelog_spark.sink.commit import abort_batch, abort_open, commit_batch
from tidelog_spark.sink.decision import WrittenTask
from tidelog_spark.sink.options import SinkOptions, check_columns, parse_sink_options

# Of a stream's tasks. Source: StreamExecution.QUERY_ID_KEY, MicroBatchExecution.BATCH_ID_KEY.
QUERY_ID_PROPERTY = "sql.streaming.queryId"
BATCH_ID_PROPERTY = "streaming.sql.batchId"


@dataclass(frozen=True, slots=True)
class RowsWritten(WriterCommitMessage):
    """What a task of a batch write has committed."""

    row_count: int


@dataclass(frozen=True, slots=True)
class TaskDone(WriterCommitMessage):
    """What a task of a micro-batch has left to commit, which may be nothing."""

    query_id: str
    written: WrittenTask | None


class TidelogWriter(DataSourceArrowWriter):
    """Writes rows once each: every task commits its own, whatever attempts it takes."""

    def __init__(self, options: SinkOptions) -> None:
        """A write without an id of the user's gets its own."""
        self._options = options
        self._names = SinkNames(options.write_id or str(uuid.uuid4()))

    def write(self, iterator: Iterator[pa.RecordBatch]) -> RowsWritten:
        """Write one task's rows."""
        from tidelog_spark.sink.task import write_whole_task  # It loads the compiler.

        context = _context()
        return RowsWritten(
            write_whole_task(self._options, self._names, context.partitionId(), iterator)
        )

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Abort what killed tasks have left open. What others have committed stays."""
        del messages
        asyncio.run(self._abort())

    async def _abort(self) -> None:
        async with open_admin(self._options) as admin:
            await abort_open(self._options, admin, self._names.owns_whole_task)


class TidelogStreamWriter(DataSourceStreamArrowWriter):
    """Writes micro-batches, each whole and once."""

    def __init__(self, options: SinkOptions) -> None:
        """Made anew for every micro-batch, and once more for its commit."""
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskDone:
        """Leave one task's rows in a transaction."""
        from tidelog_spark.sink.task import write_stream_task  # It loads the compiler.

        context = _context()
        query_id = context.getLocalProperty(QUERY_ID_PROPERTY)
        batch_id = context.getLocalProperty(BATCH_ID_PROPERTY)
        if query_id is None or batch_id is None:
            raise InvalidConfig(["this Spark does not tell a task its query and micro-batch"])
        written = write_stream_task(
            self._options,
            SinkNames(query_id),
            iterator,
            batch_id=int(batch_id),
            task=context.partitionId(),
            attempt=context.attemptNumber(),
        )
        return TaskDone(query_id, written)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Commit the micro-batch."""
        done = [message for message in messages if isinstance(message, TaskDone)]
        if done:
            written = [task.written for task in done if task.written is not None]
            names = SinkNames(done[0].query_id)
            asyncio.run(
                commit_batch(self._options, names, batchId, written, task_count=len(messages))
            )

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Abort the micro-batch."""
        done = [message for message in messages if isinstance(message, TaskDone)]
        if done:
            written = [task.written for task in done if task.written is not None]
            asyncio.run(abort_batch(self._options, SinkNames(done[0].query_id), batchId, written))


def batch_writer(
    given: Mapping[str, str], schema: StructType, *, is_overwrite: bool
) -> TidelogWriter:
    """Return the writer of ``df.write``. Raises ``InvalidConfig`` with every problem."""
    options = parse_sink_options(given)
    if is_overwrite:
        raise InvalidConfig(["a topic cannot be overwritten: use mode('append')"])
    check_columns(schema, options)
    return TidelogWriter(options)


def stream_writer(given: Mapping[str, str], schema: StructType) -> TidelogStreamWriter:
    """Return the writer of ``df.writeStream``. Raises ``InvalidConfig`` with every problem.

    In mode ``complete`` each micro-batch is added to the topic, as by Spark's Kafka sink.
    """
    options = parse_sink_options(given)
    if options.write_id is not None:
        raise InvalidConfig(["option 'writeId' is for df.write: a stream has its checkpoint"])
    check_columns(schema, options)
    return TidelogStreamWriter(options)


def _context() -> TaskContext:
    context = TaskContext.get()
    assert context is not None, "called in a task"
    return context
