"""The state machine of a transactional id: a record and an event in, a decision out.

Pure functions. A decision has the next record, which must be stored before the answer is sent, and
the answer.

    Empty, CompleteCommit, CompleteAbort  -- partitions added -->  Ongoing
    Ongoing  -- EndTxn -->  PrepareCommit | PrepareAbort       the outcome, once stored
    Ongoing  -- time-out, InitProducerId -->  PrepareAbort     with an epoch that fences
    PrepareCommit | PrepareAbort  -- every partition has its marker -->  Complete...

With transaction version 2 (KIP-890) every end of a transaction raises the producer's epoch,
so that requests still under way cannot become part of the next transaction. A request with the
epoch before the record's is a retry then, and one with the record's epoch is new.
Source: ``TransactionCoordinator`` and ``TransactionMetadata`` of Kafka 4.1.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import NamedTuple

from kio.schema.errors import ErrorCode
from tidelog_core.metadata.coordination.transactions import TransactionRecord, TransactionState
from tidelog_core.model import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_TIMESTAMP, TopicPartition

EPOCH_MAX = 2**15 - 1
# The maximum is never assigned, so that the holder of any epoch can be fenced.
EPOCH_GIVEN_MAX = EPOCH_MAX - 1
# Versions of the protocol between producers and coordinators, by Kafka's names.
TV_0 = 0
TV_2 = 2  # every end of a transaction raises the producer's epoch (KIP-890)
TIMEOUT_UNLIMITED_MS = 2**31 - 1  # of a two-phase transaction; never aborted here

_ENDED = (TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT)
IDLE = (TransactionState.EMPTY, *_ENDED)


class ProducerIdAndEpoch(NamedTuple):
    """A producer, as requests name it."""

    producer_id: int
    epoch: int


@dataclass(frozen=True, slots=True)
class Decision:
    """The result of an event."""

    error: ErrorCode = ErrorCode.none
    after: TransactionRecord | None = None  # to be stored before the answer; None: no change
    producer_id: int = NO_PRODUCER_ID  # for the caller
    producer_epoch: int = NO_PRODUCER_EPOCH
    needs_producer_id: bool = False  # decide again with a fresh id; no other field counts then


Decide = Callable[[TransactionRecord | None, int | None], Decision]
"""Takes the record (None for an unknown id) and a fresh producer id, None if none was taken."""

_NEEDS_ID = Decision(needs_producer_id=True)


@dataclass(frozen=True, slots=True)
class InitRequest:
    """InitProducerId with a transactional id."""

    shard: int
    transactional_id: str
    timeout_ms: int
    expected: ProducerIdAndEpoch | None  # those that the caller has (KIP-360)


def init_producer_id(  # noqa: PLR0911 — one a case of Kafka's table
    record: TransactionRecord | None, request: InitRequest, *, now_ms: int, fresh_id: int | None
) -> Decision:
    """Give the id to a producer and fence its previous producer.

    Returns CONCURRENT_TRANSACTIONS while a transaction is open or being ended. An open one is
    aborted first; the client asks again.
    """
    if record is None:
        if fresh_id is None:
            return _NEEDS_ID
        record = TransactionRecord(
            shard=request.shard,
            transactional_id=request.transactional_id,
            producer_id=fresh_id,
            producer_epoch=NO_PRODUCER_EPOCH,
            timeout_ms=request.timeout_ms,
            updated_ms=now_ms,
        )
    if record.state.is_prepared:
        return Decision(ErrorCode.concurrent_transactions)
    expected = request.expected
    if expected is not None and not _may_continue(record, expected):
        return Decision(ErrorCode.producer_fenced)
    if record.state is TransactionState.ONGOING:
        return Decision(ErrorCode.concurrent_transactions, after=_fence(record, now_ms))
    is_matching = expected is None or expected.epoch == record.producer_epoch
    needs_id = record.producer_epoch >= EPOCH_GIVEN_MAX and is_matching
    if needs_id and fresh_id is None:
        return _NEEDS_ID
    epochs = _next_epochs(record, expected, is_new_id=needs_id)
    if epochs is None:
        return Decision(ErrorCode.producer_fenced)
    after = _changed(
        record,
        now_ms,
        state=TransactionState.EMPTY,
        producer_id=fresh_id if needs_id and fresh_id is not None else record.producer_id,
        producer_epoch=epochs.given,
        last_producer_epoch=epochs.last,
        timeout_ms=request.timeout_ms,
        partitions=frozenset(),
        started_ms=NO_TIMESTAMP,
    )
    return Decision(after=after, producer_id=after.producer_id, producer_epoch=after.producer_epoch)


class _Epochs(NamedTuple):
    """The epoch that a producer is given, and the one that it had before."""

    given: int
    last: int


def _next_epochs(
    record: TransactionRecord, expected: ProducerIdAndEpoch | None, *, is_new_id: bool
) -> _Epochs | None:
    """Return the epochs of a producer that initializes, ``None`` if it is fenced."""
    epoch = record.producer_epoch
    last = NO_PRODUCER_EPOCH if expected is None else epoch
    if is_new_id:
        return _Epochs(0, last)
    if expected is None or epoch in (NO_PRODUCER_EPOCH, expected.epoch):
        return _Epochs(epoch + 1, last)
    if expected.epoch == record.last_producer_epoch:
        # The answer to the same request was lost. No other producer has initialized since: that
        # would have set the last epoch to -1.
        return _Epochs(epoch, record.last_producer_epoch)
    return None


def add_partitions(
    record: TransactionRecord | None,
    producer_id: int,
    producer_epoch: int,
    partitions: Collection[TopicPartition],
    *,
    client_version: int,
    now_ms: int,
) -> Decision:
    """Make the partitions part of the transaction, and begin it if none is open."""
    if record is not None and record.state.is_prepared:
        return Decision(ErrorCode.concurrent_transactions)
    error = _refusal(record, producer_id, producer_epoch)
    if error is not ErrorCode.none or record is None:
        return Decision(error)
    is_open = record.state is TransactionState.ONGOING
    if is_open and record.partitions.issuperset(partitions):
        return Decision()
    after = _changed(
        record,
        now_ms,
        state=TransactionState.ONGOING,
        partitions=record.partitions | frozenset(partitions),
        started_ms=record.started_ms if is_open else now_ms,
        client_version=client_version,
    )
    return Decision(after=after)


def verify_partitions(
    record: TransactionRecord | None,
    producer_id: int,
    producer_epoch: int,
    partitions: Collection[TopicPartition],
) -> dict[TopicPartition, ErrorCode]:
    """Return whether each partition is part of the open transaction."""
    error = _refusal(record, producer_id, producer_epoch)
    if error is ErrorCode.none and record is not None and record.state.is_prepared:
        error = ErrorCode.concurrent_transactions
    if error is not ErrorCode.none or record is None:
        return dict.fromkeys(partitions, error)
    return {
        partition: ErrorCode.none
        if partition in record.partitions
        else ErrorCode.transaction_abortable
        for partition in partitions
    }


def end_transaction(  # noqa: PLR0911 — one a case of Kafka's table
    record: TransactionRecord | None,
    producer_id: int,
    producer_epoch: int,
    *,
    is_commit: bool,
    client_version: int,
    now_ms: int,
    fresh_id: int | None,
) -> Decision:
    """Decide the transaction's outcome, which is final once stored."""
    if record is None:
        return Decision(ErrorCode.invalid_producer_id_mapping)
    if client_version < TV_2:
        return _end_plain(record, producer_id, producer_epoch, is_commit=is_commit, now_ms=now_ms)
    if record.state.is_prepared:
        return Decision(ErrorCode.concurrent_transactions)
    # An earlier attempt of the request took effect, but its answer was lost.
    is_after_overflow = (
        record.previous_producer_id == producer_id
        and producer_epoch == EPOCH_GIVEN_MAX
        and record.producer_epoch == 0
    )
    is_retry = is_after_overflow or record.producer_epoch == producer_epoch + 1
    is_current = record.producer_epoch == producer_epoch
    if record.producer_id != producer_id and not is_after_overflow:
        return Decision(ErrorCode.invalid_producer_id_mapping)
    is_ended = record.state in _ENDED
    if not is_current and not (is_retry and is_ended):
        return Decision(ErrorCode.producer_fenced)
    if record.state is TransactionState.ONGOING:
        return _prepare(record, is_commit=is_commit, now_ms=now_ms, fresh_id=fresh_id)
    if is_retry:
        error = _after_end(record.state, is_commit=is_commit)
        if error is not ErrorCode.none:
            return Decision(error)
        return Decision(producer_id=record.producer_id, producer_epoch=record.producer_epoch)
    if is_commit:
        return Decision(ErrorCode.invalid_txn_state)
    # An abort without any partition: the producer needs a new epoch, since its earlier
    # requests may still arrive.
    return _prepare(
        dataclasses.replace(record, started_ms=now_ms),
        is_commit=False,
        now_ms=now_ms,
        fresh_id=fresh_id,
    )


