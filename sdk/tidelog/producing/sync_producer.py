"""``SyncProducer`` for programs without an event loop.

``SyncProducer.send`` does not wait: records pass through a bounded queue that wakes the
loop once for many of them, because a switch between threads costs more than a record.
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import threading
from collections import deque
from collections.abc import Coroutine, Iterable, Sequence
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from tidelog_core.records.batch import Headers

from tidelog.consuming.records import GroupMetadata, Offsets
from tidelog.errors import ClientClosed, InvalidRequest, TidelogError
from tidelog.given_values import waiting_time
from tidelog.producing.batch import Delivery, RecordMetadata
from tidelog.producing.transactions import Transaction
from tidelog.producing.writer import RecordWriter
from tidelog.sync import Blocking, LoopThread, SyncClient

if TYPE_CHECKING:
    import pyarrow as pa

    from tidelog.arrow.send_columns import ArrowStreamable

HANDED_OVER_MAX = 10_000  # records between callers and the loop
# For the records of a producer that is open when the program ends.
EXIT_SECONDS_MAX = 10.0

logger = logging.getLogger(__name__)


class SyncDelivery:
    """A record's outcome; ``result()`` waits for it."""

    __slots__ = ("_delivery", "_error", "_handover")

    def __init__(self, handover: _Handover) -> None:
        self._handover = handover
        self._delivery: Delivery | None = None  # set once the producer has accepted the record
        self._error: TidelogError | None = None  # set if the producer rejected the record

    def done(self) -> bool:
        """Whether the outcome is known."""
        return self._error is not None or (self._delivery is not None and self._delivery.done())

    def result(self, timeout_s: float | None = None) -> RecordMetadata:
        """Return the record's metadata, or raise its error.

        Raises ``TimeoutError`` if the outcome is not known within ``timeout_s``.
        """
        if timeout_s is not None:
            timeout_s = waiting_time(timeout_s, "timeout_s")
        if not self.done():
            self._handover.thread.run(asyncio.wait_for(self._wait(), timeout_s))
        if self._error is not None:
            raise self._error
        assert self._delivery is not None
        return self._delivery.result()

    def exception(self, timeout_s: float | None = None) -> TidelogError | None:
        """Return the record's error, None if it was written."""
        try:
            self.result(timeout_s)
        except TidelogError as error:
            return error
        return None

    def take(self, delivery: Delivery) -> None:
        """Note that the producer has accepted the record."""
        self._delivery = delivery

    def fail(self, error: TidelogError) -> None:
        """Note that the producer has rejected the record."""
        self._error = error

    async def _wait(self) -> None:
        while self._delivery is None and self._error is None:
            await self._handover.wait_for_progress()
        if self._delivery is not None:
            await self._delivery.wait()


class _Handed(NamedTuple):
    """The arguments of a ``send`` call in the queue."""

    delivery: SyncDelivery
    topic: str
    value: bytes | None
    key: bytes | None
    headers: Headers | Iterable[tuple[str, bytes | None]]
    partition: int | None
    timestamp_ms: int | None


class _Handover:
    """The queue of records from any thread to the producer's loop, in order."""

    def __init__(self, producer: RecordWriter, thread: LoopThread) -> None:
        self._producer = producer
        self.thread = thread
        self._queue: deque[_Handed] = deque()
        self._changed = threading.Condition()
        self._is_draining = False
        self._is_ending = False
        self._task: asyncio.Task[None] | None = None
        self._progress = asyncio.Event()

    def put(self, handed: _Handed) -> None:
        """Queue a record; waits while the queue is full. Raises ``ClientClosed``."""
        self.thread.check_running()
        with self._changed:
            while len(self._queue) >= HANDED_OVER_MAX and not self._is_ending:
                self._changed.wait()
            if self._is_ending:
                raise ClientClosed("the producer is closed")
            if not self._is_draining:
                # Before the flag: an interrupt in between must not leave the queue to nobody.
                self.thread.call_soon(self._start)
                self._is_draining = True
            self._queue.append(handed)

    def end(self) -> None:
        """Take no more records; callers that wait in ``put`` get ``ClientClosed``."""
        with self._changed:
            self._is_ending = True
            self._changed.notify_all()

    async def wait_for_progress(self) -> None:
        """Wait until the next records are accepted or rejected."""
        await self._progress.wait()

    async def wait_until_empty(self) -> None:
        """Wait until all records queued so far are accepted or rejected."""
        while self._is_draining:
            await self._progress.wait()

    def _start(self) -> None:
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._drain())

    async def _drain(self) -> None:
        while True:
            with self._changed:
                handed_over = list(self._queue)
                self._queue.clear()
                self._is_draining = bool(handed_over)
                self._changed.notify_all()
            await self._send_all(handed_over)
            progress, self._progress = self._progress, asyncio.Event()
            progress.set()
            if not handed_over:
                return

    async def _send_all(self, handed_over: Sequence[_Handed]) -> None:
        try:
            if handed_over:
                await self._producer.start()
        except Exception as error:
            # One by one the records would take as long as an attempt to connect each.
            self._refuse(handed_over, error)
            return
        for handed in handed_over:
            delivery, topic, value, key, headers, partition, timestamp_ms = handed
            try:
                delivery.take(
                    await self._producer.send(
                        topic,
                        value,
                        key=key,
                        headers=headers,
                        partition=partition,
                        timestamp_ms=timestamp_ms,
                    )
                )
            except Exception as error:
                # A partitioner of the program's may raise anything, and others wait behind.
                self._refuse([handed], error)

    def _refuse(self, refused: Sequence[_Handed], error: Exception) -> None:
        refusal = _refusal(error)
        logger.warning(
            "records were not taken",
            extra={"record_count": len(refused), "reason": str(refusal)},
        )
        for handed in refused:
            handed.delivery.fail(refusal)
        self._producer.note_refused(refusal)


