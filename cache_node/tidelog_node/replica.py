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

from tidelog_core.config import INT64_MAX, TopicConfig
from tidelog_core.errors import (
    FencedLeaderEpoch,
    StorageError,
    TidelogError,
    UnknownLeaderEpoch,
    UnknownTopicOrPartition,
)
from tidelog_core.log.append_checks import CheckedBatches, looks_at_records
from tidelog_core.log.local_log import LocalLog
from tidelog_core.log.record_source import RecordSource
from tidelog_core.log.rewriting import rewrite_unflushed
from tidelog_core.log.unified_log import UnifiedLog
from tidelog_core.log.values import AppendInfo, AppendOrigin, CorruptLog
from tidelog_core.metadata.records import Partition
from tidelog_core.model import RESERVED_TOPICS, TopicPartition

from tidelog_node.disk.data_disk import DataDisk
from tidelog_node.replication.role import Leader, ReplicaRole

UNCOUNTED_BYTES = 2**31  # more than any fetch can wait for


class ReplicaWaiter(Protocol):
    """Waits for records of a replica, or watches its other changes.

    Must not append or read in any of these calls.
    """

    def on_append(self, size_bytes: int) -> None:
        """Note that so many more bytes can be read."""

    def on_change(self) -> None:
        """Note that something is not as it was, for which nobody stops waiting for records."""

    def look_again(self) -> None:
        """Wait no more and look again: what was waited for may never come."""


