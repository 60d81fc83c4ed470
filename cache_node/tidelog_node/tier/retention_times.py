"""Tracks when the retention of each partition is due, so that idle ones are not visited.

Two queues. By the loop's time: partitions that have changed, when their interval since the last
visit is over; deletions in progress; retries. By the wall clock: unchanged partitions, when their
oldest segment expires. Ages are wall-clock time, so a jump of the clock changes when they are due.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from tidelog_core.due_queue import DueQueue

from tidelog_node.tier.led_partition import TieredReplica

DELAY_SHARE = 0.25  # of the interval: how late a partition may be, to group visits


class RetentionTimes:
    """The due times of all partitions. Dropped replicas are ignored. For one event loop."""

    def __init__(
        self, *, interval_s: float, now: Callable[[], float], clock_ms: Callable[[], int]
    ) -> None:
        """``interval_s`` is the time between two visits of one partition."""
        self.interval_s = interval_s
        self._now = now
        self._clock_ms = clock_ms
        self._due: DueQueue[TieredReplica] = DueQueue()
        self._expiring: DueQueue[TieredReplica] = DueQueue()

    def put_regular(self, replica: TieredReplica, visited_at: float) -> None:
        """Make the partition due an interval after that time of the loop."""
        step_s = self.interval_s * DELAY_SHARE
        due = max(self._now(), visited_at + self.interval_s)
        self._put(replica, math.ceil(due / step_s) * step_s)

    def put_in(self, replica: TieredReplica, seconds: float) -> None:
        """Make the partition due in so many seconds, unless it is due earlier."""
        self._put(replica, self._now() + seconds)

    def _put(self, replica: TieredReplica, due: float) -> None:
        if not replica.is_dropped:
            self._due.put_earlier(replica, due)

    def expires_at(self, replica: TieredReplica, expiry_ms: int | None) -> None:
        """Set when the partition's next segment expires, in wall-clock time; ``None`` for never.

        A segment that has expired already waits for something else: the partition is visited again
        in an interval.
        """
        if expiry_ms is not None and expiry_ms > self._clock_ms() and not replica.is_dropped:
            self._expiring.put(replica, expiry_ms)
            return
        self._expiring.discard(replica)
        if expiry_ms is not None:
            self.put_regular(replica, self._now())

    def forget(self, replica: TieredReplica) -> None:
        """Stop visiting the partition."""
        self._due.discard(replica)
        self._expiring.discard(replica)

    def take(self) -> list[TieredReplica]:
        """Return the partitions that are due, each once, and remove them."""
        due = self._due.take(self._now())
        return list(dict.fromkeys([*due, *self._expiring.take(self._clock_ms())]))

    @property
    def wait_s(self) -> float:
        """The seconds until a partition is due, at most the interval."""
        wait_s = self.interval_s
        if self._expiring.first_due is not None:
            expires_in_s = (self._expiring.first_due - self._clock_ms()) / 1000
            wait_s = min(wait_s, max(expires_in_s, self.interval_s * DELAY_SHARE))
        if self._due.first_due is not None:
            wait_s = min(wait_s, self._due.first_due - self._now())
        return max(0.0, wait_s)
