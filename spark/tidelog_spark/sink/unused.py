"""Aborts open transactions that nobody will commit: of lost or unused attempts.

They would time out; until then readers of committed data would wait.

The driver that has decided a micro-batch aborts all other attempts of the query, also those of
another run. A driver that has failed aborts its own run's only.

The driver of a stream may be paused anywhere, even for minutes. Another one may take over
then, and begin later micro-batches, whose attempts may have the same transactional ids. So the
driver that has decided

1. lists the open transactions, with their producer ids and epochs;
2. checks that it is still the decider. If it is, none of them is of a later micro-batch: no
   driver begins one before it has become the decider;
3. aborts these transactions by their producer ids and epochs. A transaction that has begun
   since has another epoch, so the request does not touch it.
"""

from __future__ import annotations

import logging
from collections.abc import Collection

from tidelog import Admin, Producer
from tidelog.administering.results import TransactionDescription
from tidelog.errors import TidelogError
from tidelog.producing.prepared import PreparedTransaction

from tidelog_spark.sink.clients import SinkNames, fence, open_admin
from tidelog_spark.sink.options import SinkOptions
from tidelog_spark.sink.runs import owns_attempt

logger = logging.getLogger(__name__)

OPEN_STATE = "Ongoing"


async def abort_unused(
    options: SinkOptions,
    names: SinkNames,
    admin: Admin,
    decider: Producer,
    *,
    needed: Collection[str] = (),
) -> None:
    """Abort the open transactions of a stream's attempts, if possible.

    Those with an id in ``needed`` stay, and all if another driver has taken over.
    """
    try:
        found = await _open_transactions(admin, names, needed)
        if found and not await _is_decider(admin, names, decider):
            logger.warning(
                "another run of the query has taken over, transactions are left to it",
                extra={"group_id": names.group_id, "transaction_count": len(found)},
            )
            return
        for transaction in found:
            await _abort(options, admin, decider, transaction)
    except TidelogError as error:
        note_left(error)


async def abort_lane(options: SinkOptions, names: SinkNames, admin: Admin, lane: int) -> None:
    """Abort the open transactions of a run's attempts, if possible: they are not decided."""
    try:
        for listed in await admin.list_transactions(states=[OPEN_STATE]):
            if owns_attempt(names, listed.transactional_id, lane):
                await fence(options, listed.transactional_id)
    except TidelogError as error:
        note_left(error)


async def abort_whole_tasks(options: SinkOptions, names: SinkNames) -> None:
    """Abort the open transactions of a batch write's tasks."""
    async with open_admin(options) as admin:
        for listed in await admin.list_transactions(states=[OPEN_STATE]):
            if names.owns_whole_task(listed.transactional_id):
                await fence(options, listed.transactional_id)


async def _open_transactions(
    admin: Admin, names: SinkNames, needed: Collection[str]
) -> list[TransactionDescription]:
    unused = [
        listed.transactional_id
        for listed in await admin.list_transactions(states=[OPEN_STATE])
        if owns_attempt(names, listed.transactional_id) and listed.transactional_id not in needed
    ]
    found = await admin.describe_transactions(unused)
    return [transaction for transaction in found.values() if transaction.state == OPEN_STATE]


async def _is_decider(admin: Admin, names: SinkNames, decider: Producer) -> bool:
    found = (await admin.describe_transactions([names.deciding_id]))[names.deciding_id]
    identity = decider.transactional_identity
    return (found.producer_id, found.producer_epoch) == (identity.producer_id, identity.epoch)


async def _abort(
    options: SinkOptions, admin: Admin, decider: Producer, found: TransactionDescription
) -> None:
    name = found.transactional_id
    if decider.transactional_identity.adds_itself:
        unused = PreparedTransaction(name, found.producer_id, found.producer_epoch, True)
        await decider.complete(unused, is_commit=False)
        return
    # Brokers without KIP-890 leave a producer its epoch when its transaction ends: an attempt
    # that still runs would write on. So it is fenced, if its id has no later producer.
    now = (await admin.describe_transactions([name]))[name]
    if (now.producer_id, now.producer_epoch) == (found.producer_id, found.producer_epoch):
        await fence(options, name)


def note_left(error: TidelogError) -> None:
    """Log why open transactions are left."""
    logger.warning("transactions were left to time out", extra={"reason": str(error)})
