"""Buffers records: a queue of batches per partition, under one memory limit.

Only the last batch of a queue accepts records; those before it are full. Batches leave
from the front. A batch to be sent again returns to the place of its sequence, so a queue
is always in the order of the records.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator

from tidelog_core.model import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_SEQUENCE, TopicPartition
from tidelog_core.records.batch import Record

from tidelog.errors import BufferExhausted, ClientClosed, TidelogError
from tidelog.options import ProducerOptions
from tidelog.producing.batch import Delivery, ProducerBatch
from tidelog.producing.encoded import EncodedRecords

# Without the function of a class: a delivery is made for every record.
_new_delivery: Callable[[type[Delivery]], Delivery] = object.__new__


class PartitionQueue:
    """The batches of one partition and its sequence numbers."""

    __slots__ = (
        "batches",
        "in_flight",
        "is_known_to_leader",
        "needs_new_epoch",
        "next_sequence",
        "partition",
        "producer_epoch",
        "producer_id",
        "retry_at_s",
    )

    def __init__(self, partition: TopicPartition) -> None:
        self.partition = partition
        self.batches: deque[ProducerBatch] = deque()
        self.in_flight: list[ProducerBatch] = []  # sent and not answered, in order
        self.retry_at_s = 0.0  # loop time before which nothing is sent
        self.producer_id: int = NO_PRODUCER_ID
        self.producer_epoch: int = NO_PRODUCER_EPOCH
        self.next_sequence = 0
        self.is_known_to_leader = False  # A batch of this producer id and epoch was acknowledged.
        # The leader rejected a sequence: number again in a higher epoch once nothing is in flight.
        self.needs_new_epoch = False

    @property
    def unacknowledged_count(self) -> int:
        """Return the number of batches with a sequence and no definite outcome."""
        queued = sum(1 for batch in self.batches if batch.base_sequence != NO_SEQUENCE)
        return queued + len(self.in_flight)

    def put_back(self, batch: ProducerBatch) -> None:
        """Queue a sent batch again, at the place of its sequence."""
        batch.is_full = True
        position = 0
        for queued in self.batches:
            if queued.base_sequence == NO_SEQUENCE or _is_after(queued, batch):
                break
            position += 1
        self.batches.insert(position, batch)


class Accumulator:
    """All queues of a producer. Used from one event loop only."""

    def __init__(self, options: ProducerOptions) -> None:
        self._batch_size_bytes = options.batch_size_bytes
        self._memory_size_bytes_max = options.buffer_memory_bytes
        self._queues: dict[TopicPartition, PartitionQueue] = {}
        self._waiters: deque[tuple[int, asyncio.Future[None]]] = deque()
        self.used_size_bytes = 0
        self.incomplete: dict[ProducerBatch, None] = {}  # in the order of creation
        self.flush_count = 0  # flushes in progress; during one, no batch lingers
        self._answered = asyncio.Event()  # set, and replaced, by the next answers

    @property
    def has_waiters(self) -> bool:
        """Whether a caller waits for room: then no batch lingers."""
        return bool(self._waiters)

    def queues(self) -> Iterator[PartitionQueue]:
        """Yield every partition's queue."""
        return iter(self._queues.values())

    def queue(self, partition: TopicPartition) -> PartitionQueue:
        """Return the partition's queue, which stays the same as long as the producer runs."""
        queue = self._queues.get(partition)
        if queue is None:
            queue = self._queues[partition] = PartitionQueue(partition)
        return queue

    def append_to_open(
        self, queue: PartitionQueue, record: Record, size_bytes: int
    ) -> Delivery | None:
        """Add a record to the queue's open batch; return its delivery.

        Returns ``None``, and adds nothing, if that takes more than this: a new batch, the end of
        this one, or room that is not there. Nearly every record is added by this call alone.
        """
        batches = queue.batches
        if not batches or self._waiters:
            return None
        batch = batches[-1]
        batch_size_bytes = batch.size_bytes + size_bytes
        used_size_bytes = self.used_size_bytes + size_bytes
        if (
            batch_size_bytes >= self._batch_size_bytes
            or used_size_bytes > self._memory_size_bytes_max
            or batch.is_full
        ):
            return None
        batch.size_bytes, self.used_size_bytes = batch_size_bytes, used_size_bytes
        records = batch.records
        delivery = _new_delivery(Delivery)
        delivery._batch = batch  # noqa: SLF001 - as its class does, see above
        delivery._index = len(records)  # noqa: SLF001
        delivery._timestamp_ms = record[1]  # noqa: SLF001
        records.append(record)
        return delivery

    def append(
        self, queue: PartitionQueue, record: Record, size_bytes: int, now_s: float
    ) -> tuple[Delivery, bool, bool]:
        """Add a record; return its delivery, whether a batch was started, and whether one filled.

        Requires room, see ``has_room``.
        """
        batches = queue.batches
        batch = batches[-1] if batches else None
        is_new = has_filled = False
        if batch is None or batch.is_full or batch.size_bytes + size_bytes > self._batch_size_bytes:
            if batch is not None and not batch.is_full:
                batch.is_full = has_filled = True
            batch = ProducerBatch(queue.partition, now_s)
            batches.append(batch)
            self.incomplete[batch] = None
            is_new = True
        records = batch.records
        delivery = Delivery(batch, len(records), record[1])
        records.append(record)
        batch.size_bytes += size_bytes
        self.used_size_bytes += size_bytes
        if batch.size_bytes >= self._batch_size_bytes:
            batch.is_full = has_filled = True
        return delivery, is_new, has_filled

    def append_encoded(
        self, queue: PartitionQueue, encoded: EncodedRecords, now_s: float
    ) -> Delivery:
        """Add a whole batch at the end; return its first record's delivery.

        Requires room, see ``has_room``.
        """
        batches = queue.batches
        if batches:
            batches[-1].is_full = True
        batch = ProducerBatch(queue.partition, now_s, encoded)
        batch.size_bytes = encoded.size_bytes
        batches.append(batch)
        self.incomplete[batch] = None
        self.used_size_bytes += batch.size_bytes
        return Delivery(batch, 0, encoded.base_timestamp_ms)

    def has_room(self, size_bytes: int) -> bool:
        """Whether a record of that size can be added now; false if others wait already."""
        if self._waiters:
            return False
        return self.used_size_bytes + size_bytes <= self._memory_size_bytes_max

    async def wait_for_room(self, size_bytes: int, *, timeout_s: float) -> None:
        """Wait until there is room, first come first served.

        Raises ``BufferExhausted`` after the timeout.
        """
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiter = (size_bytes, future)
        self._waiters.append(waiter)
        try:
            async with asyncio.timeout(timeout_s):
                await future
        except BaseException as problem:
            self._waiters.remove(waiter)
            self._admit()
            if isinstance(problem, TimeoutError):
                raise BufferExhausted(
                    f"no room for a record of {size_bytes} bytes within {timeout_s:g} s: "
                    f"{self.used_size_bytes} of {self._memory_size_bytes_max} are taken"
                ) from None
            raise
        # An admitted waiter's room counts as taken until here; the caller appends at once.
        self._waiters.remove(waiter)

    def split(self, batch: ProducerBatch) -> list[ProducerBatch]:
        """Return the batch's records in two halves; the sequences stay the same."""
        middle = len(batch.records) // 2
        halves = []
        for start, records in ((0, batch.records[:middle]), (middle, batch.records[middle:])):
            half = ProducerBatch(batch.partition, batch.created_s)
            half.records = records
            half.size_bytes = batch.size_bytes * len(records) // len(batch.records)
            half.is_full = True
            if batch.base_sequence != NO_SEQUENCE:
                half.base_sequence = advance_sequence(batch.base_sequence, start)
            halves.append(half)
        halves[1].size_bytes = batch.size_bytes - halves[0].size_bytes
        batch.split(halves)
        del self.incomplete[batch]
        self.incomplete.update(dict.fromkeys(halves))
        return halves

    def release(self, batch: ProducerBatch) -> None:
        """Free the memory of a finished batch."""
        if batch in self.incomplete:
            del self.incomplete[batch]
            self.used_size_bytes -= batch.size_bytes
            self._admit()

    async def flush(self, wake: Callable[[], None]) -> None:
        """Wake the sender; return when all records present have an outcome."""
        self.flush_count += 1
        try:
            wake()
            for batch in list(self.incomplete):
                await batch.wait()
        finally:
            self.flush_count -= 1

    def note_answers(self) -> None:
        """Wake the tasks that wait for answers."""
        answered, self._answered = self._answered, asyncio.Event()
        answered.set()

    async def wait_until_answered(self) -> None:
        """Wait until nothing is in flight, at most as long as a request may take."""
        while any(queue.in_flight for queue in self._queues.values()):
            await self._answered.wait()

    def drop_queued(self, error: TidelogError) -> bool:
        """Fail all batches not in flight; return whether any of them may have been sent before."""
        was_sent = False
        for queue in self._queues.values():
            batches, queue.batches = queue.batches, deque()
            for batch in batches:
                was_sent |= batch.base_sequence != NO_SEQUENCE
                batch.fail(error)
                self.release(batch)
        return was_sent

    def fail_all(self, error: TidelogError) -> None:
        """Fail every batch and every waiting caller."""
        for batch in list(self.incomplete):
            batch.fail(error)
            self.release(batch)
        for queue in self._queues.values():
            queue.batches.clear()
        for _, future in self._waiters:
            if not future.done():
                future.set_exception(ClientClosed("the producer is closed"))

    def _admit(self) -> None:
        free = self._memory_size_bytes_max - self.used_size_bytes
        for size_bytes, future in self._waiters:
            free -= size_bytes
            if free < 0:
                return
            if not future.done():
                future.set_result(None)


def advance_sequence(sequence: int, count: int) -> int:
    """Return the sequence ``count`` records later; sequences wrap after 2**31 - 1."""
    return (sequence + count) & 0x7FFFFFFF


def _is_after(queued: ProducerBatch, batch: ProducerBatch) -> bool:
    """Whether the queued batch's sequence follows the other's, including wrap-around."""
    return (queued.base_sequence - batch.base_sequence) & 0x7FFFFFFF < 1 << 30
