"""A decided change of one partition's item: the new record and the conditions of the write."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from tidelog_core.metadata.records import Partition, put
from tidelog_core.metadata.store import Check, Write


class ChangeReason(Enum):
    """The reason for a write of a partition's item, for logs and metrics."""

    TAKEOVER = "takeover"
    UNCLEAN_TAKEOVER = "unclean-takeover"
    HAND_OVER = "hand-over"
    CHAIN_ENTERED = "chain-entered"
    BECAME_DISKLESS = "became-diskless"
    CHAIN_LOST = "chain-lost"  # before the partition became diskless: another epoch tries again
    BECAME_REPLICATED = "became-replicated"
    CHAINS_TIERED = "chains-tiered"  # the tier has what the chains of before have
    LEAVE_ISR = "leave-isr"
    ALTER_ISR = "alter-isr"
    FOLLOWERS_PLACED = "followers-placed"
    REASSIGNMENT_STARTED = "reassignment-started"
    REASSIGNMENT_ENDED = "reassignment-ended"


@dataclass(frozen=True, slots=True)
class PartitionChange:
    """One conditional write: ``after`` replaces the item at ``after.version``.

    ``checks`` are committed with it: the conditions on other items that the decision
    depends on.
    """

    after: Partition
    reason: ChangeReason
    checks: tuple[Check, ...] = ()

    @property
    def write(self) -> Write:
        """The write to commit, together with ``checks``."""
        return put(self.after)
