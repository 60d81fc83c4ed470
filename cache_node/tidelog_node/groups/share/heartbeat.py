"""The heartbeat of a share group's member as a value (KIP-932)."""

from __future__ import annotations

from dataclasses import dataclass

from tidelog_node.groups.heartbeat_answer import JOIN_EPOCH, LEAVE_EPOCH


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareHeartbeat:
    """A ShareGroupHeartbeat request. ``None``: unchanged since the last one."""

    member_id: str
    member_epoch: int  # 0 joins, -1 leaves
    rack_id: str | None
    subscribed_topics: tuple[str, ...] | None
    client_id: str
    client_host: str

    @property
    def is_leaving(self) -> bool:
        """Whether the member leaves."""
        return self.member_epoch == LEAVE_EPOCH

    @property
    def is_full(self) -> bool:
        """Whether the request has all values, so that the answer must, too."""
        return self.member_epoch == JOIN_EPOCH or self.subscribed_topics is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareGroupSettings:
    """The settings that a share group depends on, at the time of an event."""

    session_timeout_ms: int
    heartbeat_interval_ms: int
    members_max: int
