"""The writers that Spark calls: on the driver at a write's start and end, else in tasks.

They contain only options, so they are small to pickle.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType
from tidelog.errors import InvalidConfig, TidelogError

from tidelog_spark.error_hints import with_hint
from tidelog_spark.options.first_node import REPEATED_MS
from tidelog_spark.sink.clients import SinkNames
from tidelog_spark.sink.columns import check_columns
from tidelog_spark.sink.commit import abort_batch, commit_batch
from tidelog_spark.sink.decision import WrittenTask
from tidelog_spark.sink.options import SinkOptions, parse_sink_options
from tidelog_spark.sink.runs import QueryRun
from tidelog_spark.sink.unused import abort_whole_tasks, note_left

logger = logging.getLogger(__name__)

# Properties of a stream's tasks: StreamExecution.QUERY_ID_KEY, MicroBatchExecution.BATCH_ID_KEY.
QUERY_ID_PROPERTY = "sql.streaming.queryId"
BATCH_ID_PROPERTY = "streaming.sql.batchId"
RUN_ID_PROPERTY = "spark.jobGroup.id"  # A query's job group has its run's id as a name.


@dataclass(frozen=True, slots=True)
class RowsWritten(WriterCommitMessage):
    """The result of a task of a batch write."""

    row_count: int
    was_done: bool = False  # before this attempt


@dataclass(frozen=True, slots=True)
class TaskDone(WriterCommitMessage):
    """A task's transaction to commit in a micro-batch, or None."""

    query_id: str
    run_id: str
    written: WrittenTask | None

    @property
    def query(self) -> QueryRun:
        """The run that the task is of."""
        return QueryRun(SinkNames(self.query_id), self.run_id)


class TidelogWriter(DataSourceArrowWriter):
    """Writes rows once each: every task commits its own rows, over any number of attempts."""

    def __init__(self, options: SinkOptions) -> None:
        """Give the write an id unless the user has set one."""
        self._options = options
        self._names = SinkNames(options.write_id or str(uuid.uuid4()))

    @with_hint()
    def write(self, iterator: Iterator[pa.RecordBatch]) -> RowsWritten:
        """Write one task's rows."""
        from tidelog_spark.sink.task import write_whole_task  # It loads the compiler.

        context = _context()
        done = write_whole_task(
            self._options,
            self._names,
            context.partitionId(),
            iterator,
            attempt=context.attemptNumber(),
        )
        return RowsWritten(done.row_count, done.was_done)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Warn of rows that were left out: the id may be that of a write of other rows."""
        done = [one for one in messages if isinstance(one, RowsWritten) and one.was_done]
        if done and self._options.write_id is not None:
            logger.warning(
                "tasks of this writeId had been written before, their rows are not written again",
                extra={
                    "write_id": self._options.write_id,
                    "task_count": len(messages),
                    "repeated_task_count": len(done),
                },
            )

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Abort the transactions of killed tasks. Committed tasks stay."""
        del messages
        _abort(abort_whole_tasks(_at_end(self._options), self._names))


class TidelogStreamWriter(DataSourceStreamArrowWriter):
    """Writes micro-batches, each whole and once."""

    def __init__(self, options: SinkOptions) -> None:
        """Spark makes one for every micro-batch, and another for its commit."""
        self._options = options

    @with_hint()
    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskDone:
        """Write one task's rows into a transaction."""
        from tidelog_spark.sink.task import write_stream_task  # It loads the compiler.

        context = _context()
        query_id = context.getLocalProperty(QUERY_ID_PROPERTY)
        batch_id = context.getLocalProperty(BATCH_ID_PROPERTY)
        run_id = context.getLocalProperty(RUN_ID_PROPERTY)
        if query_id is None or batch_id is None or run_id is None:
            raise InvalidConfig(["this Spark gives tasks no query id: use a supported version"])
        written = write_stream_task(
            self._options,
            QueryRun(SinkNames(query_id), run_id),
            iterator,
            batch_id=int(batch_id),
            task=context.partitionId(),
            attempt=context.attemptNumber(),
        )
        return TaskDone(query_id, run_id, written)

    @with_hint()
    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Commit the micro-batch."""
        done = [message for message in messages if isinstance(message, TaskDone)]
        if done:
            written = [task.written for task in done if task.written is not None]
            asyncio.run(
                commit_batch(
                    self._options, done[0].query, batchId, written, task_count=len(messages)
                )
            )

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Abort the micro-batch."""
        done = [message for message in messages if isinstance(message, TaskDone)]
        if done:
            written = [task.written for task in done if task.written is not None]
            _abort(abort_batch(_at_end(self._options), done[0].query, batchId, written))


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

    In mode ``complete`` each micro-batch is appended to the topic, as by Spark's Kafka sink.
    """
    options = parse_sink_options(given)
    if options.write_id is not None:
        raise InvalidConfig(["option 'writeId' is for df.write: a stream has its checkpoint"])
    check_columns(schema, options)
    return TidelogStreamWriter(options)


def _at_end(options: SinkOptions) -> SinkOptions:
    """Return the options for the end of a failed write: its tasks have waited for nodes."""
    return replace(options, first_node_timeout_ms=REPEATED_MS)


def _abort(call: Coroutine[Any, Any, None]) -> None:
    """Run the call, if possible. Spark would show its error in place of the write's."""
    try:
        asyncio.run(call)
    except TidelogError as error:
        note_left(error)


def _context() -> TaskContext:
    context = TaskContext.get()
    assert context is not None, "called in a task"
    return context