def _refusal(error: Exception) -> TidelogError:
    if isinstance(error, TidelogError):
        return error
    refusal = InvalidRequest(f"the record cannot be sent: {error!r}")
    refusal.__cause__ = error
    return refusal


class SyncTransaction:
    """``Transaction`` without an event loop."""

    def __init__(self, transaction: Transaction, handover: _Handover) -> None:
        self._transaction = transaction
        self._handover = handover

    def send_offsets(self, offsets: Offsets, group: GroupMetadata) -> None:
        """See ``Transaction.send_offsets``."""
        self._handover.thread.run(self._transaction.send_offsets(offsets, group))

    def __enter__(self) -> Self:
        """Begin."""
        self._handover.thread.run(self._transaction.__aenter__())
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Commit, or abort on an exception, including all records queued before."""

        async def end() -> None:
            # Records in the queue must not become part of the next transaction.
            await self._handover.wait_until_empty()
            await self._transaction.__aexit__(exc_type, exc, traceback)

        self._handover.thread.run(end())


class SyncProducer(SyncClient[RecordWriter]):
    """``Producer`` without an event loop; usable from any thread."""

    send_and_wait = Blocking(RecordWriter.send_and_wait)
    partitions_for = Blocking(RecordWriter.partitions_for)

    def __init__(self, client: RecordWriter) -> None:
        super().__init__(client)
        self._handover = _Handover(client, self.thread)
        _open.add(self)

    def send(
        self,
        topic: str,
        value: bytes | None = None,
        *,
        key: bytes | None = None,
        headers: Headers | Iterable[tuple[str, bytes | None]] = (),
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> SyncDelivery:
        """Queue the record and return its delivery: ``delivery.result()`` waits.

        All errors of the record are raised by the delivery. Waits while 10,000 records are queued,
        that is, while the producer's buffer is full. Raises ``ClientClosed`` once the producer is
        closed.
        """
        delivery = SyncDelivery(self._handover)
        self._handover.put(_Handed(delivery, topic, value, key, headers, partition, timestamp_ms))
        return delivery

    def send_table(
        self,
        topic: str,
        table: pa.Table | pa.RecordBatch | pa.RecordBatchReader | ArrowStreamable,
        *,
        key: str | None = None,
        value: str = "value",
    ) -> int:
        """Like ``Producer.send_table``, after all records queued before."""

        async def send() -> int:
            await self._handover.wait_until_empty()
            return await self.client.send_table(topic, table, key=key, value=value)

        return self.thread.run(send())

    def transaction(self) -> SyncTransaction:
        """See ``Producer.transaction``: ``with producer.transaction() as transaction:``."""
        return SyncTransaction(self.client.transaction(), self._handover)

    def flush(self) -> None:
        """Like ``Producer.flush``, including all records queued before."""

        async def flush() -> None:
            await self._handover.wait_until_empty()
            await self.client.flush()

        self.thread.run(flush())

    def _close(self, *, has_failed: bool) -> None:
        super()._close(has_failed=has_failed)
        _open.discard(self)

    def _end(self, *, has_failed: bool) -> Coroutine[Any, Any, None]:
        del has_failed

        async def end() -> None:
            self._handover.end()  # Threads that go on sending would keep this from ending.
            with suppress(TimeoutError):
                async with asyncio.timeout(self.client.delivery_timeout_s):
                    await self._handover.wait_until_empty()
            await self.client.close()
            await self._handover.wait_until_empty()  # The rest is refused, which takes no time.

        return end()

    def send_rest(self) -> None:
        """Send what the program has left behind at its end, within ``EXIT_SECONDS_MAX``."""

        async def send() -> None:
            try:
                async with asyncio.timeout(EXIT_SECONDS_MAX):
                    await self._handover.wait_until_empty()
                    await self.client.flush()
            except TimeoutError:
                logger.warning(
                    "records were not sent, close the producer before the program ends",
                    extra={"timeout_s": EXIT_SECONDS_MAX},
                )

        if self.thread.is_running:
            self.thread.run(send())


_open: set[SyncProducer] = set()


def _send_rest() -> None:
    for producer in list(_open):
        producer.send_rest()


atexit.register(_send_rest)
