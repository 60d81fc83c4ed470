"""``RecordReader`` implements ``Consumer``: it polls and iterates."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

from tidelog_core.model import TopicPartition

from tidelog.cluster import Cluster
from tidelog.consuming.assignment_calls import AssignmentCalls
from tidelog.consuming.position_calls import PositionCalls
from tidelog.consuming.positions import PartitionState
from tidelog.consuming.record_iterator import RecordIterator
from tidelog.consuming.records import ConsumerRecord
from tidelog.consuming.value_decoding import ValueDecoding, check_decoder
from tidelog.errors import InvalidRequest, needing_arrow
from tidelog.given_values import number_above_zero, waiting_time
from tidelog.options import ConsumerOptions

if TYPE_CHECKING:
    import pyarrow as pa

    from tidelog.arrow.values.schema_values import SchemaDecoder

ARROW_POLL_SIZE_BYTES = 16 * 1024 * 1024
DECODED_FACTOR_MAX = 4  # what structs may take, as a multiple of ``max_bytes``

T = TypeVar("T")


class RecordReader(AssignmentCalls, PositionCalls):
    """A consumer whose options have been checked. ``start()`` connects it."""

    def __init__(self, cluster: Cluster, options: ConsumerOptions) -> None:
        super().__init__(cluster, options)
        self._decoding = ValueDecoding()
        self._is_polling = False

    async def close(self, *, has_failed: bool = False) -> None:
        """Commit (if automatic), leave the group and close the connections. Idempotent.

        With ``has_failed`` the current records do not count as processed. Raises ``InvalidRequest``
        in a rebalance listener.
        """
        try:
            await super().close(has_failed=has_failed)
        finally:
            await self._decoding.wait()

    async def poll(
        self, *, max_records: int | None = None, timeout_ms: float = 1_000
    ) -> list[ConsumerRecord]:
        """Return up to ``max_records`` as soon as there are any, or none after ``timeout_ms``.

        ``max_records`` is the option ``max_poll_records`` by default. Starts the consumer if it has
        not been started, and a rebalance if one is due. Calling ``poll`` again marks the records of
        the last poll as processed. One task polls: during a poll, another one raises
        ``InvalidRequest``. It is also raised if nothing is subscribed or assigned. Errors of a
        partition are raised once, by the poll that has no records before it:
        ``NoOffsetForPartition``, ``OffsetOutOfRange``, ``LogTruncation``, ``CorruptRecordBatch``,
        ``TopicAuthorizationFailed``; so are ``GroupAuthorizationFailed``, ``FencedInstanceId`` and
        a rebalance listener's exception. Nodes that do not answer are no error: it returns nothing.
        """
        limit = self._options.max_poll_records
        if max_records is not None:
            limit = number_above_zero(max_records, "max_records")
        return await self._poll(lambda: self._positions.take(limit), timeout_ms)

    async def poll_arrow(
        self,
        *,
        max_bytes: int = ARROW_POLL_SIZE_BYTES,
        include_headers: bool = False,
        timeout_ms: float = 1_000,
        decode: SchemaDecoder | None = None,
    ) -> list[pa.RecordBatch]:
        """Return records as Arrow, as soon as there are any, or an empty list after the timeout.

        Each batch has records of one partition in order of offset. Its columns are those of
        Spark's Kafka source: ``key``, ``value``, ``topic``, ``partition``, ``offset``,
        ``timestamp``, ``timestampType``, and ``headers`` if they are included. No Python object
        is made for a record. Partitions take turns until the columns have about ``max_bytes``;
        ``max_poll_records`` does not apply. Otherwise like ``poll``; a program may use both.
        With ``decode`` values become structs, in a thread; if one cannot be decoded, it raises
        ``InvalidRecord``, and the next poll returns the same records. Structs have up to about
        four times ``max_bytes``; records beyond that are returned by the next poll. Raises
        ``InvalidConfig`` without the extra ``arrow``.
        """
        max_bytes = number_above_zero(max_bytes, "max_bytes")
        with needing_arrow():
            from tidelog.consuming.arrow_polling import take_arrow

            if decode is not None:
                check_decoder(decode)
        found = await self._poll(
            lambda: take_arrow(
                self._positions, include_headers=include_headers, size_bytes_max=max_bytes
            ),
            timeout_ms,
        )
        if found:
            self._cluster.note_decoding()
        if decode is None:
            return found
        left: Sequence[pa.RecordBatch] = found  # They were not returned.
        try:
            decoded, left = await self._decoding.decode(
                found, decode, size_bytes_max=DECODED_FACTOR_MAX * max_bytes
            )
        finally:
            self.give_back(left)
        return decoded

    def give_back(self, taken: Sequence[ConsumerRecord | pa.RecordBatch]) -> None:
        """Go back to before what a poll has returned: it has not reached the program.

        Partitions that are not assigned any more stay as they are. Used by ``SyncConsumer``.
        """
        firsts: dict[TopicPartition, int] = {}
        for one in reversed(taken):
            partition, offset = _first_of(one)
            firsts[partition] = offset
        for partition, offset in firsts.items():
            state = self._positions.get(partition)
            if state is not None:
                # Records before it may be in the program's hands: they are not processed yet.
                safe_position = state.safe_position
                state.jump(offset)
                state.safe_position = safe_position
                self._fetcher.wake()

    def __aiter__(self) -> RecordIterator:
        """Yield records one by one, until the caller stops.

        A wait for a record may be cancelled: the next one goes on.
        """

        async def next_run() -> Iterator[ConsumerRecord]:
            return self.hand_out_run(await self.next_run())

        return RecordIterator(next_run)

    async def next_run(self) -> PartitionState:
        """Wait for a partition with records and return it. Used by ``SyncConsumer``."""
        await self._begin()
        with self._only_poll():
            await self._begin_poll()
            while True:
                self._raise_or_rebalance()
                state = self._positions.next_ready(may_raise=True)
                if state is not None:
                    self._positions.rotate(state.partition)
                    self._end_poll([state])
                    return state
                await self._wait(None)

    def hand_out_run(self, state: PartitionState) -> Iterator[ConsumerRecord]:
        """Yield the batch's records until another task is due. Used by ``SyncConsumer``.

        The position is after each record when it is yielded; asking for the next one marks it
        as processed.
        """
        life = self._life
        version, records = state.version, state.records
        last = len(records) - 1
        state.last_epoch = state.run_epoch
        # Jumps, pauses and rebalances all show in one of these conditions.
        while (
            state.version == version
            and (index := state.index) <= last
            and not (state.is_paused or life.is_poll_wanted)
        ):
            record = records[index]
            state.index = index + 1
            state.position = record.offset + 1 if index < last else state.run_end
            yield record
            if state.version == version:
                state.safe_position = state.position

    # -- internals --

    async def _poll(
        self, take: Callable[[], tuple[list[T], list[PartitionState]]], timeout_ms: float
    ) -> list[T]:
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + waiting_time(timeout_ms, "timeout_ms") / 1000
        await self._begin()
        with self._only_poll():
            await self._begin_poll()
            while True:
                self._raise_or_rebalance()
                records, states = take()
                if records:
                    self._end_poll(states)
                    return records
                if not await self._wait(deadline_s):
                    if self._membership is not None:
                        self._membership.on_poll_end()  # The next poll has a time limit too.
                    return []

    @contextmanager
    def _only_poll(self) -> Iterator[None]:
        """Raise ``InvalidRequest`` during another poll: it would commit what this one returns.

        A rebalance listener that polls would wait for itself: a poll waits for the rebalance.
        """
        if self._is_polling:
            raise InvalidRequest(
                "poll is running already: one task reads, and a rebalance listener does not poll"
            )
        self._is_polling = True
        try:
            yield
        finally:
            self._is_polling = False

    async def _begin_poll(self) -> None:
        self._check_open()
        self._life.begin_poll()
        self._raise_or_rebalance()
        # Other tasks must run even if records are always available. Tasks that wait for a poll, and
        # a rebalance that this poll starts, run first.
        await asyncio.sleep(0)

    async def _wait(self, deadline_s: float | None) -> bool:
        """Wait for a change during a poll; return whether it came in time."""
        self._locator.start()
        self._fetcher.wake()
        return await self._wait_for_change(deadline_s)

    def _raise_or_rebalance(self) -> None:
        """Raise background failures; start a due rebalance."""
        if self._failure is not None:
            raise self._failure
        if self._refusal is not None:
            refusal, self._refusal = self._refusal, None
            raise refusal
        if self._membership is not None:
            self._membership.on_poll()
        elif not len(self._positions):
            raise InvalidRequest("nothing to read: subscribe to topics or assign partitions first")

    def _end_poll(self, states: list[PartitionState]) -> None:
        self._life.end_poll(states)
        if self._membership is not None:
            self._membership.on_poll_end()
        self._fetcher.wake()


def _first_of(taken: ConsumerRecord | pa.RecordBatch) -> tuple[TopicPartition, int]:
    if isinstance(taken, ConsumerRecord):
        return TopicPartition(taken.topic, taken.partition), taken.offset
    partition = TopicPartition(
        taken.column("topic")[0].as_py(), taken.column("partition")[0].as_py()
    )
    return partition, taken.column("offset")[0].as_py()
