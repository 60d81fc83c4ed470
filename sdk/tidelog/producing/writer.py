"""``RecordWriter`` implements ``Producer``: sending, transactions and closing."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from tidelog_core.records.batch import HEADER_SIZE, Headers, Record

from tidelog.client import Client
from tidelog.cluster import Cluster
from tidelog.errors import (
    ClientClosed,
    InvalidRequest,
    MessageTooLarge,
    TidelogError,
    needing_arrow,
)
from tidelog.given_values import partition_of, waiting_time
from tidelog.options import ProducerOptions
from tidelog.partitioners import TopicPartitioner
from tidelog.producing.accumulator import Accumulator, PartitionQueue
from tidelog.producing.batch import Delivery, RecordMetadata
from tidelog.producing.batch_options import BatchOptions
from tidelog.producing.encoded import EncodedRecords
from tidelog.producing.known_topics import KnownTopic, KnownTopics
from tidelog.producing.prepared import PreparedTransaction, TransactionalIdentity, complete
from tidelog.producing.record_checks import (
    RECORD_OVERHEAD_BYTES,
    checked_headers,
    checked_size_bytes,
    checked_timestamp_ms,
)
from tidelog.producing.sender_task import SenderTask
from tidelog.producing.transactions import Transaction, Transactions

if TYPE_CHECKING:
    import pyarrow as pa

    from tidelog.arrow.send_columns import ArrowStreamable

TABLE_BATCH_SIZE_BYTES = 512 * 1024  # before compression
# Without the function that a named tuple's class has for it: one is made for every record.
_time_ns = time.time_ns
_new_record: Callable[[type[Record], tuple[object, ...]], Record] = tuple.__new__


class RecordWriter(Client):
    """A producer whose options have been checked. ``start()`` connects it."""

    def __init__(
        self,
        cluster: Cluster,
        options: ProducerOptions,
        make_partitioner: Callable[[str], TopicPartitioner],
    ) -> None:
        self._cluster = cluster
        self._options = options
        self._record_size_bytes_max = (
            min(options.request_size_bytes_max, options.buffer_memory_bytes) - HEADER_SIZE
        )
        self._accumulator = Accumulator(options)
        self._transactions: Transactions | None = None
        if options.transactional_id is not None:
            self._transactions = Transactions(cluster, self._accumulator, options, self._wake)
        self._known = KnownTopics(
            cluster,
            make_partitioner,
            self._check_open,
            timeout_s=options.max_block_ms / 1000,
        )
        self._topics = self._known.by_name  # which ``send`` looks at for every record
        # Without its topics ``send`` looks whether the sender runs.
        self._sending = SenderTask(
            cluster, self._accumulator, options, self._transactions, self._topics.clear
        )
        self._starting: asyncio.Lock = asyncio.Lock()
        self._clock_s: Callable[[], float] = time.monotonic  # replaced by the loop's clock
        self._has_filled = False  # A batch is full, and the sender has had no turn since.
        self._yielding_count = 0  # callers that give it one
        self._is_closed = False

    async def start(self) -> None:
        """Connect. Idempotent; ``send`` starts the producer if needed.

        With a ``transactional_id``, an earlier producer's open transaction is aborted and that
        producer fenced. Raises ``ConnectionFailed`` if no node answers within
        ``bootstrap_timeout_ms``, and the errors of the transactional id's coordinator.
        """
        async with self._starting:
            self._check_open()
            if not self._sending.has_begun:
                await self._cluster.start(auto_create_topics=True)
                if self._transactions is not None:
                    await self._transactions.init()
                self._check_open()  # It may have been closed meanwhile.
                self._clock_s = asyncio.get_running_loop().time
            self._sending.run()

    async def send(
        self,
        topic: str,
        value: bytes | None = None,
        *,
        key: bytes | None = None,
        headers: Headers | Iterable[tuple[str, bytes | None]] = (),
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> Delivery:
        """Buffer the record; return its delivery: ``metadata = await delivery``.

        Does not wait for the write, so ``send`` in a loop fills batches. Waits, for
        ``max_block_ms`` at most, while the buffer is full, the topic is unknown, or the topic
        lacks ``partition``. Raises ``MessageTooLarge``, ``InvalidRequest`` for invalid arguments
        and outside of a transaction if one is required, ``BufferExhausted``,
        ``UnknownTopicOrPartition``, ``PartitionNotKnown``, ``TransactionAborted``,
        ``ProducerFenced``; after any of them the record is not buffered.
        """
        if self._transactions is not None:
            self._check_sendable()
        try:
            state = self._topics.get(topic)
        except TypeError:  # It has no hash.
            raise InvalidRequest(f"a topic must be a text, not {topic!r}") from None
        if (
            state is None
            or state.metadata_version != self._cluster.version
            or (
                partition is not None
                and (type(partition) is not int or not 0 <= partition < state.partition_count)
            )
        ):
            state = await self._prepare(topic, partition)
        # Never the caller's own list, which may change.
        headers = checked_headers(headers) if headers else ()
        if type(value) is bytes and key is None and not headers:  # The next call takes longer.
            size_bytes = RECORD_OVERHEAD_BYTES + len(value)
        else:
            size_bytes = checked_size_bytes(key, value, headers)
        if size_bytes > self._record_size_bytes_max:
            raise self._too_large(size_bytes)
        timestamp_ms = (
            # As ``wall_clock_ms``, which would be a call more for each record.
            _time_ns() // 1_000_000 if timestamp_ms is None else checked_timestamp_ms(timestamp_ms)
        )
        if self._transactions is not None:
            self._check_sendable()  # It may have ended during a wait.
        if partition is None:
            partitioner, count = state.partitioner, state.partition_count
            partition = partitioner.current if key is None else -1
            if not 0 <= partition < count:
                partition = partitioner.choose(key, value, count)
        record = _new_record(Record, (-1, timestamp_ms, key, value, headers))
        queue = state.queues.get(partition)
        if queue is None:
            queue = self._new_queue(state, partition)
        delivery = self._accumulator.append_to_open(queue, record, size_bytes)
        if delivery is not None:
            return delivery
        return await self._append(state, queue, record, size_bytes)

    async def _append(
        self, state: KnownTopic, queue: PartitionQueue, record: Record, size_bytes: int
    ) -> Delivery:
        """Add a record that starts a batch, or fills one, or has to wait for room.

        Nothing is waited for once it is added: a caller that is cancelled could not know of it.
        """
        self._cluster.check_loop()
        accumulator = self._accumulator
        if self._has_filled or self._yielding_count:
            # Without this, callers that never wait would keep the sender from running. Those that
            # come meanwhile wait too: they stay in their order.
            self._has_filled = False
            self._yielding_count += 1
            try:
                await asyncio.sleep(0)
            finally:
                self._yielding_count -= 1
            self._check_open()
            self._check_sendable()
        if not accumulator.has_room(size_bytes):
            await self._wait_for_room(size_bytes)
            self._check_sendable()  # It may have ended during the wait.
        delivery, is_new, has_filled = accumulator.append(
            queue, record, size_bytes, self._clock_s()
        )
        if is_new or has_filled:
            self._sending.wake()
            if has_filled:
                state.partitioner.on_batch_filled(state.partition_count)
                self._has_filled = True
        return delivery

    def _new_queue(self, state: KnownTopic, partition: int) -> PartitionQueue:
        queue = state.queues[partition] = self._accumulator.queue(state.partitions[partition])
        return queue

    async def send_and_wait(
        self,
        topic: str,
        value: bytes | None = None,
        *,
        key: bytes | None = None,
        headers: Headers | Iterable[tuple[str, bytes | None]] = (),
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> RecordMetadata:
        """Write one record and return its metadata; raises the delivery's errors."""
        return await (
            await self.send(
                topic,
                value,
                key=key,
                headers=headers,
                partition=partition,
                timestamp_ms=timestamp_ms,
            )
        )

    async def send_encoded(self, partition: tuple[str, int], encoded: EncodedRecords) -> Delivery:
        """Buffer an encoded batch; return the delivery of its first record.

        For programs that build batches from columns. The batch is sent as it is, with this
        producer's numbers: ``compression`` and ``batch_size_bytes`` do not apply. A batch that is
        too large for the topic fails. Waits and raises errors like ``send``.
        """
        self._check_sendable()
        topic, number = partition_of(partition)
        if not isinstance(encoded, EncodedRecords):
            raise InvalidRequest(f"encoded must be EncodedRecords, not {encoded!r}")
        state = await self._prepare(topic, number)
        # Before any other wait: the topic may be created again with fewer partitions.
        queue = self._accumulator.queue(state.partitions[number])
        if encoded.size_bytes - HEADER_SIZE > self._record_size_bytes_max:
            raise MessageTooLarge(
                f"the batch is {encoded.size_bytes} bytes, more than request_size_bytes_max or "
                f"buffer_memory_bytes allows ({self._record_size_bytes_max + HEADER_SIZE})"
            )
        if not self._accumulator.has_room(encoded.size_bytes):
            await self._wait_for_room(encoded.size_bytes)
        self._check_sendable()  # It may have ended during a wait.
        delivery = self._accumulator.append_encoded(queue, encoded, self._clock_s())
        self._sending.wake()
        return delivery

    async def send_table(
        self,
        topic: str,
        table: pa.Table | pa.RecordBatch | pa.RecordBatchReader | ArrowStreamable,
        *,
        key: str | None = None,
        value: str = "value",
    ) -> int:
        """Send a record for every row, wait until all are acknowledged, and return their number.

        A ``DataFrame`` of polars or pandas is a table too, as is what else has Arrow's interface.
        ``key`` and ``value`` name the columns of bytes or strings to send; without ``key`` it is
        the column ``key``, if there is one. Columns ``partition``, ``headers`` and ``timestamp``
        are used as ``Consumer.poll_arrow`` returns them; others are ignored. Rows with a key go
        to the partition that other clients choose for it; the others are spread evenly. Rows of
        one partition keep their order, in batches of ``batch_size_bytes``, at least 512 KiB.

        Raises ``InvalidRequest`` for a table without these columns, ``InvalidRow`` for a row that
        cannot be sent, the first error of a batch, and ``InvalidConfig`` without the extra
        ``arrow``. Other rows may have been sent before: use a transaction to send all or none.
        """
        with needing_arrow():
            from tidelog.producing.table_sending import send_rows

        options = BatchOptions(
            topic=topic,
            compression=self._options.compression,
            compression_level=self._options.compression_level,
            batch_size_bytes=min(
                max(self._options.batch_size_bytes, TABLE_BATCH_SIZE_BYTES),
                self._record_size_bytes_max,
            ),
            record_size_bytes_max=self._record_size_bytes_max + HEADER_SIZE,
        )
        return await send_rows(
            table,
            options,
            self.send_encoded,
            partition_count=await self.partitions_for(topic),
            key=key,
            value=value,
        )

    def transaction(self) -> Transaction:
        """Return a context that commits everything sent inside it together, or nothing.

        ::

            async with producer.transaction() as transaction:
                await producer.send("invoices", value)
                await transaction.send_offsets(consumer.positions(), consumer.group_metadata())

        It commits when the block ends, once every record is acknowledged, and aborts on an
        exception, which is raised again. After ``TransactionAborted`` another attempt may
        succeed, after ``ProducerFenced`` none will. One transaction at a time. Raises
        ``InvalidRequest`` without a ``transactional_id``.
        """
        if self._transactions is None:
            raise InvalidRequest("transactions need a transactional_id")
        return Transaction(self._transactions, self.start)

    async def complete(self, prepared: PreparedTransaction, *, is_commit: bool = True) -> None:
        """Commit or abort another producer's prepared transaction. Idempotent, durable on return.

        A transaction that is not completed within its ``transaction_timeout_ms`` is aborted.
        Raises ``TransactionAborted`` if a commit was requested and the transaction was aborted.
        """
        self._check_open()
        async with self._starting:
            await self._cluster.start(auto_create_topics=True)
        await complete(self._cluster, self._options, prepared, is_commit=is_commit)

    @property
    def transactional_identity(self) -> TransactionalIdentity:
        """The started producer's id and epoch, after the last end of a transaction.

        If ``Admin.describe_transactions`` shows both while no transaction of this producer is
        open, no other one has taken its place. Raises ``InvalidRequest`` without a
        ``transactional_id``.
        """
        if self._transactions is None:
            raise InvalidRequest("only transactional ids have such an identity")
        identity = self._transactions.identity
        return TransactionalIdentity(
            identity.producer_id, identity.epoch, self._transactions.adds_itself
        )

    def note_refused(self, error: TidelogError) -> None:
        """Fail the open transaction after a rejected record. Used by ``SyncProducer``."""
        if self._transactions is not None and self._transactions.is_open:
            self._transactions.fail(error)

    async def flush(self) -> None:
        """Send all buffered records; return when each is acknowledged or has failed.

        Does not raise the errors of failed records: their deliveries do.
        """
        await self._accumulator.flush(self._sending.wake)

    async def partitions_for(self, topic: str) -> int:
        """Return the number of the topic's partitions."""
        return (await self._prepare(topic)).partition_count

    async def close(self, *, timeout_s: float | None = None) -> None:
        """Flush, for ``timeout_s`` at most (None: for the delivery timeout), and close.

        An open transaction is aborted instead. Records without an acknowledgement by then fail
        with ``ClientClosed``, which ``send`` raises from this call on. Idempotent.
        """
        if timeout_s is not None:
            timeout_s = waiting_time(timeout_s, "timeout_s")
        if self._is_closed:
            return
        self._is_closed = True
        self._topics.clear()  # So ``send`` refuses: what it took now might have no outcome.
        if self._cluster.is_elsewhere:
            await self._cluster.close()
            return
        try:
            async with asyncio.timeout(timeout_s):
                if self._transactions is not None:
                    await self._transactions.close()
                await self.flush()
        except TimeoutError:
            pass
        finally:
            try:
                await self._sending.end()
            finally:  # Also if the call is cancelled just then.
                self._accumulator.fail_all(ClientClosed("the producer was closed"))
                await self._cluster.close()

    @property
    def delivery_timeout_s(self) -> float:
        """Return the time that a record may take from ``send`` to its outcome."""
        return self._options.delivery_timeout_ms / 1000

    # -- internals --

    def _wake(self) -> None:
        self._sending.wake()

    def _check_open(self) -> None:
        if self._sending.failure is not None:
            raise self._sending.failure
        if self._is_closed:
            raise ClientClosed("the producer is closed")

    def _check_sendable(self) -> None:
        if self._transactions is not None:
            self._check_open()
            self._transactions.check_sendable()

    async def _prepare(self, topic: str, partition: int | None = None) -> KnownTopic:
        """Return the topic's state, updated from the metadata, once that has the partition."""
        self._check_open()
        if not isinstance(topic, str):
            raise InvalidRequest(f"a topic must be a str, is {type(topic).__name__}")
        if not self._sending.is_running:
            await self.start()
        return await self._known.current(topic, partition)

    def _too_large(self, size_bytes: int) -> MessageTooLarge:
        return MessageTooLarge(
            f"a record of {size_bytes} bytes; {self._record_size_bytes_max} are allowed "
            "by request_size_bytes_max and buffer_memory_bytes"
        )

    async def _wait_for_room(self, size_bytes: int) -> None:
        self._sending.wake()
        await self._accumulator.wait_for_room(
            size_bytes, timeout_s=self._options.max_block_ms / 1000
        )
        self._check_open()
