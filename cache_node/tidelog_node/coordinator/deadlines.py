"""What members of a group have to do in time, or be removed."""

from __future__ import annotations

from enum import Enum


class Wait(Enum):
    """What a member has to do."""

    SESSION = "session"  # send a heartbeat
    REBALANCE = "rebalance"  # give partitions up
    JOIN = "join"  # a classic member: join after it was told to
    SYNC = "sync"  # a classic member: sync after it has joined


class MemberDeadlines:
    """By when each member has to do what."""

    def __init__(self) -> None:
        # No deadline lies before this one. It may be too early, never too late.
        self.wake_at_ms: int | None = None
        self._by_member: dict[str, dict[Wait, int]] = {}

    def set(self, member_id: str, wait: Wait, deadline_ms: int) -> None:
        """Give the member until then."""
        self._by_member.setdefault(member_id, {})[wait] = deadline_ms
        if self.wake_at_ms is None or deadline_ms < self.wake_at_ms:
            self.wake_at_ms = deadline_ms

    def has(self, member_id: str, wait: Wait) -> bool:
        """Return whether the member's time is running."""
        return wait in self._by_member.get(member_id, {})

    def clear(self, member_id: str, wait: Wait) -> None:
        """The member has done its part."""
        self._by_member.get(member_id, {}).pop(wait, None)

    def forget(self, member_id: str) -> None:
        """The member is gone."""
        self._by_member.pop(member_id, None)

    def overdue(self, now_ms: int) -> list[str]:
        """Return the members whose time is up for anything."""
        return [
            member_id
            for member_id, deadlines in self._by_member.items()
            if any(deadline_ms <= now_ms for deadline_ms in deadlines.values())
        ]

    def look_again(self) -> None:
        """Make ``wake_at_ms`` the first deadline that is left."""
        self.wake_at_ms = min(
            (d for deadlines in self._by_member.values() for d in deadlines.values()), default=None
        )