def time_out(record: TransactionRecord | None, *, now_ms: int) -> Decision:
    """Abort the transaction if it has been open for too long, and fence its producer."""
    if record is None or not is_timed_out(record, now_ms):
        return Decision()
    return Decision(after=_fence(record, now_ms))


def times_out_ms(record: TransactionRecord) -> int | None:
    """Return the time at which the transaction exceeds its producer's time-out.

    ``None`` if it never does, or if none is open.
    """
    is_open = record.state is TransactionState.ONGOING
    if not is_open or record.timeout_ms == TIMEOUT_UNLIMITED_MS:
        return None
    return record.started_ms + record.timeout_ms + 1


def is_timed_out(record: TransactionRecord, now_ms: int) -> bool:
    """Whether the transaction has exceeded its producer's time-out."""
    due_ms = times_out_ms(record)
    return due_ms is not None and due_ms <= now_ms


def complete(record: TransactionRecord, *, now_ms: int) -> TransactionRecord:
    """Return the record after every partition has got the prepared transaction's marker."""
    assert record.state.is_prepared
    is_commit = record.state is TransactionState.PREPARE_COMMIT
    has_new_id = record.next_producer_id != NO_PRODUCER_ID
    return _changed(
        record,
        now_ms,
        state=TransactionState.COMPLETE_COMMIT if is_commit else TransactionState.COMPLETE_ABORT,
        producer_id=record.next_producer_id if has_new_id else record.producer_id,
        producer_epoch=0 if has_new_id else record.producer_epoch,
        next_producer_id=NO_PRODUCER_ID,
        partitions=frozenset(),
    )


