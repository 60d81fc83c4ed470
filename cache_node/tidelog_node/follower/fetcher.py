"""Fetches from one leader: one task, one connection and one fetch session.

The leader's fetch session (``fetch_session``) keeps the partitions to fetch, and the leader holds
each fetch until one of them has news. A fetch names only the partitions that have changed, and its
answer only those with news: the cost grows with the changes, not with the number of partitions.
``FollowedPartitions`` decides what to fetch and applies the answers; this sends the fetches.

The leader may rely on everything that this node sent under its current registration (KIP-903). So
after a new registration every partition is checked again and a new session begins: no position
sent before counts any longer.

A leader that answers at once, again and again, although it has no news, is asked after a pause.

A partition added during a held fetch does not wait for its answer. It is sent immediately in a
second fetch, and the leader then answers the held one. A leader without sessions would not: the
connection is closed and the fetch sent again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

from tidelog_core.config import NodeConfig
from tidelog_core.errors import ErrorCode, NotLeaderOrFollower, TidelogError
from tidelog_core.fetch_session import SESSION_ERRORS, FetcherSession, FetchPlan
from tidelog_core.metadata.records import Broker
from tidelog_core.replication.follower_state import Append, FollowerState, ReplicaFetch
from tidelog_core.subscribers import Subscribers
from tidelog_core.waiting import wait_and_clear

from tidelog_node.dialing.dialer import Dialer
from tidelog_node.dialing.leader_connection import LeaderConnection
from tidelog_node.follower.catch_up import CatchUp
from tidelog_node.follower.fetched_answer import FetchedAnswer
from tidelog_node.follower.followed import (
    TROUBLE_SECONDS,
    FollowedPartitions,
    PartitionAnswer,
    PartitionKey,
)
from tidelog_node.follower.wire import (
    FollowerLimits,
    WantedPartition,
    encode_follower_fetch,
    known_error,
    parse_follower_fetch,
)
from tidelog_node.replicas.replica import Replica
from tidelog_node.wire.primitives import PARSE_ERRORS

logger = logging.getLogger(__name__)

CONNECT_SECONDS_MAX = 5.0
# Partitions that one fetch adds to the session: with their topics no more than the leader handles
# without a pause, see ``partition_pace``.
NEW_MAX = 250
# Answers in a row without news, to fetches that the leader might have held for longer.
HASTY_MAX = 10


class FetcherOwner(Protocol):
    """The owner of the fetchers, one for each leader."""

    catch_up: CatchUp
    dialer: Dialer
    committed: Subscribers[[Replica, FollowerState, Append]]
    node_config: Callable[[], NodeConfig]

    def broker(self, leader_id: int) -> Broker | None:
        """Return the leader's registration, ``None`` if there is none."""

    def limits(self) -> FollowerLimits | None:
        """Return the fetch limits; ``None`` while this process is not the registered one."""

    def now_ms(self) -> float:
        """Return the time of the clock that the roles of replicas use."""


