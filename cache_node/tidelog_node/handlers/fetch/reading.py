"""Reads partitions for a Fetch, within the limits of its size.

A follower reads to the log's end, and its fetch reports its position to the leader. A consumer
reads up to the high watermark or the last stable offset, from a follower up to the ones known
there. How old those may be is bounded by the node's lease. A diskless follower needs none, so it
refuses consumers once its leader has been silent for ``replica.lag.time.max.ms``. A leader sends a
consumer whose rack has an ISR member to that one.

Source: KIP-74 (size limits), KIP-320 (epochs), KIP-392 (closest replica), KIP-405 (tiers),
KIP-595 (divergence).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from tidelog_core.errors import (
    ErrorCode,
    NotLeaderOrFollower,
    OffsetOutOfRange,
    TidelogError,
    TopicAuthorizationFailed,
    UnknownTopicId,
)
from tidelog_core.log.unified_log import RemoteRead
from tidelog_core.log.values import LogRead
from tidelog_core.replication.follower_state import find_divergence
from tidelog_core.replication.leader.follower_progress import FollowerContact

from tidelog_node.authorization.access import Access
from tidelog_node.counters import NodeCounters
from tidelog_node.replicas.replica import Replica, require_epoch
from tidelog_node.replicas.replica_manager import ReplicaManager
from tidelog_node.replicas.role import ReplicaRole
from tidelog_node.requests.session import Session
from tidelog_node.wire import fetch
from tidelog_node.wire.fetch import FetchPartition, FetchRequest
from tidelog_node.wire.fetch_answer import FetchResult

if TYPE_CHECKING:
    from tidelog_node.audit.transfers import TransferRecorder

logger = logging.getLogger(__name__)

READ_COMMITTED = 1
CLOSEST_REPLICA_FROM = 11


class ClosestReplica(Protocol):
    """Finds replicas that are closer to a consumer than their leader."""

    def find(
        self, replica: Replica, rack: bytes, offset: int, client: Session | None
    ) -> int | None:
        """Return the broker to read ``offset`` from, ``None`` for this one."""


@dataclass(slots=True)
class PendingResult:
    """A partition's result that will be filled in later."""

    results: list[FetchResult]  # the list that the result belongs to
    index: int  # its place in the list
    topic: bytes  # its name or id
    wanted: FetchPartition
    read: RemoteRead
    replica: Replica

    def fill_in(self, found: LogRead | Exception | None, *, is_committed_only: bool) -> int:
        """Put the found records or the error into the result's place; return the error code.

        A cancelled read leaves the empty result: the client asks again.
        """
        if isinstance(found, OffsetOutOfRange | TopicAuthorizationFailed | UnknownTopicId):
            result = FetchResult(self.wanted.partition, found.code)
        elif isinstance(found, Exception):
            result = FetchResult(self.wanted.partition, ErrorCode.kafka_storage_error)
        elif found is None:
            return 0
        else:
            result = _result_of(found, self.wanted, is_committed_only=is_committed_only)
            if result.records is not None:
                self.replica.traffic.note_fetched_from_tier(
                    result.records.size_bytes, _offset_count(found, self.wanted)
                )
        self.results[self.index] = result
        return result.error_code


@dataclass(slots=True)
class Reading:
    """One pass over partitions of a request: its remaining limits, and its results."""

    request: FetchRequest
    has_ids: bool  # topics are named by id
    can_serve: bool  # this node may answer now
    is_new: bool  # the first pass: it notes a follower's position
    bytes_left: int
    contact: FollowerContact | None = None  # of the follower's session
    client: Session | None = None  # ``None`` for a follower
    topics: list[tuple[bytes, list[FetchResult]]] = field(default_factory=list)
    size_bytes: int = 0
    left_out_bytes: int = 0  # up to the limits of partitions that have more records
    # With the bytes of records, and their offsets for a consumer.
    found: list[tuple[Replica, int, int]] = field(default_factory=list)
    offset_count: int = 0  # of the records that were read last, for a consumer
    must_answer: bool = False  # an error or a divergence: answer at once
    has_more: bool = False  # nothing was found, and other partitions are left to read
    pending: list[PendingResult] = field(default_factory=list)

    @property
    def ready_bytes(self) -> int:
        """The bytes that count towards the least that the client waits for.

        A partition with more records than its limit counts with its limit, as in Kafka: it will
        never have more in one answer.
        """
        return self.size_bytes + self.left_out_bytes

    def note_left_out(self, read: LogRead, bound: int, bytes_max: int) -> None:
        """Count the bytes up to the limit if the partition has more records below ``bound``."""
        if read.slice is not None and read.end_offset < bound:
            self.left_out_bytes += max(0, bytes_max - read.slice.size_bytes)

    def is_pending(self, wanted: FetchPartition) -> bool:
        """Whether the last partition's result is filled in later and must keep its place."""
        return bool(self.pending) and self.pending[-1].wanted is wanted


