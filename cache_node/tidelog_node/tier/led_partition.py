"""The state of a led partition in the tier's loops."""

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

NOT_LOOKED_AT = -1


class TieredReplica(Protocol):
    """What the tier needs of a node's replica, which it may or may not lead."""

    @property
    def partition(self) -> TopicPartition:
        """Which partition it is."""

    @property
    def topic_id(self) -> UUID:
        """Of which topic."""

    @property
    def leader_epoch(self) -> int:
        """The epoch that this node knows."""

    @property
    def log(self) -> LocalLog:
        """The log, opened if it was not."""

    @property
    def is_leader(self) -> bool:
        """Whether this node leads it in that epoch."""

    @property
    def is_follower(self) -> bool:
        """Whether this node follows another one's."""

    @property
    def is_dropped(self) -> bool:
        """Whether this node holds it no longer."""

    @property
    def held_since(self) -> float:
        """When this process has begun to hold it, by ``time.monotonic``."""

    @property
    def config(self) -> TopicConfig:
        """The topic's settings."""

    @property
    def opened_log(self) -> LocalLog | None:
        """The log if it is open."""

    def open(self) -> None:
        """Open the log if it is not. Blocks; for any thread."""

    def note_changed(self) -> None:
        """Have what was rolled flushed soon: only then is it copied, or counts as erased."""


class ReplicaSource(Protocol):
    """Where the node's replicas are."""

    def replicas(self) -> Iterator[TieredReplica]:
        """Yield the replicas that hold records, led or not."""

    def get(self, partition: TopicPartition) -> TieredReplica | None:
        """Return this node's replica, whoever leads."""

    def leader(self, partition: TopicPartition, current_leader_epoch: int = -1) -> TieredReplica:
        """Return the replica if this node leads it."""


class LedPartition:
    """What the tier keeps of one led partition while its leader epoch lasts."""

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
        "was_looked_at",
    )

    def __init__(self, replica: TieredReplica, leadership: Leadership, remote: RemoteLog) -> None:
        self.replica = replica
        self.leadership = leadership
        self.remote = remote
        self.lock = asyncio.Lock()  # one of copying, retention and take-over at a time
        self.is_taken_over = False
        self.swap_count = 0  # of rewritten segments, as far as this node was told
        self.was_looked_at = False  # by retention, be it in vain
        # A copy that has begun, so that a retry continues it instead of beginning anew.
        self.under_way: tuple[SealedSegment, SegmentMeta] | None = None
        self.copied_up_to = NOT_LOOKED_AT
        # Deletions that have begun, by segment id: ended when each says, also after a failure.
        self.deleting: dict[UUID, SegmentMeta] = {}
        self.published_log_start = 0  # what the bucket was made to tell in this epoch; 0: nothing
        self.newest: tuple[int, int] | None = None  # log end offset, greatest timestamp then
        # When retention was last applied, by the loop's time; the first time waits as any other.
        self.retained_at = replica.held_since
        self.failure_count = 0
        self.not_before = 0.0  # the loop's time

    def note_swap(self) -> None:
        """Have the partition taken over again: that finds the segments that were replaced."""
        self.swap_count += 1
        self.is_taken_over = False

    def reset(self) -> None:
        """Forget what is believed of the tier: the next step reads the metadata again.

        A copy under way is then a leftover like any other, and is cleaned up.
        """
        self.is_taken_over = False
        self.under_way = None
        self.deleting.clear()
        self.copied_up_to = NOT_LOOKED_AT
        self.remote.distrust()

    def needs_copying(self) -> bool:
        """Return whether there may be a sealed segment to copy."""
        log = self.replica.opened_log
        if log is None or log.is_offline or not self.replica.config.remote_storage_enable:
            return False
        return log.active_segment_base_offset > max(self.copied_up_to, 0)


def known_tiered_end(log: LocalLog) -> int:
    """Return the offset below which the tier has every record, as far as the log knows.

    What is below the local log start was in the tier when it was evicted.
    """
    return max(log.tiered_up_to, log.local_log_start_offset)


def has_sealed(replica: TieredReplica) -> bool:
    """Whether the open log has a sealed segment, in the tier or not."""
    log = replica.opened_log
    return log is not None and log.active_segment_base_offset > log.log_start_offset
