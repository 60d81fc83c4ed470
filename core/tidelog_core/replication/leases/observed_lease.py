"""What readings have shown of one broker's lease."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from uuid import UUID

from tidelog_core.errors import CorruptItem
from tidelog_core.metadata.records import BrokerLease
from tidelog_core.metadata.store import Item
from tidelog_core.replication.leases.own_lease import RELEASED

NOBODY = UUID(int=0)  # the incarnation in a lease that cannot be read


def read_leases(items: Iterable[Item]) -> list[BrokerLease]:
    """Return the brokers' leases, including those of unreadable items.

    An unreadable item becomes a lease of ``NOBODY``. Its version still moves while the broker
    is alive, and the broker's next renewal repairs the item.
    """
    leases = []
    for item in items:
        try:
            leases.append(BrokerLease.from_item(item))
        except CorruptItem:
            if item.id.key.isdecimal():
                broker_id = int(item.id.key)
                leases.append(
                    BrokerLease(
                        broker_id=broker_id,
                        incarnation=NOBODY,
                        counter=RELEASED + 1,
                        version=item.version,
                    )
                )
    return leases


@dataclass(slots=True)
class ObservedLease:
    """One version of a broker's lease, and since when readings show it. Times are of the observer.

    ``silent_ms`` is at most the time from the first reading's return to the last one's beginning:
    not all of it counts (``observed_time``).
    """

    record: BrokerLease
    after_ms: float  # it was written after this: a reading begun then showed an earlier one
    first_seen_ms: float
    confirmed_ms: float  # when the last reading that showed it was begun
    silent_ms: float = 0.0
    # When it was found dead, or when a change after its death was last written; None if alive.
    attended_ms: float | None = None
    has_moved: bool = False  # a commit's check has failed on it, and it was not read since
    was_suspected: bool = False  # at any time since it was first seen
    was_late: bool = False  # the same, because no renewal was seen for too long

    @property
    def is_confirmed(self) -> bool:
        """Whether a later reading than the first one has shown the same."""
        return self.confirmed_ms > self.first_seen_ms

    def confirm(self, started_ms: float, *, counted_ms: float) -> None:
        """Note that a reading has shown the same; ``counted_ms`` count since the one before."""
        unseen_ms = started_ms - max(self.confirmed_ms, self.first_seen_ms)
        self.silent_ms += max(0.0, min(counted_ms, unseen_ms))
        self.confirmed_ms = max(self.confirmed_ms, started_ms)
        self.has_moved = False  # A reading counts more than a lost check.

    def is_renewed_by(self, lease: BrokerLease) -> bool:
        """Whether the later version shows that the same process is alive."""
        is_same = lease.incarnation == self.record.incarnation != NOBODY
        return is_same and RELEASED not in (self.record.counter, lease.counter)


@dataclass(frozen=True, slots=True)
class WrongSuspicion:
    """A broker that was suspected, and has renewed its lease as the same process."""

    broker_id: int
    silent_ms: float  # how long no renewal was seen
    extra_ms: float  # the time that it gets beyond its timeouts from now on
