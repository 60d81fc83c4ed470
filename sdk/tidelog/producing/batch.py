"""Batches of one partition, and the deliveries that report their outcome."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import NamedTuple

from tidelog_core.model import NO_SEQUENCE, NO_TIMESTAMP, TopicPartition
from tidelog_core.records.batch import Record

from tidelog.errors import TidelogError
from tidelog.producing.encoded import EncodedRecords


class RecordMetadata(NamedTuple):
    """A written record's position.

    The offset is -1 if it is unknown (``acks=0``, or the leader had the batch already and no
    longer knew its offset). The timestamp is the record's own, or the node's if the topic
    uses log append time.
    """

    topic: str
    partition: int
    offset: int
    timestamp_ms: int


class ProducerBatch:
    """Records of one partition that are sent, acknowledged or failed together."""

    __slots__ = (
        "_callbacks",
        "_done",
        "attempt_count",
        "base_offset",
        "base_sequence",
        "children",
        "created_s",
        "encoded",
        "error",
        "is_done",
        "is_full",
        "log_append_time_ms",
        "may_be_written",
        "partition",
        "record_count",
        "record_errors",
        "records",
        "size_bytes",
    )

    def __init__(
        self, partition: TopicPartition, created_s: float, encoded: EncodedRecords | None = None
    ) -> None:
        self.partition = partition
        self.encoded = encoded  # replaces ``records``; dropped when done
        self.created_s = created_s  # loop time of its oldest record
        self.records: list[Record] = []  # emptied when done
        self.size_bytes = 0  # before compression, an upper bound
        self.is_full = encoded is not None  # No record may be added.
        self.base_sequence = NO_SEQUENCE  # set when first sent by an idempotent producer
        self.record_count = 0  # set when first sent
        self.attempt_count = 0
        self.may_be_written = False  # An attempt ended without an answer that excludes it.
        self.is_done = False
        self.base_offset = -1
        self.log_append_time_ms = NO_TIMESTAMP
        self.error: TidelogError | None = None
        self.record_errors: Mapping[int, TidelogError] = {}
        # After a split: record counts and smaller batches, in order.
        self.children: tuple[tuple[int, ProducerBatch], ...] = ()
        self._done: asyncio.Event | None = None
        self._callbacks: list[tuple[Delivery, Callable[[Delivery], None]]] = []

    def count_records(self) -> int:
        """Return the number of records in the unfinished batch."""
        return len(self.records) if self.encoded is None else self.encoded.record_count

    def succeed(self, base_offset: int, log_append_time_ms: int) -> None:
        """Finish with the offset of the batch."""
        self.base_offset, self.log_append_time_ms = base_offset, log_append_time_ms
        self._finish()

    def fail(
        self, error: TidelogError, record_errors: Mapping[int, TidelogError] | None = None
    ) -> None:
        """Finish with the error of the batch; some records may have their own errors."""
        self.error, self.record_errors = error, record_errors or {}
        self._finish()

    def split(self, children: Sequence[ProducerBatch]) -> None:
        """Replace the batch by smaller batches, in order."""
        callbacks, self._callbacks = self._callbacks, []
        self.children = tuple((len(child.records), child) for child in children)
        self._finish()
        for delivery, callback in callbacks:
            delivery.add_done_callback(callback)

    async def wait(self) -> None:
        """Wait until the batch, or all batches that it was split into, are done."""
        if not self.is_done:
            if self._done is None:
                self._done = asyncio.Event()
            await self._done.wait()
        for _, child in self.children:
            await child.wait()

    def call_back(self, delivery: Delivery, callback: Callable[[Delivery], None]) -> None:
        """Call back once the batch is done."""
        self._callbacks.append((delivery, callback))

    def _finish(self) -> None:
        self.is_done = True
        self.records = []
        self.encoded = None
        if self._done is not None:
            self._done.set()
        loop = asyncio.get_running_loop() if self._callbacks else None
        for delivery, callback in self._callbacks:
            assert loop is not None
            loop.call_soon(callback, delivery)
        self._callbacks = []


class Delivery:
    """A record's outcome: await it, or call ``result()`` once it is done.

    Many records share one batch, so this is a cheap view of the batch and not a future. An
    error that nobody retrieves is not logged again: the producer logs each failed batch.
    """

    __slots__ = ("_batch", "_index", "_timestamp_ms")

    def __init__(self, batch: ProducerBatch, index: int, timestamp_ms: int) -> None:
        self._batch, self._index, self._timestamp_ms = batch, index, timestamp_ms

    def __await__(self) -> Generator[object, None, RecordMetadata]:
        """Wait for the outcome: the record's metadata, or its error is raised."""
        yield from self.wait().__await__()
        return self.result()

    async def wait(self) -> None:
        """Wait until the outcome is known."""
        while not self.done():
            await self._batch.wait()

    def done(self) -> bool:
        """Whether the outcome is known."""
        while self._batch.children:
            self._descend()
        return self._batch.is_done

    def result(self) -> RecordMetadata:
        """Return the record's metadata or raise its error; only once it is done."""
        error = self.exception()
        if error is not None:
            raise error.with_traceback(None)  # Shared: it must not collect tracebacks.
        batch, index = self._batch, self._index
        timestamp = self._timestamp_ms
        if batch.log_append_time_ms != NO_TIMESTAMP:
            timestamp = batch.log_append_time_ms
        offset = batch.base_offset + index if batch.base_offset >= 0 else -1
        return RecordMetadata(*batch.partition, offset, timestamp)

    def exception(self) -> TidelogError | None:
        """Return the error of the record, None if it was written; only once it is done."""
        if not self.done():
            raise asyncio.InvalidStateError("the record has no outcome yet; await its delivery")
        return self._batch.record_errors.get(self._index, self._batch.error)

    def add_done_callback(self, callback: Callable[[Delivery], None]) -> None:
        """Call back from the event loop when the outcome is known."""
        if self.done():
            asyncio.get_running_loop().call_soon(callback, self)
        else:
            self._batch.call_back(self, callback)

    def _descend(self) -> None:
        """Move to the smaller batch that contains the record now."""
        for record_count, child in self._batch.children:
            if self._index < record_count:
                self._batch = child
                return
            self._index -= record_count
        raise AssertionError("a record is in none of the batches its own was split into")