class Replica:
    """This node's copy of one partition. For the node's event loop only, but for ``open``."""

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
        "config",
        "followed",
        "follower_waiters",
        "has_flush_policy",
        "held_since",
        "is_dropped",
        "is_internal",
        "is_leader",
        "leader_epoch",
        "log_start_offset",
        "looks_at_records",
        "opening",
        "partition",
        "role",
        "settled_epoch",
        "topic_id",
        "waiters",
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
        remote_of: Callable[[Replica], RecordSource] | None = None,
    ) -> None:
        self.partition = partition
        self.topic_id = topic_id
        self.config = config
        self.has_flush_policy = has_flush_policy(config)
        self.looks_at_records = looks_at_records(config)
        self.leader_epoch = 0
        self.held_since = time.monotonic()
        self.followed: Partition | None = None  # the record that all this is from
        self.log_start_offset = log_start_offset  # as the metadata store has it
        self.is_leader = False
        self.is_dropped = False  # deleted, or moved elsewhere: nobody needs to look after it
        self.is_internal = partition.topic in RESERVED_TOPICS
        self.role: ReplicaRole | None = None  # None: there is no other replica
        self.settled_epoch = -1  # the last in which the log could be led from
        # For committed records, and for any; both hear of all other changes as well.
        self.waiters: set[ReplicaWaiter] = set()
        self.follower_waiters: set[ReplicaWaiter] = set()
        # Held while the log is being opened, on whatever thread, and while that changes from
        # which it is opened. Others see a log that is not open, or one that is up to date.
        self.opening = RLock()
        self._log: LocalLog | None = None
        self._unified: UnifiedLog | None = None  # over ``_log`` or the one before, once asked for
        self._open_log = open_log
        self._remote_of = remote_of  # returns what has the records that this node has evicted
        self._changed = changed  # gets this one whenever something about its log changes
        self._troubled = troubled  # gets this one whenever ``is_in_trouble`` becomes true
        self._disk = disk
        self._on_trouble = on_trouble  # called with this one, once ``is_in_trouble``
        self._on_offline = on_offline  # called with this one, on whatever thread that is
        self._on_exchanged = on_exchanged  # called with this one, once another log is in place
        self._refusal: TidelogError | None = None  # why the log will not be opened any more

    @property
    def log(self) -> LocalLog:
        """The log, opened if it was not.

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

        For readers who may wait.
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
            # To find it out takes a look at every batch, and nobody mends it meanwhile.
            self._set_refusal(error)
            raise
        if self.role is None:
            # The ISR is this node alone: whatever the log holds is replicated.
            log.advance_high_watermark(log.log_end_offset)
        self._changed.add(self)
        log.on_moved = self.notify_waiters
        return log

    def open(self) -> None:
        """Open the log if it is not, in whatever thread this is. Raises as ``log``."""
        _ = self.log

    @property
    def opened_log(self) -> LocalLog | None:
        """The log if something has opened it already."""
        return self._log

    def note_offline(self) -> None:
        """Note that a log of this replica went offline, on whatever thread this is.

        The event loop tells everyone concerned soon, see ``publish_trouble``.
        """
        self._troubled.add(self)
        self._on_offline(self)

    def publish_trouble(self) -> None:
        """Tell everyone concerned that the log is in trouble, if it is."""
        if self.is_in_trouble:
            self._on_trouble(self)
            self.wake()  # Who waits for records will get none.

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
        """What is damaged so that the log cannot be opened, if that is why."""
        return self._refusal if isinstance(self._refusal, CorruptLog) else None

    def note_failure(self, error: OSError | StorageError) -> bool:
        """Take an error that a file of the log has met; return whether the disk is only full."""
        is_disk_full = self._disk.note(error)
        self.publish_trouble()
        return is_disk_full

    def reopen(self, quarantine: Path | None) -> LocalLog:
        """Return a log over the files of the one that is offline, whatever thread this is.

        It is nobody's yet. ``rewrite_unflushed`` comes first, with the quarantine. Raises
        ``OSError``, ``StorageError``.
        """
        log = self._log
        assert log is not None
        rewrite_unflushed(log.directory, quarantine=quarantine)
        return self._open_log(self)

    def take(self, log: LocalLog) -> None:
        """Go on with the log that ``reopen`` has returned."""
        with self.opening:
            self._set_log(log)
        if self.role is None:
            log.advance_high_watermark(log.log_end_offset)
        self._changed.add(self)
        log.on_moved = self.notify_waiters
        self._on_exchanged(self)
        self.wake()

    def give_up(self, damage: CorruptLog) -> None:
        """Never open the log again: it cannot be, whoever tries."""
        with self.opening:
            self._log = self._unified = None
            self._set_refusal(damage)
        self.publish_trouble()

    def allow_reopening(self) -> None:
        """Let a log be opened where the damaged one was; its files are set aside."""
        with self.opening:
            self._log = self._unified = self._refusal = None

    def note_changed(self) -> None:
        """Have everyone look at the log again who works on logs, see ``LogChanges``.

        For any thread.
        """
        self._changed.add(self)

    def append(
        self,
        batches: memoryview | bytearray,
        origin: AppendOrigin = AppendOrigin.CLIENT,
        checked: CheckedBatches | None = None,
    ) -> AppendInfo:
        """Append as the leader and let those who wait know.

        ``checked``: what the batches were found to be with ``config`` as it is. Raises as
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
        if self.follower_waiters:
            for waiter in tuple(self.follower_waiters):
                waiter.on_append(info.size_bytes)

    def append_as_follower(self, batches: memoryview) -> AppendInfo:
        """Append what the leader has sent. Raises as ``LocalLog.append_as_follower``."""
        disk = self._disk
        if disk.is_full:
            raise disk.refusal()
        try:
            info = self.log.append_as_follower(batches)
        except StorageError as error:
            self.note_failure(error)
            raise
        disk.left_bytes -= info.size_bytes
        if disk.left_bytes < 0:
            disk.note_low()
        self._changed.add(self)
        return info

    def follow_leader(self, *, high_watermark: int, log_start_offset: int) -> None:
        """Take over what the leader says is committed, and where its log starts."""
        log = self.log
        if log.advance_high_watermark(high_watermark):
            self.wake_readers(UNCOUNTED_BYTES)  # How much it is would have to be looked up.
        log_start_offset = min(log_start_offset, log.high_watermark)
        if log_start_offset > log.log_start_offset:
            log.advance_log_start_offset(log_start_offset)
            self._changed.add(self)

    def keep_back_deleted(self) -> None:
        """Begin where the metadata store says that the partition begins, to lead from there.

        The last leader may have told of a deletion that this replica has not heard of. What
        was deleted was committed, so the high watermark is at least there.
        """
        log = self.log
        if self.log_start_offset > log.log_start_offset:
            log.advance_high_watermark(self.log_start_offset)
            log.advance_log_start_offset(min(self.log_start_offset, log.high_watermark))

    @property
    def leader(self) -> Leader | None:
        """What is known of followers and ISR where this node leads and there are others."""
        return None if self.role is None else self.role.leader

    @property
    def is_follower(self) -> bool:
        """Whether another node leads and this one follows it."""
        return self.role is not None and self.role.follower is not None

    def require_readable(self) -> None:
        """Raise ``NotLeaderOrFollower`` while the leadership may be on its way elsewhere."""
        role = self.role
        if role is not None and self.is_leader:
            role.require_leader()

    def wake_readers(self, size_bytes: int) -> None:
        """Tell those who wait for committed records that there may be so many bytes more.

        Followers hear of the high watermark.
        """
        self._changed.add(self)
        for waiter in tuple(self.waiters):
            waiter.on_append(size_bytes)
        if self.follower_waiters:
            for waiter in tuple(self.follower_waiters):
                waiter.on_change()

    def notify_waiters(self) -> None:
        """Tell everyone that something is not as it was when they looked."""
        self._changed.add(self)
        for waiter in (*self.waiters, *self.follower_waiters):
            waiter.on_change()

    def wake(self) -> None:
        """Make everyone who waits look again: the partition has changed hands or is gone."""
        for waiter in (*self.waiters, *self.follower_waiters):
            waiter.look_again()

    def drop(self) -> None:
        """Never open the log again: its directory may soon be another topic's."""
        self.is_dropped = True
        self.refuse(UnknownTopicOrPartition(f"{self.partition} was deleted"))

    def refuse(self, error: TidelogError) -> None:
        """Never open the log (again); whoever wants it gets the error."""
        with self.opening:  # What is being opened just now is open then.
            self._set_refusal(error)

    def let_go(self) -> None:
        """Let go of what refers back to this replica, which was dropped.

        Nothing is left then that only a collection of garbage would find: those that look at
        what has been here for long come seldom.
        """
        with self.opening:
            self._log = self._unified = self.role = None

    def close(self) -> None:
        """Close the log cleanly, if it is open."""
        log, self._log, self._unified = self._log, None, None
        if log is not None:
            log.close()


def require_epoch(replica: Replica, current_leader_epoch: int) -> None:
    """Raise where the caller believes in another leader epoch; -1 believes nothing.

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
    """Return whether a topic asks for flushes by count or time."""
    return config.flush_messages < INT64_MAX or config.flush_ms < INT64_MAX
