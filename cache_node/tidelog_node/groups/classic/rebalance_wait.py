"""What a rebalance of a classic group waits for: the joins of its members, then their syncs.

The first rebalance of an empty group also waits for members that are yet to come: for a delay,
and for further ones while members arrive, in total as long as a rebalance may take.
Source: ``InitialDelayedJoin`` of Kafka.
"""

from __future__ import annotations

from collections.abc import Iterable


class RebalanceWait:
    """Deadlines by the group's clock, and the members that have not synced yet."""

    def __init__(self) -> None:
        self.unsynced: set[str] = set()  # members that have not synced this generation
        self.join_deadline_ms: int | None = None
        self.sync_deadline_ms: int | None = None
        # Of the first rebalance: the length of the current delay, and the time left after it.
        self._first_delay: tuple[int, int] | None = None  # None: it is not the first
        self._has_member_arrived = False  # during the current delay

    @property
    def is_first(self) -> bool:
        """Whether the rebalance waits for members that are yet to come."""
        return self._first_delay is not None

    @property
    def deadlines_ms(self) -> tuple[int | None, int | None]:
        """The deadlines of joins and of syncs; ``None``: not awaited."""
        return self.join_deadline_ms, self.sync_deadline_ms

    # -- joins --

    def await_first_members(self, now_ms: int, delay_ms: int, left_ms: int) -> None:
        """Wait for a delay, and for ``left_ms`` longer if members arrive."""
        self._first_delay = (delay_ms, left_ms)
        self._has_member_arrived = False
        self.join_deadline_ms = now_ms + delay_ms

    def note_arrival(self) -> None:
        """Note that a new member has joined."""
        self._has_member_arrived = True

    def delay_again(self, now_ms: int) -> bool:
        """Return whether the first rebalance goes on waiting, since members arrive."""
        if self._first_delay is None or not self._has_member_arrived:
            return False
        delay_ms, left_ms = self._first_delay
        if left_ms <= 0:
            return False
        self.await_first_members(now_ms, min(delay_ms, left_ms), max(left_ms - delay_ms, 0))
        return True

    def await_joins(self, deadline_ms: int) -> None:
        """Wait for the members to join again."""
        self._first_delay = None
        self.join_deadline_ms = deadline_ms

    def end_joins(self) -> None:
        """Wait for no join any more."""
        self.join_deadline_ms = self._first_delay = None

    # -- syncs --

    def await_syncs(self, member_ids: Iterable[str], deadline_ms: int) -> None:
        """Wait for each of the members to sync."""
        self.unsynced = set(member_ids)
        self.sync_deadline_ms = deadline_ms

    def note_sync(self, member_id: str) -> None:
        """Note that a member has synced, or is none any more."""
        self.unsynced.discard(member_id)
        if not self.unsynced:
            self.sync_deadline_ms = None

    def end_syncs(self) -> None:
        """Wait for no sync any more."""
        self.unsynced.clear()
        self.sync_deadline_ms = None

    def replace(self, old_member_id: str, member_id: str) -> None:
        """Expect the new incarnation of a static member to sync, if the old one had to."""
        if old_member_id in self.unsynced:
            self.unsynced.discard(old_member_id)
            self.unsynced.add(member_id)
