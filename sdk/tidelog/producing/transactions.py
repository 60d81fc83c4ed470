"""A producer's transactions, one after the other: their states, and the sends in each state.

    idle ── begin ──► open ── commit ──► committing ──► idle
                       │ └─── abort ───► aborting ────► idle

If a record cannot be written, or the coordinator refuses a request, the open transaction
can only be aborted: queued records are dropped, and ``send`` and ``commit`` raise
``TransactionAborted``. A fenced producer, or one with another permanent error, is unusable.

An end without an answer is requested again when the next transaction begins: as an abort,
which a coordinator that has started to commit refuses. If a batch of an aborted
transaction may still be in flight, the next transaction starts with a new epoch, which
fences it.
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

# After these errors no transaction of this producer can succeed.
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
        """``wake`` makes the sender check again for batches to send."""
        self.identity = ProducerIdentity(cluster)
        self._accumulator = accumulator
        self._wake = wake
        self._requests = TransactionRequests(cluster, options, self.identity)
        self._state = _State.IDLE
        self._failure: TidelogError | None = None  # why the open transaction cannot commit
        self._fatal: TidelogError | None = None  # why no transaction can succeed
        self._needs_epoch = True
        self._is_end_open = False  # The last end has no answer, or was not requested.
        self._has_begun = False  # The coordinator may know the open transaction.
        self._added: set[TopicPartition] = set()
        self._to_add: set[TopicPartition] = set()
        self._adding: asyncio.Task[None] | None = None

    @property
    def adds_itself(self) -> bool:
        """Whether nodes add written partitions to the transaction themselves."""
        return self._requests.adds_itself

    @property
    def is_open(self) -> bool:
        """Whether a transaction is open and has not started to end."""
        return self._state is _State.OPEN

    @property
    def may_retry(self) -> bool:
        """Whether an unacknowledged batch may be sent again."""
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

    # -- called by the sender --

    def check_sendable(self) -> None:
        """Raise unless a record may be sent now."""
        self._check_alive()
        if self._state is not _State.OPEN:
            raise InvalidRequest(
                "a producer with a transactional_id sends within a transaction only: "
                "async with producer.transaction()"
            )
        if self._failure is not None:
            raise self._aborted()

    def may_start(self, queue: PartitionQueue) -> bool:
        """Whether batches of the partition may be sent; adds it to the transaction if not."""
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
        """Note a permanent failure within the transaction."""
        # Assigned sequences were perhaps not written. A coordinator that bumps the epoch at
        # every end makes numbering start over anyway.
        self._needs_epoch |= not self.adds_itself
        if error.code in _FATAL and self._fatal is None:
            self._fatal = error
        if self._failure is None and self._state in (_State.OPEN, _State.COMMITTING):
            self._failure = error
            logger.warning("transaction cannot be committed", extra={"reason": str(error)})
            self._drop(self._fatal or self._aborted())

    # -- called by the user --

    async def begin(self) -> None:
        """Begin a transaction; first resolves the unknown end of the previous one.

        Raises ``InvalidRequest`` while one is open, ``ProducerFenced``.
        """
        self._check_alive()
        if self._state is not _State.IDLE:
            raise InvalidRequest("the producer has an open transaction; end it first")
        self._state = _State.BEGINNING
        try:
            # A cancelled abort leaves batches in flight: if one failed from here on, it would be
            # taken for the new transaction's and sent again in it.
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
        """Commit the group's offsets if, and only if, the transaction commits."""
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

        Raises ``TransactionAborted`` if a record failed (the transaction must be aborted then),
        ``TransactionOutcomeUnknown``, ``ProducerFenced``.
        """
        await self._finish_sending()
        await self._end(is_commit=True)

    async def prepare(self) -> PreparedTransaction | None:
        """Wait for every record's acknowledgement, and leave the end to another process.

        No further transaction is possible with this producer. Returns None for an empty
        transaction. Raises ``TransactionAborted`` like ``commit``, ``ProducerFenced``.
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
            # This producer will not learn of the end, so it could not begin another transaction.
            self._fatal = InvalidRequest("the producer has prepared its transaction; make another")
        self._state = _State.IDLE
        return prepared

    async def abort(self) -> None:
        """Drop queued records, wait for those in flight, and abort.

        Raises ``ProducerFenced``. An unreachable coordinator is no error: the next transaction
        ends this one, or else its timeout does.
        """
        if self._state is not _State.OPEN:
            raise InvalidRequest("no transaction is open to abort")
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

    # -- internals --

    def _check_alive(self) -> None:
        if self._fatal is not None:
            raise self._fatal

    async def _finish_sending(self) -> None:
        self.check_sendable()
        self._state = _State.COMMITTING
        try:
            await self._accumulator.flush(self._wake)
        except BaseException:
            self._state = _State.OPEN  # The coordinator has not been asked for the end yet.
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
        # A refusal means that it was committed, or that the coordinator does not know it.
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
        # The coordinator has no transaction to abort, or does not answer.
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
        # Drop the task even if this wait is cancelled: the next transaction starts its own.
        adding, self._adding = self._adding, None
        if adding is not None:
            # The coordinator handles this request before the end, which follows on the same
            # connection.
            adding.cancel()
            await asyncio.gather(adding, return_exceptions=True)

    async def close(self) -> None:
        """Abort an open transaction if possible."""
        if self.is_open:
            try:
                await self.abort()
            except TidelogError as error:
                logger.warning("open transaction was not aborted", extra={"reason": str(error)})
        await self._stop_adding()


class Transaction:
    """A transaction as a context: commits when the block ends, aborts on an exception.

    The exception is raised again. The end of the block waits for all acknowledgements; if a
    record cannot be written, the transaction is aborted and ``TransactionAborted`` raised.
    """

    def __init__(self, transactions: Transactions, start: Callable[[], Awaitable[None]]) -> None:
        """``start`` starts the producer if needed."""
        self._transactions = transactions
        self._start = start
        self._is_prepared = False

    async def send_offsets(self, offsets: Offsets, group: GroupMetadata) -> None:
        """Commit a consumer's offsets with the transaction, or not at all.

        ``offsets`` are next offsets, as in ``Consumer.positions()``, and ``group`` is
        ``Consumer.group_metadata()``. Raises ``TransactionAborted``, with the cause
        ``CommitFailed`` if the group has moved on, and ``ProducerFenced``.
        """
        await self._transactions.send_offsets(offsets, group)

    async def prepare(self) -> PreparedTransaction | None:
        """Flush, and let another process commit with ``Producer.complete``.

        The last call to this producer: the block ends without a commit. Returns None if the
        transaction is empty. Raises the same errors as a commit.
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
                raise fenced from reason  # The cause of the abort.
            logger.warning("producer was fenced", extra={"reason": str(fenced)})
        except TidelogError as error:
            logger.warning("abort failed", extra={"reason": str(error)})