class LeaderFetcher:
    """Fetches the partitions in ``followed`` from one leader."""

    def __init__(self, leader_id: int, owner: FetcherOwner, broker_id: int) -> None:
        self._leader_id = leader_id
        self._owner = owner
        self._loop = asyncio.get_running_loop()
        elements_max = owner.node_config().socket_request_max_partitions
        self._session: FetcherSession[PartitionKey, ReplicaFetch] = FetcherSession(
            new_max=NEW_MAX, named_max=elements_max // 2, clock_s=self._loop.time
        )
        self.followed = FollowedPartitions(
            self._session,
            broker_id=broker_id,
            catch_up=owner.catch_up,
            backoff_s=self._backoff_s,
            clock_ms=owner.now_ms,
            on_possible=self._send_now,
            on_committed=owner.committed.notify,
        )
        self._session_lost_at = float("-inf")  # the loop's time
        self._partition_max_bytes = -1  # as last sent to the leader
        self._replica_epoch = -1  # as last sent to the leader
        self._changed = asyncio.Event()
        self._connection: LeaderConnection | None = None
        self._unapplied: FetchedAnswer | None = None  # no request is under way then
        self._is_interrupted = False
        self._is_urgent = False  # ``_send_another`` is scheduled
        self._correlation_id = 0
        self._is_in_trouble = False
        # Of the last fetch: when it was sent, and how long the leader may hold it.
        self._sent_s, self._held_s_max = 0.0, 0.0
        self._hasty_count = 0
        self._task = self._loop.create_task(self._run(), name=f"follow broker {leader_id}")

    async def close(self) -> None:
        """Stop fetching; cancels its tasks and waits for them."""
        tasks = [self._task, *self.followed.tasks()]
        for task in tasks:
            task.cancel()
        for task in tasks:
            with suppress(asyncio.CancelledError):
                await task

    def _send_now(self) -> None:
        """Send a fetch for new partitions soon, also while another is held."""
        self._changed.set()
        if not self._is_urgent:
            # Deferred: many partitions may change leaders in one step of the loop.
            self._is_urgent = True
            self._loop.call_soon(self._send_another)

    def _send_another(self) -> None:
        self._is_urgent = False
        connection, limits = self._connection, self._owner.limits()
        if connection is None or self._is_interrupted or connection.under_way_count != 1:
            return  # The next fetch is about to go out.
        if limits is None:
            return
        is_same_replica = limits.replica_epoch == self._replica_epoch
        if self._session.is_established and is_same_replica:
            request = self._next_request(may_wait=False)
            if request is not None:
                connection.send_another(request)
        elif self._session.is_declined or not is_same_replica:
            self._is_interrupted = True
            connection.close()

    # -- the loop --

    async def _run(self) -> None:
        while True:
            await self._fetch_until_trouble()

    async def _fetch_until_trouble(self) -> None:
        try:
            await self._fetch_on_one_connection()
        except (OSError, TimeoutError, TidelogError) as error:
            if self._is_interrupted:
                return
            if not self._is_in_trouble:
                logger.warning(
                    "leader cannot be followed, will retry",
                    extra={"broker_id": self._leader_id, "reason": str(error) or repr(error)},
                )
            self._is_in_trouble = True
            await self._pause(self._backoff_s())
        except Exception:
            # Any failure is retried: while the fetcher is stopped, records have one replica fewer.
            logger.exception("following broke, will retry", extra={"broker_id": self._leader_id})
            await self._pause(TROUBLE_SECONDS)
        finally:
            if self._connection is not None:
                self._connection.close()
            self._connection = None
            self._is_interrupted = False
            self._end_session()

    async def _fetch_on_one_connection(self) -> None:
        """Connect and fetch until an error."""
        await self._wait_for_work()
        broker = self._owner.broker(self._leader_id)
        if broker is None:
            raise NotLeaderOrFollower(f"broker {self._leader_id} is not registered")
        connection = await self._owner.dialer.dial_leader(broker, timeout_s=CONNECT_SECONDS_MAX)
        self._connection = connection
        while True:
            await self._wait_for_work()
            request = self._next_request()
            if request is None:
                await self._pause(self._backoff_s())
                continue
            await connection.converse(request, self._on_answer, timeout_s=self._timeout_s)
            await self._apply_rest()
            if self._hasty_count > HASTY_MAX:
                await self._pause(self._backoff_s())

    def _next_request(self, *, may_wait: bool = True) -> bytearray | None:
        """Return the next fetch, ``None`` if none can be sent now.

        With ``may_wait=False`` it is sent while another fetch is held.
        """
        self._changed.clear()
        limits = self._owner.limits()
        if limits is None:
            return None
        if may_wait:
            self._take_limits(limits)
        self.followed.update_fetches()
        if not (may_wait or self._session.has_news):
            return None
        fetch = self._session.next_fetch()
        if fetch is None:
            return None
        self._correlation_id = (self._correlation_id + 1) % 2**31
        may_wait = may_wait and fetch.may_wait
        self._sent_s = self._loop.time()
        self._held_s_max = limits.max_wait_ms / 1000 if may_wait else 0.0
        return encode_follower_fetch(
            self._correlation_id,
            limits,
            _named_by_topic(fetch),
            session_id=fetch.session_id,
            session_epoch=fetch.session_epoch,
            forgotten=_by_topic(fetch.forgotten),
            may_wait=may_wait,
        )

    def _take_limits(self, limits: FollowerLimits) -> None:
        """Begin another session if the replica epoch or the limit of a partition has changed."""
        if limits.replica_epoch != self._replica_epoch:
            self._replica_epoch = limits.replica_epoch
            self.followed.update_all_next()
            self._end_session()
        if limits.partition_max_bytes != self._partition_max_bytes:
            self._partition_max_bytes = limits.partition_max_bytes
            self._end_session()

    def _end_session(self) -> None:
        self._session.restart()
        self.followed.begin_session()
        self.followed.wake_unheard(float(self._owner.node_config().replica_lag_time_max_ms))

    async def _apply_rest(self) -> None:
        """Apply the rest of the last answer, in turns."""
        answer, self._unapplied = self._unapplied, None
        while answer is not None:
            if answer.apply_turn():
                return
            await asyncio.sleep(0)

    def _on_answer(self, frame: memoryview) -> bytearray | None:
        """Apply the answer and return the next fetch.

        If one turn cannot apply all of it, the conversation ends, and ``_apply_rest`` goes on.
        """
        try:
            error_code, session_id, fetched = parse_follower_fetch(frame)
        except PARSE_ERRORS as problem:
            raise NotLeaderOrFollower(f"the answer cannot be read: {problem!r}") from problem
        error = known_error(error_code)
        keys = [(partition.topic_id, partition.partition) for partition in fetched]
        if not self._session.on_answer(error, session_id, keys):
            self.followed.begin_session()
            self._begin_session_again(error)
            return self._next_request()
        if self._is_in_trouble:
            self._is_in_trouble = False
            logger.info("leader is followed again", extra={"broker_id": self._leader_id})
        answers = [
            PartitionAnswer(key, self._session.last_asked(key), partition)
            for key, partition in zip(keys, fetched, strict=True)
        ]
        answer = FetchedAnswer(self.followed, answers, answered_ms=self._owner.now_ms())
        news_count = self.followed.news_count
        is_applied = answer.apply_turn()
        assert self._connection is not None
        if self._connection.under_way_count:
            # If the leader has closed the session, which was empty for a moment, its next answer is
            # an error, and begins another one.
            if not is_applied:
                answer.fetch_rest_again()  # The buffer is about to take another answer.
            return None
        self._note_haste(has_news=self.followed.news_count > news_count)
        if not is_applied:
            self._unapplied = answer
            return None
        return None if self._hasty_count > HASTY_MAX else self._next_request()

    def _note_haste(self, *, has_news: bool) -> None:
        """Note whether the leader has answered without news, and much sooner than it had to."""
        if has_news or self._loop.time() - self._sent_s >= self._held_s_max / 2:
            self._hasty_count = 0
            return
        self._hasty_count += 1
        if self._hasty_count == HASTY_MAX + 1:
            logger.warning(
                "leader answers at once without news, is asked after pauses",
                extra={"broker_id": self._leader_id},
            )

    def _begin_session_again(self, error: ErrorCode) -> None:
        """Return if a fetch may begin a new session on this connection immediately, else raise.

        Raises ``NotLeaderOrFollower``.
        """
        if error is ErrorCode.none:
            reason = "an answer does not fit the fetch session"
        else:
            reason = f"the leader answers {error.name}"
        lost_at, self._session_lost_at = self._session_lost_at, self._loop.time()
        is_often = self._session_lost_at - lost_at < self._backoff_s()
        is_ours = error is ErrorCode.none or error in SESSION_ERRORS
        assert self._connection is not None
        if is_often or not is_ours or self._connection.under_way_count:
            raise NotLeaderOrFollower(reason)
        logger.info(
            "fetch session lost, begins again",
            extra={"broker_id": self._leader_id, "reason": reason},
        )

    def _timeout_s(self) -> float:
        config = self._owner.node_config()
        return (config.replica_fetch_wait_max_ms + config.replica_socket_timeout_ms) / 1000

    def _backoff_s(self) -> float:
        return self._owner.node_config().replica_fetch_backoff_ms / 1000

    async def _wait_for_work(self) -> None:
        while not self.followed:
            self._changed.clear()
            await self._changed.wait()

    async def _pause(self, seconds: float) -> None:
        """Wait until there is something new to follow, at most this long."""
        # The event is cleared: if it stayed set, this task would never wait and starve the loop.
        await wait_and_clear(self._changed, seconds)


def _named_by_topic(
    fetch: FetchPlan[PartitionKey, ReplicaFetch],
) -> dict[bytes, list[WantedPartition]]:
    topics: dict[bytes, list[WantedPartition]] = {}
    for (topic_id, index), wanted in fetch.named:
        partition = WantedPartition(
            index,
            wanted.leader_epoch,
            wanted.offset,
            wanted.last_fetched_epoch,
            wanted.log_start_offset,
            wanted.is_fed,
        )
        topics.setdefault(topic_id, []).append(partition)
    return topics


def _by_topic(keys: list[PartitionKey]) -> dict[bytes, list[int]]:
    topics: dict[bytes, list[int]] = {}
    for topic_id, index in keys:
        topics.setdefault(topic_id, []).append(index)
    return topics