class PartitionReader:
    """Reads partitions that this node leads, or follows if a consumer may read those."""

    def __init__(
        self,
        *,
        replicas: ReplicaManager,
        closest: ClosestReplica | None,
        access: Access | None,
        record: TransferRecorder | None,
        counters: NodeCounters,
        has_gateways: bool,
        silence_ms_max: Callable[[], float],
    ) -> None:
        """Without ``access`` every client may read. ``record`` is for the audit log.

        With ``has_gateways`` consumers may take a diskless partition's replica for its leader.
        A diskless follower serves until its leader has been silent for ``silence_ms_max``.
        """
        self._has_gateways = has_gateways
        self._silence_ms_max = silence_ms_max
        self.access = access
        self._record = record
        self._counters = counters
        self._replicas = replicas
        self._closest = closest

    def led(self, *, has_ids: bool) -> dict[bytes, dict[int, Replica]]:
        """Return the led replicas, by topic as a request names it."""
        return self._replicas.led_by_id if has_ids else self._replicas.led_by_name

    def find(
        self, name: bytes, partition: int, request: FetchRequest, version: int
    ) -> Replica | None:
        """Return this node's replica that the request may read.

        It leads, or a consumer may read it although another node leads.
        """
        replicas = self._replicas
        has_ids = version >= fetch.TOPIC_ID_FROM
        led_by = replicas.led_by_id if has_ids else replicas.led_by_name
        led = led_by.get(name)
        replica = None if led is None else led.get(partition)
        if replica is not None or request.replica_id >= 0 or version < CLOSEST_REPLICA_FROM:
            return replica
        followed_by = replicas.followed_by_id if has_ids else replicas.followed_by_name
        followed = followed_by.get(name)
        return None if followed is None else followed.get(partition)

    def read(
        self,
        reading: Reading,
        name: bytes,
        wanted: FetchPartition,
        replica: Replica | None,
        results: list[FetchResult],
    ) -> FetchResult:
        """Return a partition's result and count its bytes. The caller adds it to ``results``.

        ``replica`` is this node's replica, if it has one.
        """
        bytes_max = min(wanted.bytes_max, reading.bytes_left)
        try:
            if self.access is not None:
                self._require_reader(reading, name)
            if replica is None:
                leaders = self._replicas.leaders
                raise leaders.refusal(name, wanted.partition, is_id=reading.has_ids)
            if not (reading.can_serve or replica.is_diskless):
                raise NotLeaderOrFollower("this node has lost touch with the cluster")
            if reading.request.replica_id >= 0:
                result = self._read_for_follower(reading, replica, wanted, bytes_max)
            else:
                result = self._read_for_consumer(reading, name, replica, wanted, bytes_max, results)
        except TidelogError as error:
            reading.must_answer = True
            self._counters.note_error(fetch.API_KEY, error.code)
            result = FetchResult(wanted.partition, error.code)
        except OSError as problem:
            reading.must_answer = True
            logger.error(
                "records could not be read",
                extra={"partition": wanted.partition, "reason": str(problem)},
            )
            self._counters.note_error(fetch.API_KEY, ErrorCode.kafka_storage_error)
            result = FetchResult(wanted.partition, ErrorCode.kafka_storage_error)
        records = result.records
        if records is not None and replica is not None:
            reading.bytes_left -= records.size_bytes
            reading.size_bytes += records.size_bytes
            reading.found.append((replica, records.size_bytes, reading.offset_count))
        return result

    def _require_reader(self, reading: Reading, name: bytes) -> None:
        refusal = self.refusal(reading, name)
        if refusal is not None:
            raise refusal

    def refusal(self, reading: Reading, name: bytes) -> TidelogError | None:
        """Return the error for a client that must not read the topic now, else ``None``."""
        if reading.client is None or self.access is None:
            return None
        return self.access.read_refusal(reading.client, name, is_id=reading.has_ids)

    def _read_for_consumer(  # noqa: PLR0917
        self,
        reading: Reading,
        name: bytes,
        replica: Replica,
        wanted: FetchPartition,
        bytes_max: int,
        results: list[FetchResult],
    ) -> FetchResult:
        instead = self._without_records(reading, replica, wanted)
        if instead is not None:
            reading.must_answer = True
            return instead
        log = replica.log
        is_committed_only = reading.request.isolation_level == READ_COMMITTED
        bound = log.last_stable_offset if is_committed_only else log.high_watermark
        is_first = reading.size_bytes == 0 and not reading.pending
        must_wait = wanted.offset == bound or self._will_have(replica, wanted.offset)
        if must_wait or (bytes_max <= 0 and not is_first):
            return _nothing(replica, wanted, aborted=[] if is_committed_only else None)
        if self._record is not None and reading.client is not None:
            self._record.note(reading.client, name, is_id=reading.has_ids)
        read = replica.unified_log.read(
            wanted.offset,
            max_bytes=max(bytes_max, 0),
            up_to=bound,
            min_one_batch=is_first,
            include_aborted=is_committed_only,
        )
        if isinstance(read, RemoteRead):
            if read.found is None:
                reading.pending.append(
                    PendingResult(results, len(results), name, wanted, read, replica)
                )
                # The size is not known yet: count the most that it may be.
                reading.bytes_left -= read.max_bytes
                return _nothing(replica, wanted)
            reading.must_answer = True  # No append could add to it.
            read = read.found
            if read.slice is not None:
                replica.traffic.fetched_from_tier_bytes += read.slice.size_bytes
        reading.offset_count = _offset_count(read, wanted)
        reading.note_left_out(read, bound, bytes_max)
        return _result_of(read, wanted, is_committed_only=is_committed_only)

    def _without_records(
        self, reading: Reading, replica: Replica, wanted: FetchPartition
    ) -> FetchResult | None:
        """Return a closer replica or a divergence for the consumer, ``None`` if it may read here.

        Raises an error if this replica must not serve it.
        """
        request = reading.request
        if wanted.leader_epoch >= 0:
            require_epoch(replica, wanted.leader_epoch)
        if replica.role is not None:
            replica.require_readable()
            if replica.is_diskless and not replica.is_leader:
                self._require_heard(replica.role)
            if self._closest is not None and (request.rack or replica.is_diskless):
                closest = self._closest.find(replica, request.rack, wanted.offset, reading.client)
                if closest is not None:
                    return _nothing(replica, wanted)._replace(preferred_replica=closest)
        replica.log.check_online()  # also for consumers that only wait for more
        if wanted.last_fetched_epoch >= 0:
            diverging = _find_divergence(replica, wanted)
            if diverging is not None:
                return _nothing(replica, wanted)._replace(diverging=diverging)
        return None

    def _will_have(self, replica: Replica, offset: int) -> bool:
        """Whether the log lacks the offset now, and the consumer waits for it as for new records.

        An heir's log may still lack records before its start. And a leader that others ask as well
        may have said where the log ends while this replica is behind: an error would have the
        consumer look for another offset.
        """
        log = replica.log
        if log.lacks(offset):
            return offset >= log.log_start_offset
        is_ahead = self._has_gateways and offset > log.log_end_offset
        return is_ahead and replica.is_diskless and replica.is_follower

    def _require_heard(self, role: ReplicaRole) -> None:
        """Raise ``NotLeaderOrFollower`` if the high watermark here may be long out of date.

        A diskless replica serves without a lease of its node. If it is cut off from the leader, it
        would serve its old high watermark forever, as if no records had come since.
        """
        follower = role.follower
        heard_ms = 0.0 if follower is None else follower.heard_ms
        if self._replicas.clock_ms() - heard_ms > self._silence_ms_max():
            raise NotLeaderOrFollower("the leader has not been heard of for too long")

    def _read_for_follower(
        self, reading: Reading, replica: Replica, wanted: FetchPartition, bytes_max: int
    ) -> FetchResult:
        """Read up to the log's end; note the follower's position if the fetch is new.

        Followers of a diskless partition read the leader's chain in the bucket: the answer has no
        records, and its high watermark says up to where they may. They want 0 bytes, which tells
        the leader that they know it.
        """
        request = reading.request
        role = replica.role
        if role is None or not replica.is_leader:
            raise NotLeaderOrFollower(f"broker {request.replica_id} holds no replica")
        role.require_leader()
        require_epoch(replica, wanted.leader_epoch)
        log = replica.log
        diverging = None
        if not replica.is_diskless:  # Else it has nothing that is not committed.
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
        if reading.is_new:
            role.on_fetch(
                log,
                request.replica_id,
                wanted.offset,
                replica_epoch=request.replica_epoch,
                log_start_offset=wanted.log_start_offset,
                contact=reading.contact,
                is_fed=wanted.bytes_max == 0,
            )
        # After the position is noted: a follower that has all of a broken log may have to lead with
        # it. Before the rest: a fetch at the log's end reads nothing, and would not notice.
        log.check_online()
        end_offset = log.log_end_offset
        is_first = reading.size_bytes == 0
        if replica.is_diskless or wanted.offset == end_offset or (bytes_max <= 0 and not is_first):
            return _nothing(replica, wanted)
        read = log.read(
            wanted.offset,
            max_bytes=max(bytes_max, 0),
            up_to=end_offset,
            min_one_batch=is_first,
        )
        return _result_of(read, wanted, is_committed_only=False)


def _nothing(
    replica: Replica, wanted: FetchPartition, *, aborted: list[tuple[int, int]] | None = None
) -> FetchResult:
    """Return a result without records."""
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


def _offset_count(read: LogRead, wanted: FetchPartition) -> int:
    """Return the number of offsets that the records have, from the wanted one on."""
    start_offset = max(wanted.offset, read.start_offset)
    count = read.end_offset - start_offset
    return max(0, count)


def _aborted_of(read: LogRead) -> list[tuple[int, int]]:
    return [(aborted.producer_id, aborted.first_offset) for aborted in read.aborted_transactions]


def _find_divergence(replica: Replica, wanted: FetchPartition) -> tuple[int, int] | None:
    """Return the epoch and offset at which the reader's log diverges, if it does.

    Source: Kafka's ``Partition.readRecords``; KIP-595.
    """
    epoch, end_offset = replica.unified_log.offset_for_leader_epoch(wanted.last_fetched_epoch)
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
