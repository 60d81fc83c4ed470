"""Selects the records for a member of a share group.

Records of a partition are read as by Fetch, from the share partition's next fetch offset on: from
the local log, else from the tier. A request first reads all partitions of its session, and acquires
only when there is enough for an answer, or its time is up: a waiting request keeps no records from
others. Read and acquisition happen in one turn of the event loop, except for a read from the tier,
during which the share partition is reserved for the request.

A member without records to read waits for new ones, and for records that become available again.
Source: KIP-932; ``DelayedShareFetch`` of Kafka.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from tidelog_core.config import NodeConfig
from tidelog_core.errors import (
    ErrorCode,
    OffsetOutOfRange,
    TidelogError,
    UnknownTopicId,
    UnknownTopicOrPartition,
)
from tidelog_core.log.unified_log import RemoteRead
from tidelog_core.log.values import LogRead

from tidelog_node.groups.share.batch_scan import scan_batches, slice_of
from tidelog_node.groups.share.partition import SharePartition
from tidelog_node.groups.share.service import ShareService
from tidelog_node.groups.share.sessions import ShareSession
from tidelog_node.groups.share.state import AcquireLimits
from tidelog_node.replicas.replica import Replica
from tidelog_node.tier.remote_reads import wait_for_all
from tidelog_node.wire.share_fetch import (
    RECORD_LIMIT,
    PartitionKey,
    ShareFetchRequest,
    ShareFetchResult,
)

logger = logging.getLogger(__name__)

READ_COMMITTED = "read_committed"
# The errors of a partition of ShareFetch that clients know; KafkaShareConsumer fails on others.
# Source: ``ShareFetchCollector`` of Kafka.
_KNOWN_ERRORS = frozenset(
    {
        ErrorCode.not_leader_or_follower,
        ErrorCode.replica_not_available,
        ErrorCode.kafka_storage_error,
        ErrorCode.fenced_leader_epoch,
        ErrorCode.offset_not_available,
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.unknown_topic_id,
        ErrorCode.inconsistent_topic_id,
        ErrorCode.unknown_leader_epoch,
        ErrorCode.corrupt_message,
        ErrorCode.topic_authorization_failed,
    }
)


RefusalOf = Callable[[PartitionKey], TidelogError | None]
"""Returns the error for a client that must not read the partition's topic now, else ``None``."""


class _Found(NamedTuple):
    """Records that may be acquired."""

    share: SharePartition
    offset: int  # where the read began
    read: LogRead


class _PendingRead(NamedTuple):
    """Records to be read from the tier."""

    share: SharePartition
    read: RemoteRead


@dataclass(slots=True)
class _Pass:
    """The results of one pass over a session's partitions."""

    results: dict[PartitionKey, ShareFetchResult] = field(default_factory=dict)  # errors only
    found: dict[PartitionKey, _Found] = field(default_factory=dict)
    pending: dict[PartitionKey, _PendingRead] = field(default_factory=dict)
    size_bytes: int = 0

    @property
    def is_first(self) -> bool:
        return not self.found and not self.pending


