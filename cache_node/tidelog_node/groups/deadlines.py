"""The deadlines of a group's members; a member that misses one is removed."""

from __future__ import annotations

import heapq
from collections.abc import Container
from enum import Enum

SPARED_MS = 1_000  # how soon the deadline of a spared member is looked at again


class Wait(Enum):
    """What a member has to do."""

    SESSION = "session"  # send a heartbeat
    REBALANCE = "rebalance"  # give partitions up
    JOIN = "join"  # a classic member: join after it was told to
    SYNC = "sync"  # a classic member: sync after it has joined


class MemberDeadlines:
    """By when each member has to do what.

    Deadlines mostly move on before they are reached, so they are not moved in the heap: what is
    found there too early goes back with the time that holds by then.
    """

    def __init__(self) -> None:
        self._by_member: dict[str, dict[Wait, int]] = {}
        self._heap: list[tuple[int, str, str]] = []  # time, member id, what
        # The time of the one entry that counts for a member and what it has to do.
        self._queued: dict[tuple[str, str], int] = {}

    @property
    def wake_at_ms(self) -> int | None:
        """No deadline is before this one. It may be too early, never too late."""
        return self._heap[0][0] if self._heap else None

    def set(self, member_id: str, wait: Wait, deadline_ms: int) -> None:
        """Give the member until then."""
        self._by_member.setdefault(member_id, {})[wait] = deadline_ms
        self._queue(member_id, wait.value, deadline_ms)

    def has(self, member_id: str, wait: Wait) -> bool:
        """Return whether the member's time is running."""
        return wait in self._by_member.get(member_id, {})

    def clear(self, member_id: str, wait: Wait) -> None:
        """The member has done its part."""
        self._by_member.get(member_id, {}).pop(wait, None)

    def forget(self, member_id: str) -> None:
        """The member is gone."""
        self._by_member.pop(member_id, None)

    def overdue(self, now_ms: int, spared: Container[str] = ()) -> list[str]:
        """Return the members whose time is up for anything; nobody is returned for it again.

        Members in ``spared`` are not returned; their deadlines are looked at again later.
        """
        found: dict[str, None] = {}
        while self._heap and self._heap[0][0] <= now_ms:
            at_ms, member_id, what = heapq.heappop(self._heap)
            if self._queued.get((member_id, what)) != at_ms:
                continue  # An earlier entry has taken its place.
            del self._queued[member_id, what]
            deadline_ms = self._by_member.get(member_id, {}).get(Wait(what))
            if deadline_ms is None:
                continue
            if member_id in spared:
                self._queue(member_id, what, max(deadline_ms, now_ms + SPARED_MS))
            elif deadline_ms <= now_ms:
                found[member_id] = None
            else:
                self._queue(member_id, what, deadline_ms)
        return list(found)

    def _queue(self, member_id: str, what: str, at_ms: int) -> None:
        known_ms = self._queued.get((member_id, what))
        if known_ms is None or at_ms < known_ms:
            self._queued[member_id, what] = at_ms
            heapq.heappush(self._heap, (at_ms, member_id, what))
