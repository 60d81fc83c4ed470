"""A partition and its log, as the leader knows them when it decides on a write."""

from __future__ import annotations

from typing import NamedTuple

from tidelog_core.metadata.records import Partition
from tidelog_core.replication.leader.follower_progress import UNKNOWN_OFFSET, FollowerProgress
from tidelog_core.replication.leader.rules import ReplicationRules


class LedLog(NamedTuple):
    """The state of one moment; the followers are those of the leader, not copies."""

    partition: Partition
    followers: dict[int, FollowerProgress]
    high_watermark: int
    log_end_offset: int
    required_count: int  # replicas that must be in sync
    commits_by_chain: bool  # the partition is diskless
    rules: ReplicationRules

    @property
    def followable_end(self) -> int:
        """The end of the records for followers; of a diskless partition, the committed ones."""
        return self.high_watermark if self.commits_by_chain else self.log_end_offset

    def is_behind(self, follower: FollowerProgress) -> bool:
        """Whether the follower has fetched, and certainly lacks records."""
        return UNKNOWN_OFFSET < follower.log_end_offset < self.followable_end
