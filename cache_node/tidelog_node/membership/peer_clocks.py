"""The clocks of the other nodes, read from their lease items."""

from __future__ import annotations

from collections.abc import Iterable

from tidelog_core.metadata.records import BrokerLease
from tidelog_core.model import NO_TIMESTAMP
from tidelog_core.retention.clock_rule import Witness


class PeerClocks:
    """Witnesses for this node's clock, from readings of the leases. For one event loop.

    Only a lease that has moved since the previous reading has a usable time: it was written after
    that reading had begun, so its clock counts as read at that moment. This overestimates the
    peer's clock by at most the interval between two readings.
    """

    def __init__(self, broker_id: int) -> None:
        self._broker_id = broker_id
        self._versions: dict[int, int] = {}
        self._moved: set[int] = set()
        self._read_ms = 0.0  # when the last reading was begun
        self._witnesses: dict[int, Witness] = {}

    def observe(self, leases: Iterable[BrokerLease], *, started_ms: float) -> None:
        """Add a reading of all leases that was begun at ``started_ms``."""
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
        """Whether all of these other brokers have renewed their leases since the first reading.

        Also true for a broker of an earlier version, which does not publish its clock.
        """
        return self._moved.issuperset(set(broker_ids) - {self._broker_id})

    def witnesses(self) -> Iterable[Witness]:
        """Return the last known clock of each broker."""
        return self._witnesses.values()
