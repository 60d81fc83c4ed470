"""Says which brokers keep their replicas of diskless partitions, and in which zones they are.

A broker that is away for a moment keeps them: it has most of the records when it is back. One that
stays away loses them to others of its zone. If a whole zone is away, its brokers keep them: no
other one could serve it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from tidelog_core.metadata.records import Broker
from tidelog_core.replication.diskless_followers import Racks

AWAY_MS_MAX = 60_000  # a process or a machine starts again in less


class ReplicaRacks:
    """The racks of these brokers, as one node sees them."""

    def __init__(self) -> None:
        self._away_since_ms: dict[int, float] = {}

    def note(self, brokers: Mapping[int, Broker], able: Collection[int], now_ms: float) -> Racks:
        """Return the racks; ``brokers`` are all that are registered, ``able`` may lead."""
        self._away_since_ms = {
            broker_id: self._away_since_ms.get(broker_id, now_ms)
            for broker_id in brokers
            if broker_id not in able
        }
        served = {brokers[broker_id].rack for broker_id in able if broker_id in brokers}
        return {
            broker_id: broker.rack
            for broker_id, broker in brokers.items()
            if broker_id in able
            or broker.rack not in served
            or now_ms < self._away_since_ms[broker_id] + AWAY_MS_MAX
        }
