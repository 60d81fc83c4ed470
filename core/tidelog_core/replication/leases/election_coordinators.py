"""Selects the node that writes the takeovers and ISR changes after a broker's death.

Every node can compute the next leader (``LeaderElector.candidates``). The commit makes a takeover
safe: it expects the partition's version and the dead leader's lease. So the successor need not
write it. Nor need a leader remove a dead follower from the ISR itself: others may write that, and
the leader counts the follower until it reads the change. When a zone fails, every other node leads
partitions that have lost a replica. The changelog takes one commit after the other, so
simultaneous commits of many nodes conflict. Instead one node, the election coordinator of the dead
broker, writes all changes in large transactions, partitions without a leader first.

The coordinator is the watcher (``lease_watch``) with the smallest id outside the dead broker's
rack, because the other brokers of that rack may be failing too. If it makes no progress, because
it is stopping or cut off, the next watcher takes over after a delay, the third after two delays,
and so on. Watchers see a death in time, however many brokers there are. A broker with a step-down
reason in its lease is skipped. After the second watcher, the successors write their own takeovers
and leaders shrink their own ISRs. The delay is counted from the death, or from the last of its
partitions that was seen written, so no other node interferes while the coordinator makes progress.

A successor that writes its takeover proves that it is alive. A coordinator knows only what it has
read. So it elects, and shrinks the ISRs of, only brokers that have renewed after the dead broker's
last possible renewal (``PeerLeases.is_fresh``). If two members were lost together, it elects
neither of them: the first one to come back has every acknowledged record, and leads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from tidelog_core.metadata.records import Broker
from tidelog_core.replication.leases.lease_watch import watchers

STEP_IN_DELAY_MS = 1_000
# How long a leader waits for the coordinators to remove a dead follower from the ISR. A follower
# that has released its lease is removed within one step-in delay: its shutdown has moved the
# leaderships of its partitions.
ISR_SHRINK_DELAY_MS = 3 * STEP_IN_DELAY_MS
COORDINATOR_PLACES = 2  # how many step-in delays successors leave to the coordinators


class ElectionCoordinators:
    """The brokers that write for each dead broker, at one moment."""

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
        """Return the brokers that may write the changes after a broker's death, in order."""
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
        """Return how long the broker waits for those before it, ``None`` for ever.

        ``unattended_ms`` is the time since a change after that death was last written.
        """
        writers = self.of(dead_id)
        if broker_id not in writers:
            return None
        return max(0.0, writers.index(broker_id) * step_in_delay_ms - unattended_ms)

    def _search(self, rack: str | None) -> Sequence[int]:
        live = watchers(self._brokers, self._is_live)
        able = [b for b in live if not self._is_stepping_down(b)]
        return [b for b in able if rack is None or self._brokers[b].rack != rack] or able
