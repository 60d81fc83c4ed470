"""This node's copy of one partition: its log, its role, and the requests that wait for records.

The log is opened on first use. Every event of the log or the partition goes through its
``Replica``, which notifies waiting requests and notes the change for background tasks.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from threading import RLock
from typing import Protocol
from uuid import UUID

from tidelog_core.config import TopicConfig
from tidelog_core.diskless.wal.epoch_chains import PartitionName
from tidelog_core.errors import (
    FencedLeaderEpoch,
    StorageError,
    TidelogError,
    UnknownLeaderEpoch,
    UnknownTopicOrPartition,
)
from tidelog_core.log.append_checks import CheckedBatches, inspects_records, validates_schemas
from tidelog_core.log.local_log import LocalLog
from tidelog_core.log.record_source import RecordSource
from tidelog_core.log.recovery.unflushed_segments import rewrite_unflushed
from tidelog_core.log.unified_log import UnifiedLog
from tidelog_core.log.values import (
    WITHOUT_LIMIT,
    AppendInfo,
    AppendLimit,
    AppendOrigin,
    CorruptLog,
)
from tidelog_core.metadata.records import Partition
from tidelog_core.model import INT64_MAX, RESERVED_TOPICS, TopicPartition

from tidelog_node.counters import TopicTraffic
from tidelog_node.disk.data_disk import DataDisk
from tidelog_node.replicas.role import Leader, ReplicaRole

UNCOUNTED_BYTES = 2**31  # at least the bytes that any fetch waits for


class ReplicaWaiter(Protocol):
    """Waits for records of a replica, or watches its other changes.

    The methods must not append or read.
    """

    def on_append(self, size_bytes: int) -> None:
        """Note that ``size_bytes`` more bytes can be read."""

    def on_change(self) -> None:
        """Note a change that does not end the wait for records."""

    def on_commit(self) -> None:
        """Note for a follower that a chain has committed more: its next answer must say so."""

    def wake(self) -> None:
        """Check the replica again now: the records waited for may never arrive."""


class ChainAppends(Protocol):
    """The chain of this node that has a diskless partition's leader epoch.

    It sets ``Replica.chain`` when the partition is entered, and ``None`` when it leaves.
    """

    def on_append(
        self, replica: Replica, base_offset: int, end_offset: int, size_bytes: int
    ) -> None:
        """Note that the replica's log has got the records ``[base_offset, end_offset)``."""

    def leave(self, replica: Replica) -> None:
        """Take nothing more of the replica: another leader epoch began, or it was dropped."""


