"""Fetches what this node follows: one task and one connection for each leader.

Every fetch carries all partitions that this leader leads and that may be asked for now;
the leader holds it until there is something. What is added while a fetch is held would
wait with it, so the fetch is given up and sent anew.

``FollowerState`` says what to ask for and what an answer means; this sends, appends and
waits. A partition in trouble waits by itself and keeps nobody else from going on.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from tidelog_core.config import NodeConfig
from tidelog_core.errors import NotLeaderOrFollower, StorageError, TidelogError
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
    error_name,
    known_error,
    parse_follower_fetch,
)
from tidelog_node.replicas import Replica, ReplicaManager
from tidelog_node.wire.primitives import PARSE_ERRORS

logger = logging.getLogger(__name__)

TROUBLE_SECONDS = 5.0  # before a partition with a broken log or answer is tried again
CONNECT_SECONDS_MAX = 5.0

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
        for replica in self._replicas.replicas():
            self._assign(replica)

    async def close(self) -> None:
        """Follow nobody any more."""
        self._replicas.on_following = lambda _: None
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


@dataclass(slots=True, eq=False)
class _Followed:
    """A partition of one fetcher, for as long as its leader epoch lasts."""

    replica: Replica
    follower: FollowerState
    key: PartitionKey
    not_before: float = 0.0  # the loop's time
    is_begun: bool = False  # the first fetch may go out
    task: asyncio.Task[None] | None = None  # looks for a new start

    @property
    def is_current(self) -> bool:
        role = self.replica.role
        return role is not None and role.follower is self.follower


class LeaderFetcher:
    """Fetches from one leader."""

    def __init__(self, leader_id: int, owner: FollowerFetchers, broker_id: int) -> None:
        self._leader_id = leader_id
        self._owner = owner
        self._broker_id = broker_id
        self._loop = asyncio.get_running_loop()
        self._partitions: dict[PartitionKey, _Followed] = {}
        self._asked: dict[PartitionKey, tuple[_Followed, ReplicaFetch]] = {}  # under way
        self._changed = asyncio.Event()
        self._connection: LeaderConnection | None = None
        self._is_interrupted = False
        self._correlation_id = 0
        self._is_in_trouble = False
        self._task = self._loop.create_task(self._run(), name=f"follow broker {leader_id}")

    def add(self, replica: Replica, follower: FollowerState) -> None:
        """Follow the partition in this leader epoch."""
        key = (replica.topic_id.bytes, replica.partition.partition)
        followed = _Followed(replica, follower, key)
        self._partitions[followed.key] = followed
        self._send_anew()

    async def close(self) -> None:
        """Stop."""
        tasks = [followed.task for followed in self._partitions.values() if followed.task]
        for task in (self._task, *tasks):
            task.cancel()
        for task in (self._task, *tasks):
            with suppress(asyncio.CancelledError):
                await task

    def _send_anew(self) -> None:
        """Make what has just become possible part of the fetch that is under way."""
        self._changed.set()
        if self._connection is not None and not self._is_interrupted:
            self._is_interrupted = True
            self._connection.close()

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
            await self._pause(self._owner.node_config().replica_fetch_backoff_ms / 1000)
        except Exception:
            # Whatever it was: while nobody follows, records are on one node fewer.
            logger.exception("following broke, will retry", extra={"leader": self._leader_id})
            await self._pause(TROUBLE_SECONDS)
        finally:
            if self._connection is not None:
                self._connection.close()
            self._connection = None
            self._is_interrupted = False

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
                await self._pause(self._owner.node_config().replica_fetch_backoff_ms / 1000)
                continue
            await connection.converse(request, self._on_answer, timeout_s=self._timeout_s)

    def _next_request(self) -> bytearray | None:
        """Return the next fetch, ``None`` where nothing can be asked for now."""
        self._changed.clear()
        limits = self._owner.limits()
        self._asked = self._next_fetches() if limits is not None else {}
        if limits is None or not self._asked:
            return None
        self._correlation_id = (self._correlation_id + 1) % 2**31
        return encode_follower_fetch(self._correlation_id, limits, _by_topic(self._asked))

    def _on_answer(self, frame: memoryview) -> bytearray | None:
        """Do what the answer asks for and return the next fetch.

        Called between other events of the loop, so everything that this node does with
        these partitions happens before or after it, never meanwhile.
        """
        try:
            error_code, fetched = parse_follower_fetch(frame)
        except PARSE_ERRORS as error:
            raise NotLeaderOrFollower(f"the answer cannot be read: {error!r}") from error
        if error_code:
            raise NotLeaderOrFollower(f"the leader answers {error_name(error_code)}")
        if self._is_in_trouble:
            self._is_in_trouble = False
            logger.info("leader is followed again", extra={"leader": self._leader_id})
        for partition in fetched:
            wanted = self._asked.get((partition.topic_id, partition.partition))
            if wanted is not None:
                self._take(*wanted, partition)
        return self._next_request()

    def _timeout_s(self) -> float:
        config = self._owner.node_config()
        return (config.replica_fetch_wait_max_ms + config.replica_socket_timeout_ms) / 1000

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

    def _next_fetches(self) -> dict[PartitionKey, tuple[_Followed, ReplicaFetch]]:
        """Return what to ask for now; forget what this leader does not lead any more."""
        now = self._loop.time()
        asked: dict[PartitionKey, tuple[_Followed, ReplicaFetch]] = {}
        gone = []
        for key, followed in self._partitions.items():
            if not followed.is_current:
                gone.append(key)
                continue
            if followed.task is not None or followed.not_before > now:
                continue
            log = followed.replica.opened_log
            if log is None or log.is_offline:
                followed.not_before = now + TROUBLE_SECONDS
                continue
            if not followed.is_begun and self._begins_elsewhere(followed):
                continue
            fetch = followed.follower.next_fetch(log)
            if fetch is not None:
                asked[key] = (followed, fetch)
        for key in gone:
            del self._partitions[key]
        return asked

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
        if not followed.is_current:
            return
        try:
            self._act(followed, fetch, answer)
        except (TidelogError, OSError) as error:
            followed.not_before = self._loop.time() + TROUBLE_SECONDS
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
                    # To the end, so that large answers come to everyone in turn.
                    self._partitions[followed.key] = self._partitions.pop(followed.key)
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
                backoff_s = self._owner.node_config().replica_fetch_backoff_ms / 1000
                followed.not_before = self._loop.time() + backoff_s
            case _:
                pass

    def _start(self, followed: _Followed, work: Coroutine[Any, Any, None]) -> None:
        """Look for a new start; the partition is not fetched meanwhile."""
        task = self._loop.create_task(work)
        followed.task = task

        def on_done(done: asyncio.Task[None]) -> None:
            followed.task = None
            followed.not_before = self._loop.time() + (
                self._owner.node_config().replica_fetch_backoff_ms / 1000
            )
            problem = None if done.cancelled() else done.exception()
            if problem is None:
                followed.not_before = 0.0
                self._send_anew()
                return
            followed.is_begun = False
            logger.warning(
                "no new start found, will retry",
                extra={"partition": str(followed.replica.partition), "reason": str(problem)},
                exc_info=None if isinstance(problem, TidelogError | OSError) else problem,
            )

        task.add_done_callback(on_done)


def _by_topic(
    asked: dict[PartitionKey, tuple[_Followed, ReplicaFetch]],
) -> list[tuple[bytes, list[WantedPartition]]]:
    topics: dict[bytes, list[WantedPartition]] = {}
    for (topic_id, index), (_, fetch) in asked.items():
        wanted = WantedPartition(
            index,
            fetch.leader_epoch,
            fetch.offset,
            fetch.last_fetched_epoch,
            fetch.log_start_offset,
        )
        topics.setdefault(topic_id, []).append(wanted)
    return list(topics.items())


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
