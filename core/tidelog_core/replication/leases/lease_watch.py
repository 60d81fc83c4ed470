"""Decides how often a broker reads all leases, so that the total load stays bounded.

Every broker reads the leases of all brokers, so the load grows with the square of their number,
all of it on one key of the metadata store. But only the election coordinators
(``election_coordinators``) have to see a leader's death quickly. These are the watchers: the first
live brokers of each rack, so that the loss of a rack leaves watchers in the others. They read
often enough to see a lease expire in time. All others read as often as ``UNITS_PER_S`` allows:
the more brokers there are, the later they see who is alive, for clients and for new replicas. Up
to about 100 brokers there is no difference.

Each broker decides from its own knowledge whether it is a watcher. If all watchers fail at once,
the others see it with their own readings and become watchers. After an outage of the store a
reading may not show any renewal yet, and every broker would become a watcher. So a broker becomes
one only after a second reading that confirms it, at least a renewal interval later; brokers with
many others before them take that reading later (``ReadingPace``). Failed readings are repeated no
sooner.

A registration needs no extra reading of leases: it also proves that the broker holds its lease
(``PeerLeases.note_registered``).
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Mapping

from tidelog_core.metadata.records import Broker

WATCHERS_PER_RACK_MIN = 3
WATCHERS_MIN = 9  # of all racks together
LEASE_SIZE_BYTES = 160  # of an item, rounded up
READ_UNIT_BYTES = 4096  # Source: DynamoDB developer guide, strongly consistent reads
UNITS_PER_S = 1000  # for all brokers that are no watchers; a key takes 3,000
SPREAD = 0.2  # of the interval; keeps the brokers that are no watchers from reading together


def is_watcher(
    broker_id: int, brokers: Mapping[int, Broker], is_live: Callable[[int], bool]
) -> bool:
    """Whether the broker reads the leases as often as it takes to see one lapse in time."""
    own = brokers.get(broker_id)
    if own is None:
        return False
    before = (b for b, broker in brokers.items() if broker.rack == own.rack and b < broker_id)
    return sum(1 for b in before if is_live(b)) < _watchers_per_rack(brokers)


def watchers(brokers: Mapping[int, Broker], is_live: Callable[[int], bool]) -> list[int]:
    """Return the live brokers that are watchers, by their ids."""
    wanted, found = _watchers_per_rack(brokers), Counter[str | None]()
    watching = []
    for broker_id in sorted(brokers):
        rack = brokers[broker_id].rack
        if found[rack] < wanted and is_live(broker_id):
            found[rack] += 1
            watching.append(broker_id)
    return watching


def _watchers_per_rack(brokers: Mapping[int, Broker]) -> int:
    rack_count = len({broker.rack for broker in brokers.values()})
    return max(WATCHERS_PER_RACK_MIN, math.ceil(WATCHERS_MIN / max(1, rack_count)))


def reading_units(broker_count: int) -> int:
    """Return the read units that one reading of all leases consumes."""
    return max(1, math.ceil(broker_count * LEASE_SIZE_BYTES / READ_UNIT_BYTES))


def unhurried_interval_ms(broker_count: int) -> float:
    """Return the time between two readings of a broker that is no watcher."""
    return 1000 * broker_count * reading_units(broker_count) / UNITS_PER_S


class ReadingPace:
    """The schedule of one broker's readings of all leases. The caller passes the time."""

    def __init__(
        self, broker_id: int, *, watching_ms: float, renew_ms: float, chance: random.Random
    ) -> None:
        """``watching_ms`` is the time between two readings of a watcher."""
        self._broker_id = broker_id
        self._watching_ms = watching_ms
        self._renew_ms = renew_ms
        self._chance = chance
        self._chosen_ms: float | None = None  # when a reading first showed it to be a watcher
        self._is_confirmed = False

    def on_reading(
        self, brokers: Mapping[int, Broker], is_live: Callable[[int], bool], *, started_ms: float
    ) -> None:
        """Apply a reading of all leases that was begun at ``started_ms``."""
        if not is_watcher(self._broker_id, brokers, is_live):
            self._chosen_ms, self._is_confirmed = None, False
        elif self._chosen_ms is None:
            self._chosen_ms = started_ms
        elif started_ms - self._chosen_ms >= self._renew_ms:
            self._is_confirmed = True

    def next_interval_ms(self, brokers: Mapping[int, Broker]) -> float:
        """Return the time between the beginnings of the last reading and the next one."""
        spread = self._chance.uniform(1 - SPREAD, 1 + SPREAD)
        unhurried_ms = unhurried_interval_ms(len(brokers)) * spread
        if self._is_confirmed or unhurried_ms <= self._watching_ms:
            return self._watching_ms
        if self._chosen_ms is None:
            return unhurried_ms
        place = _place(self._broker_id, brokers)
        return min(unhurried_ms, max(self._renew_ms, unhurried_ms * place / len(brokers)))


def _place(broker_id: int, brokers: Mapping[int, Broker]) -> int:
    """Return about how many brokers would become watchers before this one if all are alive."""
    own = brokers.get(broker_id)
    if own is None:
        return len(brokers)
    rack_count = len({broker.rack for broker in brokers.values()})
    before = sum(1 for b, broker in brokers.items() if broker.rack == own.rack and b < broker_id)
    return min(len(brokers), before * rack_count)
