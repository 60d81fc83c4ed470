"""``RecordReader`` implements ``Consumer``: reading, positions and commits."""

from __future__ import annotations

import asyncio
import re
from collections.abc import (
    AsyncIterator,
    Callable,
    Coroutine,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from tidelog_core.model import INT32_MAX, TopicPartition

from tidelog.client import Client
from tidelog.cluster import Cluster
from tidelog.consuming.classic_membership import ClassicMembership
from tidelog.consuming.committing import Commits
from tidelog.consuming.consumer_membership import ConsumerMembership
from tidelog.consuming.coordinator import Coordinator
from tidelog.consuming.fetcher import Fetcher
from tidelog.consuming.group_life import GroupLife
from tidelog.consuming.locating import Locator, check_offset, check_offsets, check_time
from tidelog.consuming.membership import Membership
from tidelog.consuming.positions import UNKNOWN, PartitionState, Positions
from tidelog.consuming.records import (
    ConsumerRecord,
    GroupMetadata,
    OffsetAndMetadata,
    OffsetAndTimestamp,
    Offsets,
)
from tidelog.consuming.subscription import RebalanceListener, Subscription, SubscriptionPattern
from tidelog.consuming.value_decoding import ValueDecoding
from tidelog.encodable import check_topic
from tidelog.errors import (
    ClientClosed,
    InvalidRequest,
    RequestTimedOut,
    TidelogError,
    needing_arrow,
)
from tidelog.offsets import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, list_offsets
from tidelog.options import ConsumerOptions

if TYPE_CHECKING:
    import pyarrow as pa

    from tidelog.arrow.schema_values import SchemaDecoder

ARROW_POLL_SIZE_BYTES = 16 * 1024 * 1024
DECODED_FACTOR_MAX = 4  # what structs may take, as a multiple of ``max_bytes``

T = TypeVar("T")


class RecordReader(Client):
    """A consumer whose options have been checked. ``start()`` connects it."""

    def __init__(self, cluster: Cluster, options: ConsumerOptions) -> None:
        self._cluster = cluster
        self._options = options
        self._positions = Positions()
        self._subscription = Subscription()
        self._changed = asyncio.Event()
        group_id = options.group_id
        coordinator = None if group_id is None else Coordinator(cluster, group_id)
        self._coordinator = coordinator
        self._commits = None
        if coordinator is not None:
            self._commits = Commits(cluster, self._positions, coordinator, options)
        self._life = GroupLife(
            cluster,
            self._positions,
            self._subscription,
            self._commits,
            options=options,
            notify=self._changed.set,
        )
        self._locator = Locator(cluster, self._positions, coordinator, options, self._on_located)
        self._fetcher = Fetcher(cluster, self._positions, options, self._changed.set)
        self._decoding = ValueDecoding()
        self._membership: Membership | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._failure: BaseException | None = None
        # The refusal of a subscribed topic, raised once after each answer that has it.
        self._refusal: TidelogError | None = None
        self._starting = asyncio.Lock()
        self._is_polling = False
        self._is_closed = False

    # -- starting and closing --

    async def start(self) -> None:
        """Connect. Idempotent; reading starts the consumer if needed.

        Raises ``ConnectionFailed`` if no node answers within the request timeout.
        """
        async with self._starting:
            self._check_open()
            if self._tasks:
                return
            await self._cluster.start(auto_create_topics=self._options.allow_auto_create_topics)
            self._spawn(self._fetcher.run())
            self._spawn(self._watch())
            if self._commits is not None and self._options.enable_auto_commit:
                self._spawn(self._commits.run())

    async def close(self, *, has_failed: bool = False) -> None:
        """Commit (if automatic), leave the group and close the connections. Idempotent.

        With ``has_failed`` the current records do not count as processed.
        """
        if self._is_closed:
            return
        self._is_closed = True
        self._changed.set()
        try:
            if self._tasks:
                self._life.begin_poll(are_records_processed=not has_failed)
                await self._leave()
        finally:
            await self._locator.close()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            self._positions.replace(())
            await self._fetcher.close()
            await self._cluster.close()
            await self._decoding.wait()

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close; after an exception, the current record is not committed."""
        await self.close(has_failed=exc is not None)

    # -- subscribing and assigning --

    def subscribe(
        self,
        topics: str | Iterable[str] | None = None,
        *,
        pattern: str | re.Pattern[str] | SubscriptionPattern | None = None,
        listener: RebalanceListener | None = None,
    ) -> None:
        """Read these topics, or all that match, sharing them with the rest of the group.

        Replaces the last subscription; takes effect in the next poll. A Python pattern is
        matched by the client, from the start of each name; a ``SubscriptionPattern`` (RE2) is
        matched by the coordinator. Raises ``InvalidRequest`` without a ``group_id``, after
        ``assign``, and for a ``SubscriptionPattern`` in the classic protocol.
        """
        self._check_open()
        if self._coordinator is None:
            raise InvalidRequest("subscribe needs a group_id; without one, assign partitions")
        if self._membership is None and len(self._positions):
            raise InvalidRequest("partitions are assigned by hand; unsubscribe() first")
        is_classic = self._options.group_protocol == "classic"
        if is_classic and isinstance(pattern, SubscriptionPattern):
            raise InvalidRequest("a SubscriptionPattern needs group_protocol='consumer'")
        names = [topics] if isinstance(topics, str) else topics
        self._subscription.set(names, pattern, listener)
        if self._membership is None:
            join = ClassicMembership if is_classic else ConsumerMembership
            self._membership = join(self._cluster, self._coordinator, self._options, self._life)
            assert self._commits is not None
            self._commits.membership = self._membership
        else:
            self._membership.on_subscription()

    def assign(self, partitions: Iterable[tuple[str, int]]) -> None:
        """Read exactly these partitions, independently of any group.

        Partitions that stay keep their position. Raises ``InvalidRequest`` after
        ``subscribe``, and ``InvalidTopic`` for a name that no request can have.
        """
        self._check_open()
        if self._membership is not None:
            raise InvalidRequest("this consumer has subscribed; unsubscribe() first")
        wanted = [TopicPartition(*partition) for partition in partitions]
        for topic, number in wanted:
            if not isinstance(topic, str) or type(number) is not int or number < 0:
                raise InvalidRequest(f"a partition must be (topic, number), not {topic}, {number}")
            if number > INT32_MAX:
                raise InvalidRequest(f"a partition's number must be below 2**31, not {number}")
            check_topic(topic)
        self._positions.replace(wanted)
        self._changed.set()
        self._fetcher.wake()

    async def unsubscribe(self) -> None:
        """Leave the group, or drop the partitions assigned by hand."""
        self._life.begin_poll()
        await self._leave()
        self._positions.replace(())

    def subscription(self) -> frozenset[str]:
        """Return the subscribed topics; for a ``SubscriptionPattern``, the assigned ones."""
        if self._subscription.server_pattern is not None:
            return frozenset(partition.topic for partition in self.assignment())
        return self._subscription.topics(self._cluster)

    def assignment(self) -> frozenset[TopicPartition]:
        """Return the partitions that this consumer reads now."""
        return self._positions.partitions()

    def pause(self, partitions: Iterable[tuple[str, int]]) -> None:
        """Return no records of these partitions until ``resume``. Raises ``NotAssigned``."""
        for state in [self._state(partition) for partition in partitions]:
            state.is_paused = True

    def resume(self, partitions: Iterable[tuple[str, int]]) -> None:
        """Undo ``pause``. Raises ``NotAssigned``."""
        for state in [self._state(partition) for partition in partitions]:
            state.is_paused = False
        self._changed.set()
        self._fetcher.wake()

    def paused(self) -> frozenset[TopicPartition]:
        """Return the partitions that are paused."""
        return frozenset(state.partition for state in self._positions if state.is_paused)

    # -- reading --

    async def poll(
        self, *, max_records: int | None = None, timeout_ms: float = 1_000
    ) -> list[ConsumerRecord]:
        """Return records as soon as there are any, or an empty list after the timeout.

        Calling ``poll`` again marks the records of the last poll as processed. Raises the
        error that prevents reading: ``NoOffsetForPartition``, ``OffsetOutOfRange``,
        ``LogTruncation``, ``CorruptRecordBatch``, ``FencedInstanceId``, or a rebalance
        listener's exception.
        """
        limit = self._options.max_poll_records if max_records is None else max_records
        if limit <= 0:
            raise InvalidRequest(f"max_records must be above zero, is {limit}")
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
        if max_bytes <= 0:
            raise InvalidRequest(f"max_bytes must be above zero, is {max_bytes}")
        with needing_arrow():
            from tidelog.consuming.arrow_polling import take_arrow

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

    async def _poll(
        self, take: Callable[[], tuple[list[T], list[PartitionState]]], timeout_ms: float
    ) -> list[T]:
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + timeout_ms / 1000
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

    def __aiter__(self) -> AsyncIterator[ConsumerRecord]:
        """Yield records one by one, until the caller stops."""
        return self._iterate()

    async def _iterate(self) -> AsyncIterator[ConsumerRecord]:
        while True:
            for record in self.hand_out_run(await self.next_run()):
                yield record

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

    # -- positions --

    async def position(self, partition: tuple[str, int]) -> int:
        """Return the offset of the next record, once it is known. Raises ``NotAssigned``."""
        await self._begin()
        timeout_s = self._cluster.request_timeout_s
        deadline_s = asyncio.get_running_loop().time() + timeout_s
        while (state := self._state(partition)).position == UNKNOWN:
            if state.error is not None:
                error, state.error = state.error, None
                raise error
            self._locator.start()
            if not await self._wait_for_change(deadline_s):
                raise RequestTimedOut(f"no position for {state.partition} within {timeout_s:g} s")
        return state.position

    def seek(self, partition: tuple[str, int], offset: int) -> None:
        """Continue from the offset. Raises ``NotAssigned``."""
        self._state(partition).jump(check_offset(offset))
        self._changed.set()
        self._fetcher.wake()

    def positions(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the position of every partition that has one; ``commit()`` commits these."""
        return {
            state.partition: state.to_commit(state.position)
            for state in self._positions
            if state.position != UNKNOWN
        }

    def seek_to_committed(self, *partitions: tuple[str, int]) -> None:
        """Continue from the committed offsets; of all partitions by default.

        For records that were read for an aborted transaction. The next poll waits for pending
        transactions that contain offsets of the group.
        """
        self._reset(partitions, None)

    def seek_to_beginning(self, *partitions: tuple[str, int]) -> None:
        """Continue from the log start offset; of all partitions by default."""
        self._reset(partitions, EARLIEST_TIMESTAMP)

    def seek_to_end(self, *partitions: tuple[str, int]) -> None:
        """Continue after the last record; of all partitions by default."""
        self._reset(partitions, LATEST_TIMESTAMP)

    def high_watermark(self, partition: tuple[str, int]) -> int | None:
        """Return the last fetched high watermark, or None. Raises ``NotAssigned``."""
        known = self._state(partition).high_watermark
        return None if known == UNKNOWN else known

    async def beginning_offsets(
        self, partitions: Iterable[tuple[str, int]]
    ) -> dict[TopicPartition, int]:
        """Return the first offset of each partition."""
        return await self._ends(partitions, EARLIEST_TIMESTAMP)

    async def end_offsets(self, partitions: Iterable[tuple[str, int]]) -> dict[TopicPartition, int]:
        """Return the offset after each partition's last record that this consumer may read."""
        return await self._ends(partitions, LATEST_TIMESTAMP)

    async def offsets_for_times(
        self, timestamps_ms: Mapping[tuple[str, int], int]
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """Return each partition's first record at or after its time, or None."""
        checked = {
            TopicPartition(*partition): check_time(timestamp)
            for partition, timestamp in timestamps_ms.items()
        }
        await self._begin()
        found = await list_offsets(
            self._cluster,
            checked,
            read_committed=self._options.isolation_level == "read_committed",
            timeout_s=self._cluster.request_timeout_s,
        )
        return {
            partition: OffsetAndTimestamp(at.offset, at.timestamp_ms) if at.offset >= 0 else None
            for partition, at in found.items()
        }

    # -- commits --

    async def commit(self, offsets: Offsets | None = None) -> None:
        """Commit the given next offsets; by default the position of every partition.

        Durable on return. Raises ``CommitFailed`` if the group has moved on,
        ``RebalanceInProgress`` if it is about to, ``InvalidRequest`` without a ``group_id``.
        """
        await self._begin()
        given = self.positions() if offsets is None else check_offsets(offsets)
        if self._commits is None:
            raise InvalidRequest("commit needs a group_id")
        await self._commits.commit(given)

    def group_metadata(self) -> GroupMetadata:
        """Return this consumer's identity in its group, for ``Transaction.send_offsets``.

        Raises ``CommitFailed`` if it is not a member now, ``InvalidRequest`` without a
        ``group_id``.
        """
        if self._commits is None:
            raise InvalidRequest("group_metadata needs a group_id")
        return self._commits.group_metadata()

    async def committed(
        self, partitions: Iterable[tuple[str, int]]
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """Return the group's committed offset of each partition, or None."""
        await self._begin()
        if self._coordinator is None:
            raise InvalidRequest("committed needs a group_id")
        wanted = [TopicPartition(*partition) for partition in partitions]
        found = await self._coordinator.committed(wanted, timeout_s=self._cluster.request_timeout_s)
        return {partition: found.get(partition) for partition in wanted}

    # -- waiting and returning records --

    async def _begin(self) -> None:
        """Start if needed. Listeners may call the consumer even while it is closed."""
        if not self._tasks:
            await self.start()

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

    async def _wait_for_change(self, deadline_s: float | None) -> bool:
        loop = asyncio.get_running_loop()
        self._changed.clear()
        timer = None
        if deadline_s is not None:
            if deadline_s <= loop.time():
                return False
            timer = loop.call_at(deadline_s, self._changed.set)
        try:
            await self._changed.wait()
        finally:
            if timer is not None:
                timer.cancel()
        self._check_open()
        return deadline_s is None or loop.time() < deadline_s

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

    # -- internals --

    def _state(self, partition: tuple[str, int]) -> PartitionState:
        return self._positions.state(TopicPartition(*partition))

    def _reset(self, partitions: Sequence[tuple[str, int]], timestamp: int | None) -> None:
        states = [self._state(partition) for partition in partitions] or list(self._positions)
        for state in states:
            state.forget(timestamp)
        self._changed.set()

    async def _ends(
        self, partitions: Iterable[tuple[str, int]], timestamp: int
    ) -> dict[TopicPartition, int]:
        await self._begin()
        found = await list_offsets(
            self._cluster,
            {TopicPartition(*partition): timestamp for partition in partitions},
            read_committed=self._options.isolation_level == "read_committed",
            timeout_s=self._cluster.request_timeout_s,
        )
        return {partition: at.offset for partition, at in found.items()}

    def _check_open(self) -> None:
        if self._is_closed:
            raise ClientClosed("the consumer is closed")

    def _on_located(self) -> None:
        self._changed.set()
        self._fetcher.wake()

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.append(task)
        task.add_done_callback(self._on_task_done)

    def _on_task_done(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (failure := task.exception()) is not None:
            self._failure = failure
            self._changed.set()

    async def _watch(self) -> None:
        """Keep the metadata of our topics current and pass changes to the membership."""
        while True:
            await self._cluster.wait_for_news()
            self._cluster.want({state.partition.topic for state in self._positions})
            if self._membership is not None:
                self._refusal = self._subscription.refusal(self._cluster)
                if self._refusal is not None:
                    self._changed.set()
                await self._membership.on_metadata()

    async def _leave(self) -> None:
        membership, self._membership = self._membership, None
        if membership is not None:
            await membership.stop()
            try:
                await self._life.revoke(self._life.owned(), is_lost=membership.is_lost)
            finally:
                assert self._commits is not None
                self._commits.membership = None
                self._subscription.clear()
                await membership.leave("the consumer leaves")
        elif self._commits is not None and self._options.enable_auto_commit:
            await self._commits.commit_safely(list(self._positions))


def _first_of(taken: ConsumerRecord | pa.RecordBatch) -> tuple[TopicPartition, int]:
    if isinstance(taken, ConsumerRecord):
        return TopicPartition(taken.topic, taken.partition), taken.offset
    partition = TopicPartition(
        taken.column("topic")[0].as_py(), taken.column("partition")[0].as_py()
    )
    return partition, taken.column("offset")[0].as_py()
