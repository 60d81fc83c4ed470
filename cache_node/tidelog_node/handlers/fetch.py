"""Fetch: read what there is, wait for what is missing, never poll.

A request that finds enough is answered from the call itself. One that does not becomes
a long poll: it is registered with the partitions it reads, counts the bytes that are
appended to them, and reads again when there are enough or its time is up. Offsets that
this node has evicted are read through the tier, all of a request's at once, in a task
of their own, so that the loop serves everyone else meanwhile. Logs that nobody has used since
the node has started are opened on another thread first.

Followers fetch here too: they read to the log's end, and each fetch tells the leader what
its sender holds, which moves the high watermark and releases acks. Consumers read up to the
high watermark, from a follower up to the one that it knows of; a leader sends a consumer
whose rack has a replica in sync there.

Fetch sessions are declined: the session id is always 0, which tells clients to send
every partition with every request (what Kafka does when its session cache is full).
Source: KIP-74 (size limits), KIP-227 (sessions), KIP-320 (epochs), KIP-392 (closest
replica), KIP-405 (tiers), KIP-595 (divergence).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from tidelog_core.config import NodeConfig
from tidelog_core.errors import (
    ErrorCode,
    NotLeaderOrFollower,
    OffsetOutOfRange,
    TidelogError,
)
from tidelog_core.log.values import LogRead, OffsetNotLocal
from tidelog_core.replication.follower_state import find_divergence

from tidelog_node.dispatch import HotRoute
from tidelog_node.owed_reply import OwedReply, Reply
from tidelog_node.replicas import Replica, ReplicaManager, require_epoch
from tidelog_node.tiered_reads import TieredRead, TierReader, read_all
from tidelog_node.wire import fetch
from tidelog_node.wire.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResult,
    encode_fetch,
    parse_fetch,
)
from tidelog_node.wire.produce import Endpoint

logger = logging.getLogger(__name__)

READ_COMMITTED = 1
LEADERS_FROM = 16
CLOSEST_REPLICA_FROM = 11
MAX_WAIT_MS_MAX = 2**31 - 1
_NONE: Mapping[int, Replica] = {}


class ClosestReplica(Protocol):
    """Knows of replicas that are closer to a consumer than their leader."""

    def find(self, replica: Replica, rack: bytes, offset: int) -> int | None:
        """Return the broker to read ``offset`` from instead of here, ``None`` for here."""


@dataclass(slots=True)
class _TierRead:
    """A partition of a request that must be read from the tier."""

    results: list[FetchResult]  # where its result goes
    index: int  # and at which place
    replica: Replica
    wanted: FetchPartition
    bytes_max: int
    is_first: bool  # gets its first batch whole, whatever the limits say


@dataclass(slots=True)
class _Reading:
    """What one pass over a request's partitions found."""

    topics: list[tuple[bytes, list[FetchResult]]] = field(default_factory=list)
    size_bytes: int = 0
    must_answer: bool = False  # an error, or a divergence: the client must hear of it now
    tier_reads: list[_TierRead] = field(default_factory=list)


