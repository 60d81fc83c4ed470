"""What a task of a write does: its rows into one transaction.

A task of a batch write commits by itself, and with the rows a mark that it has. All
attempts of a task have one transactional id: one that begins ends what another has open,
or waits for its commit, so that the mark it then looks for tells for certain.

A task of a stream's micro-batch leaves the commit to the driver (``sink.commit``). Its
attempts have transactional ids of their own: the driver chooses among them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Self

import pyarrow as pa
from tidelog import GroupMetadata, OffsetAndMetadata, Producer, Transaction
from tidelog.sync import LoopThread
from tidelog_core.clock import wall_clock_ms

from tidelog_spark.sink.batches import BatchBuilder
from tidelog_spark.sink.clients import SinkNames, open_admin, open_producer
from tidelog_spark.sink.commit import complete_task
from tidelog_spark.sink.decision import MARKED, WrittenTask, read_settled
from tidelog_spark.sink.errors import BatchSuperseded
from tidelog_spark.sink.options import SinkOptions


class RowWriter:
    """A transaction in a thread of its own, that takes Arrow batches. Aborts unless ended."""

    def __init__(self, options: SinkOptions, transactional_id: str, task: int) -> None:
        """Nothing is sent yet."""
        self._options = options
        self._task = task
        self._producer: Producer = open_producer(options, transactional_id=transactional_id)
        self._thread = LoopThread("tidelog-sink")

    def __enter__(self) -> Self:
        """End what another attempt has open under the same transactional id."""
        try:
            self._thread.run(self._producer.start())
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Abort what is still open."""
        self._close()

    @contextmanager
    def transaction(self) -> Iterator[Transaction]:
        """Begin a transaction; commit it when the block ends, unless it was prepared."""
        transaction = self._producer.transaction()
        self._thread.run(transaction.__aenter__())
        yield transaction
        self._thread.run(transaction.__aexit__(None, None, None))

    def write(self, batches: Iterable[pa.RecordBatch]) -> int:
        """Send the rows; return how many. They are acknowledged when the transaction ends."""
        builder = BatchBuilder(
            self._options.batches,
            lambda topic: self._thread.run(self._producer.partitions_for(topic)),
            clock_ms=wall_clock_ms,
            first_partition=self._task,
        )
        for partition, encoded in builder.build(batches):
            self._thread.run(self._producer.send_encoded(partition, encoded))
        return builder.row_count

    @property
    def thread(self) -> LoopThread:
        """Where the transaction lives."""
        return self._thread

    def _close(self) -> None:
        try:
            self._thread.run(self._producer.close())
        finally:
            self._thread.close()


def write_whole_task(
    options: SinkOptions, names: SinkNames, task: int, batches: Iterable[pa.RecordBatch]
) -> int:
    """Write and commit the rows of a batch write's task, unless an attempt has; return how many.

    Raises what the rows and the cluster give rise to; then nothing is committed, or a later
    attempt finds that it is.
    """
    name = names.whole_task_id(task)
    with RowWriter(options, name, task) as writer:
        found = writer.thread.run(_marked(options, name))
        if found is not None:
            return found
        with writer.transaction() as transaction:
            row_count = writer.write(batches)
            if row_count or options.write_id is not None:
                mark = {MARKED: OffsetAndMetadata(row_count)}
                writer.thread.run(transaction.send_offsets(mark, GroupMetadata(name)))
    return row_count


def write_stream_task(
    options: SinkOptions,
    names: SinkNames,
    batches: Iterable[pa.RecordBatch],
    *,
    batch_id: int,
    task: int,
    attempt: int,
) -> WrittenTask | None:
    """Leave the rows in a transaction for the driver to commit.

    Returns None if there are none, or the batch is decided and this task's are there.
    Raises ``BatchSuperseded`` and what the rows and the cluster give rise to; then nothing
    is left.
    """
    thread = LoopThread("tidelog-sink-decision")
    try:
        decision = thread.run(read_settled(options, names))
        if decision is not None and decision.batch_id > batch_id:
            raise BatchSuperseded(batch_id, decision.batch_id)
        if decision is not None and decision.batch_id == batch_id:
            decided = decision.tasks.get(task)
            if decided is None or thread.run(complete_task(options, decided)):
                return None
    finally:
        thread.close()
    writer = RowWriter(options, names.task_id(task, attempt), task)
    with writer, writer.transaction() as transaction:
        row_count = writer.write(batches)
        prepared = writer.thread.run(transaction.prepare())
    if prepared is None:
        return None
    return WrittenTask(task, attempt, row_count, prepared)


async def _marked(options: SinkOptions, group_id: str) -> int | None:
    """Return how many rows the task's mark tells of, None without one."""
    async with open_admin(options) as admin:
        found = (await admin.list_group_offsets(group_id, [MARKED])).get(MARKED)
    return None if found is None else found.offset
