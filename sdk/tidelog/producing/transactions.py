"""A producer's transactions, one after the other: what may be sent when, and how each ends.

    idle ── begin ──► open ── commit ──► committing ──► idle
                       │ └─── abort ───► aborting ────► idle

A record that cannot be written, or a coordinator's refusal, dooms the open transaction:
what waits to be sent is dropped, ``send`` and ``commit`` raise ``TransactionAborted``, and
only ``abort`` is left. Being fenced, and what is wrong for good, ends the producer.

An end that was not answered is asked for again when the next transaction begins: as an
abort, which a coordinator that has begun to commit refuses. Where a batch of an aborted
transaction may be on its way still, the next one begins with a new epoch, which fences it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from enum import Enum
from types import TracebackType

from kio.schema.errors import ErrorCode
from tidelog_core.model import NO_PRODUCER_ID, TopicPartition

from tidelog.cluster import Cluster
from tidelog.consuming.locating import check_offsets
from tidelog.consuming.records import GroupMetadata, Offsets
from tidelog.errors import (
    ClientClosed,
    InvalidRequest,
    InvalidTxnState,
    ProducerFenced,
    TidelogError,
    TransactionAborted,
    TransactionOutcomeUnknown,
)
from tidelog.options import ProducerOptions
from tidelog.producing.accumulator import Accumulator, PartitionQueue
from tidelog.producing.identity import ProducerIdentity
from tidelog.producing.prepared import PreparedTransaction
from tidelog.producing.transaction_requests import EndedTransaction, TransactionRequests

logger = logging.getLogger(__name__)

# After these no transaction of this producer can succeed.
_FATAL = frozenset(
    {
        ErrorCode.producer_fenced,
        ErrorCode.cluster_authorization_failed,
        ErrorCode.transactional_id_authorization_failed,
        ErrorCode.invalid_transaction_timeout,
        ErrorCode.unsupported_version,
    }
)


class _State(Enum):
    IDLE = "idle"
    BEGINNING = "beginning"
    OPEN = "open"
    COMMITTING = "committing"
    ABORTING = "aborting"


class Transactions:
    """The transactions of one producer. Used from one event loop only."""

    def __init__(
        self,
        cluster: Cluster,
        accumulator: Accumulator,
        options: ProducerOptions,
        wake: Callable[[], None],
    ) -> None:
        """``wake`` has the sender look again at what may be sent."""
        self.identity = ProducerIdentity(cluster)
        self._accumulator = accumulator
        self._wake = wake
        self._requests = TransactionRequests(cluster, options, self.identity)
        self._state = _State.IDLE
        self._failure: TidelogError | None = None  # Why the open transaction cannot commit.
        self._fatal: TidelogError | None = None  # Why no transaction can.
        self._needs_epoch = True
        self._is_end_open = False  # An end was asked for, or should have been, without an answer.
        self._has_begun = False  # The coordinator may know of the open transaction.
        self._added: set[TopicPartition] = set()
        self._to_add: set[TopicPartition] = set()
        self._adding: asyncio.Task[None] | None = None

    @property
    def adds_itself(self) -> bool:
        """Whether what is written to joins the transaction without being added before."""
        return self._requests.adds_itself

    @property
    def is_open(self) -> bool:
        """Whether there is a transaction that has not begun to end."""
        return self._state is _State.OPEN

    @property
    def may_retry(self) -> bool:
        """Whether a batch that was not acknowledged may be sent again."""
        return self._failure is None and self._state in (_State.OPEN, _State.COMMITTING)

    async def init(self) -> None:
        """Fence off earlier producers of the transactional id. Raises ``ProducerFenced``."""
        try:
            if self._is_end_open:
                await self._settle_end()
            if self._needs_epoch:
                await self._requests.init()
                self._needs_epoch = False
        except TidelogError as error:
            if error.code in _FATAL:
                self._fatal = error
            raise

    # --- the sender's side ---

    def check_sendable(self) -> None:
        """Raise unless a record may be taken now."""
        self._check_alive()
        if self._state is not _State.OPEN:
            raise InvalidRequest(
                "a producer with a transactional_id sends within a transaction only: "
                "async with producer.transaction()"
            )
        if self._failure is not None:
            raise self._aborted()

    def may_start(self, queue: PartitionQueue) -> bool:
        """Whether batches of the partition may be sent, adding it to the transaction if not."""
        if not self.may_retry:
            return False
        if queue.partition not in self._added:
            if not self.adds_itself:
                self._add(queue.partition)
                return False
            self._added.add(queue.partition)
            self._has_begun = True
        return self.identity.adopt(queue)

    def fail(self, error: TidelogError) -> None:
        """Note that something of the transaction failed for good."""
        # Sequences that were given out and not written, or not certainly: what the
        # coordinator ends with an epoch of its own is numbered anew in any case.
        self._needs_epoch |= not self.adds_itself
        if error.code in _FATAL and self._fatal is None:
            self._fatal = error
        if self._failure is None and self._state in (_State.OPEN, _State.COMMITTING):
            self._failure = error
            logger.warning("transaction cannot be committed", extra={"reason": str(error)})
            self._drop(self._fatal or self._aborted())

    # --- the user's side ---

    async def begin(self) -> None:
        """Begin a transaction; waits for what became of the one before, if that is not known.

        Raises ``InvalidRequest`` while there is one, ``ProducerFenced``.
        """
        self._check_alive()
        if self._state is not _State.IDLE:
            raise InvalidRequest("the producer has a transaction open; it has one at a time")
        self._state = _State.BEGINNING
        try:
            # An abort that was cancelled leaves batches under way: one that fails from here on
            # would be taken for the new transaction's, and sent again in it.
            await self._accumulator.wait_until_answered()
            self._check_alive()
            await self.init()
        except BaseException:
            self._state = _State.IDLE
            raise
        self._failure = None
        self._has_begun = False
        self._added.clear()
        self._to_add.clear()
        self._state = _State.OPEN

    async def send_offsets(self, offsets: Offsets, group: GroupMetadata) -> None:
        """Have the group's offsets committed if, and only if, the transaction is."""
        self.check_sendable()
        checked = check_offsets(offsets)
        if not checked:
            return
        self._has_begun = True
        try:
            if not self.adds_itself:
                await self._requests.add_offsets(group.group_id)
            await self._requests.commit_offsets(checked, group)
        except TidelogError as error:
            self.fail(error)
            if self._fatal is not None:
                raise
            raise self._aborted() from error

    async def commit(self) -> None:
        """Wait for every record's acknowledgement, then commit.

        Raises ``TransactionAborted`` if one has none (the transaction is to be aborted
        then), ``TransactionOutcomeUnknown``, ``ProducerFenced``.
        """
        await self._finish_sending()
        await self._end(is_commit=True)

    async def prepare(self) -> PreparedTransaction | None:
        """Wait for every record's acknowledgement, and leave the end to others.

        It is this producer's last transaction. Returns None if there is nothing to be ended.
        Raises ``TransactionAborted``, as ``commit`` does, ``ProducerFenced``.
        """
        await self._finish_sending()
        prepared = None
        if self._has_begun:
            identity = self.identity
            prepared = PreparedTransaction(
                self._requests.transactional_id,
                identity.producer_id,
                identity.epoch,
                self.adds_itself,
            )
            # Its end is not known here: a transaction after it could not begin.
            self._fatal = InvalidRequest("the producer has left its transaction to another")
        self._state = _State.IDLE
        return prepared

    async def abort(self) -> None:
        """Drop what is not sent, wait for what is, and abort.

        Raises ``ProducerFenced``. A coordinator that cannot be reached is no error: the next
        transaction asks for the end of this one, or else its time-out ends it.
        """
        if self._state is not _State.OPEN:
            raise InvalidRequest("there is no transaction to abort")
        self._state = _State.ABORTING
        try:
            self._drop(TransactionAborted("the transaction was aborted", cause=self._failure))
            await self._stop_adding()
            await self._accumulator.wait_until_answered()
            self._check_alive()
        except BaseException:
            self._leave(is_certain=False)
            raise
        await self._end(is_commit=False)

    # --- inside ---

    def _check_alive(self) -> None:
        if self._fatal is not None:
            raise self._fatal

    async def _finish_sending(self) -> None:
        self.check_sendable()
        self._state = _State.COMMITTING
        try:
            await self._accumulator.flush(self._wake)
        except BaseException:
            self._state = _State.OPEN  # Nothing has been asked of the coordinator yet.
            raise
        if self._failure is not None:
            self._state = _State.OPEN
            raise self._fatal or self._aborted()

    def _aborted(self) -> TransactionAborted:
        return TransactionAborted("the transaction cannot be committed", cause=self._failure)

    def _drop(self, error: TidelogError) -> None:
        self._needs_epoch |= self._accumulator.drop_queued(error) and not self.adds_itself

    def _leave(self, *, is_certain: bool) -> None:
        self._is_end_open = self._has_begun and not is_certain
        self._needs_epoch |= self._is_end_open
        self._state = _State.IDLE

    async def _settle_end(self) -> None:
        # Refused, it has been committed, or the coordinator has never heard of it.
        with contextlib.suppress(InvalidTxnState):
            self._adopt(await self._requests.end(is_commit=False))
        self._is_end_open = False

    def _adopt(self, ended: EndedTransaction) -> None:
        if ended.producer_id != NO_PRODUCER_ID:
            self.identity.producer_id, self.identity.epoch = ended

    async def _end(self, *, is_commit: bool) -> None:
        if not self._has_begun:
            self._leave(is_certain=True)
            return
        try:
            self._adopt(await self._requests.end(is_commit=is_commit))
        except TidelogError as error:
            self._on_end_failed(error, is_commit=is_commit)
        except BaseException:
            self._leave(is_certain=False)
            raise
        else:
            self._leave(is_certain=True)

    def _on_end_failed(self, error: TidelogError, *, is_commit: bool) -> None:
        if error.code in _FATAL:
            self._fatal = error
            self._leave(is_certain=False)
            raise error
        if is_commit and (error.retriable or isinstance(error, ClientClosed)):
            self._leave(is_certain=False)
            raise TransactionOutcomeUnknown(f"the commit was not answered: {error}") from error
        if is_commit:
            self._failure, self._state = error, _State.OPEN
            raise self._aborted() from error
        # The coordinator knows of nothing to abort, or does not answer.
        self._needs_epoch = True
        self._leave(is_certain=isinstance(error, InvalidTxnState))
        logger.warning("abort was not confirmed", extra={"reason": str(error)})

    def _add(self, partition: TopicPartition) -> None:
        self._to_add.add(partition)
        if self._adding is None or self._adding.done():
            self._has_begun = True
            self._adding = asyncio.get_running_loop().create_task(self._add_all())

    async def _add_all(self) -> None:
        try:
            while self._to_add:
                partitions = frozenset(self._to_add)
                await self._requests.add_partitions(partitions)
                self._to_add -= partitions
                self._added |= partitions
        except TidelogError as error:
            self._to_add.clear()
            self.fail(error)
        self._wake()

    async def _stop_adding(self) -> None:
        # It is nobody's from here on, even where this wait is cancelled: the next transaction
        # adds what it writes to by a task of its own.
        adding, self._adding = self._adding, None
        if adding is not None:
            # What the coordinator makes of the request, it has made of it before the end,
            # which follows on the same connection.
            adding.cancel()
            await asyncio.gather(adding, return_exceptions=True)

    async def close(self) -> None:
        """Abort what is open, as far as that can be done."""
        if self.is_open:
            try:
                await self.abort()
            except TidelogError as error:
                logger.warning("open transaction was not aborted", extra={"reason": str(error)})
        await self._stop_adding()