def is_expired(record: TransactionRecord, *, now_ms: int, expiration_ms: int) -> bool:
    """Whether the id was unused for ``expiration_ms`` and may be forgotten."""
    return record.state in IDLE and record.updated_ms + expiration_ms <= now_ms


def _refusal(record: TransactionRecord | None, producer_id: int, producer_epoch: int) -> ErrorCode:
    """Return why the producer may not use the transaction, ``none`` if it may."""
    if record is None or record.producer_id != producer_id:
        return ErrorCode.invalid_producer_id_mapping
    if record.producer_epoch != producer_epoch:
        return ErrorCode.producer_fenced
    return ErrorCode.none


def _may_continue(record: TransactionRecord, expected: ProducerIdAndEpoch) -> bool:
    return (
        record.producer_epoch == NO_PRODUCER_EPOCH
        or expected.producer_id == record.producer_id
        # The answer with the new id was lost.
        or (
            expected.producer_id == record.previous_producer_id
            and expected.epoch >= EPOCH_GIVEN_MAX
        )
    )


def _end_plain(
    record: TransactionRecord,
    producer_id: int,
    producer_epoch: int,
    *,
    is_commit: bool,
    now_ms: int,
) -> Decision:
    if record.producer_id != producer_id:
        return Decision(ErrorCode.invalid_producer_id_mapping)
    if record.producer_epoch != producer_epoch:
        return Decision(ErrorCode.producer_fenced)
    if record.state.is_prepared:
        return Decision(ErrorCode.concurrent_transactions)
    if record.state is not TransactionState.ONGOING:
        return Decision(_after_end(record.state, is_commit=is_commit))
    after = _changed(
        record,
        now_ms,
        state=_prepared(is_commit=is_commit),
        client_version=TV_0,
    )
    return Decision(after=after)


def _after_end(state: TransactionState, *, is_commit: bool) -> ErrorCode:
    """Return the answer to an end request when no transaction is open."""
    asked = TransactionState.COMPLETE_COMMIT if is_commit else TransactionState.COMPLETE_ABORT
    return ErrorCode.none if state is asked else ErrorCode.invalid_txn_state


def _prepare(
    record: TransactionRecord, *, is_commit: bool, now_ms: int, fresh_id: int | None
) -> Decision:
    """Decide the outcome and raise the epoch; at the maximum epoch change the producer id."""
    is_exhausted = record.producer_epoch >= EPOCH_GIVEN_MAX
    if is_exhausted and fresh_id is None:
        return _NEEDS_ID
    next_id = fresh_id if is_exhausted and fresh_id is not None else NO_PRODUCER_ID
    after = _changed(
        record,
        now_ms,
        state=_prepared(is_commit=is_commit),
        producer_epoch=record.producer_epoch + 1,
        last_producer_epoch=record.producer_epoch,
        next_producer_id=next_id,
        client_version=TV_2,
    )
    if is_exhausted:
        return Decision(after=after, producer_id=next_id, producer_epoch=0)
    return Decision(after=after, producer_id=after.producer_id, producer_epoch=after.producer_epoch)


def _fence(record: TransactionRecord, now_ms: int) -> TransactionRecord:
    """Return the record with its transaction aborted, in an epoch that no producer gets.

    Its markers carry that epoch, so that every partition refuses the old producer.
    """
    return _changed(
        record,
        now_ms,
        state=TransactionState.PREPARE_ABORT,
        producer_epoch=record.producer_epoch + 1,
        last_producer_epoch=NO_PRODUCER_EPOCH,
        client_version=TV_2,
    )


def _prepared(*, is_commit: bool) -> TransactionState:
    return TransactionState.PREPARE_COMMIT if is_commit else TransactionState.PREPARE_ABORT


def _changed(record: TransactionRecord, now_ms: int, **changes: object) -> TransactionRecord:
    after = dataclasses.replace(
        record,
        previous_producer_id=record.producer_id,
        updated_ms=max(now_ms, record.updated_ms),
        **changes,  # type: ignore[arg-type]
    )
    assert after.producer_epoch <= EPOCH_MAX
    return after
