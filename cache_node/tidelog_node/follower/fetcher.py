"""Fetches what this node follows: one task, one connection and one session for each leader.

The leader keeps in its fetch session (``fetch_session``) what is wanted of it, and holds each
fetch until there is something new. A fetch names only the partitions that have changed, and its
answer only those with news: both cost what has changed, however many partitions are followed.
So nothing here may go through all of them. Whatever changes how a partition is to be asked for
has it looked at before the next fetch (``_to_look_at``): its answer, the end of a wait, a new
start, trouble with its log, another log in its place, another leader.

A leader may count on all that it hears under a registration of this node (KIP-903). So with a
new one everything is looked at again, and a new session begins: nothing that the leader was told
before it stands for it. A log that failed, or that another one has replaced, is forgotten at
once, and is told of as a new one.

What is added while a fetch is held would wait with it. It goes out at once in a second fetch, on
which the leader answers the held one. A leader without sessions does not do that: its fetch is
given up with the connection and sent again.

``FollowerState`` says what to ask for and what an answer means; this sends, appends and
waits. A partition in trouble waits by itself, out of the session, and keeps nobody else from
going on.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from heapq import heappop, heappush
from typing import Any
from uuid import UUID

from tidelog_core.config import NodeConfig
from tidelog_core.errors import ErrorCode, NotLeaderOrFollower, StorageError, TidelogError
from tidelog_core.fetch_session import SESSION_ERRORS, FetcherSession, FetchPlan
from tidelog_core.log.values import UnexpectedAppendOffset
from tidelog_core.metadata.image import ClusterView
from tidelog_core.metadata.records import Broker
from tidelog_core.records.batch import parse_header
from tidelog_core.replication.follower_state import (
    Append,
    AskOffsets,
    FetchAnswer,
    FollowerState,
    Ignore,
    ReplicaFetch,
    Truncate,
)

from tidelog_node.follower.catch_up import CatchUp
from tidelog_node.follower.connection import LeaderConnection
from tidelog_node.follower.wire import (
    FetchedPartition,
    FollowerLimits,
    WantedPartition,
    encode_follower_fetch,
    known_error,
    parse_follower_fetch,
)
from tidelog_node.replica import Replica
from tidelog_node.replicas import ReplicaManager
from tidelog_node.wire.primitives import PARSE_ERRORS

logger = logging.getLogger(__name__)

TROUBLE_SECONDS = 5.0  # before a partition with a broken log or answer is tried again
CONNECT_SECONDS_MAX = 5.0
# Partitions that one fetch brings into the session: with their topics no more than the leader
# handles without a rest, see ``partition_pace``.
NEW_MAX = 250

PartitionKey = tuple[bytes, int]
"""Topic id as the wire has it, which hashes faster than a ``UUID``, and partition."""


class FollowerFetchers:
    """Every leader's fetcher. For the node's event loop."""

    def __init__(
        self,
        *,
        replicas: ReplicaManager,
        view: ClusterView,
        broker_id: int,
        incarnation: UUID,
        node_config: Callable[[], NodeConfig],
        catch_up: CatchUp,
    ) -> None:
        self._replicas = replicas
        self._view = view
        self._broker_id = broker_id
        self._incarnation = incarnation
        self.node_config = node_config
        self.catch_up = catch_up
        self._fetchers: dict[int, LeaderFetcher] = {}
        self._limits: tuple[Broker, NodeConfig, FollowerLimits] | None = None  # made of the two

    def start(self) -> None:
        """Begin to follow what the image says. This node is registered."""
        self._replicas.on_following = self._assign
        self._replicas.on_trouble.append(self._on_trouble)
        self._replicas.on_exchanged.append(self._on_exchanged)
        for replica in self._replicas.replicas():
            self._assign(replica)

    async def close(self) -> None:
        """Follow nobody any more."""
        self._replicas.on_following = lambda _: None
        self._replicas.on_trouble.remove(self._on_trouble)
        self._replicas.on_exchanged.remove(self._on_exchanged)
        await asyncio.gather(*(fetcher.close() for fetcher in self._fetchers.values()))

    def endpoint(self, leader_id: int) -> tuple[str, int] | None:
        """Return where the leader listens, ``None`` where it is not registered."""
        broker = self._view.image.brokers.get(leader_id)
        return None if broker is None else (broker.host, broker.port)

    def limits(self) -> FollowerLimits | None:
        """Return who fetches how much; ``None`` while this process is not the registered one."""
        own = self._view.image.brokers.get(self._broker_id)
        if own is None or own.incarnation != self._incarnation:
            return None
        config = self.node_config()
        made = self._limits
        if made is None or made[0] is not own or made[1] is not config:
            limits = FollowerLimits(
                replica_id=self._broker_id,
                replica_epoch=own.version,
                max_wait_ms=config.replica_fetch_wait_max_ms,
                max_bytes=config.replica_fetch_response_max_bytes,
                partition_max_bytes=config.replica_fetch_max_bytes,
            )
            made = self._limits = (own, config, limits)
        return made[2]

    def _assign(self, replica: Replica) -> None:
        role = replica.role
        follower = None if role is None else role.follower
        if follower is None or follower.leader_id < 0:
            return
        fetcher = self._fetchers.get(follower.leader_id)
        if fetcher is None:
            fetcher = self._fetchers[follower.leader_id] = LeaderFetcher(
                follower.leader_id, self, self._broker_id
            )
        fetcher.add(replica, follower)

    def _on_trouble(self, replica: Replica) -> None:
        fetcher = self._fetcher_of(replica)
        if fetcher is not None:
            fetcher.on_trouble(replica)

    def _on_exchanged(self, replica: Replica) -> None:
        fetcher = self._fetcher_of(replica)
        if fetcher is not None:
            fetcher.on_exchanged(replica)

    def _fetcher_of(self, replica: Replica) -> LeaderFetcher | None:
        follower = None if replica.role is None else replica.role.follower
        return None if follower is None else self._fetchers.get(follower.leader_id)


@dataclass(slots=True, eq=False)
class _Followed:
    """A partition of one fetcher, for as long as its leader epoch lasts."""

    replica: Replica
    follower: FollowerState
    key: PartitionKey
    not_before: float = 0.0  # the loop's time
    is_begun: bool = False  # the first fetch may go out
    task: asyncio.Task[None] | None = None  # looks for a new start


class LeaderFetcher:
    """Fetches from one leader."""

    def __init__(self, leader_id: int, owner: FollowerFetchers, broker_id: int) -> None:
        self._leader_id = leader_id
        self._owner = owner
        self._broker_id = broker_id
        self._loop = asyncio.get_running_loop()
        self._partitions: dict[PartitionKey, _Followed] = {}
        elements_max = owner.node_config().socket_request_max_partitions
        self._session: FetcherSession[PartitionKey, ReplicaFetch] = FetcherSession(
            new_max=NEW_MAX, named_max=elements_max // 2, clock_s=self._loop.time
        )
        self._session_lost_at = float("-inf")  # the loop's time
        self._partition_max_bytes = -1  # as the leader was told
        self._replica_epoch = -1  # as the leader was told
        self._to_look_at: dict[_Followed, None] = {}  # before the next fetch
        self._waits: list[tuple[float, int, _Followed]] = []  # a heap: until when, a number
        self._wait_count = 0
        self._changed = asyncio.Event()
        self._connection: LeaderConnection | None = None
        self._is_interrupted = False
        self._is_urgent = False  # what has become possible is about to be sent
        self._correlation_id = 0
        self._is_in_trouble = False
        self._task = self._loop.create_task(self._run(), name=f"follow broker {leader_id}")

    def add(self, replica: Replica, follower: FollowerState) -> None:
        """Follow the partition in this leader epoch."""
        key = (replica.topic_id.bytes, replica.partition.partition)
        followed = _Followed(replica, follower, key)
        follower.on_stop = partial(self._drop, followed)
        self._partitions[key] = followed
        self._to_look_at[followed] = None
        self._send_now()

    def on_trouble(self, replica: Replica) -> None:
        """Ask for a partition whose log is in trouble only after a while."""
        followed = self._forget(replica)
        if followed is not None:
            self._put_off(followed, TROUBLE_SECONDS)
            self._send_now()

    def on_exchanged(self, replica: Replica) -> None:
        """Begin again with a partition whose log is another one."""
        followed = self._forget(replica)
        if followed is not None:
            followed.not_before = 0.0
            self._to_look_at[followed] = None
            self._send_now()

    def _forget(self, replica: Replica) -> _Followed | None:
        """Let the leader begin with the partition as with a new one, if it is followed."""
        followed = self._partitions.get((replica.topic_id.bytes, replica.partition.partition))
        if followed is not None:
            self._session.forget(followed.key)
        return followed

    async def close(self) -> None:
        """Stop."""
        tasks = [followed.task for followed in self._partitions.values() if followed.task]
        for task in (self._task, *tasks):
            task.cancel()
        for task in (self._task, *tasks):
            with suppress(asyncio.CancelledError):
                await task

    def _drop(self, followed: _Followed) -> None:
        """Follow the partition no more, or not in this leader epoch."""
        if self._partitions.get(followed.key) is followed:
            del self._partitions[followed.key]
            self._session.forget(followed.key)

    def _put_off(self, followed: _Followed, seconds: float) -> None:
        """Leave the partition out until then."""
        followed.not_before = self._loop.time() + seconds
        self._wait_count += 1
        heappush(self._waits, (followed.not_before, self._wait_count, followed))
        self._to_look_at[followed] = None

    def _send_now(self) -> None:
        """Ask soon for what has just become possible, also while a fetch is held."""
        self._changed.set()
        if not self._is_urgent:
            # Later in this turn of the loop: many partitions change hands at once.
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

    # -- the loop

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
                    extra={"leader": self._leader_id, "reason": str(error) or repr(error)},
                )
            self._is_in_trouble = True
            await self._pause(self._backoff_s())
        except Exception:
            # Whatever it was: while nobody follows, records are on one node fewer.
            logger.exception("following broke, will retry", extra={"leader": self._leader_id})
            await self._pause(TROUBLE_SECONDS)
        finally:
            if self._connection is not None:
                self._connection.close()
            self._connection = None
            self._is_interrupted = False
            self._session.restart()

    async def _fetch_on_one_connection(self) -> None:
        """Connect and fetch until something goes wrong."""
        await self._wait_for_work()
        endpoint = self._owner.endpoint(self._leader_id)
        if endpoint is None:
            raise NotLeaderOrFollower(f"broker {self._leader_id} is not registered")
        async with asyncio.timeout(CONNECT_SECONDS_MAX):
            connection = await LeaderConnection.connect(*endpoint)
        self._connection = connection
        while True:
            await self._wait_for_work()
            request = self._next_request()
            if request is None:
                await self._pause(self._backoff_s())
                continue
            await connection.converse(request, self._on_answer, timeout_s=self._timeout_s)

    def _next_request(self, *, may_wait: bool = True) -> bytearray | None:
        """Return the next fetch, ``None`` where nothing can be asked for now.

        One that must not wait comes while another is under way.
        """
        self._changed.clear()
        limits = self._owner.limits()
        if limits is None:
            return None
        if may_wait:
            self._take_limits(limits)
        self._look()
        if not (may_wait or self._session.has_news):
            return None
        fetch = self._session.next_fetch()
        if fetch is None:
            return None
        self._correlation_id = (self._correlation_id + 1) % 2**31
        return encode_follower_fetch(
            self._correlation_id,
            limits,
            _named_by_topic(fetch),
            session_id=fetch.session_id,
            session_epoch=fetch.session_epoch,
            forgotten=_by_topic(fetch.forgotten),
            may_wait=may_wait and fetch.may_wait,
        )

    def _take_limits(self, limits: FollowerLimits) -> None:
        """Begin another session where something is to be said of every partition."""
        if limits.replica_epoch != self._replica_epoch:
            self._replica_epoch = limits.replica_epoch
            self._to_look_at.update(dict.fromkeys(self._partitions.values()))
            self._session.restart()
        if limits.partition_max_bytes != self._partition_max_bytes:
            self._partition_max_bytes = limits.partition_max_bytes
            self._session.restart()

    def _on_answer(self, frame: memoryview) -> bytearray | None:
        """Do what the answer asks for and return the next fetch.

        Called between other events of the loop, so everything that this node does with
        these partitions happens before or after it, never meanwhile.
        """
        try:
            error_code, session_id, fetched = parse_follower_fetch(frame)
        except PARSE_ERRORS as problem:
            raise NotLeaderOrFollower(f"the answer cannot be read: {problem!r}") from problem
        error = known_error(error_code)
        keys = [(partition.topic_id, partition.partition) for partition in fetched]
        if not self._session.on_answer(error, session_id, keys):
            self._begin_session_again(error)
            return self._next_request()
        if self._is_in_trouble:
            self._is_in_trouble = False
            logger.info("leader is followed again", extra={"leader": self._leader_id})
        for key, partition in zip(keys, fetched, strict=True):
            followed, fetch = self._partitions.get(key), self._session.told(key)
            if followed is not None and fetch is not None:
                self._take(followed, fetch, partition)
        assert self._connection is not None
        if self._connection.under_way_count:
            if not self._session.is_established:
                raise NotLeaderOrFollower("the leader has closed the fetch session")
            return None
        return self._next_request()

    def _begin_session_again(self, error: ErrorCode) -> None:
        """Raise unless the next fetch may go out on this connection at once."""
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
            extra={"leader": self._leader_id, "reason": reason},
        )

    def _timeout_s(self) -> float:
        config = self._owner.node_config()
        return (config.replica_fetch_wait_max_ms + config.replica_socket_timeout_ms) / 1000

    def _backoff_s(self) -> float:
        return self._owner.node_config().replica_fetch_backoff_ms / 1000

    async def _wait_for_work(self) -> None:
        while not self._partitions:
            self._changed.clear()
            await self._changed.wait()

    async def _pause(self, seconds: float) -> None:
        """Wait, but not when there is something new to follow."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._changed.wait()
        # It is new once: left set, it would never let the event loop do anything else.
        self._changed.clear()

    def _look(self) -> None:
        """Bring the session to what can be asked for now, where that may have changed."""
        now = self._loop.time()
        waits = self._waits
        while waits and waits[0][0] <= now:
            self._to_look_at[heappop(waits)[2]] = None
        if self._to_look_at:
            to_look_at, self._to_look_at = self._to_look_at, {}
            for followed in to_look_at:
                if self._partitions.get(followed.key) is followed:
                    self._look_at(followed, now)

    def _look_at(self, followed: _Followed, now: float) -> None:
        fetch = None
        if followed.task is None and followed.not_before <= now:
            log = followed.replica.opened_log
            if log is None or log.is_offline:
                self._put_off(followed, TROUBLE_SECONDS)
            elif followed.is_begun or not self._begins_elsewhere(followed):
                fetch = followed.follower.next_fetch(log)
        if fetch is None:
            self._session.forget(followed.key)
        else:
            self._session.want(followed.key, fetch)

    def _begins_elsewhere(self, followed: _Followed) -> bool:
        """Start to look for a better beginning where the log is empty and not in sync."""
        followed.is_begun = True
        log = followed.replica.log
        is_empty = log.log_end_offset == log.local_log_start_offset
        if not is_empty or self._broker_id in followed.follower.partition.isr:
            return False
        self._start(followed, self._owner.catch_up.begin(followed.replica, followed.follower))
        return True

    # -- answers

    def _take(self, followed: _Followed, fetch: ReplicaFetch, answer: FetchedPartition) -> None:
        """Do what one partition's answer asks for."""
        self._to_look_at[followed] = None
        try:
            self._act(followed, fetch, answer)
        except (TidelogError, OSError) as error:
            self._put_off(followed, TROUBLE_SECONDS)
            replica = followed.replica
            if not (isinstance(error, OSError | StorageError) and replica.note_failure(error)):
                logger.error(
                    "replica cannot follow, will retry",
                    extra={"partition": str(followed.replica.partition), "reason": str(error)},
                )

    def _act(self, followed: _Followed, fetch: ReplicaFetch, answer: FetchedPartition) -> None:
        replica, follower = followed.replica, followed.follower
        action = follower.on_answer(
            fetch,
            FetchAnswer(
                known_error(answer.error_code),
                answer.high_watermark,
                answer.log_start_offset,
                answer.diverging,
            ),
            replica.log,
        )
        match action:
            case Append():
                if answer.records is not None:
                    _append(replica, answer.records)
                replica.follow_leader(
                    high_watermark=action.high_watermark,
                    log_start_offset=action.log_start_offset,
                )
            case Truncate():
                logger.info(
                    "replica truncated",
                    extra={
                        "partition": str(replica.partition),
                        "from": replica.log.log_end_offset,
                        "to": action.offset,
                    },
                )
                replica.log.truncate_to(action.offset)
            case AskOffsets():
                self._start(followed, self._owner.catch_up.find_start(replica, follower, fetch))
            case Ignore(must_wait=True):
                self._put_off(followed, self._backoff_s())
            case _:
                pass

    def _start(self, followed: _Followed, work: Coroutine[Any, Any, None]) -> None:
        """Look for a new start; the partition is not fetched meanwhile."""
        task = self._loop.create_task(work)
        followed.task = task

        def on_done(done: asyncio.Task[None]) -> None:
            followed.task = None
            problem = None if done.cancelled() else done.exception()
            if problem is None:
                followed.not_before = 0.0
                self._to_look_at[followed] = None
                self._send_now()
                return
            followed.is_begun = False
            self._put_off(followed, self._backoff_s())
            logger.warning(
                "no new start found, will retry",
                extra={"partition": str(followed.replica.partition), "reason": str(problem)},
                exc_info=None if isinstance(problem, TidelogError | OSError) else problem,
            )

        task.add_done_callback(on_done)


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
        )
        topics.setdefault(topic_id, []).append(partition)
    return topics


def _by_topic(keys: list[PartitionKey]) -> dict[bytes, list[int]]:
    topics: dict[bytes, list[int]] = {}
    for topic_id, index in keys:
        topics.setdefault(topic_id, []).append(index)
    return topics


def _append(replica: Replica, records: memoryview) -> None:
    """Append what the leader has sent. Raises ``CorruptRecordBatch``, ``StorageError``."""
    log = replica.log
    try:
        replica.append_as_follower(records)
    except UnexpectedAppendOffset:
        # The leader's log may start in the middle of a batch; an empty log takes all of it.
        first = parse_header(records)
        end_offset = log.log_end_offset
        is_empty = end_offset == log.local_log_start_offset
        if not is_empty or not first.base_offset < end_offset < first.next_offset:
            raise
        log.truncate_fully_and_start_at(
            first.base_offset,
            log_start_offset=log.log_start_offset,
            leader_epochs=log.leader_epochs,
        )
        replica.append_as_follower(records)
