"""The brokers' replicas in arrays, placed by the product's rules."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from tidelog_core.replication.placement.placer import ReplicaPlacer

from bench.day.scenario import REPLICAS, ZONES, Scenario

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

IDS_PER_ZONE = 1_000_000  # of the simulation; the template allows 99, see limits


@dataclass(frozen=True, slots=True)
class Cluster:
    """Brokers and partitions by index; a topic's partitions are neighbours."""

    zone_of: Ints  # by broker
    machine_of: Ints  # by broker
    replicas: Ints  # by partition: brokers, the preferred leader first
    share: Floats  # by partition, of all produced bytes
    reader_zone: Ints  # by partition and group: the zone of its consumer

    @property
    def broker_count(self) -> int:
        """Brokers of all zones."""
        return len(self.zone_of)

    def by_machine(self, by_broker: Floats) -> Floats:
        """Return the sums of each machine's brokers."""
        return total_by(self.machine_of, by_broker, int(self.machine_of[-1]) + 1)


def total_by(owner: Ints, values: Floats, count: int) -> Floats:
    """Return the sum of the values of each owner; owners are numbers below ``count``."""
    return np.asarray(np.bincount(owner.ravel(), values.ravel(), count), np.float64)


def any_replica(chosen: Bools) -> Bools:
    """Return the partitions with a chosen replica."""
    return np.asarray(chosen.any(axis=1), np.bool_)


def build(scenario: Scenario) -> Cluster:
    """Return the scenario's cluster; the same for the same seed."""
    random = np.random.default_rng(scenario.seed)
    per_zone = scenario.machines_per_zone * scenario.processes_per_machine
    ids = [
        IDS_PER_ZONE * (zone + 1) + number for zone in range(ZONES) for number in range(per_zone)
    ]
    racks: dict[int, str | None] = {b: f"zone {b // IDS_PER_ZONE}" for b in ids}
    index = {broker_id: number for number, broker_id in enumerate(ids)}
    placer = ReplicaPlacer(racks=racks, live=set(ids))
    placed = [
        replicas
        for _ in range(scenario.topics)
        for replicas in placer.place(scenario.partitions_per_topic, REPLICAS)
    ]
    numbers = np.arange(len(ids))
    weights = (1.0 + random.permutation(scenario.partitions)) ** -scenario.popularity_exponent
    return Cluster(
        zone_of=numbers // per_zone,
        machine_of=numbers // scenario.processes_per_machine,
        replicas=np.array([[index[b] for b in replicas] for replicas in placed]),
        share=weights / weights.sum(),
        reader_zone=random.integers(0, ZONES, (scenario.partitions, scenario.readers)),
    )
