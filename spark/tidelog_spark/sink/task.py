"""A write's tasks: each writes its rows in one transaction.

A task of a batch write commits itself, with a mark that it is done. All attempts of a
task share a transactional id: a new attempt ends the open transaction of another, or
waits for its commit, so the mark that it then looks for is certain.

A task of a stream's micro-batch leaves the commit to the driver (``sink.commit``). Each
attempt of each run has its own transactional id: the driver chooses one of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import TracebackType
from typing import NamedTuple, Self

import pyarrow as pa
from tidelog import GroupMetadata, OffsetAndMetadata, Producer, Transaction
from tidelog.errors import TidelogError
from tidelog.producing.arrow_batches import BatchBuilder
from tidelog.sync import LoopThread
from tidelog_core.clock import wall_clock_ms

from tidelog_spark.options.first_node import wait_of_attempt_ms
from tidelog_spark.sink.clients import (
    UNSTABLE_TIMEOUT_MS,
    SinkNames,
    open_admin,
    open_producer,
)
from tidelog_spark.sink.commit import complete_task
from tidelog_spark.sink.decision import MARKED, Decision, WrittenTask, read, read_settled
from tidelog_spark.sink.errors import BatchSuperseded
from tidelog_spark.sink.lanes import claim_lane
from tidelog_spark.sink.options import SinkOptions
from tidelog_spark.sink.runs import QueryRun, attempt_id


class WholeTask(NamedTuple):
    """A task of a batch write, whose rows are committed."""

    row_count: int
    was_done: bool  # by an earlier attempt, or an earlier write of the same id


class RowWriter:
    """A transaction in its own thread, that accepts Arrow batches. Aborts unless ended."""

    def __init__(self, options: SinkOptions, transactional_id: str, task: int) -> None:
        """Prepare the writer; ``with`` starts it."""
        self._options = options
        self._task = task
        self._producer: Producer = open_producer(options, transactional_id=transactional_id)
        self._thread = LoopThread("tidelog-sink")

    def __enter__(self) -> Self:
        """End another attempt's open transaction with the same transactional id."""
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
        """Abort an open transaction."""
        self._close()

    @contextmanager
    def transaction(self) -> Iterator[Transaction]:
        """Begin a transaction; commit it when the block ends, unless it was prepared."""
        transaction = self._producer.transaction()
        self._thread.run(transaction.__aenter__())
        yield transaction
        self._thread.run(transaction.__aexit__(None, None, None))

    def write(self, batches: Iterable[pa.RecordBatch]) -> int:
        """Send the rows and return their number. The transaction's end waits for all of them."""
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
        """Return the thread that runs the transaction."""
        return self._thread

    def _close(self) -> None:
        try:
            self._thread.run(self._producer.close())
        finally:
            self._thread.close()


def write_whole_task(
    options: SinkOptions,
    names: SinkNames,
    task: int,
    batches: Iterable[pa.RecordBatch],
    *,
    attempt: int = 0,
) -> WholeTask:
    """Write and commit the rows of a batch write's task, unless done.

    Raises the errors of rows and cluster; then nothing is committed, or a later attempt finds
    the mark.
    """
    name = names.whole_task_id(task)
    options = _of_attempt(options, attempt)
    with RowWriter(options, name, task) as writer:
        found = writer.thread.run(_marked(options, name))
        if found is not None:
            return WholeTask(found, was_done=True)
        with writer.transaction() as transaction:
            row_count = writer.write(batches)
            if row_count or options.write_id is not None:
                mark = {MARKED: OffsetAndMetadata(row_count)}
                writer.thread.run(transaction.send_offsets(mark, GroupMetadata(name)))
    return WholeTask(row_count, was_done=False)


def write_stream_task(
    options: SinkOptions,
    query: QueryRun,
    batches: Iterable[pa.RecordBatch],
    *,
    batch_id: int,
    task: int,
    attempt: int,
) -> WrittenTask | None:
    """Write the rows into a transaction that the driver will commit.

    Returns None if there are no rows, or if the batch is decided and this task's rows are
    committed. Raises ``BatchSuperseded`` and the errors of rows and cluster; then no
    transaction is left open.
    """
    options = _of_attempt(options, attempt)
    thread = LoopThread("tidelog-sink-decision")
    try:
        decision = thread.run(read_settled(options, query.names))
        if decision is not None and decision.batch_id > batch_id:
            raise BatchSuperseded(batch_id, decision.batch_id, decision.run)
        if decision is not None and decision.batch_id == batch_id:
            decided = decision.tasks.get(task)
            if decided is None or thread.run(complete_task(options, decided)):
                return None
        last = None if decision is None else decision.run
        lane = query.lane_after(last)
        if lane is None:
            lane = thread.run(claim_lane(options, query, last, task=task))
    finally:
        thread.close()
    writer = RowWriter(options, attempt_id(query.names, lane, task, attempt), task)
    try:
        with writer, writer.transaction() as transaction:
            row_count = writer.write(batches)
            prepared = writer.thread.run(transaction.prepare())
    except TidelogError as error:
        raise _reason(options, query, batch_id, error) from error
    if prepared is None:
        return None
    return WrittenTask(task, attempt, row_count, prepared, lane)


def _of_attempt(options: SinkOptions, attempt: int) -> SinkOptions:
    return replace(options, first_node_timeout_ms=wait_of_attempt_ms(attempt))


def _reason(
    options: SinkOptions, query: QueryRun, batch_id: int, error: TidelogError
) -> TidelogError:
    """Return why the task has failed: if another run has decided, it has ended the transaction."""
    thread = LoopThread("tidelog-sink-reason")
    try:
        decision = thread.run(_last_decision(options, query.names))
    except TidelogError:
        return error
    finally:
        thread.close()
    if decision is None or decision.batch_id < batch_id or query.has_made(decision.run):
        return error
    return BatchSuperseded(batch_id, decision.batch_id, decision.run)


async def _last_decision(options: SinkOptions, names: SinkNames) -> Decision | None:
    quick = replace(options, first_node_timeout_ms=UNSTABLE_TIMEOUT_MS)
    async with open_admin(quick, timeout_ms=UNSTABLE_TIMEOUT_MS) as admin:
        return await read(names, admin)


async def _marked(options: SinkOptions, group_id: str) -> int | None:
    """Return the number of rows in the task's mark, None without one."""
    async with open_admin(options) as admin:
        found = (await admin.list_group_offsets(group_id, [MARKED])).get(MARKED)
    return None if found is None else found.offset
