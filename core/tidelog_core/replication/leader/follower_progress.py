"""Tracks one follower's position for its leader. Source: Kafka's ``ReplicaState``.

A request of a fetch session (KIP-227) names only the partitions whose position has changed. For
all others it means: same position, fetched now. Kafka notes that for every partition of the
session at every request. Here the session has one time for all of them (``FollowerContact``), and
a partition copies it when needed: when the leader's log grows beyond a follower that had all of
it (``note_growth``), or when the session drops the partition (``end_contact``). Before that the
follower is caught up at any time. After that, an unchanged position no longer counts as caught
up, however often the session fetches other partitions.
"""

from __future__ import annotations

from dataclasses import dataclass

UNKNOWN_OFFSET = -1
NO_REPLICA_EPOCH = -1


@dataclass(slots=True, eq=False)
class FollowerContact:
    """The time of a follower's last fetch in one fetch session. Unchanged once the session ends."""

    last_fetch_ms: float


@dataclass(slots=True)
class FollowerProgress:
    """A follower's position and times, from its fetches in one leader epoch."""

    log_end_offset: int = UNKNOWN_OFFSET
    log_start_offset: int = UNKNOWN_OFFSET
    replica_epoch: int = NO_REPLICA_EPOCH  # the version of its registration
    last_fetch_ms: float = float("-inf")
    last_fetch_leader_end: int = 0  # the leader's log end at that fetch
    last_caught_up_ms: float = float("-inf")
    wants_in: bool = False  # its last fetch fulfilled the conditions for joining the ISR
    contact: FollowerContact | None = None  # of the session that may leave the partition unnamed
    is_fed: bool = False  # it knew at its last fetch that the partition is diskless

    @property
    def asked_ms(self) -> float:
        """The time of its last fetch of the next offset, by name or through its session."""
        if self.contact is None:
            return self.last_fetch_ms
        return max(self.last_fetch_ms, self.contact.last_fetch_ms)

    def note_fetch(
        self,
        fetch_offset: int,
        *,
        leader_end_offset: int,
        log_start_offset: int,
        replica_epoch: int,
        now_ms: float,
        contact: FollowerContact | None = None,
    ) -> None:
        """Note a fetch that arrived now, through the session of ``contact`` if there is one.

        The follower is caught up now if it has the leader's whole log. It was caught up at its last
        fetch if it now has everything that the leader had then. Under a steady load of small
        appends only the second condition ever holds.
        """
        if fetch_offset >= leader_end_offset:
            self.last_caught_up_ms = max(self.last_caught_up_ms, now_ms)
        elif fetch_offset >= self.last_fetch_leader_end:
            self.last_caught_up_ms = max(self.last_caught_up_ms, self.last_fetch_ms)
        self.log_end_offset = fetch_offset
        self.log_start_offset = log_start_offset
        self.replica_epoch = replica_epoch
        self.last_fetch_ms = now_ms
        self.last_fetch_leader_end = max(leader_end_offset, self.last_fetch_leader_end)
        self.contact = contact

    def note_growth(self, leader_end_offset: int) -> None:
        """Note that the leader's log, which has ended here, is growing."""
        contact = self.contact
        if (
            contact is not None
            and self.log_end_offset == leader_end_offset
            and contact.last_fetch_ms > self.last_fetch_ms
        ):
            # It had the whole log at its last fetch, which did not name the partition.
            self.last_fetch_ms = contact.last_fetch_ms
            self.last_caught_up_ms = max(self.last_caught_up_ms, contact.last_fetch_ms)

    def end_contact(self, contact: FollowerContact, leader_end_offset: int) -> None:
        """Note that the session no longer contains the partition."""
        if self.contact is contact:
            self.note_growth(leader_end_offset)
            self.contact = None

    def forget_position(self, leader_end_offset: int) -> None:
        """Note that its log may be cut anywhere. It was caught up as lately as before."""
        self.note_growth(leader_end_offset)
        self.log_end_offset, self.contact, self.wants_in = UNKNOWN_OFFSET, None, False

    def is_caught_up(self, leader_end_offset: int, now_ms: float, lag_ms: float) -> bool:
        """Whether the follower has the whole log, or had all of it within the last ``lag_ms``."""
        return self.log_end_offset == leader_end_offset or now_ms - self.last_caught_up_ms <= lag_ms
