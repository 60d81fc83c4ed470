"""The clocks of the other nodes, read from their lease items."""

from __future__ import annotations

from collections.abc import Iterable

from tidelog_core.metadata.records import BrokerLease
from tidelog_core.model import NO_TIMESTAMP
from tidelog_core.retention.clock_rule import Witness


class PeerClocks:
    """Witnesses for this node's clock, from readings of the leases. For one event loop.

    Only a lease that has moved since the reading before tells what the time is: it was written
    after that reading had begun, and that moment is when its clock counts as heard. This
    overestimates the peer's clock by at most the interval between two readings.
    """

    def __init__(self, broker_id: int) -> None:
        self._broker_id = broker_id
        self._versions: dict[int, int] = {}
        self._moved: set[int] = set()
        self._read_ms = 0.0  # when the last reading was begun
        self._witnesses: dict[int, Witness] = {}

    def observe(self, leases: Iterable[BrokerLease], *, started_ms: float) -> None:
        """Take a reading of all leases that was begun at ``started_ms``."""
        for lease in leases:
            before = self._versions.get(lease.broker_id)
            self._versions[lease.broker_id] = lease.version
            if before in (None, lease.version) or lease.broker_id == self._broker_id:
                continue
            self._moved.add(lease.broker_id)
            if lease.wall_ms != NO_TIMESTAMP:
                name = f"the clock of broker {lease.broker_id}"
                self._witnesses[lease.broker_id] = Witness(name, lease.wall_ms, self._read_ms)
        self._read_ms = started_ms

    def have_heard(self, broker_ids: Iterable[int]) -> bool:
        """Whether all of these, this node aside, have renewed their lease since it was read first.

        Those of an earlier version have told nothing then, and never will.
        """
        return self._moved.issuperset(set(broker_ids) - {self._broker_id})

    def witnesses(self) -> Iterable[Witness]:
        """Return what each was heard to say last."""
        return self._witnesses.values()