class FetchHandler:
    """Serves Fetch on the partitions that this node leads."""

    def __init__(
        self,
        *,
        replicas: ReplicaManager,
        node_config: Callable[[], NodeConfig],
        tier: TierReader | None = None,
        can_serve: Callable[[], bool] = lambda: True,
        closest: ClosestReplica | None = None,
    ) -> None:
        """``can_serve`` says whether this node may answer at this moment."""
        self._can_serve = can_serve
        self._closest = closest
        self._loop = asyncio.get_running_loop()
        self._replicas = replicas
        self._node_config = node_config
        self._tier = tier
        self._polls: set[_LongPoll] = set()
        self._tasks: set[asyncio.Task[Reply]] = set()

    def hot_route(self) -> HotRoute:
        """Return the route."""
        return HotRoute(
            api_key=fetch.API_KEY,
            min_version=fetch.VERSION_MIN,
            max_version=fetch.VERSION_MAX,
            flexible_from=fetch.FLEXIBLE_FROM,
            parse=parse_fetch,
            handle=self.handle,
            advertised_min_version=fetch.VERSION_MIN,
            names_replica=True,
        )

    async def close(self) -> None:
        """Answer every long poll with what there is; give up the reads from the tier."""
        for poll in tuple(self._polls):
            poll.expire()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def handle(
        self, request: FetchRequest, version: int, correlation_id: int
    ) -> Reply | OwedReply | asyncio.Future[Reply]:
        """Return the answer, or what will have it."""
        if request.session_epoch > 0:
            return encode_fetch(
                version, correlation_id, (), error_code=ErrorCode.fetch_session_id_not_found
            )
        unopened = self._unopened(request, version)
        if unopened:
            return self._start(self._answer_opened(unopened, request, version, correlation_id))
        return self._answer(request, version, correlation_id)

    def _unopened(self, request: FetchRequest, version: int) -> list[Replica]:
        """Return the replicas that a consumer asks for and whose logs are not open."""
        if request.replica_id >= 0:
            return []  # What has other replicas is open.
        has_ids = version >= fetch.TOPIC_ID_FROM
        led_by = self._replicas.led_by_id if has_ids else self._replicas.led_by_name
        return [
            replica
            for name, partitions in request.topics
            if (led := led_by.get(name)) is not None
            for wanted in partitions
            if (replica := led.get(wanted.partition)) is not None and replica.opened_log is None
        ]

    async def _answer_opened(
        self, unopened: list[Replica], request: FetchRequest, version: int, correlation_id: int
    ) -> Reply:
        """Open logs on another thread, since it takes a dozen small reads each; then answer."""
        await self._replicas.open_logs(unopened)
        answer = self._answer(request, version, correlation_id)
        return await answer if isinstance(answer, OwedReply | asyncio.Future) else answer

    def _start(self, work: Coroutine[Any, Any, Reply]) -> asyncio.Task[Reply]:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _answer(
        self, request: FetchRequest, version: int, correlation_id: int
    ) -> Reply | OwedReply | asyncio.Future[Reply]:
        reading = self.read(request, version, is_new=True)
        if reading.tier_reads:
            return self._start(self._read_tier(reading, request, version, correlation_id))
        if (
            reading.size_bytes >= request.min_bytes
            or request.max_wait_ms <= 0
            or reading.must_answer
            or not reading.topics
        ):
            return self.encode(reading, version, correlation_id)
        poll = _LongPoll(self, request, version, correlation_id, reading.size_bytes)
        self._polls.add(poll)
        return poll

    def read(self, request: FetchRequest, version: int, *, is_new: bool = False) -> _Reading:
        """Read every partition of the request, within its limits, from the local logs.

        ``is_new`` is the first look: a follower's fetch is taken note of then.
        """
        reading = _Reading()
        has_ids = version >= fetch.TOPIC_ID_FROM
        led_by = self._replicas.led_by_id if has_ids else self._replicas.led_by_name
        can_serve = self._can_serve()
        is_follower = request.replica_id >= 0
        bytes_left = min(request.max_bytes, self._node_config().fetch_max_bytes)
        for name, partitions in request.topics:
            led = led_by.get(name, _NONE)
            results: list[FetchResult] = []
            for wanted in partitions:
                bytes_max = min(wanted.bytes_max, bytes_left)
                replica = led.get(wanted.partition)
                try:
                    if replica is None:
                        replica = self._followed(name, wanted.partition, request, version)
                    if not can_serve:
                        raise NotLeaderOrFollower("this node has lost touch with the cluster")
                    if is_follower:
                        result = self._read_for_follower(
                            replica, wanted, request, (bytes_max, is_new), reading
                        )
                    else:
                        result = self._read_partition(replica, wanted, request, bytes_max, reading)
                except OffsetNotLocal as missing:
                    assert replica is not None  # It was its log that said so.
                    is_first = reading.size_bytes == 0 and not reading.tier_reads
                    tier_read = _TierRead(
                        results, len(results), replica, wanted, max(bytes_max, 0), is_first
                    )
                    result = self._not_local(tier_read, request, reading, missing)
                    if reading.tier_reads and reading.tier_reads[-1] is tier_read:
                        # What the tier will find is not known yet: count what it may be.
                        bytes_left -= bytes_max
                except TidelogError as error:
                    reading.must_answer = True
                    result = FetchResult(wanted.partition, error.code)
                except OSError as problem:
                    reading.must_answer = True
                    logger.error(
                        "read failed",
                        extra={"partition": wanted.partition, "reason": str(problem)},
                    )
                    result = FetchResult(wanted.partition, ErrorCode.kafka_storage_error)
                records = result.records
                if records is not None:
                    bytes_left -= records.size_bytes
                    reading.size_bytes += records.size_bytes
                results.append(result)
            reading.topics.append((name, results))
        return reading

    def _not_local(
        self, read: _TierRead, request: FetchRequest, reading: _Reading, error: OffsetNotLocal
    ) -> FetchResult:
        """Return what is read on from a file that is open, or an empty result.

        The latter is noted as one that the tier has to fill in, if there is a tier.
        """
        if self._tier is None:
            reading.must_answer = True
            logger.error("no tier to read from", extra={"reason": str(error)})
            return FetchResult(read.wanted.partition, OffsetOutOfRange.code)
        is_committed_only = request.isolation_level == READ_COMMITTED
        found = None
        with contextlib.suppress(TidelogError):  # It comes again of reading in full.
            found = self._tier.read_open(
                read.replica.topic_id,
                read.replica.partition,
                read.wanted.offset,
                max_bytes=read.bytes_max,
                include_aborted=is_committed_only,
                min_one_batch=read.is_first,
            )
        if found is None:
            reading.tier_reads.append(read)
            return _nothing(read.replica, read.wanted)
        reading.must_answer = True  # Nothing will be appended that could make it more.
        return _result_of(found, read.wanted, is_committed_only=is_committed_only)

    def _read_partition(
        self,
        replica: Replica,
        wanted: FetchPartition,
        request: FetchRequest,
        bytes_max: int,
        reading: _Reading,
    ) -> FetchResult:
        if wanted.leader_epoch >= 0:
            require_epoch(replica, wanted.leader_epoch)
        if replica.role is not None:
            replica.require_readable()
            if request.rack and self._closest is not None:
                preferred = self._closest.find(replica, request.rack, wanted.offset)
                if preferred is not None:
                    reading.must_answer = True
                    return _nothing(replica, wanted)._replace(preferred_replica=preferred)
        log = replica.log
        is_committed_only = request.isolation_level == READ_COMMITTED
        log.check_online()  # also for those who only wait for more
        high_watermark = log.high_watermark
        bound = log.last_stable_offset if is_committed_only else high_watermark
        if wanted.last_fetched_epoch >= 0:
            diverging = _find_divergence(replica, wanted)
            if diverging is not None:
                reading.must_answer = True
                return _nothing(replica, wanted)._replace(diverging=diverging)
        is_first = reading.size_bytes == 0 and not reading.tier_reads
        if wanted.offset == bound or (bytes_max <= 0 and not is_first):
            return _nothing(replica, wanted, [] if is_committed_only else None)
        read = log.read(
            wanted.offset,
            max_bytes=max(bytes_max, 0),
            up_to=bound,
            min_one_batch=is_first,
            include_aborted=is_committed_only,
        )
        return _result_of(read, wanted, is_committed_only=is_committed_only)

    def _read_for_follower(
        self,
        replica: Replica,
        wanted: FetchPartition,
        request: FetchRequest,
        limits: tuple[int, bool],
        reading: _Reading,
    ) -> FetchResult:
        """Read up to the log's end; take note of what the follower has if this is a new fetch.

        ``limits`` are the bytes at most and whether the fetch is new.
        """
        bytes_max, is_new = limits
        role = replica.role
        if role is None or not replica.is_leader:
            raise NotLeaderOrFollower(f"broker {request.replica_id} holds no replica")
        role.require_leader()
        require_epoch(replica, wanted.leader_epoch)
        log = replica.log
        diverging = find_divergence(
            log, fetch_offset=wanted.offset, last_fetched_epoch=wanted.last_fetched_epoch
        )
        if diverging is not None:
            reading.must_answer = True
            if diverging[0] >= 0:
                return _nothing(replica, wanted)._replace(diverging=diverging)
            is_tiered = log.log_start_offset <= wanted.offset < log.local_log_start_offset
            code = OffsetOutOfRange.code
            if is_tiered:
                code = ErrorCode.offset_moved_to_tiered_storage
            return FetchResult(wanted.partition, code)
        if is_new:
            role.on_fetch(
                log,
                request.replica_id,
                wanted.offset,
                replica_epoch=request.replica_epoch,
                log_start_offset=wanted.log_start_offset,
            )
        end_offset = log.log_end_offset
        is_first = reading.size_bytes == 0
        if wanted.offset == end_offset or (bytes_max <= 0 and not is_first):
            return _nothing(replica, wanted)
        read = log.read(
            wanted.offset,
            max_bytes=max(bytes_max, 0),
            up_to=end_offset,
            min_one_batch=is_first,
        )
        return _result_of(read, wanted, is_committed_only=False)

    def _followed(
        self, name: bytes, partition: int, request: FetchRequest, version: int
    ) -> Replica:
        """Return the replica that a consumer may read although another node leads.

        Raises what says why there is none.
        """
        has_ids = version >= fetch.TOPIC_ID_FROM
        if request.replica_id < 0 and version >= CLOSEST_REPLICA_FROM:
            replicas = self._replicas
            followed_by = replicas.followed_by_id if has_ids else replicas.followed_by_name
            replica = followed_by.get(name, _NONE).get(partition)
            if replica is not None:
                return replica
        raise self._replicas.leaders.refusal(name, partition, is_id=has_ids)

    def encode(self, reading: _Reading, version: int, correlation_id: int) -> Reply:
        """Return the response, with the leaders of the partitions that others lead."""
        if not reading.must_answer or version < LEADERS_FROM:
            return encode_fetch(version, correlation_id, reading.topics)
        leaders = self._replicas.leaders
        endpoints: dict[int, Endpoint] = {}
        topics = []
        for name, results in reading.topics:
            found = []
            for result in results:
                leader = None
                if result.error_code in _LEADER_ERRORS:
                    leader = leaders.find(name, result.partition, is_id=True)
                if leader is None:
                    found.append(result)
                    continue
                if leader.endpoint is not None:
                    endpoints[leader.leader_id] = leader.endpoint
                found.append(
                    result._replace(leader_id=leader.leader_id, leader_epoch=leader.leader_epoch)
                )
            topics.append((name, found))
        return encode_fetch(version, correlation_id, topics, endpoints=list(endpoints.values()))

    def forget(self, poll: _LongPoll) -> None:
        """Note that a long poll is over."""
        self._polls.discard(poll)

    def replica_of(self, topic: bytes, partition: int, version: int) -> Replica | None:
        """Return the replica that this node leads or follows, if it does."""
        replicas = self._replicas
        if version >= fetch.TOPIC_ID_FROM:
            led_by, followed_by = replicas.led_by_id, replicas.followed_by_id
        else:
            led_by, followed_by = replicas.led_by_name, replicas.followed_by_name
        found = led_by.get(topic, _NONE).get(partition)
        return found or followed_by.get(topic, _NONE).get(partition)

    async def _read_tier(
        self, reading: _Reading, request: FetchRequest, version: int, correlation_id: int
    ) -> Reply:
        """Fill in what the tier holds, all partitions at once, and answer."""
        assert self._tier is not None
        is_committed_only = request.isolation_level == READ_COMMITTED
        reads = [
            TieredRead(
                read.replica.topic_id,
                read.replica.partition,
                read.wanted.offset,
                max_bytes=read.bytes_max,
                include_aborted=is_committed_only,
                min_one_batch=read.is_first,
            )
            for read in reading.tier_reads
        ]
        found = await read_all(self._tier, reads)
        for read, records in zip(reading.tier_reads, found, strict=True):
            # A read that was given up leaves the empty result: the client asks again.
            if records is not None:
                read.results[read.index] = _tiered(read, records, is_committed_only)
        return self.encode(reading, version, correlation_id)


