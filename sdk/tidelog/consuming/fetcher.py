"""Fetches ahead to keep every assigned partition's buffer filled, within limits.

Each node gets two kinds of fetches, each on its own connection and one at a time.
Partitions that (probably) have more records are fetched at once; partitions read to
their end wait at the node for records (long poll). In one request, a partition whose
buffer runs dry would wait behind the long poll of idle ones. Waiting partitions are in
a fetch session, see ``fetch_requests``.

After a leader change a partition is fetched only once its position is validated; answers
to earlier requests are dropped.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable
from contextlib import suppress
from typing import Any
from uuid import UUID

from kio.schema.errors import ErrorCode
from tidelog_core.model import TopicPartition

from tidelog.cluster import Cluster
from tidelog.connections import Lane
from tidelog.consuming.fetch_requests import NEW_MAX, Fetched, NodeFetches
from tidelog.consuming.fetched import Chunk, kept_records
from tidelog.consuming.locating import RESET_TIMESTAMPS
from tidelog.consuming.positions import UNKNOWN, PartitionState, Positions
from tidelog.consuming.validating import Validator
from tidelog.errors import (
    ClientClosed,
    CorruptRecordBatch,
    OffsetOutOfRange,
    TidelogError,
    error_for,
)
from tidelog.metadata import Node, PartitionInfo
from tidelog.offsets import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, list_offsets
from tidelog.options import ConsumerOptions
from tidelog.wire.backoff import Backoff

logger = logging.getLogger(__name__)

_READ_REPLICA_S = 300.0  # Then the leader is asked again which replica to read.
_RETRIED_S = 0.1
# A node that answers at once with nothing so often is asked every ``_RETRIED_S`` only.
_QUICK_MAX = 3
# The part of ``fetch_max_wait_ms`` after which an answer has waited: clocks differ a little.
_WAITED_SHARE = 0.9
# A position that is out of range is looked up again after that time at the earliest: the offset
# found may be out of range too.
_RESETS_APART_S = 1.0
_CLOSE_S = 1.0  # A node that does not answer by then keeps its session until it expires.

# Errors that go away once the partition's leader is known.
_LEADER_MOVED = frozenset(
    {
        ErrorCode.not_leader_or_follower,
        ErrorCode.fenced_leader_epoch,
        ErrorCode.unknown_leader_epoch,
        ErrorCode.replica_not_available,
        ErrorCode.kafka_storage_error,
        ErrorCode.leader_not_available,
        ErrorCode.offset_not_available,
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.unknown_topic_id,
        ErrorCode.inconsistent_topic_id,
    }
)


class Fetcher:
    """Fetches for the given positions. ``run`` is its task."""

    def __init__(
        self,
        cluster: Cluster,
        positions: Positions,
        options: ConsumerOptions,
        on_arrival: Callable[[], None],
    ) -> None:
        self._cluster = cluster
        self._positions = positions
        self._options = options
        self._on_arrival = on_arrival
        self._wake = asyncio.Event()
        self._busy: set[tuple[int, Lane]] = set()
        # Answers in a row that came at once and brought nothing.
        self._quick_counts: dict[tuple[int, Lane], int] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._fetches: dict[int, NodeFetches] = {}  # by node
        self._backoffs: dict[int, tuple[Backoff, float]] = {}  # by node, with the retry's loop time
        self._read_committed = options.isolation_level == "read_committed"
        self._validator = Validator(cluster, options, self._on_validated)
        self._failure: BaseException | None = None  # of one of the tasks

    def wake(self) -> None:
        """Check again for partitions to fetch."""
        self._wake.set()

    async def run(self) -> None:
        """Fetch until cancelled. Raises what a task of it raises."""
        loop = asyncio.get_running_loop()
        self._spawn(self._wake_on_news())
        try:
            while True:
                if self._failure is not None:
                    raise self._failure
                self._wake.clear()
                self._start_fetches(loop.time())
                await self._wake.wait()
        finally:
            tasks = list(self._tasks)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def close(self) -> None:
        """Close the nodes' sessions if they answer soon. Call it after ``run`` has ended."""
        ends = [self._end_session(node_id, one) for node_id, one in self._fetches.items()]
        await asyncio.gather(*ends)

    async def _end_session(self, node_id: int, fetches: NodeFetches) -> None:
        # Connections without a held request first: their answers come at once.
        for lane in (Lane.CATCH_UP, Lane.SHARED, Lane.TAIL):
            connection = self._cluster.open_connection_to(node_id, lane)
            if connection is not None:
                with suppress(TidelogError):  # Then the session expires at the node.
                    await fetches.close(connection, timeout_s=_CLOSE_S)
                return

    def _start_fetches(self, now_s: float) -> None:
        plans: dict[tuple[int, Lane], list[PartitionState]] = {}
        buffered = sum(state.buffered_size_bytes for state in self._positions)
        if buffered >= self._options.prefetch_bytes_max:
            return  # The next poll wakes this task.
        for state in self._positions:
            if (
                state.is_paused
                or state.position == UNKNOWN
                or state.error is not None
                or state.buffered_size_bytes >= self._options.max_partition_fetch_bytes
            ):
                continue
            if state.retry_at_s > now_s:
                if state.retry_at_s < math.inf:
                    self._wake_at(state.retry_at_s)
                continue
            leader = self._cluster.leader(state.partition)
            if leader is None:
                self._cluster.invalidate()  # The next metadata wakes this task.
                continue
            if not self._validator.is_valid(state, leader) or state.fetching == state.ticket:
                continue
            node_id = self._node_for(state, leader, now_s)
            is_at_end = state.fetch_position >= state.end_offset != UNKNOWN
            lane = Lane.TAIL if is_at_end else Lane.CATCH_UP
            if (node_id, lane) not in self._busy:
                plans.setdefault((node_id, lane), []).append(state)
        for request in self._validator.requests():
            self._spawn(request)
        for (node_id, lane), states in plans.items():
            _, not_before = self._backoffs.get(node_id, (None, 0.0))
            if not_before > now_s:
                self._wake_at(not_before)
                continue
            self._busy.add((node_id, lane))
            tickets = {state: state.ticket for state in states}
            for state, ticket in tickets.items():
                state.fetching = ticket
            self._spawn(self._fetch(node_id, lane, tickets))

    def _node_for(self, state: PartitionState, leader: PartitionInfo, now_s: float) -> int:
        if state.read_replica is not None:
            node_id, until_s = state.read_replica
            if node_id in self._cluster.nodes and now_s < until_s:
                return node_id
            state.read_replica = None
        return leader.leader

    async def _fetch(
        self, node_id: int, lane: Lane, tickets: dict[PartitionState, tuple[int, int]]
    ) -> None:
        """Fetch the planned partitions, except those since unassigned or sought.

        Such a partition may have no position at this moment, and the node's answer would look
        like an offset out of range.
        """
        loop = asyncio.get_running_loop()
        asked_s, has_brought = loop.time(), True
        try:
            connection = await self._cluster.connection(node_id, lane)
            states = [state for state, ticket in tickets.items() if state.ticket == ticket]
            if states:
                fetches = self._fetches_to(node_id)
                ask = fetches.wait if lane is Lane.TAIL else fetches.fetch
                asked_s = loop.time()
                fetched = await ask(connection, states)
                self._backoffs.pop(node_id, None)
                has_brought = self._take(node_id, fetched, tickets)
        except TidelogError as error:
            self._back_off(node_id, error)
            for state in tickets:
                if state.read_replica is not None and state.read_replica[0] == node_id:
                    state.read_replica = None  # Back to the leader, which may name another replica.
        finally:
            for state, ticket in tickets.items():
                if state.fetching == ticket:
                    state.fetching = None
            # A session is built in some fetches that do not wait, of so many partitions each.
            quick_max = _QUICK_MAX + len(tickets) // NEW_MAX
            if has_brought or loop.time() >= asked_s + self._quick_s(lane):
                self._quick_counts.pop((node_id, lane), None)
                self._release(node_id, lane)
            elif self._count_quick(node_id, lane) <= quick_max:
                self._release(node_id, lane)
            else:
                loop.call_at(asked_s + _RETRIED_S, self._release, node_id, lane)

    def _quick_s(self, lane: Lane) -> float:
        """Return the time in which an answer has come at once."""
        waited_s = self._options.fetch_max_wait_ms / 1000
        if lane is Lane.TAIL and waited_s > 0:
            return min(_RETRIED_S, _WAITED_SHARE * waited_s)
        return _RETRIED_S

    def _count_quick(self, node_id: int, lane: Lane) -> int:
        count = self._quick_counts[node_id, lane] = self._quick_counts.get((node_id, lane), 0) + 1
        return count

    def _release(self, node_id: int, lane: Lane) -> None:
        """Let the next fetch to the node go."""
        self._busy.discard((node_id, lane))
        self.wake()

    def _fetches_to(self, node_id: int) -> NodeFetches:
        fetches = self._fetches.get(node_id)
        if fetches is None:
            fetches = self._fetches[node_id] = NodeFetches(
                self._options,
                topic_id=self._topic_id,
                request_timeout_s=self._cluster.request_timeout_s,
            )
        return fetches

    def _topic_id(self, name: str) -> UUID | None:
        topic = self._cluster.topic(name)
        return None if topic is None else topic.topic_id

    def _take(
        self, node_id: int, fetched: Fetched, tickets: dict[PartitionState, tuple[int, int]]
    ) -> bool:
        """Use the answers; return false if the next fetch would be the same."""
        has_brought = False
        nodes = _nodes(fetched.response)
        for partition, offset, answer in fetched.partitions:
            state = self._positions.get(partition)
            self._note_leader(partition, answer.current_leader, nodes)
            # Since the request the partition may have been unassigned, sought, or validated
            # under another leader; or the node does not have its offset yet.
            if (
                state is not None
                and state.ticket == tickets.get(state)
                and state.fetch_position == offset
            ):
                has_brought |= self._take_partition(node_id, state, answer)
            else:
                has_brought = True  # The next fetch asks for something else.
        self._on_arrival()
        return has_brought

    def _note_leader(self, partition: TopicPartition, current: Any, nodes: list[Node]) -> None:
        leader, leader_epoch = int(current.leader_id), int(current.leader_epoch)
        if UNKNOWN not in (leader, leader_epoch):
            self._cluster.note_leader(
                partition, leader=leader, leader_epoch=leader_epoch, nodes=nodes
            )

    def _take_partition(self, node_id: int, state: PartitionState, answer: Any) -> bool:
        """Use a partition's answer; return false if it has nothing but numbers."""
        code = answer.error_code
        is_leader = state.read_replica is None or state.read_replica[0] != node_id
        if code is ErrorCode.none:
            state.high_watermark = int(answer.high_watermark)
            end = answer.last_stable_offset if self._read_committed else answer.high_watermark
            state.end_offset = int(end)
            if answer.records:
                self._add_chunk(state, answer)
                return True
            # This replica has no records for us before the end, regardless of that value.
            state.end_offset = min(state.end_offset, state.fetch_position)
            replica = int(answer.preferred_read_replica)
            # Only a leader names one: two replicas could name each other.
            if not is_leader or replica in (node_id, UNKNOWN):
                return False
            if replica not in self._cluster.nodes:
                self._cluster.invalidate()  # It may have joined since.
                return False
            until_s = asyncio.get_running_loop().time() + _READ_REPLICA_S
            state.read_replica = (replica, until_s)
            state.end_offset = UNKNOWN
            return True
        state.read_replica = None
        if code is ErrorCode.offset_out_of_range and is_leader:
            self._on_out_of_range(state)
        elif code in _LEADER_MOVED or code is ErrorCode.offset_out_of_range:
            self._cluster.invalidate()
            self._retry_later(state)
        elif code.retriable or code is ErrorCode.unknown_server_error:
            logger.warning(
                "fetch failed, will retry",
                extra={"partition": str(state.partition), "reason": code.name},
            )
            self._retry_later(state)
        else:
            state.error = error_for(code, None, about=state.partition)
        return True

    def _add_chunk(self, state: PartitionState, answer: Any) -> None:
        aborted = [
            (int(a.first_offset), int(a.producer_id)) for a in answer.aborted_transactions or ()
        ]
        try:
            chunk = Chunk(
                state.partition,
                kept_records(answer.records, self._cluster.frame_room),
                aborted=aborted,
                read_committed=self._read_committed,
                check_crcs=self._options.check_crcs,
            )
            if chunk.next_offset <= state.fetch_position:
                # The same would be fetched again at once, and for ever.
                raise CorruptRecordBatch(
                    f"{state.partition}: a fetch from offset {state.fetch_position} returned"
                    f" batches that end at offset {chunk.next_offset}"
                )
        except TidelogError as error:
            state.error = error
            return
        state.chunks.append(chunk)
        state.fetch_position = chunk.next_offset
        state.fetch_epoch = chunk.last_epoch

    def _on_out_of_range(self, state: PartitionState) -> None:
        if state.chunks or state.index < len(state.records):
            self._retry_later(state)  # Records fetched earlier are handed out first.
            return
        policy = self._options.auto_offset_reset
        if policy == "none":
            self._spawn(self._report_out_of_range(state, state.version))
            return
        now_s = asyncio.get_running_loop().time()
        if now_s < state.reset_at_s + _RESETS_APART_S:
            self._retry_later(state)
            return
        state.reset_at_s = now_s
        logger.warning(
            "offset out of range, will reset",
            extra={"partition": str(state.partition), "offset": state.position, "to": policy},
        )
        state.forget(RESET_TIMESTAMPS[policy])

    async def _report_out_of_range(self, state: PartitionState, version: int) -> None:
        """Make poll raise the error with the partition's offsets, which the answer lacks."""
        state.retry_at_s = math.inf
        ends = []
        try:
            for timestamp in (EARLIEST_TIMESTAMP, LATEST_TIMESTAMP):
                found = await list_offsets(
                    self._cluster,
                    {state.partition: timestamp},
                    read_committed=self._read_committed,
                    timeout_s=self._cluster.request_timeout_s,
                )
                ends.append(found[state.partition].offset)
        except TidelogError as error:
            logger.info("cannot look up the partition's offsets", extra={"reason": str(error)})
            ends = [UNKNOWN, UNKNOWN]
        if state.version == version:
            state.retry_at_s = 0.0
            state.error = OffsetOutOfRange(
                state.partition, state.position, start=ends[0], end=ends[1]
            )
            self._on_arrival()

    def _on_validated(self) -> None:
        self._on_arrival()
        self.wake()

    def _retry_later(self, state: PartitionState) -> None:
        state.retry_at_s = asyncio.get_running_loop().time() + _RETRIED_S

    def _back_off(self, node_id: int, error: TidelogError) -> None:
        backoff, _ = self._backoffs.get(node_id, (self._cluster.backoff(), 0.0))
        wait_s = backoff.next_s()
        self._backoffs[node_id] = (backoff, asyncio.get_running_loop().time() + wait_s)
        logger.info(
            "fetch from node failed, will retry", extra={"broker_id": node_id, "reason": str(error)}
        )
        self._cluster.invalidate()

    def _wake_at(self, at_s: float) -> None:
        asyncio.get_running_loop().call_at(at_s, self._wake.set)

    def _spawn(self, coroutine: Any) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._on_task_done)

    def _on_task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (failure := task.exception()) is not None:
            # The fetch would be tried again at once, and fail again.
            self._failure = failure
            self.wake()

    async def _wake_on_news(self) -> None:
        with suppress(ClientClosed):
            while True:
                await self._cluster.wait_for_news()
                self.wake()


def _nodes(response: Any) -> list[Node]:
    """Return the leaders' addresses in the answer; older versions have none."""
    return [
        Node(int(node.node_id), node.host, int(node.port), node.rack)
        for node in getattr(response, "node_endpoints", ())
    ]
