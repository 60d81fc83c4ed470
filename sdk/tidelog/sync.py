"""The clients for programs without an event loop: ``Producer(...).sync()`` and so on.

Each face owns a thread with an event loop, in which its client lives. A call runs the
client's coroutine there and waits for it; ``Blocking`` makes such a method of a
coroutine method, with the same signature. ``SyncProducer.send`` does not wait: records
are handed over in a bounded queue that wakes the loop once for many of them, because a
hop between threads costs more than a record.
"""

from __future__ import annotations

import asyncio
import logging
import re
import threading
from collections import deque
from collections.abc import Callable, Collection, Coroutine, Iterable, Iterator
from types import TracebackType
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Generic,
    NamedTuple,
    ParamSpec,
    Protocol,
    Self,
    TypeVar,
)

from tidelog.admin import Admin
from tidelog.consumer import Consumer
from tidelog.consuming.subscription import RebalanceListener, SubscriptionPattern
from tidelog.errors import ClientClosed, InvalidRequest, TidelogError
from tidelog.producer import Producer

if TYPE_CHECKING:
    from tidelog_core.model import TopicPartition
    from tidelog_core.records.batch import Headers

    from tidelog.consuming.records import ConsumerRecord, GroupMetadata, Offsets
    from tidelog.producing.batch import Delivery, RecordMetadata
    from tidelog.producing.transactions import Transaction

P = ParamSpec("P")
T = TypeVar("T")
C = TypeVar("C")

HANDED_OVER_MAX = 10_000  # records between a caller and the loop

logger = logging.getLogger(__name__)


class LoopThread:
    """A thread that runs an event loop until closed."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._thread.start()
        self.is_closed = False

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run the coroutine in the loop and return its result; interrupted, it is cancelled."""
        if self.is_closed:
            coroutine.close()
            raise ClientClosed("the client is closed")
        if threading.current_thread() is self._thread:
            coroutine.close()
            raise InvalidRequest("a callback of the client's own thread must not wait for it")
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def call_soon(self, function: Callable[[], object]) -> None:
        """Call the function in the loop, soon; any thread may ask."""
        if self.is_closed:
            raise ClientClosed("the client is closed")
        self._loop.call_soon_threadsafe(function)

    def close(self) -> None:
        """Stop the loop and the thread. Idempotent."""
        if self.is_closed:
            return
        self.is_closed = True
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _serve(self) -> None:
        # All of the loop's life is in this thread: the others may run loops of their own.
        try:
            self._loop.run_forever()
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.run_until_complete(self._loop.shutdown_default_executor())
        finally:
            self._loop.close()


class Client(Protocol):
    """What every client can do."""

    async def start(self) -> None:
        """Connect."""

    async def close(self) -> None:
        """End."""


ClientT = TypeVar("ClientT", bound=Client)


class Face(Generic[ClientT]):
    """A client in a thread of its own."""

    def __init__(self, client: ClientT) -> None:
        self.client = client  # Lives in the thread: its methods must not be called elsewhere.
        self.thread = LoopThread(f"tidelog-{type(client).__name__.lower()}")

    def start(self) -> None:
        """Connect. Idempotent; every call does it when it was not done."""
        self.thread.run(self.client.start())

    def close(self) -> None:
        """End, as the client does, and the thread with it. Idempotent."""
        self._close(has_failed=False)

    def __enter__(self) -> Self:
        """Start."""
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close."""
        self._close(has_failed=exc is not None)

    def _close(self, *, has_failed: bool) -> None:
        if self.thread.is_closed:
            return
        try:
            self.thread.run(self._end(has_failed=has_failed))
        finally:
            self.thread.close()

    def _end(self, *, has_failed: bool) -> Coroutine[Any, Any, None]:
        """Return what closes the client."""
        del has_failed
        return self.client.close()


class Blocking(Generic[C, P, T]):
    """A coroutine method of a client as a plain method of its face."""

    def __init__(self, method: Callable[Concatenate[C, P], Coroutine[Any, Any, T]]) -> None:
        self._method = method
        self.__doc__ = method.__doc__

    def __get__(self, face: Face[Any], owner: type[Face[Any]]) -> Callable[P, T]:
        """Return the method, bound to the face's client."""

        def call(*args: P.args, **kwargs: P.kwargs) -> T:
            return face.thread.run(self._method(face.client, *args, **kwargs))

        return call


class InLoop(Generic[C, P, T]):
    """A plain method of a client that has to run in the client's loop."""

    def __init__(self, method: Callable[Concatenate[C, P], T]) -> None:
        self._method = method
        self.__doc__ = method.__doc__

    def __get__(self, face: Face[Any], owner: type[Face[Any]]) -> Callable[P, T]:
        """Return the method, bound to the face's client."""

        def call(*args: P.args, **kwargs: P.kwargs) -> T:
            async def run() -> T:
                return self._method(face.client, *args, **kwargs)

            return face.thread.run(run())

        return call


