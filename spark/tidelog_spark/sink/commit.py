"""The driver's side of a stream's sink: a micro-batch is committed whole and once, or not.

Each task leaves its rows in its own transaction, flushed and open. The driver

1. becomes the decider, which fences an earlier driver that is still running;
2. checks whether the batch was decided already, by a run that died afterwards;
3. if not, checks that every transaction is still open, and decides: one transaction
   commits the list of the tasks' transactions as an offset of the stream's own group;
4. commits the tasks' transactions, which is idempotent, and aborts what ``sink.unused`` names.

Before 3 nothing of the batch is committed: a replay writes again, in any number of tasks,
and aborts the open transactions in 4. From 3 on its tasks write nothing, and a replay only
does 4. If a transaction times out between 3 and 4, because no driver ran for so long, the
replay's task of the same number writes the rows again, and the decision is replaced.

Readers of committed data see nothing of a batch before 3, and all of it after 4. In
between, while the transactions are being committed, they see some tasks' rows.

Two runs may write the same micro-batch at once (``sink.runs``). The first that decides wins. The
other one has written in vain: it raises ``BatchSuperseded``, which names the winner, and aborts its
own transactions only. Neither ends anything of the other before one of them has decided.

A driver that comes late, after another has taken over and gone on, must do it no harm. So it
looks at the last decision before it becomes the decider, which would fence the other one.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import socket
from collections.abc import Iterable, Mapping, Sequence

from tidelog import Admin, Producer
from tidelog.errors import ProducerFenced, TidelogError, TransactionAborted

from tidelog_spark.sink.clients import (
    UNSTABLE_TIMEOUT_MS,
    SinkNames,
    open_admin,
    open_producer,
)
from tidelog_spark.sink.decision import Decision, WrittenTask, read, record
from tidelog_spark.sink.errors import BatchIncomplete, BatchSuperseded, TransactionsEnded
from tidelog_spark.sink.lanes import claimed_lane
from tidelog_spark.sink.options import SinkOptions
from tidelog_spark.sink.runs import DecidingRun, QueryRun
from tidelog_spark.sink.unused import OPEN_STATE, abort_lane, abort_unused, note_left

logger = logging.getLogger(__name__)


async def commit_batch(
    options: SinkOptions,
    query: QueryRun,
    batch_id: int,
    written: Sequence[WrittenTask],
    *,
    task_count: int,
) -> None:
    """Commit the micro-batch. Idempotent; certain on return.

    Raises ``BatchSuperseded``, ``TransactionsEnded`` (this run's rows are not committed then),
    ``BatchIncomplete``, and connection errors.
    """
    names, own = query.names, {task.task: task for task in written}
    async with open_admin(options) as admin:
        last = await _look(names, admin)
        if _is_decided(last, batch_id):
            async with open_producer(options) as producer:
                await _require_unwritten(producer, query, batch_id, own, last)
        async with open_producer(options, transactional_id=names.deciding_id) as decider:
            decision = await read(names, admin)
            await _require_unwritten(decider, query, batch_id, own, decision)
            if decision is None or decision.batch_id < batch_id:
                if not own:
                    return  # It has no rows.
                await _check_open(options, admin, batch_id, own.values())
                decision = Decision(batch_id, task_count, own, _deciding(query, own))
                await _decide(decision, names, admin, decider)
            lost = await _complete(decider, decision.tasks.values())
            if lost:
                decision = _mend(decision, lost, own, task_count=task_count)
                decision = dataclasses.replace(decision, run=_deciding(query, own))
                await _decide(decision, names, admin, decider)
                if await _complete(decider, [decision.tasks[task] for task in lost]):
                    raise BatchIncomplete(batch_id, lost, decision.task_count)
            needed = [task.prepared.transactional_id for task in decision.tasks.values()]
            await abort_unused(options, names, admin, decider, needed=needed)


async def abort_batch(
    options: SinkOptions, query: QueryRun, batch_id: int, written: Sequence[WrittenTask]
) -> None:
    """Abort this run's open transactions, unless they were decided.

    Spark also calls this after a failed commit, in any of its steps. Another run may be writing
    the same micro-batch, or deciding it: its transactions stay, and it is not fenced.
    """
    async with open_admin(options) as admin:
        try:
            decision = await read(query.names, admin)
        except TidelogError as error:
            if not error.retriable:
                raise
            note_left(error)  # Any of them may be decided.
            return
        needed = set()
        if decision is not None and decision.batch_id == batch_id:
            needed = {task.prepared.transactional_id for task in decision.tasks.values()}
        own = [task for task in written if task.prepared.transactional_id not in needed]
        async with open_producer(options) as producer:
            await _abort(producer, own)
        if not _is_decided(decision, batch_id):  # Else a run has aborted what it did not need.
            lane = query.lane_after(None if decision is None else decision.run)
            if lane is None:
                try:
                    lane = await claimed_lane(options, query)
                except TidelogError as error:
                    note_left(error)
            if lane is not None:
                await abort_lane(options, query.names, admin, lane)


async def complete_task(options: SinkOptions, written: WrittenTask) -> bool:
    """Commit the rows of a task of a decided batch; return whether they are committed."""
    async with open_producer(options) as producer:
        return not await _complete(producer, [written])


async def _look(names: SinkNames, admin: Admin) -> Decision | None:
    """Return the last decision; ``None`` too if a driver is deciding, or the nodes are busy."""
    try:
        async with asyncio.timeout(UNSTABLE_TIMEOUT_MS / 1000):
            return await read(names, admin)
    except TimeoutError:
        return None
    except TidelogError as error:
        if not error.retriable:
            raise
        return None


def _is_decided(decision: Decision | None, batch_id: int) -> bool:
    return decision is not None and decision.batch_id >= batch_id


def _deciding(query: QueryRun, own: Mapping[int, WrittenTask]) -> DecidingRun:
    """Return the name of this run, which has written some tasks, for a decision."""
    lane = next(iter(own.values())).lane
    assert lane is not None, "an earlier program has written this run's tasks"
    return DecidingRun(query.run_id, socket.gethostname(), lane)


async def _require_unwritten(
    producer: Producer,
    query: QueryRun,
    batch_id: int,
    own: Mapping[int, WrittenTask],
    decision: Decision | None,
) -> None:
    """Raise ``BatchSuperseded`` if another run has committed the rows that this one has written.

    A run that begins after the decision writes none of them, unless they were lost.
    """
    if decision is None or decision.batch_id < batch_id:
        return
    if decision.batch_id == batch_id:
        if not own or query.has_made(decision.run):
            return
        if await _complete(producer, decision.tasks.values()):
            return  # They were lost, and this run's are instead of them.
    raise BatchSuperseded(batch_id, decision.batch_id, decision.run)


async def _decide(decision: Decision, names: SinkNames, admin: Admin, decider: Producer) -> None:
    """Record the decision. Raises ``BatchSuperseded`` if another run has become the decider."""
    try:
        await record(decision, names, decider)
    except ProducerFenced as error:
        found = await _look(names, admin)
        if found is None or found.batch_id < decision.batch_id:
            raise BatchSuperseded(decision.batch_id, None, None) from error
        raise BatchSuperseded(decision.batch_id, found.batch_id, found.run) from error


async def _check_open(
    options: SinkOptions, admin: Admin, batch_id: int, tasks: Iterable[WrittenTask]
) -> None:
    if ended := await _ended(admin, tasks):
        raise TransactionsEnded(batch_id, ended, options.transaction_timeout_ms)


async def _ended(admin: Admin, tasks: Iterable[WrittenTask]) -> list[int]:
    """Return the tasks whose transactions are no longer open."""
    by_id = {task.prepared.transactional_id: task for task in tasks}
    ended = []
    for transactional_id, found in (await admin.describe_transactions(by_id)).items():
        prepared = by_id[transactional_id].prepared
        identity = (found.producer_id, found.producer_epoch)
        if found.state != OPEN_STATE or identity != (prepared.producer_id, prepared.epoch):
            ended.append(by_id[transactional_id].task)
    return ended


async def _abort(producer: Producer, tasks: Iterable[WrittenTask]) -> None:
    """Abort the transactions that are open; later ones of the same ids stay."""
    for task in tasks:
        await producer.complete(task.prepared, is_commit=False)


async def _complete(producer: Producer, tasks: Iterable[WrittenTask]) -> list[int]:
    """Commit the transactions; return the tasks whose transactions were aborted."""

    async def complete(task: WrittenTask) -> int | None:
        try:
            await producer.complete(task.prepared)
        except TransactionAborted:
            return task.task
        return None

    outcomes = await asyncio.gather(*map(complete, tasks))
    return [task for task in outcomes if task is not None]


def _mend(
    decision: Decision, lost: Iterable[int], own: Mapping[int, WrittenTask], *, task_count: int
) -> Decision:
    """Return the decision with this run's transactions in place of the lost ones."""
    lost = list(lost)
    instead = {
        task: own[task]
        for task in lost
        if task in own
        and own[task].prepared != decision.tasks[task].prepared
        and own[task].row_count == decision.tasks[task].row_count
    }
    if len(instead) < len(lost) or task_count != decision.task_count:
        raise BatchIncomplete(decision.batch_id, lost, decision.task_count)
    logger.warning(
        "transactions of a decided batch were aborted, their rows are written again",
        extra={"batch_id": decision.batch_id, "tasks": sorted(instead)},
    )
    return dataclasses.replace(decision, tasks={**decision.tasks, **instead})
