"""Transactions that one producer fills and another process ends.

A producer that has flushed its transaction hands it over as a small value. Whoever has
that ends the transaction, as often as it likes: to commit what is committed already is
no error. Until then only its time-out, or a new producer of the same transactional id,
puts an end to it, and that is an abort.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from kio.schema.errors import ErrorCode

from tidelog.cluster import Cluster
from tidelog.errors import TidelogError, TransactionAborted
from tidelog.options import ProducerOptions
from tidelog.producing.identity import ProducerIdentity
from tidelog.producing.transaction_requests import TransactionRequests

# By these the coordinator says that it is not, or no longer, the transaction to be ended.
_GONE = frozenset(
    {
        ErrorCode.invalid_producer_epoch,
        ErrorCode.invalid_producer_id_mapping,
        ErrorCode.invalid_txn_state,
        ErrorCode.producer_fenced,
    }
)


@dataclass(frozen=True, slots=True)
class PreparedTransaction:
    """A transaction whose records are all acknowledged. Small to pickle."""

    transactional_id: str
    producer_id: int
    epoch: int
    adds_itself: bool  # as of version 2 of the feature ``transaction.version``


async def complete(
    cluster: Cluster,
    options: ProducerOptions,
    prepared: PreparedTransaction,
    *,
    is_commit: bool,
) -> None:
    """End the transaction; certain on return, and idempotent.

    Raises ``TransactionAborted`` if it is to be committed and has come to another end.
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
