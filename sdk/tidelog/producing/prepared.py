"""Transactions that one producer prepares and another process completes.

A producer that has flushed its transaction passes it on as a small value. Any process
with that value can complete the transaction, also repeatedly: committing a committed
transaction is no error. Until then only its timeout, or a new producer with the same
transactional id, ends it, and both abort it.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import NamedTuple

from kio.schema.errors import ErrorCode

from tidelog.cluster import Cluster
from tidelog.errors import TidelogError, TransactionAborted
from tidelog.options import ProducerOptions
from tidelog.producing.identity import ProducerIdentity
from tidelog.producing.transaction_requests import TransactionRequests

# The coordinator's errors for a transaction that is not, or no longer, the one to complete.
_GONE = frozenset(
    {
        ErrorCode.invalid_producer_epoch,
        ErrorCode.invalid_producer_id_mapping,
        ErrorCode.invalid_txn_state,
        ErrorCode.producer_fenced,
    }
)


class TransactionalIdentity(NamedTuple):
    """The producer id and epoch that a transactional id has given to a producer."""

    producer_id: int
    epoch: int
    adds_itself: bool  # from version 2 of the feature ``transaction.version`` on


@dataclass(frozen=True, slots=True)
class PreparedTransaction:
    """A transaction with all records acknowledged. Small to pickle."""

    transactional_id: str
    producer_id: int
    epoch: int
    adds_itself: bool  # from version 2 of the feature ``transaction.version`` on


async def complete(
    cluster: Cluster,
    options: ProducerOptions,
    prepared: PreparedTransaction,
    *,
    is_commit: bool,
) -> None:
    """Commit or abort the transaction; the outcome is certain on return. Idempotent.

    Raises ``TransactionAborted`` if it was to be committed but has ended otherwise.
    """
    identity = ProducerIdentity(cluster)
    identity.producer_id, identity.epoch = prepared.producer_id, prepared.epoch
    requests = TransactionRequests(
        cluster,
        dataclasses.replace(options, transactional_id=prepared.transactional_id),
        identity,
    )
    requests.adds_itself = prepared.adds_itself
    try:
        await requests.end(is_commit=is_commit)
    except TidelogError as error:
        if error.code not in _GONE:
            raise
        if is_commit:
            raise TransactionAborted(
                f"the transaction that {prepared.transactional_id!r} prepared has been aborted",
                cause=error,
            ) from error
