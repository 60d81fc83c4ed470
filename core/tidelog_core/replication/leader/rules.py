"""The settings that replication follows."""

from __future__ import annotations

from dataclasses import dataclass

LAG_TIME_MAX_MS = 30_000  # Kafka's replica.lag.time.max.ms
RETRY_MS = 500  # before a write that the store refused is tried again
FOLLOW_MS = 10_000  # how long a diskless partition waits for its successor to follow, at most
HAND_OVER_MS = 2_000  # how long appends are refused at most while the successor catches up


@dataclass(frozen=True, slots=True)
class ReplicationRules:
    """The settings of one leader or follower; new ones may be given at any time."""

    min_insync_replicas: int = 1
    lag_time_max_ms: int = LAG_TIME_MAX_MS
    retry_ms: int = RETRY_MS
    hand_over_ms: int = HAND_OVER_MS
    follow_ms: int = FOLLOW_MS