class SyncAdmin(Face[Admin]):
    """``Admin`` without an event loop; usable from any thread."""

    create_topic = Blocking(Admin.create_topic)
    create_topics = Blocking(Admin.create_topics)
    delete_topics = Blocking(Admin.delete_topics)
    list_topics = Blocking(Admin.list_topics)
    describe_topics = Blocking(Admin.describe_topics)
    create_partitions = Blocking(Admin.create_partitions)
    delete_records = Blocking(Admin.delete_records)
    list_offsets = Blocking(Admin.list_offsets)
    describe_configs = Blocking(Admin.describe_configs)
    alter_configs = Blocking(Admin.alter_configs)
    describe_cluster = Blocking(Admin.describe_cluster)
    describe_log_dirs = Blocking(Admin.describe_log_dirs)
    list_groups = Blocking(Admin.list_groups)
    describe_groups = Blocking(Admin.describe_groups)
    delete_groups = Blocking(Admin.delete_groups)
    list_group_offsets = Blocking(Admin.list_group_offsets)
    group_lag = Blocking(Admin.group_lag)
    alter_group_offsets = Blocking(Admin.alter_group_offsets)
    reset_group_offsets = Blocking(Admin.reset_group_offsets)
    delete_group_offsets = Blocking(Admin.delete_group_offsets)
    list_share_group_offsets = Blocking(Admin.list_share_group_offsets)
    share_group_lag = Blocking(Admin.share_group_lag)
    alter_share_group_offsets = Blocking(Admin.alter_share_group_offsets)
    delete_share_group_offsets = Blocking(Admin.delete_share_group_offsets)
    list_transactions = Blocking(Admin.list_transactions)
    describe_transactions = Blocking(Admin.describe_transactions)
    describe_producers = Blocking(Admin.describe_producers)
    find_hanging_transactions = Blocking(Admin.find_hanging_transactions)
    abort_transaction = Blocking(Admin.abort_transaction)


class SyncConsumer(Face[Consumer]):
    """``Consumer`` without an event loop; iterate it, or poll. One thread reads.

    A rebalance listener's methods run in a thread of their own and may call this.
    """

    assign = InLoop(Consumer.assign)
    unsubscribe = Blocking(Consumer.unsubscribe)
    subscription = InLoop(Consumer.subscription)
    assignment = InLoop(Consumer.assignment)
    pause = InLoop(Consumer.pause)
    resume = InLoop(Consumer.resume)
    paused = InLoop(Consumer.paused)
    poll = Blocking(Consumer.poll)
    position = Blocking(Consumer.position)
    seek = InLoop(Consumer.seek)
    seek_to_beginning = InLoop(Consumer.seek_to_beginning)
    seek_to_end = InLoop(Consumer.seek_to_end)
    seek_to_committed = InLoop(Consumer.seek_to_committed)
    positions = InLoop(Consumer.positions)
    group_metadata = InLoop(Consumer.group_metadata)
    high_watermark = InLoop(Consumer.high_watermark)
    beginning_offsets = Blocking(Consumer.beginning_offsets)
    end_offsets = Blocking(Consumer.end_offsets)
    offsets_for_times = Blocking(Consumer.offsets_for_times)
    commit = Blocking(Consumer.commit)
    committed = Blocking(Consumer.committed)

    def subscribe(
        self,
        topics: str | Iterable[str] | None = None,
        *,
        pattern: str | re.Pattern[str] | SubscriptionPattern | None = None,
        listener: RebalanceListener | None = None,
    ) -> None:
        """As ``Consumer.subscribe``."""
        threaded = None if listener is None else _Threaded(listener)

        async def subscribe() -> None:
            self.client.subscribe(topics, pattern=pattern, listener=threaded)

        self.thread.run(subscribe())

    def __iter__(self) -> Iterator[ConsumerRecord]:
        """Read record by record, for as long as the loop goes on."""
        while True:
            yield from self.client.hand_out_run(self.thread.run(self.client.next_run()))

    def _end(self, *, has_failed: bool) -> Coroutine[Any, Any, None]:
        return self.client.close(has_failed=has_failed)


class SyncDelivery:
    """A record's outcome; ``result()`` waits for it."""

    __slots__ = ("_delivery", "_error", "_handover")

    def __init__(self, handover: _Handover) -> None:
        self._handover = handover
        self._delivery: Delivery | None = None  # Set once the producer has taken the record.
        self._error: TidelogError | None = None  # Why the producer did not take it.

    def done(self) -> bool:
        """Whether the outcome is known."""
        return self._error is not None or (self._delivery is not None and self._delivery.done())

    def result(self, timeout_s: float | None = None) -> RecordMetadata:
        """Return where the record is, or raise its error.

        Raises ``TimeoutError`` if that is not known within ``timeout_s``.
        """
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
        """Note that the producer has taken the record."""
        self._delivery = delivery

    def fail(self, error: TidelogError) -> None:
        """Note that the producer did not take the record."""
        self._error = error

    async def _wait(self) -> None:
        while self._delivery is None and self._error is None:
            await self._handover.wait_for_progress()
        if self._delivery is not None:
            await self._delivery.wait()


