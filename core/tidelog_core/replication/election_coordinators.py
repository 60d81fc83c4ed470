"""Which node writes what follows from a broker's death, for all whom it concerns.

Every node can tell who leads next (``LeaderElector.candidates``), and what makes a takeover
safe is in the commit itself: the partition's version and the check on the dead leader's lease.
So the successor need not write it. Nor need the leader take a dead follower out of the ISR:
members leave without it too, and it counts them until it has read that. When a zone goes, every
node that is left leads partitions that have lost a replica, and the changelog takes one commit
after the other: nodes that commit at the same moment turn each other away. One node, the election
coordinator of the dead broker, writes it all instead, as much in one transaction as it takes, and
meets nobody; first the partitions without a leader.

The coordinator is the watcher (``lease_watch``) with the smallest id that is not of the dead
broker's rack: the others of that rack may be dying too. If it does not act, as one that is about to
stop or is cut off without anyone's knowledge yet, the next watcher steps in a moment later, the
third two moments later, and so on: they know of the death in time, however many brokers there are.
A broker that says with its lease that others had better lead is passed over. The successors step
in after the second, each for itself, and leaders shrink their ISRs. A moment is counted from the
death or from the last of its partitions that was seen to be written: nobody steps in while the
coordinator gets on, however many partitions there are.

A successor that writes proves that it lives. A coordinator knows only what it has read, so it
names, and shrinks the ISRs of, only those that have renewed after the dead one could have
(``PeerLeases.is_fresh``). Of two members that were lost together none is named to lead alone:
whichever comes back first has every acknowledged record, and leads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from tidelog_core.metadata.records import Broker
from tidelog_core.replication.lease_watch import watchers

STEP_IN_DELAY_MS = 1_000
# How long a leader leaves it to the coordinators to take a dead follower out of the ISR. One that
# has left in order is out within one step-in delay: its shutdown has moved what it led.
ISR_SHRINK_DELAY_MS = 3 * STEP_IN_DELAY_MS
COORDINATOR_PLACES = 2  # how many step-in delays successors leave to the coordinators


class ElectionCoordinators:
    """Which brokers write for which dead broker, at one moment."""

    def __init__(
        self,
        brokers: Mapping[int, Broker],
        is_live: Callable[[int], bool],
        is_stepping_down: Callable[[int], bool],
    ) -> None:
        self._brokers = brokers
        self._is_live = is_live
        self._is_stepping_down = is_stepping_down
        self._found: dict[str | None, Sequence[int]] = {}  # by the dead one's rack

    def of(self, dead_id: int) -> Sequence[int]:
        """Return who writes what follows from the broker's death, the first choice first."""
        dead = self._brokers.get(dead_id)
        rack = None if dead is None else dead.rack
        if rack not in self._found:
            self._found[rack] = self._search(rack)
        return self._found[rack]

    def wait_ms(
        self,
        broker_id: int,
        dead_id: int,
        unattended_ms: float,
        *,
        step_in_delay_ms: int = STEP_IN_DELAY_MS,
    ) -> float | None:
        """Return for how long the broker leaves it to those before it, ``None`` for ever.

        ``unattended_ms``: for how long nobody has written what follows from that death.
        """
        writers = self.of(dead_id)
        if broker_id not in writers:
            return None
        return max(0.0, writers.index(broker_id) * step_in_delay_ms - unattended_ms)

    def _search(self, rack: str | None) -> Sequence[int]:
        live = watchers(self._brokers, self._is_live)
        able = [b for b in live if not self._is_stepping_down(b)]
        return [b for b in able if rack is None or self._brokers[b].rack != rack] or able