class _LongPoll(OwedReply):
    """A fetch that waits for bytes or for its time to be up."""

    __slots__ = (
        "_correlation_id",
        "_handler",
        "_is_due",
        "_is_over",
        "_loop",
        "_missing_bytes",
        "_request",
        "_timer",
        "_version",
        "_waiters",
    )

    def __init__(
        self,
        handler: FetchHandler,
        request: FetchRequest,
        version: int,
        correlation_id: int,
        size_bytes: int,
    ) -> None:
        super().__init__()
        self._loop = asyncio.get_running_loop()
        self._handler = handler
        self._request = request
        self._version = version
        self._correlation_id = correlation_id
        self._missing_bytes = request.min_bytes - size_bytes
        self._is_due = False  # a look at the logs is already on its way
        self._is_over = False  # answered, or nobody waits any more
        replicas = [
            replica
            for topic, partitions in request.topics
            for wanted in partitions
            if (replica := handler.replica_of(topic, wanted.partition, version)) is not None
        ]
        is_follower = request.replica_id >= 0
        self._waiters = [
            replica.follower_waiters if is_follower else replica.waiters for replica in replicas
        ]
        for waiters in self._waiters:
            waiters.add(self)
        self._timer = self._loop.call_later(request.max_wait_ms / 1000, self.expire)

    def on_append(self, size_bytes: int) -> None:
        """Note that so many more bytes can be read."""
        self._missing_bytes -= size_bytes
        if self._missing_bytes <= 0 and not self._is_due:
            # Later in this turn of the loop, so that one look finds all of a burst.
            self._is_due = True
            self._loop.call_soon(self._look, False)

    def expire(self) -> None:
        """Answer with what there is: the client's time is up, or the node leaves."""
        self._look(True)

    def _look(self, is_last: bool) -> None:
        self._is_due = False
        if self._is_over:
            return
        reading = self._handler.read(self._request, self._version)
        missing_bytes = self._request.min_bytes - reading.size_bytes
        if missing_bytes > 0 and not (is_last or reading.must_answer or reading.tier_reads):
            self._missing_bytes = missing_bytes
            return
        # What was evicted while we waited comes back empty here, and is asked for again.
        reply = self._handler.encode(reading, self._version, self._correlation_id)
        self.give_up()
        self.settle(reply)

    def give_up(self) -> None:
        """Wait no more."""
        self._is_over = True
        self._timer.cancel()
        for waiters in self._waiters:
            waiters.discard(self)
        self._handler.forget(self)