class _Handed(NamedTuple):
    """The arguments of a ``send`` on its way to the loop."""

    delivery: SyncDelivery
    topic: str
    value: bytes | None
    key: bytes | None
    headers: Headers | Iterable[tuple[str, bytes | None]]
    partition: int | None
    timestamp_ms: int | None


class _Handover:
    """Records on their way from any thread to the producer's loop, in order."""

    def __init__(self, producer: Producer, thread: LoopThread) -> None:
        self._producer = producer
        self.thread = thread
        self._queue: deque[_Handed] = deque()
        self._changed = threading.Condition()
        self._is_draining = False
        self._task: asyncio.Task[None] | None = None
        self._progress = asyncio.Event()

    def put(self, handed: _Handed) -> None:
        """Hand a record over; waits while the queue is full."""
        with self._changed:
            while len(self._queue) >= HANDED_OVER_MAX:
                self._changed.wait()
            self._queue.append(handed)
            if not self._is_draining:
                self._is_draining = True
                self.thread.call_soon(self._start)

    async def wait_for_progress(self) -> None:
        """Return after the next records were taken."""
        await self._progress.wait()

    async def wait_until_empty(self) -> None:
        """Return when everything handed over until now was taken."""
        while self._is_draining:
            await self._progress.wait()

    def _start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._drain())

    async def _drain(self) -> None:
        while True:
            with self._changed:
                handed_over = list(self._queue)
                self._queue.clear()
                self._is_draining = bool(handed_over)
                self._changed.notify_all()
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
                except TidelogError as error:
                    logger.warning("record was not taken", extra={"error": str(error)})
                    delivery.fail(error)
                    self._producer.note_refused(error)
            progress, self._progress = self._progress, asyncio.Event()
            progress.set()
            if not handed_over:
                return


class SyncTransaction:
    """``Transaction`` without an event loop."""

    def __init__(self, transaction: Transaction, handover: _Handover) -> None:
        self._transaction = transaction
        self._handover = handover

    def send_offsets(self, offsets: Offsets, group: GroupMetadata) -> None:
        """As ``Transaction.send_offsets``."""
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
        """Commit, or abort on an exception: everything that was sent before, and no more."""

        async def end() -> None:
            # What is on its way to the loop must not end up in the next transaction.
            await self._handover.wait_until_empty()
            await self._transaction.__aexit__(exc_type, exc, traceback)

        self._handover.thread.run(end())


class SyncProducer(Face[Producer]):
    """``Producer`` without an event loop; usable from any thread."""

    send_and_wait = Blocking(Producer.send_and_wait)
    partitions_for = Blocking(Producer.partitions_for)

    def __init__(self, client: Producer) -> None:
        super().__init__(client)
        self._handover = _Handover(client, self.thread)

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
        """Hand the record over and return what tells its outcome: ``delivery.result()``.

        Whatever is wrong with the record, the delivery raises. Waits while many records
        are on their way to the producer, that is, while its buffer is full.
        """
        delivery = SyncDelivery(self._handover)
        self._handover.put(_Handed(delivery, topic, value, key, headers, partition, timestamp_ms))
        return delivery

    def transaction(self) -> SyncTransaction:
        """As ``Producer.transaction``: ``with producer.transaction() as transaction:``."""
        return SyncTransaction(self.client.transaction(), self._handover)

    def flush(self) -> None:
        """As ``Producer.flush``, with everything sent before."""

        async def flush() -> None:
            await self._handover.wait_until_empty()
            await self.client.flush()

        self.thread.run(flush())

    def _end(self, *, has_failed: bool) -> Coroutine[Any, Any, None]:
        del has_failed

        async def end() -> None:
            await self._handover.wait_until_empty()
            await self.client.close()

        return end()


class _Threaded(RebalanceListener):
    """A plain listener whose methods may block, and call the face."""

    def __init__(self, listener: RebalanceListener) -> None:
        self._listener = listener

    async def on_partitions_assigned(self, partitions: Collection[TopicPartition]) -> None:
        """Call it in a thread."""
        await asyncio.to_thread(self._listener.on_partitions_assigned, partitions)

    async def on_partitions_revoked(self, partitions: Collection[TopicPartition]) -> None:
        """Call it in a thread."""
        await asyncio.to_thread(self._listener.on_partitions_revoked, partitions)

    async def on_partitions_lost(self, partitions: Collection[TopicPartition]) -> None:
        """Call it in a thread."""
        await asyncio.to_thread(self._listener.on_partitions_lost, partitions)
