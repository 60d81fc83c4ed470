"""ConsumerGroupHeartbeat as a value, and the settings that its answer depends on (KIP-848)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tidelog_core.metadata.coordination.consumer_groups import LEFT_FOR_NOW_EPOCH, Partitions

from tidelog_node.groups.consumer.pattern_view import Viewer
from tidelog_node.groups.heartbeat_answer import JOIN_EPOCH, LEAVE_EPOCH

# Groups up to this size have targets computed as soon as their epoch has grown: a member that joins
# gets its partitions at once. Larger ones have them computed in another thread, and at most once
# per ``group.consumer.assignment.interval.ms``.
ASSIGNED_AT_ONCE_MEMBERS_MAX = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerHeartbeat:
    """A ConsumerGroupHeartbeat request. ``None``: unchanged since the last one."""

    member_id: str
    member_epoch: int  # 0 joins, -1 leaves, -2 leaves to return
    instance_id: str | None
    rack_id: str | None
    rebalance_timeout_ms: int | None
    subscribed_topics: tuple[str, ...] | None
    subscribed_pattern: str | None
    assignor: str | None
    owned: Partitions | None
    client_id: str
    client_host: str
    viewer: Viewer | None = None  # the client's rights; ``None``: it may describe every topic

    @property
    def is_leaving(self) -> bool:
        """Whether the member leaves, with or without return."""
        return self.member_epoch in (LEAVE_EPOCH, LEFT_FOR_NOW_EPOCH)

    @property
    def is_full(self) -> bool:
        """Whether the request has all values, so that the answer must, too."""
        return self.member_epoch == JOIN_EPOCH or (
            self.rebalance_timeout_ms is not None
            and (self.subscribed_topics is not None or self.subscribed_pattern is not None)
            and self.owned is not None
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerGroupSettings:
    """The settings that a consumer group depends on, at the time of an event."""

    session_timeout_ms: int
    heartbeat_interval_ms: int
    assignment_interval_ms: int  # between two computations of targets, in a large group
    members_max: int
    classic_members_max: int
    assignors: Sequence[str]  # the first is the default
    can_upgrade: bool
    can_downgrade: bool
    hides_topics: bool = False  # whether members' rights decide what their patterns match
    assigned_at_once_members_max: int = ASSIGNED_AT_ONCE_MEMBERS_MAX
