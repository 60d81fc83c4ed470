"""Which brokers get a new partition's replicas: leaders round the brokers, racks kept apart.

Striped as Kafka does it: the replicas of one partition go to one rack after the other,
each taking that rack's next broker; the next partition starts one rack further. Within a
rack the brokers take turns, and the turn moves on with every partition, so the followers
of one leader are not always the same brokers. Brokers that are not live are used last and
never lead. Unlike Kafka's placer nothing is random: the racks start with the broker that
leads least, so many small topics spread as evenly as one wide one. Within one call the
leaders always go round: a broker that has just joined gets its share of a wide topic, not
all of it.
Source: Kafka's ``StripedReplicaPlacer``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Set

from tidelog_core.errors import InvalidReplicationFactor

Replicas = tuple[int, ...]


def place_replicas(
    partition_count: int,
    replication_factor: int,
    *,
    racks: Mapping[int, str | None],
    live: Set[int],
    leader_load: Mapping[int, int],
    replica_load: Mapping[int, int] | None = None,
) -> tuple[Replicas, ...]:
    """Return the replicas of each new partition, its leader first.

    ``racks`` has every registered broker, ``leader_load`` how many partitions each is the
    preferred leader of, ``replica_load`` how many replicas each holds. A broker without a
    rack shares one with the others that have none. Raises ``InvalidReplicationFactor``.
    """
    if replication_factor <= 0:
        raise InvalidReplicationFactor(
            f"Invalid replication factor {replication_factor}:"
            " the replication factor must be positive."
        )
    if not live & racks.keys():
        raise InvalidReplicationFactor("All brokers are currently fenced.")
    if replication_factor > len(racks):
        raise InvalidReplicationFactor(
            f"The target replication factor of {replication_factor} cannot be reached"
            f" because only {len(racks)} broker(s) are registered."
        )
    return tuple(
        _Placer(racks, live, leader_load, replica_load or {}).place(
            partition_count, replication_factor
        )
    )


class _Placer:
    """Counts what it gives to each broker, on top of what they have."""

    def __init__(
        self,
        racks: Mapping[int, str | None],
        live: Set[int],
        leader_load: Mapping[int, int],
        replica_load: Mapping[int, int],
    ) -> None:
        self._live = live
        self._racks = racks
        self._leads = {broker_id: leader_load.get(broker_id, 0) for broker_id in racks}
        self._holds = {broker_id: replica_load.get(broker_id, 0) for broker_id in racks}
        self._given: dict[int, int] = defaultdict(int)  # leaderships, by this call
        # How often two brokers have come together as leader and follower.
        self._pairs: dict[tuple[int, int], int] = defaultdict(int)
        self._rack_leads: dict[str | None, int] = defaultdict(int)
        for broker_id, rack in racks.items():
            self._rack_leads[rack] += self._leads[broker_id]

    def place(self, partition_count: int, replication_factor: int) -> list[Replicas]:
        return [self._place_one(replication_factor) for _ in range(partition_count)]

    def _place_one(self, replication_factor: int) -> Replicas:
        leader = min(
            (broker_id for broker_id in self._racks if broker_id in self._live),
            key=lambda b: (
                self._given[b],
                self._leads[b],
                self._rack_leads[self._racks[b]],
                self._holds[b],
                b,
            ),
        )
        chosen = [leader]
        uses: dict[str | None, int] = defaultdict(int)
        uses[self._racks[leader]] = 1
        while len(chosen) < replication_factor:
            follower = min(
                (broker_id for broker_id in self._racks if broker_id not in chosen),
                key=lambda b: (
                    uses[self._racks[b]],
                    b not in self._live,
                    self._holds[b],
                    self._pairs[leader, b],
                    b,
                ),
            )
            chosen.append(follower)
            uses[self._racks[follower]] += 1
            self._pairs[leader, follower] += 1
        self._given[leader] += 1
        self._leads[leader] += 1
        self._rack_leads[self._racks[leader]] += 1
        for broker_id in chosen:
            self._holds[broker_id] += 1
        return tuple(chosen)
