"""The duration of leases, and the time after which others notice that one has lapsed.

Theory of operation. A broker renews its lease by writing its item with the counter one
higher; another broker takes it for dead when a reading, begun a whole lease after the
counter was first seen, still shows the same item version. That is the earliest moment: see
``observed_time`` and ``adaptive_timeouts``. Clocks are not compared: each
side measures on its own monotonic clock, and only the rates have to agree (see
``LeaseTimes.margin_ms``).

- The holder (``own_lease``) counts its lease from *before* it sent the renewal, and a margin
  less; the observer (``peer_leases``) counts from *after* its reading came back. So the holder
  stops acting before any observer's lease is over, at any delay of network and store.
- A takeover is committed together with a check on the dead leader's lease item
  (``PeerLeases.check``). A renewal and a takeover therefore cannot both win: once a
  renewal is in, no takeover that was decided before can land any more.
- Renewals stop once the event loop that answers clients has not turned for
  ``LeaseTimes.stall_ms`` (``can_renew``). So a process that hangs loses its lease at most
  ``stall_ms`` later than one that died.

The clock must continue while the process or the machine is suspended (``CLOCK_BOOTTIME``).
"""

from __future__ import annotations

from dataclasses import dataclass

from tidelog_core.config import NodeConfig

LEASE_MS = 9_000
RENEW_MS = 3_000
RENEWALS_RETRIED_PER_INTERVAL = 6
LATE_MS = 1_500  # a renewal that is later than this is suspicious
BRISK_RENEW_MS = 1_000  # between two renewals of a broker that leads diskless partitions
BRISK_LATE_MS = 500  # a renewal that is later than this is suspicious if the port refuses
ENDED_MS = 300  # for so long the port of a process that was reached refuses until it is suspected
EXTRA_MS_MAX = 10_000  # what a broker that was suspected wrongly may get beyond its timeouts
EXTRA_LEASES_MAX = 4  # and no more than that many leases
RENEWALS_PER_LEASE_MIN = 3
MARGIN_PARTS = 9  # the margin is this part of the lease: 1 s of 9 s
STALL_NUMERATOR, STALL_DENOMINATOR = 2, 3  # of the lease: 6 s of 9 s


@dataclass(frozen=True, slots=True)
class LeaseTimes:
    """The duration and the renewal interval of a lease, milliseconds."""

    lease_ms: int = LEASE_MS
    renew_ms: int = RENEW_MS

    def __post_init__(self) -> None:
        if not 0 < self.renew_ms * 2 <= self.lease_ms:
            raise ValueError(
                f"a lease of {self.lease_ms} ms must last at least two renewals,"
                f" and renewing every {self.renew_ms} ms does not leave that"
            )

    @property
    def margin_ms(self) -> int:
        """The time from the holder's stop until observers see its lease expire.

        Covers clocks whose rates differ by up to a tenth, and the time from the check of
        ``may_act`` until the answer has left the process.
        """
        return self.lease_ms // MARGIN_PARTS

    @property
    def silent_ms_max(self) -> int:
        """The longest time since the last renewal of a broker that has outlived a dead one.

        A broker that died at the same time renewed at most ``renew_ms`` later, and has been
        silent for the rest of the lease. The margin allows for a late renewal.
        """
        return self.lease_ms - self.renew_ms - self.margin_ms

    @property
    def suspicion_ms(self) -> int:
        """The time without a renewal after which others take a broker's diskless partitions.

        A chain is safe even if its owner is alive, so this is a guess: a wrong one costs a new
        chain.
        """
        return min(self.lease_ms, self.renew_ms + LATE_MS)

    @property
    def brisk_renew_ms(self) -> int:
        """The time between two renewals of a broker that leads diskless partitions."""
        return min(self.renew_ms, BRISK_RENEW_MS)

    def renewal_ms(self, *, is_brisk: bool) -> int:
        """The time between two renewals; ``is_brisk``: of a broker that leads diskless ones."""
        return self.brisk_renew_ms if is_brisk else self.renew_ms

    @property
    def refusal_ms(self) -> int:
        """The time without a renewal, while the port refuses connections, until suspicion.

        A process that starts again takes longer than that only if it misses a renewal too.
        """
        return min(self.suspicion_ms, self.brisk_renew_ms + BRISK_LATE_MS)

    @property
    def ended_ms(self) -> int:
        """The time for which the port of a process that was reached refuses, until suspicion.

        The kernel closes the connections and the port of a process when it dies. A process that
        starts again, and registers within this time, keeps its partitions.
        """
        return min(self.refusal_ms, ENDED_MS)

    @property
    def extra_ms_max(self) -> int:
        """The most time beyond these that a broker gets (``adaptive_timeouts``)."""
        return min(EXTRA_LEASES_MAX * self.lease_ms, EXTRA_MS_MAX)

    @property
    def retry_ms(self) -> int:
        """The pause after a failed renewal."""
        return max(1, self.renew_ms // RENEWALS_RETRIED_PER_INTERVAL)

    @property
    def stall_ms(self) -> int:
        """The longest time that the event loop may be blocked while the lease is renewed."""
        return self.lease_ms * STALL_NUMERATOR // STALL_DENOMINATOR

    def can_renew(self, *, turned_ms: float, now_ms: float) -> bool:
        """Whether the event loop, last seen running at ``turned_ms``, is not blocked too long."""
        return now_ms - turned_ms < self.stall_ms


def lease_times(config: NodeConfig) -> LeaseTimes:
    """Return the times for these settings.

    The renewal interval is reduced for a short lease, so that only the lease needs to be set.
    """
    lease_ms = config.broker_session_timeout_ms
    renew_ms = min(config.broker_heartbeat_interval_ms, lease_ms // RENEWALS_PER_LEASE_MIN)
    return LeaseTimes(lease_ms, renew_ms)
