"""How far one follower is, as its leader sees it. Source: Kafka's ``ReplicaState``."""

from __future__ import annotations

from dataclasses import dataclass

UNKNOWN_OFFSET = -1
NO_REPLICA_EPOCH = -1


@dataclass(slots=True)
class FollowerProgress:
    """What a follower's fetches in one leader epoch have told."""

    log_end_offset: int = UNKNOWN_OFFSET
    log_start_offset: int = UNKNOWN_OFFSET
    replica_epoch: int = NO_REPLICA_EPOCH  # the version of its registration
    last_fetch_ms: float = 0
    last_fetch_leader_end: int = 0  # the leader's log end at that fetch
    last_caught_up_ms: float = float("-inf")
    wants_in: bool = False  # its last fetch was good enough to join the ISR

    def note_fetch(
        self,
        fetch_offset: int,
        *,
        leader_end_offset: int,
        log_start_offset: int,
        replica_epoch: int,
        now_ms: float,
    ) -> None:
        """Note a fetch that came now.

        The follower was caught up now if it has the leader's whole log; it was at its last
        fetch if it has by now all that the leader had then. Under a steady load of small
        appends only the second ever holds.
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

    def is_caught_up(self, leader_end_offset: int, now_ms: float, lag_ms: float) -> bool:
        """Whether it has the whole log, or had all of it within the last ``lag_ms``."""
        return self.log_end_offset == leader_end_offset or now_ms - self.last_caught_up_ms <= lag_ms
