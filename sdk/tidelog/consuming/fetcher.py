"""Fetches ahead to keep every assigned partition's buffer filled, within limits.

Each node gets two kinds of fetches, each on its own connection and one at a time.
Partitions that (probably) have more records are fetched at once; partitions read to
their end wait at the node for records (long poll). In one request, a partition whose
buffer runs dry would wait behind the long poll of idle ones. Waiting partitions are in
a fetch session, see ``fetch_requests``.

After a leader change a partition is fetched only once its position is validated; answers
to earlier requests are dropped, see ``fetch_answers``.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable
from contextlib import suppress
from typing import Any
from uuid import UUID

from tidelog.cluster import Cluster
from tidelog.connections import Lane
from tidelog.consuming.fetch_answers import RETRIED_S, FetchAnswers
from tidelog.consuming.fetch_requests import NEW_MAX, NodeFetches
from tidelog.consuming.positions import UNKNOWN, PartitionState, Positions
from tidelog.consuming.validating import Validator
from tidelog.errors import (
    ClientClosed,
    TidelogError,
)
from tidelog.metadata import PartitionInfo
from tidelog.options import ConsumerOptions
from tidelog.wire.backoff import Backoff

logger = logging.getLogger(__name__)

# A node that answers at once with nothing so often is asked every ``RETRIED_S`` only.
_QUICK_MAX = 3
# The part of ``fetch_max_wait_ms`` after which an answer has waited: clocks differ a little.
_WAITED_SHARE = 0.9
SESSION_CLOSE_S = 1.0  # A node that does not answer by then keeps its session until it expires.


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
        self._answers = FetchAnswers(
            cluster, positions, options, on_arrival=on_arrival, spawn=self._spawn
        )
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
                    await fetches.close(connection, timeout_s=SESSION_CLOSE_S)
                return

    def _start_fetches(self, now_s: float) -> None:
        plans: dict[tuple[int, Lane], list[PartitionState]] = {}
        buffered = sum(state.buffered_size_bytes for state in self._positions)
        if buffered >= self._options.prefetch_bytes_max:
            return  # The next poll wakes this task.
        for state in self._positions:
            if not self._is_wanted(state, now_s):
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

    def _is_wanted(self, state: PartitionState, now_s: float) -> bool:
        """Whether more of the partition is to be fetched now; if later, wakes the task then."""
        if (
            state.is_paused
            or state.position == UNKNOWN
            or state.error is not None
            or state.buffered_size_bytes >= self._options.max_partition_fetch_bytes
        ):
            return False
        if state.is_damaged:  # A program may poll on after each error.
            state.is_damaged, state.retry_at_s = False, now_s + RETRIED_S
        if now_s < state.retry_at_s < math.inf:
            self._wake_at(state.retry_at_s)
        return state.retry_at_s <= now_s

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
                has_brought = self._answers.take(node_id, fetched, tickets)
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
                loop.call_at(asked_s + RETRIED_S, self._release, node_id, lane)

    def _quick_s(self, lane: Lane) -> float:
        """Return the time in which an answer has come at once."""
        waited_s = self._options.fetch_max_wait_ms / 1000
        if lane is Lane.TAIL and waited_s > 0:
            return min(RETRIED_S, _WAITED_SHARE * waited_s)
        return RETRIED_S

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

    def _on_validated(self) -> None:
        self._on_arrival()
        self.wake()

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