class Transaction:
    """One transaction, as a context: commits when the block ends, aborts on an exception.

    The exception passes on. Records that are not acknowledged when the block ends are
    waited for; if one cannot be written, the transaction is aborted and
    ``TransactionAborted`` raised.
    """

    def __init__(self, transactions: Transactions, start: Callable[[], Awaitable[None]]) -> None:
        """``start`` makes the producer ready."""
        self._transactions = transactions
        self._start = start
        self._is_prepared = False

    async def send_offsets(self, offsets: Offsets, group: GroupMetadata) -> None:
        """Commit a consumer's offsets with the transaction, or not at all.

        ``offsets`` are those of next records, as ``Consumer.positions()`` gives them, and
        ``group`` is ``Consumer.group_metadata()``. Raises ``TransactionAborted``, its cause
        ``CommitFailed`` if the group has moved on, and ``ProducerFenced``.
        """
        await self._transactions.send_offsets(offsets, group)

    async def prepare(self) -> PreparedTransaction | None:
        """Write everything, and leave it to another to commit: ``Producer.complete``.

        The last thing to do with this producer: the block ends without a commit. Returns None
        if nothing was written. Raises as a commit does.
        """
        prepared = await self._transactions.prepare()
        self._is_prepared = True
        return prepared

    async def __aenter__(self) -> Transaction:
        """Begin. Raises ``InvalidRequest`` while another is open, ``ProducerFenced``."""
        await self._start()
        await self._transactions.begin()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Commit, or abort if the block or the commit failed."""
        if exc is None and self._is_prepared:
            return
        if exc is None:
            try:
                await self._transactions.commit()
            except TransactionAborted as aborted:
                await self._abort(aborted)
                raise
            except asyncio.CancelledError as cancelled:
                await self._abort(cancelled)
                raise
        else:
            await self._abort(exc)

    async def _abort(self, reason: BaseException) -> None:
        if not self._transactions.is_open:
            return
        try:
            await self._transactions.abort()
        except ProducerFenced as fenced:
            if isinstance(reason, TransactionAborted):
                raise fenced from reason  # That is why it was aborted.
            logger.warning("producer was fenced", extra={"reason": str(fenced)})
        except TidelogError as error:
            logger.warning("abort failed", extra={"reason": str(error)})
