"""Which node writes what follows from a broker's death, for all whom it concerns.

Every node can tell who leads next (``ElectionClerk.candidates``), and what makes a takeover
safe is in the commit itself: the partition's version and the check on the dead leader's lease.
So it need not be the heir that writes. Nor need it be the leader that takes a dead follower out
of the ISR: members leave without it too, and it counts them until it has read that. When a
zone goes, every node that is left leads partitions that have lost a replica, and the changelog
takes one commit after the other: nodes that commit at the same moment turn each other away. One
node writes it all instead, as much in one transaction as it takes, and meets nobody; first what
nobody leads.

That node is the live one with the smallest id that is not of the dead one's rack: the others of
that rack may be dying too. If it does not act, or is cut off without anyone's knowledge yet,
the heirs take over themselves a moment later, each for itself, and leaders shrink their ISRs.

An heir that writes proves that it lives. Who writes for others knows only what it has read, so it
names, and shrinks the ISRs of, only those that have renewed after the dead one could have
(``PeerLeases.is_fresh``). Of two members that were lost together none is named to lead alone:
whichever comes back first has every acknowledged record, and leads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tidelog_core.metadata.records import Broker

STEP_IN_DELAY_MS = 1_000
# How long a leader leaves it to that node to take a dead follower out of the ISR.
RELIEF_DELAY_MS = 3 * STEP_IN_DELAY_MS
APPOINTED_PLACES = 1  # how many step-in delays the heirs leave to the node that writes for all


class Appointers:
    """Who writes for which dead broker, at one moment."""

    def __init__(self, brokers: Mapping[int, Broker], is_live: Callable[[int], bool]) -> None:
        self._brokers = brokers
        self._is_live = is_live
        self._found: dict[str | None, int | None] = {}  # by the dead one's rack

    def of(self, dead_id: int) -> int | None:
        """Return who writes the takeovers of what the dead broker led, ``None`` for nobody."""
        dead = self._brokers.get(dead_id)
        rack = None if dead is None else dead.rack
        if rack not in self._found:
            self._found[rack] = self._search(rack)
        return self._found[rack]

    def _search(self, rack: str | None) -> int | None:
        live = [broker_id for broker_id in sorted(self._brokers) if self._is_live(broker_id)]
        elsewhere = (b for b in live if rack is None or self._brokers[b].rack != rack)
        return next(elsewhere, live[0] if live else None)
