"""The time that brokers get beyond their timeouts because they were suspected wrongly.

Theory of operation. A timeout that is too short for a machine has no end: each broker takes the
others' partitions, is itself suspected while it does so, and no leader stays long enough to begin
its epoch. So the timeout adapts, as in failure detectors of partial synchrony: whenever a suspected
broker turns out to be alive, the observer waits longer for that broker from then on. In a system
whose delays are bounded, however large the bound, wrong suspicions end.

- An additional time only ever adds to the fixed timeouts of ``LeaseTimes``. A broker that was never
  suspected wrongly gets none.
- It grows to the lateness that was seen, or twice what it was, and one renewal interval more.
- It never exceeds ``LeaseTimes.extra_ms_max``, so a silent broker is suspected that much later at
  most. A broker is dead after a lease, or once it is suspected, if that is later.
- It is halved for each ``CALM_MS`` without another wrong suspicion, and ends.

**Safety does not depend on it.** Timeouts decide when a takeover is tried, never whether it is
safe: leader epochs, seals, and the check of the lease in the takeover's write do that
(``peer_leases``). A broker's own lease (``own_lease``) knows nothing of additional times: it stops
acting as early as ever.

Source: Chandra and Toueg, Unreliable failure detectors for reliable distributed systems, 1996.
"""

from __future__ import annotations

from dataclasses import dataclass

from tidelog_core.replication.leases.lease_times import LeaseTimes

CALM_MS = 60_000.0  # without a wrong suspicion, before the additional time is halved


@dataclass(slots=True)
class _Extra:
    extra_ms: float
    since_ms: float  # when it was last changed


class AdaptiveTimeouts:
    """One observer's additional times, by broker. The caller has the clock."""

    def __init__(self, times: LeaseTimes) -> None:
        self._step_ms = float(times.brisk_renew_ms)
        self._extra_ms_max = float(times.extra_ms_max)
        self._extras: dict[int, _Extra] = {}

    def extra_ms(self, broker_id: int) -> float:
        """Return the time that the broker gets beyond each of its timeouts."""
        extra = self._extras.get(broker_id)
        return 0.0 if extra is None else extra.extra_ms

    def note_wrong(self, broker_id: int, *, late_ms: float, now_ms: float) -> None:
        """Note that the broker was suspected and lives; ``late_ms``: so much after its timeout."""
        grown_ms = max(2 * self.extra_ms(broker_id), late_ms) + self._step_ms
        self._extras[broker_id] = _Extra(min(grown_ms, self._extra_ms_max), now_ms)

    def decay(self, now_ms: float) -> None:
        """Halve the additional times of brokers that were not suspected wrongly for long."""
        for broker_id, extra in tuple(self._extras.items()):
            while now_ms - extra.since_ms >= CALM_MS:
                extra.extra_ms /= 2
                extra.since_ms += CALM_MS
                if extra.extra_ms < self._step_ms / 2:
                    del self._extras[broker_id]
                    break