class ShareDelivery:
    """Finds records for the members of share groups."""

    def __init__(self, *, service: ShareService, node_config: Callable[[], NodeConfig]) -> None:
        self._service = service
        self._node_config = node_config
        self._loop = asyncio.get_running_loop()
        self._waits: set[_Wait] = set()
        self._is_closing = False

    def close(self) -> None:
        """Answer all waiting requests with the records found so far, and let none wait again."""
        self._is_closing = True
        for wait in tuple(self._waits):
            wait.wake()

    async def deliver(
        self, session: ShareSession, request: ShareFetchRequest, refusal_of: RefusalOf
    ) -> dict[PartitionKey, ShareFetchResult]:
        """Return records for the member, and errors; waits for the first of either.

        ``refusal_of`` is asked in each pass, and again when records are acquired: a member that has
        lost its right during the wait gets no more records.

        Returns at once if the request fetches nothing: then only unknown partitions are errors.
        Source: ``SharePartitionManager.processShareFetch`` of Kafka 4.2.
        """
        if request.fetches_nothing:
            return self._unknown(session.partitions)
        ends_at = self._loop.time() + request.max_wait_ms / 1000
        keys = session.rotated()
        while True:
            wait = _Wait(self._loop)
            self._waits.add(wait)
            try:
                this_pass = await self._find(session, keys, request, wait, refusal_of)
                wait.missing_bytes = request.min_bytes - this_pass.size_bytes
                is_late = self._is_closing or self._loop.time() >= ends_at or not keys
                must_answer = bool(this_pass.results) or is_late
                if this_pass.pending:
                    await self._read_remote(this_pass)
                elif wait.missing_bytes > 0 and not must_answer:
                    await wait.until(ends_at)
                    continue
                results = self._acquire(this_pass, session, request, refusal_of)
                if results or is_late:
                    return results
                # All records found are aborted ones, or acquired by now.
                await asyncio.sleep(0)
            finally:
                self._waits.discard(wait)
                wait.leave()

    async def _find(
        self,
        session: ShareSession,
        keys: list[PartitionKey],
        request: ShareFetchRequest,
        wait: _Wait,
        refusal_of: RefusalOf,
    ) -> _Pass:
        """Find the records that could be acquired, loading share partitions first."""
        this_pass = _Pass()
        shares = await self._load(session, keys, this_pass, refusal_of)
        for share in shares.values():
            share.members.add(session.member_id)
            wait.join(share)
        config = self._node_config()
        bytes_left = min(request.max_bytes, config.fetch_max_bytes)
        locks_max = config.group_share_partition_max_record_locks
        for number, (key, share) in enumerate(shares.items()):
            max_bytes = max(bytes_left // (len(shares) - number), 0)
            try:
                size_bytes = self._find_in(this_pass, key, share, max_bytes, locks_max)
            except TidelogError as error:
                this_pass.results[key] = self._failure(key, error)
            except OSError as error:
                logger.error(
                    "records could not be read", extra={"partition": key[1], "reason": str(error)}
                )
                this_pass.results[key] = ShareFetchResult(ErrorCode.kafka_storage_error)
            else:
                bytes_left -= size_bytes
                this_pass.size_bytes += size_bytes
        return this_pass

    async def _load(
        self,
        session: ShareSession,
        keys: list[PartitionKey],
        this_pass: _Pass,
        refusal_of: RefusalOf,
    ) -> dict[PartitionKey, SharePartition]:
        """Return the usable share partitions; note the errors of the others."""
        partitions = self._service.partitions
        shares: dict[PartitionKey, SharePartition] = {}
        missing: dict[PartitionKey, Replica] = {}
        for key in keys:
            refusal = refusal_of(key)
            if refusal is not None:
                this_pass.results[key] = self._failure(key, refusal)
                continue
            try:
                replica = self._service.led(key)
            except TidelogError as error:
                this_pass.results[key] = self._failure(key, error)
                continue
            share = partitions.get(session.group_id, replica)
            if share is None:
                missing[key] = replica
            else:
                shares[key] = share
        if not missing:
            return shares
        loads = (partitions.load(session.group_id, replica) for replica in missing.values())
        loaded = await asyncio.gather(*loads, return_exceptions=True)
        for key, found in zip(missing, loaded, strict=True):
            if isinstance(found, SharePartition):
                shares[key] = found
            elif isinstance(found, TidelogError):
                this_pass.results[key] = self._failure(key, found)
            else:
                raise found
        return {key: shares[key] for key in keys if key in shares}

    def _find_in(
        self,
        this_pass: _Pass,
        key: PartitionKey,
        share: SharePartition,
        max_bytes: int,
        locks_max: int,
    ) -> int:
        """Note the records that can be acquired; return their bytes at most."""
        if share.problem is not None:
            raise share.problem.with_traceback(None)
        unified = share.replica.unified_log
        log = unified.local
        log.check_online()
        if log.log_start_offset > share.state.start_offset:
            share.state.advance_log_start(log.log_start_offset)
            share.changed(wakes=False)
        if share.is_reading or not share.state.can_acquire(locks_max):
            return 0
        settings = self._service.partitions.settings(share.group_id)
        is_committed_only = settings.share_isolation_level == READ_COMMITTED
        bound = log.last_stable_offset if is_committed_only else log.high_watermark
        offset = share.state.next_fetch_offset
        if offset >= bound or log.lacks(offset) or (max_bytes == 0 and not this_pass.is_first):
            return 0
        read = unified.read(
            offset,
            max_bytes=max_bytes,
            up_to=bound,
            min_one_batch=this_pass.is_first,
            include_aborted=is_committed_only,
        )
        if isinstance(read, RemoteRead):
            if read.found is None:
                this_pass.pending[key] = _PendingRead(share, read)
                return max_bytes
            read = read.found
        if read.slice is None:
            return 0
        this_pass.found[key] = _Found(share, offset, read)
        return read.slice.size_bytes

    async def _read_remote(self, this_pass: _Pass) -> None:
        """Read from the tier, all at once, with each share partition reserved during its read."""
        for pending in this_pass.pending.values():
            pending.share.is_reading = True
        try:
            found = await wait_for_all([pending.read for pending in this_pass.pending.values()])
        finally:
            for pending in this_pass.pending.values():
                pending.share.is_reading = False
                pending.share.wake()
        for (key, pending), read in zip(this_pass.pending.items(), found, strict=True):
            if isinstance(read, LogRead):
                this_pass.found[key] = _Found(pending.share, pending.read.offset, read)
            elif read is not None and not isinstance(read, OffsetOutOfRange):
                # Records out of range were deleted since: the next pass begins behind them.
                this_pass.results[key] = ShareFetchResult(ErrorCode.kafka_storage_error)

    # -- acquiring --

    def _acquire(
        self,
        this_pass: _Pass,
        session: ShareSession,
        request: ShareFetchRequest,
        refusal_of: RefusalOf,
    ) -> dict[PartitionKey, ShareFetchResult]:
        """Acquire as many of the found records as the request wants."""
        results = dict(this_pass.results)
        records_left = request.records_max
        for key, found in this_pass.found.items():
            if records_left <= 0:
                break
            refusal = refusal_of(key)
            if refusal is not None:
                results[key] = self._failure(key, refusal)
                continue
            try:
                result = self._acquire_of(found, session, request, records_left)
            except (TidelogError, OSError) as error:
                logger.error(
                    "records could not be read",
                    extra={"partition": str(found.share.replica.partition), "reason": str(error)},
                )
                results[key] = ShareFetchResult(ErrorCode.kafka_storage_error)
                continue
            if result is not None:
                results[key] = result
                records_left -= sum(last - first + 1 for first, last, _ in result.acquired)
        return results

    def _acquire_of(
        self, found: _Found, session: ShareSession, request: ShareFetchRequest, records_max: int
    ) -> ShareFetchResult | None:
        share, offset, read = found
        if share.problem is not None or read.slice is None:
            return None
        config = self._node_config()
        settings = self._service.partitions.settings(session.group_id)
        # Batches that begin further on are not acquired now, even if few records before them are
        # available.
        up_to = share.state.end_offset + records_max
        batches = scan_batches(read, read.slice, up_to=max(up_to, read.start_offset + 1))
        acquired = share.state.acquire(
            session.member_id,
            batches.batches,
            AcquireLimits(
                records_max=records_max,
                batch_size=max(request.batch_size, 1),
                in_flight_max=config.group_share_partition_max_record_locks,
                is_exact=request.acquire_mode == RECORD_LIMIT,
            ),
            read_offset=offset,
            deadline_ms=share.now_ms() + settings.share_record_lock_duration_ms,
            aborted=batches.aborted,
        )
        share.changed(wakes=False)
        if not acquired:
            return None
        records = slice_of(batches, acquired, read.slice)
        return ShareFetchResult(records=records, acquired=acquired)

    def _unknown(self, keys: Iterable[PartitionKey]) -> dict[PartitionKey, ShareFetchResult]:
        results = {}
        for key in keys:
            try:
                self._service.led(key)
            except (UnknownTopicId, UnknownTopicOrPartition) as error:
                results[key] = self._failure(key, error)
            except TidelogError:
                continue  # The request does not ask for this error.
        return results

    def _failure(self, key: PartitionKey, error: TidelogError) -> ShareFetchResult:
        """Return the partition's result with the error."""
        code = error.code if error.code in _KNOWN_ERRORS else ErrorCode.unknown_server_error
        return self.with_leader(key, ShareFetchResult(code, str(error)), error)

    def with_leader(
        self, key: PartitionKey, result: ShareFetchResult, error: TidelogError
    ) -> ShareFetchResult:
        """Add the partition's leader if the error is that another node leads."""
        leader = self._service.leader_hint(key, error)
        if leader is None:
            return result
        return result._replace(leader_id=leader.leader_id, leader_epoch=leader.leader_epoch)


class _Wait:
    """A waiting request of a member."""

    __slots__ = ("_changed", "_loop", "_replicas", "_shares", "missing_bytes")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._changed: asyncio.Future[None] = loop.create_future()
        self._shares: list[SharePartition] = []
        self.missing_bytes = 1

    def join(self, share: SharePartition) -> None:
        """Be notified of changes in the share partition and appends to its log."""
        share.waiters[self] = None
        share.replica.waiters.add(self)
        self._shares.append(share)

    def on_append(self, size_bytes: int) -> None:
        """Count bytes that can now be read."""
        self.missing_bytes -= size_bytes
        if self.missing_bytes <= 0:
            self.wake()

    def on_change(self) -> None:
        """Continue to wait for records."""

    def on_commit(self) -> None:
        """Continue to wait: this is no follower."""

    def wake(self) -> None:
        """End the wait, for another pass."""
        if not self._changed.done():
            self._changed.set_result(None)

    async def until(self, ends_at: float) -> None:
        """Wait for enough bytes or a change, or until the loop's time is ``ends_at``."""
        timer = self._loop.call_at(ends_at, self.wake)
        try:
            await self._changed
        finally:
            timer.cancel()

    def leave(self) -> None:
        """End the notifications."""
        for share in self._shares:
            share.waiters.pop(self, None)
            share.replica.waiters.discard(self)
