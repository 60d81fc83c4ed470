"""The deadlines of a group's members; a member that misses one is removed."""

from __future__ import annotations

import heapq
from collections.abc import Container
from enum import Enum

SPARED_MS = 1_000  # a spared member's deadline is checked again after this time


class Wait(Enum):
    """An action that a member must take in time."""

    SESSION = "session"  # send a heartbeat
    REBALANCE = "rebalance"  # give partitions up
    JOIN = "join"  # a classic member: join after a request to rejoin
    SYNC = "sync"  # a classic member: sync after it has joined


class MemberDeadlines:
    """The deadline of each member for each awaited action.

    Deadlines are mostly extended before they are reached, so they are not moved in the heap: an
    entry that is found there too early is queued again with the current deadline.
    """

    def __init__(self) -> None:
        self._by_member: dict[str, dict[Wait, int]] = {}
        self._heap: list[tuple[int, str, str]] = []  # time, member id, awaited action
        # The time of the valid entry for a member and an action.
        self._queued: dict[tuple[str, str], int] = {}

    @property
    def wake_at_ms(self) -> int | None:
        """The time of the next check. It may be before the first deadline, never after it."""
        return self._heap[0][0] if self._heap else None

    def set(self, member_id: str, wait: Wait, deadline_ms: int) -> None:
        """Set the member's deadline for the action."""
        self._by_member.setdefault(member_id, {})[wait] = deadline_ms
        self._queue(member_id, wait.value, deadline_ms)

    def has(self, member_id: str, wait: Wait) -> bool:
        """Return whether the member has a deadline for the action."""
        return wait in self._by_member.get(member_id, {})

    def clear(self, member_id: str, wait: Wait) -> None:
        """Remove the deadline: the member has acted."""
        self._by_member.get(member_id, {}).pop(wait, None)

    def forget(self, member_id: str) -> None:
        """Remove the member's deadlines: it has left."""
        self._by_member.pop(member_id, None)

    def overdue(self, now_ms: int, spared: Container[str] = ()) -> list[str]:
        """Return the members with a missed deadline, each missed deadline once.

        Members in ``spared`` are not returned; their deadlines are checked again later.
        """
        found: dict[str, None] = {}
        while self._heap and self._heap[0][0] <= now_ms:
            at_ms, member_id, what = heapq.heappop(self._heap)
            if self._queued.get((member_id, what)) != at_ms:
                continue  # An earlier entry has replaced it.
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
