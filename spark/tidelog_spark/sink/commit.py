"""The driver's side of a stream's sink: a micro-batch is committed whole, once, or not at all.

Each task leaves its rows in a transaction of its own, flushed and open. The driver

1. becomes the decider: a driver of before that is still about is fenced off by that;
2. looks whether the batch has been decided already, by a run that died after it;
3. if not, makes sure that every transaction is still open, and decides: one transaction
   commits the list of the tasks' transactions as an offset of the stream's own group;
4. commits the tasks' transactions, which can be done as often as need be.

Before 3 nothing of the batch is committed: whoever replays it fences off what was open
and writes anew, cut into whatever tasks. From 3 on its tasks write nothing, and a replay
only does 4. Should a transaction time out between 3 and 4, because no driver came for
so long, the replay's task of the same number writes it again, and is decided like that.

Readers of committed data see nothing of a batch before 3, and all of it after 4. In
between, which is as long as it takes to end the transactions, they see some tasks' rows.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from tidelog import Admin, Producer
from tidelog.errors import TidelogError, TransactionAborted

from tidelog_spark.sink.clients import SinkNames, fence_off, open_admin, open_producer
from tidelog_spark.sink.decision import Decision, WrittenTask, read, record
from tidelog_spark.sink.errors import BatchIncomplete, BatchSuperseded, TransactionsEnded
from tidelog_spark.sink.options import SinkOptions

logger = logging.getLogger(__name__)

OPEN_STATE = "Ongoing"


async def commit_batch(
    options: SinkOptions,
    names: SinkNames,
    batch_id: int,
    written: Sequence[WrittenTask],
    *,
    task_count: int,
) -> None:
    """Commit the micro-batch. Idempotent: certain on return.

    Raises ``BatchSuperseded``, ``TransactionsEnded`` (nothing is committed then) and
    ``BatchIncomplete``, and what keeps the cluster from being reached.
    """
    own = {task.task: task for task in written}
    async with (
        open_producer(options, transactional_id=names.deciding_id) as decider,
        open_admin(options) as admin,
    ):
        decision = await read(names, admin)
        if decision is not None and decision.batch_id > batch_id:
            raise BatchSuperseded(batch_id, decision.batch_id)
        if decision is None or decision.batch_id < batch_id:
            if not own:
                return  # It has no rows.
            await _check_open(options, admin, batch_id, own.values())
            decision = Decision(batch_id, task_count, own)
            await record(decision, names, decider)
        lost = await _complete(decider, decision.tasks.values())
        if lost:
            decision = _mend(decision, lost, own, task_count=task_count)
            await record(decision, names, decider)
            if await _complete(decider, [decision.tasks[task] for task in lost]):
                raise BatchIncomplete(batch_id, lost, decision.task_count)
        needed = [task.prepared.transactional_id for task in decision.tasks.values()]
        await abort_open(options, admin, names.owns_attempt, needed=needed)


async def abort_batch(
    options: SinkOptions, names: SinkNames, batch_id: int, written: Sequence[WrittenTask]
) -> None:
    """Abort what the tasks have left open, unless the batch was decided after all.

    Spark also asks for this when a commit has failed, wherever it got to.
    """
    async with (
        open_producer(options, transactional_id=names.deciding_id) as decider,
        open_admin(options) as admin,
    ):
        decision = await read(names, admin)
        if decision is not None and decision.batch_id >= batch_id:
            return
        for task in written:
            await decider.complete(task.prepared, is_commit=False)
        await abort_open(options, admin, names.owns_attempt)


async def complete_task(options: SinkOptions, written: WrittenTask) -> bool:
    """Commit the rows of a task of a decided batch; return whether they are there."""
    async with open_producer(options) as producer:
        return not await _complete(producer, [written])


async def _check_open(
    options: SinkOptions, admin: Admin, batch_id: int, tasks: Iterable[WrittenTask]
) -> None:
    by_id = {task.prepared.transactional_id: task for task in tasks}
    ended = []
    for transactional_id, found in (await admin.describe_transactions(by_id)).items():
        prepared = by_id[transactional_id].prepared
        identity = (found.producer_id, found.producer_epoch)
        if found.state != OPEN_STATE or identity != (prepared.producer_id, prepared.epoch):
            ended.append(by_id[transactional_id].task)
    if ended:
        raise TransactionsEnded(batch_id, ended, options.transaction_timeout_ms)


async def _complete(producer: Producer, tasks: Iterable[WrittenTask]) -> list[int]:
    """Commit the transactions; return the tasks whose transaction was aborted."""

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
    """Return the decision with what this run has written instead of what was lost."""
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


async def abort_open(
    options: SinkOptions,
    admin: Admin,
    is_own: Callable[[str], bool],
    *,
    needed: Collection[str] = (),
) -> None:
    """Abort what attempts that were lost or not needed have left open, as far as can be.

    It would be aborted in time; until then readers of committed data would wait.
    """
    try:
        for listed in await admin.list_transactions(states=[OPEN_STATE]):
            name = listed.transactional_id
            if is_own(name) and name not in needed:
                await fence_off(options, name)
    except TidelogError as error:
        logger.warning("transactions were left to time out", extra={"reason": str(error)})
