"""The tail of a log (its records above the tier's end), and the interface of logs to refill."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from tidelog_core.errors import CorruptObject, StorageError
from tidelog_core.log.local_log import LocalLog
from tidelog_core.log.values import AppendInfo
from tidelog_core.model import TopicPartition

from tidelog_node.diskless.recovery.chain_slices import StoredSlice


class RefillTarget(Protocol):
    """A replica whose log is refilled; ``Replica``."""

    is_leader: bool
    is_dropped: bool

    @property
    def partition(self) -> TopicPartition:
        """The partition's name."""

    @property
    def log(self) -> LocalLog:
        """Its log."""

    @property
    def is_follower(self) -> bool:
        """Whether this node follows another one."""

    def append_as_follower(self, batches: memoryview, /) -> AppendInfo:
        """Append the records."""

    def note_changed(self) -> None:
        """Note that the log has changed."""


class LogTail(NamedTuple):
    """The committed records of a partition above the tier's end."""

    replica: RefillTarget
    slices: Sequence[StoredSlice]  # in order of offset, without a gap
    end_offset: int

    @property
    def unproven_bytes(self) -> int:
        """The bytes that are compared or read: this process has not seen them committed here."""
        known_end = self.replica.log.high_watermark
        return sum(one.size_bytes for one in self.slices if one.end_offset > known_end)


class MissingSlice(CorruptObject):
    """An object is gone that existed when its chain was read: lost, or collected since."""


def require_unled(replica: RefillTarget) -> None:
    """Raise ``StorageError`` if the replica's log may not be changed: it leads or follows by now.

    A late write made the partition replicated, or another node was elected during a long refill.
    Or this node has left the partition: then its files may be those of the next replica.
    """
    if replica.is_dropped:
        raise StorageError(f"this node has left {replica.partition}, its log stays as it is")
    if replica.is_leader:
        raise StorageError(f"{replica.partition} is led here already, its log stays as it is")
    if replica.is_follower:
        raise StorageError(f"{replica.partition} is led elsewhere by now, its log stays as it is")


def finish(tail: LogTail) -> None:
    """Note that all of the log is committed.

    Raises ``StorageError`` if it ends elsewhere, or the partition is led by now.
    """
    require_unled(tail.replica)
    log = tail.replica.log
    if log.log_end_offset != tail.end_offset:
        raise StorageError(
            f"the log of {tail.replica.partition} ends at {log.log_end_offset} instead of"
            f" {tail.end_offset}, where its chains end"
        )
    if log.advance_high_watermark(tail.end_offset):
        tail.replica.note_changed()