class Replica:
    """This node's copy of one partition. For the node's event loop, except where noted."""

    __slots__ = (
        "_changed",
        "_disk",
        "_log",
        "_on_exchanged",
        "_on_offline",
        "_on_trouble",
        "_open_log",
        "_refusal",
        "_remote_of",
        "_troubled",
        "_unified",
        "chain",
        "checks_schemas",
        "config",
        "followed",
        "follower_waiters",
        "has_flush_policy",
        "held_since",
        "inspects_records",
        "is_across_zones",
        "is_diskless",
        "is_dropped",
        "is_internal",
        "is_leader",
        "leader_epoch",
        "log_start_offset",
        "opening",
        "partition",
        "role",
        "settled_epoch",
        "topic_id",
        "traffic",
        "waiters",
        "wants_diskless",
    )

    def __init__(
        self,
        partition: TopicPartition,
        topic_id: UUID,
        *,
        config: TopicConfig,
        log_start_offset: int,
        open_log: Callable[[Replica], LocalLog],
        changed: set[Replica],
        troubled: set[Replica],
        disk: DataDisk,
        on_trouble: Callable[[Replica], None],
        on_offline: Callable[[Replica], None],
        on_exchanged: Callable[[Replica], None],
        is_diskless: bool = False,
        remote_of: Callable[[Replica], RecordSource] | None = None,
        traffic: TopicTraffic | None = None,
    ) -> None:
        self.partition = partition
        self.traffic = traffic or TopicTraffic()  # of the topic
        self.topic_id = topic_id
        self.config = config
        self.has_flush_policy = has_flush_policy(config)
        self.inspects_records = inspects_records(config)
        self.checks_schemas = validates_schemas(config)
        self.leader_epoch = 0
        self.held_since = time.monotonic()
        self.followed: Partition | None = None  # the record last applied
        self.log_start_offset = log_start_offset  # in the metadata store
        self.is_leader = False
        self.is_across_zones = False  # the followed leader is in another zone
        self.is_dropped = False  # deleted, or moved to other nodes
        self.is_internal = partition.topic in RESERVED_TOPICS
        self.is_diskless = is_diskless and not self.is_internal  # as its record says
        self.wants_diskless = self.is_diskless  # as its topic says; see ``Conversions``
        # None: the partition has no other replica, and is not diskless.
        self.role: ReplicaRole | None = None
        # None: not diskless nor about to be, or not entered into a chain of this node.
        self.chain: ChainAppends | None = None
        self.settled_epoch = -1  # the last leader epoch in which this log was fit to lead
        # For committed records, and for all records; both are notified of all other changes.
        self.waiters: set[ReplicaWaiter] = set()
        self.follower_waiters: set[ReplicaWaiter] = set()
        # Held while the log is being opened, on any thread, and while the fields change that it is
        # opened with. So an open log is never out of date.
        self.opening = RLock()
        self._log: LocalLog | None = None
        self._unified: UnifiedLog | None = None  # over ``_log`` or the one before; made on demand
        self._open_log = open_log
        self._remote_of = remote_of  # returns the source of the records that this node has evicted
        self._changed = changed  # gets this replica at every change of its log
        self._troubled = troubled  # gets this replica when ``is_in_trouble`` becomes true
        self._disk = disk
        self._on_trouble = on_trouble  # called with this replica if ``is_in_trouble``
        self._on_offline = on_offline  # called with this replica, on any thread
        self._on_exchanged = on_exchanged  # called with this replica after its log was replaced
        self._refusal: TidelogError | None = None  # why the log must not be opened

    @property
    def name(self) -> PartitionName:
        """The partition by its topic's id, which a topic that is created again does not share."""
        return PartitionName(self.topic_id, self.partition.partition)

    @property
    def log(self) -> LocalLog:
        """The log; opened if needed.

        Raises ``StorageError``, ``OSError``, ``UnknownTopicOrPartition`` once dropped.
        """
        log = self._log
        if log is None:
            with self.opening:
                log = self._log
                if log is None:
                    log = self._opened()
                    self._set_log(log)
        return log

    @property
    def unified_log(self) -> UnifiedLog:
        """All records of the partition, also those that this node has evicted. Raises as ``log``.

        For readers that may wait for the tier.
        """
        log, unified = self._log, self._unified
        if log is None:
            log = self.log
        if unified is None or unified.local is not log:
            remote = None if self._remote_of is None else partial(self._remote_of, self)
            unified = self._unified = UnifiedLog(log, remote)
        return unified

    def _opened(self) -> LocalLog:
        if self._refusal is not None:
            raise self._refusal.with_traceback(None)
        try:
            log = self._open_log(self)
        except CorruptLog as error:
            # Another try would check every batch again, with the same result.
            self._set_refusal(error)
            raise
        if self.role is None:
            # The ISR is this node alone, so every record of the log is committed.
            log.advance_high_watermark(log.log_end_offset)
        self._changed.add(self)
        log.on_moved = self.notify_waiters
        return log

    def open(self) -> None:
        """Open the log if it is not open. For any thread. Raises as ``log``."""
        _ = self.log

    @property
    def opened_log(self) -> LocalLog | None:
        """The log, ``None`` if it is not open."""
        return self._log

    def note_offline(self) -> None:
        """Note that a log of this replica went offline. For any thread.

        The event loop calls ``publish_trouble`` soon.
        """
        self._troubled.add(self)
        self._on_offline(self)

    def publish_trouble(self) -> None:
        """If the log is in trouble, notify its subscribers and the waiters."""
        if self.is_in_trouble:
            self._on_trouble(self)
            self.wake()  # Those that wait for records will get none.

    def _set_log(self, log: LocalLog) -> None:
        self._log = log
        if log.is_offline:
            self.note_offline()

    def _set_refusal(self, error: TidelogError) -> None:
        self._refusal = error
        self._troubled.add(self)

    @property
    def is_in_trouble(self) -> bool:
        """Whether the log needs recovery, or cannot be opened at all."""
        log = self._log
        return self._refusal is not None if log is None else log.is_offline

    @property
    def damage(self) -> CorruptLog | None:
        """The damage, if it is the reason that the log cannot be opened."""
        return self._refusal if isinstance(self._refusal, CorruptLog) else None

    @property
    def is_disk_full(self) -> bool:
        """Whether nothing is appended to any log for now, because the disk is full."""
        return self._disk.is_full

    def note_failure(self, error: OSError | StorageError) -> bool:
        """Handle an error of the log's files; return whether the disk is only full."""
        is_disk_full = self._disk.note(error)
        self.publish_trouble()
        return is_disk_full

    def reopen(self, quarantine: Path | None) -> LocalLog:
        """Return a new log over the files of the offline one; ``take`` puts it to use.

        Runs ``rewrite_unflushed`` first, with the quarantine. For any thread. Raises
        ``OSError``, ``StorageError``.
        """
        log = self._log
        assert log is not None
        rewrite_unflushed(log.directory, quarantine=quarantine)
        return self._open_log(self)

    def take(self, log: LocalLog) -> None:
        """Continue with the log that ``reopen`` has returned."""
        with self.opening:
            self._set_log(log)
        if self.role is None:
            log.advance_high_watermark(log.log_end_offset)
        self._changed.add(self)
        log.on_moved = self.notify_waiters
        self._on_exchanged(self)
        self.wake()

    def give_up(self, damage: CorruptLog) -> None:
        """Never open the log again, because it is damaged."""
        with self.opening:
            self._log = self._unified = None
            self._set_refusal(damage)
        self.publish_trouble()

    def allow_reopening(self) -> None:
        """Allow a log in place of the damaged one, whose files were set aside."""
        with self.opening:
            self._log = self._unified = self._refusal = None

    def note_changed(self) -> None:
        """Have the services that work on logs check this one again, see ``LogChanges``.

        For any thread.
        """
        self._changed.add(self)

    def append(
        self,
        batches: memoryview | bytearray,
        origin: AppendOrigin = AppendOrigin.CLIENT,
        checked: CheckedBatches | None = None,
    ) -> AppendInfo:
        """Append as the leader and notify the waiters.

        ``checked`` is the result of checking the batches against the current ``config``. Raises as
        ``log`` and ``LocalLog.append_as_leader``.
        """
        disk = self._disk
        if disk.is_full:
            raise disk.refusal()
        log = self.log
        try:
            info = log.append_as_leader(
                batches, leader_epoch=self.leader_epoch, origin=origin, checked=checked
            )
        except StorageError as error:
            self.note_failure(error)
            raise
        disk.left_bytes -= info.size_bytes
        if disk.left_bytes < 0:
            disk.note_low()
        if not info.is_duplicate:
            if origin is AppendOrigin.CLIENT:
                traffic = self.traffic
                traffic.produced_bytes += info.size_bytes
                traffic.produced_batches += 1
                traffic.produced_records += info.last_offset - info.base_offset + 1
            self._changed.add(self)
            if self.role is not None:
                self._append_replicated(log, info, self.role)
                return info
            log.advance_high_watermark(info.last_offset + 1)
            if self.waiters:
                self.wake_readers(info.size_bytes)
        return info

    def _append_replicated(self, log: LocalLog, info: AppendInfo, role: ReplicaRole) -> None:
        role.on_append(log, info.last_offset + 1, info.size_bytes)
        if self.chain is not None:
            self.chain.on_append(self, info.base_offset, info.last_offset + 1, info.size_bytes)
            if self.is_diskless:
                return  # Its followers wait for committed records.
        if self.follower_waiters:
            for waiter in tuple(self.follower_waiters):
                waiter.on_append(info.size_bytes)

    def on_chain_committed(self, end_offset: int) -> None:
        """Note that the chain has every record below the offset."""
        role, log = self.role, self._log
        if role is not None and log is not None:
            role.on_chain_committed(log, end_offset)

    def append_as_follower(
        self, batches: memoryview, limit: AppendLimit = WITHOUT_LIMIT
    ) -> AppendInfo:
        """Append the leader's records, up to the limit. Raises as ``LocalLog``."""
        disk = self._disk
        if disk.is_full:
            raise disk.refusal()
        try:
            info = self.log.append_as_follower(batches, limit)
        except StorageError as error:
            self.note_failure(error)
            raise
        self.traffic.replicated_in_bytes += info.size_bytes
        if self.is_across_zones:
            self.traffic.replicated_across_bytes += info.size_bytes
        disk.left_bytes -= info.size_bytes
        if disk.left_bytes < 0:
            disk.note_low()
        self._changed.add(self)
        return info

    def append_to_fill(self, log: LocalLog, batches: memoryview) -> AppendInfo:
        """Append records that this log lacks to another one, which fills it once it is whole.

        Raises as ``LocalLog.append_as_follower``.
        """
        disk = self._disk
        if disk.is_full:
            raise disk.refusal()
        try:
            info = log.append_as_follower(batches)
        except StorageError as error:
            disk.note(error)
            raise
        disk.left_bytes -= info.size_bytes
        if disk.left_bytes < 0:
            disk.note_low()
        return info

    def follow_leader(self, *, high_watermark: int, log_start_offset: int) -> None:
        """Take over the leader's high watermark and log start offset."""
        log = self.log
        if log.advance_high_watermark(high_watermark):
            self.wake_readers(UNCOUNTED_BYTES)  # Counting them would take a lookup.
        log_start_offset = min(log_start_offset, log.high_watermark)
        if log_start_offset > log.log_start_offset:
            log.advance_log_start_offset(log_start_offset)
            self._changed.add(self)

    def keep_back_deleted(self) -> None:
        """Before it leads, raise the log start offset to the one in the metadata store.

        The last leader may have persisted a deletion that this replica has not received. Deleted
        records were committed, so the high watermark is at least that offset.
        """
        log = self.log
        if self.log_start_offset > log.log_start_offset:
            log.advance_high_watermark(self.log_start_offset)
            log.advance_log_start_offset(min(self.log_start_offset, log.high_watermark))

    @property
    def leader(self) -> Leader | None:
        """The leader's state of followers and ISR; ``None`` without other replicas or the lead."""
        return None if self.role is None else self.role.leader

    @property
    def is_follower(self) -> bool:
        """Whether this node follows another one, which leads."""
        return self.role is not None and self.role.follower is not None

    def require_readable(self) -> None:
        """Raise ``NotLeaderOrFollower`` while another node may be taking over the leadership."""
        role = self.role
        if role is not None and self.is_leader:
            role.require_leader()

    def wake_readers(self, size_bytes: int) -> None:
        """Notify readers that up to ``size_bytes`` more committed bytes can be read.

        Waiting followers are notified of the new high watermark. Those of a diskless partition wait
        for it.
        """
        self._changed.add(self)
        for waiter in tuple(self.waiters):
            waiter.on_append(size_bytes)
        if self.follower_waiters:
            for waiter in tuple(self.follower_waiters):
                if self.is_diskless:
                    waiter.on_commit()
                else:
                    waiter.on_change()

    def notify_waiters(self) -> None:
        """Notify all waiters of a change that does not end a wait for records."""
        self._changed.add(self)
        for waiter in (*self.waiters, *self.follower_waiters):
            waiter.on_change()

    def wake(self) -> None:
        """Have all waiters check again now: the role has changed or the partition is gone."""
        for waiter in (*self.waiters, *self.follower_waiters):
            waiter.wake()

    def drop(self) -> None:
        """Never open the log again: its directory may soon be another topic's."""
        self.is_dropped = True
        self.refuse(UnknownTopicOrPartition(f"{self.partition} was deleted"))

    def refuse(self, error: TidelogError) -> None:
        """Never open the log (again); callers that need it get the error."""
        with self.opening:  # If a thread is opening the log, wait until it is open.
            self._set_refusal(error)

    def let_go(self) -> None:
        """Remove the references that refer back to this replica, which was dropped.

        So no reference cycle is left: the garbage collector visits old objects seldom.
        """
        with self.opening:
            self._log = self._unified = self.role = None

    def close(self) -> None:
        """Close the log cleanly, if it is open."""
        log, self._log, self._unified = self._log, None, None
        if log is not None:
            log.close()


def require_epoch(replica: Replica, current_leader_epoch: int) -> None:
    """Raise if the caller's leader epoch is another one; -1 is not checked.

    Raises ``FencedLeaderEpoch``, ``UnknownLeaderEpoch``. Source: KIP-320.
    """
    if current_leader_epoch < 0 or current_leader_epoch == replica.leader_epoch:
        return
    problem = (
        f"leader epoch {current_leader_epoch} of {replica.partition} is not {replica.leader_epoch}"
    )
    if current_leader_epoch < replica.leader_epoch:
        raise FencedLeaderEpoch(problem)
    raise UnknownLeaderEpoch(problem)


def has_flush_policy(config: TopicConfig) -> bool:
    """Return whether acks of a topic wait for flushes, by count or time.

    Those of a diskless topic wait for the object store alone.
    """
    if config.diskless_enable:
        return False
    return config.flush_messages < INT64_MAX or config.flush_ms < INT64_MAX
