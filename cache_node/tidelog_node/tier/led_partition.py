"""The tier's state of a led partition, and the replicas that the tier works on."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Protocol
from uuid import UUID

from tidelog_core.config import TopicConfig
from tidelog_core.log.local_log import LocalLog
from tidelog_core.log.values import SealedSegment
from tidelog_core.metadata.leadership import Leadership
from tidelog_core.metadata.records import SegmentMeta
from tidelog_core.model import TopicPartition

from tidelog_node.tier.remote_log import RemoteLog

COPIED_END_UNKNOWN = -1


class TieredReplica(Protocol):
    """The part of a node's replica that the tier uses. The node may or may not lead it."""

    @property
    def partition(self) -> TopicPartition:
        """The partition's name."""

    @property
    def topic_id(self) -> UUID:
        """The topic's id."""

    @property
    def leader_epoch(self) -> int:
        """The leader epoch known to this node."""

    @property
    def log(self) -> LocalLog:
        """The log; opens it if necessary."""

    @property
    def is_leader(self) -> bool:
        """Whether this node leads the partition in that epoch."""

    @property
    def is_follower(self) -> bool:
        """Whether this node follows another leader."""

    @property
    def is_dropped(self) -> bool:
        """Whether this node no longer has the replica."""

    @property
    def held_since(self) -> float:
        """The time at which this process got the replica, by ``time.monotonic``."""

    @property
    def config(self) -> TopicConfig:
        """The topic's settings."""

    @property
    def opened_log(self) -> LocalLog | None:
        """The log if it is open."""

    def open(self) -> None:
        """Open the log if necessary. Blocks; for any thread."""

    def note_changed(self) -> None:
        """Request a flush of rolled segments: only flushed ones are copied or count as erased."""


class ReplicaSource(Protocol):
    """The node's replicas."""

    def replicas(self) -> Iterator[TieredReplica]:
        """Yield the replicas that have records, led or followed."""

    def get(self, partition: TopicPartition) -> TieredReplica | None:
        """Return this node's replica, led or followed."""

    def leader(self, partition: TopicPartition, current_leader_epoch: int = -1) -> TieredReplica:
        """Return the replica if this node leads it."""


class LedPartition:
    """The tier's state of one led partition in one leader epoch."""

    __slots__ = (
        "copied_up_to",
        "deleting",
        "failure_count",
        "is_taken_over",
        "leadership",
        "lock",
        "newest",
        "not_before",
        "published_log_start",
        "remote",
        "replica",
        "retained_at",
        "swap_count",
        "under_way",
        "was_visited",
    )

    def __init__(self, replica: TieredReplica, leadership: Leadership, remote: RemoteLog) -> None:
        self.replica = replica
        self.leadership = leadership
        self.remote = remote
        self.lock = asyncio.Lock()  # one of copying, retention and take-over at a time
        self.is_taken_over = False
        self.swap_count = 0  # of rewritten segments, as far as known here
        self.was_visited = False  # by retention, even if it could do nothing
        # The copy in progress, for a retry to continue.
        self.under_way: tuple[SealedSegment, SegmentMeta] | None = None
        self.copied_up_to = COPIED_END_UNKNOWN
        # Deletions in progress, by segment id: each ends at its own time, also after a failure.
        self.deleting: dict[UUID, SegmentMeta] = {}
        self.published_log_start = 0  # in the bucket, in this epoch; 0: none
        self.newest: tuple[int, int] | None = None  # log end offset, greatest timestamp then
        # When retention was last applied, by the loop's time; initially when this process got the
        # replica.
        self.retained_at = replica.held_since
        self.failure_count = 0
        self.not_before = 0.0  # the loop's time

    def note_swap(self) -> None:
        """Require another take-over, which finds the segments that were replaced."""
        self.swap_count += 1
        self.is_taken_over = False

    def reset(self) -> None:
        """Forget everything read from the tier: the next step reads the metadata again.

        A copy in progress becomes an ordinary leftover and is cleaned up.
        """
        self.is_taken_over = False
        self.under_way = None
        self.deleting.clear()
        self.copied_up_to = COPIED_END_UNKNOWN
        self.remote.distrust()

    def needs_copying(self) -> bool:
        """Return whether there may be a sealed segment to copy."""
        log = self.replica.opened_log
        if log is None or log.is_offline or not self.replica.config.remote_storage_enable:
            return False
        return log.active_segment_base_offset > max(self.copied_up_to, 0)


def known_tiered_end(log: LocalLog) -> int:
    """Return the offset below which the tier has every record, as far as the log knows.

    Records below the local log start offset were tiered before they were evicted, unless they are
    still to be filled in.
    """
    unfilled = log.unfilled
    start = log.local_log_start_offset if unfilled is None else log.log_start_offset
    return max(log.tiered_up_to, start)


def has_sealed(replica: TieredReplica) -> bool:
    """Whether the open log has a sealed segment, in the tier or not."""
    log = replica.opened_log
    return log is not None and log.active_segment_base_offset > log.log_start_offset