_LEADER_ERRORS = (ErrorCode.not_leader_or_follower, ErrorCode.fenced_leader_epoch)


def _nothing(
    replica: Replica, wanted: FetchPartition, aborted: list[tuple[int, int]] | None = None
) -> FetchResult:
    log = replica.log
    return FetchResult(
        wanted.partition,
        0,
        log.high_watermark,
        log.last_stable_offset,
        log.log_start_offset,
        None,
        aborted,
    )


def _result_of(read: LogRead, wanted: FetchPartition, *, is_committed_only: bool) -> FetchResult:
    return FetchResult(
        wanted.partition,
        0,
        read.high_watermark,
        read.last_stable_offset,
        read.log_start_offset,
        read.slice,
        _aborted_of(read) if is_committed_only else None,
    )


def _tiered(read: _TierRead, found: LogRead | Exception, is_committed_only: bool) -> FetchResult:
    """Return what the tier had for a partition, or that it failed."""
    if isinstance(found, OffsetOutOfRange):
        return FetchResult(read.wanted.partition, OffsetOutOfRange.code)
    if isinstance(found, Exception):
        return FetchResult(read.wanted.partition, ErrorCode.kafka_storage_error)
    return _nothing(read.replica, read.wanted)._replace(
        records=found.slice,
        aborted=_aborted_of(found) if is_committed_only else None,
    )


def _aborted_of(read: LogRead) -> list[tuple[int, int]]:
    return [(aborted.producer_id, aborted.first_offset) for aborted in read.aborted_transactions]


def _find_divergence(replica: Replica, wanted: FetchPartition) -> tuple[int, int] | None:
    """Return the epoch and offset from which the reader's log is not ours, if it is so.

    Source: Kafka's ``Partition.readRecords``; KIP-595.
    """
    epoch, end_offset = replica.log.offset_for_leader_epoch(wanted.last_fetched_epoch)
    if epoch < 0 or end_offset < 0:
        raise OffsetOutOfRange(
            replica.partition,
            wanted.offset,
            start=replica.log.log_start_offset,
            end=replica.log.log_end_offset,
        )
    if epoch < wanted.last_fetched_epoch or end_offset < wanted.offset:
        return epoch, end_offset
    return None
