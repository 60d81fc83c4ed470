"""Places a new partition's replicas on brokers: leaders in rotation, racks kept apart.

Striped as in Kafka: the replicas of one partition go to one rack after the other. Unlike
Kafka's placer nothing is random: the leader is the broker that leads least, and a follower is
the one that follows that leader least, then the one that holds least. So many small topics spread
as evenly as one wide topic: any two brokers of different racks share about as many partitions.
The first follower takes over when the leader dies. It is the broker that has this place least,
so the leaderships of a broker or a rack spread over all others. Brokers that are not live are
used last and never lead. Within one topic the leaders always rotate: a new broker
gets its share of a wide topic, not all of it.
Followers of a diskless topic are others: few for each leader (``diskless_followers``).
Source: Kafka's ``StripedReplicaPlacer``.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set
from itertools import chain

from tidelog_core.errors import InvalidReplicaAssignment, InvalidReplicationFactor
from tidelog_core.replication.placement.diskless_followers import DisklessFollowers

Replicas = tuple[int, ...]


class ReplicaPlacer:
    """Counts the replicas of each broker, including those that it places. For one task."""

    def __init__(
        self,
        *,
        racks: Mapping[int, str | None],
        live: Set[int],
        existing: Iterable[Replicas] = (),
    ) -> None:
        """Place on the brokers of ``racks``, which has all registered brokers.

        All brokers without a rack count as one rack. ``existing`` has the replicas of all
        existing partitions, preferred leaders first, none empty.
        """
        placed = list(existing)
        self._racks = racks
        self._live = live
        self._leads = Counter(replicas[0] for replicas in placed)
        self._holds = Counter(chain.from_iterable(placed))
        self._succeeds = Counter(replicas[1] for replicas in placed if len(replicas) > 1)
        # How often a leader, the first of two, has the second as its first follower.
        self._successions = Counter(replicas[:2] for replicas in placed)
        # By leader: how many of its partitions each other broker follows.
        self._followers: dict[int, Counter[int]] = defaultdict(Counter)
        for replicas in placed:
            followers = self._followers[replicas[0]]
            for broker_id in replicas[1:]:
                followers[broker_id] += 1
        self._rack_leads: dict[str | None, int] = defaultdict(int)
        for broker_id, rack in racks.items():
            self._rack_leads[rack] += self._leads[broker_id]

    def place(
        self,
        partition_count: int,
        replication_factor: int,
        followers: DisklessFollowers | None = None,
    ) -> tuple[Replicas, ...]:
        """Return the replicas of each partition of a new topic, its leader first.

        The next topic is placed on top of them. ``followers`` are those of a diskless topic.
        Raises ``InvalidReplicationFactor``.
        """
        if replication_factor <= 0:
            raise InvalidReplicationFactor(
                f"Invalid replication factor {replication_factor}:"
                " the replication factor must be positive."
            )
        if not self._live & self._racks.keys():
            raise InvalidReplicationFactor("All brokers are currently fenced.")
        if replication_factor > len(self._racks):
            raise InvalidReplicationFactor(
                f"The target replication factor of {replication_factor} cannot be reached"
                f" because only {len(self._racks)} broker(s) are registered."
            )
        given: Counter[int] = Counter()  # leaderships of this topic
        return tuple(
            self._place_one(replication_factor, given, followers) for _ in range(partition_count)
        )

    def _place_one(
        self,
        replication_factor: int,
        given: Counter[int],
        diskless: DisklessFollowers | None,
    ) -> Replicas:
        leader = self._next_leader(given)
        if diskless is None:
            chosen = self._with_followers(leader, replication_factor)
        else:
            chosen = diskless.replicas_of(leader, replication_factor, self._racks)
        self._successions[chosen[:2]] += 1
        self._succeeds.update(chosen[1:2])
        self._followers[leader].update(chosen[1:])
        given[leader] += 1
        self._leads[leader] += 1
        self._rack_leads[self._racks[leader]] += 1
        self._holds.update(chosen)
        return chosen

    def _next_leader(self, given: Counter[int]) -> int:
        return min(
            (broker_id for broker_id in self._racks if broker_id in self._live),
            key=lambda b: (
                given[b],
                self._leads[b],
                self._rack_leads[self._racks[b]],
                self._holds[b],
                b,
            ),
        )

    def _with_followers(self, leader: int, replication_factor: int) -> Replicas:
        chosen = [leader]
        followers = self._followers[leader]
        uses: dict[str | None, int] = defaultdict(int)
        uses[self._racks[leader]] = 1
        while len(chosen) < replication_factor:
            follower = min(
                (broker_id for broker_id in self._racks if broker_id not in chosen),
                key=lambda b: (
                    uses[self._racks[b]],
                    b not in self._live,
                    followers[b],
                    self._holds[b],
                    b,
                ),
            )
            chosen.append(follower)
            uses[self._racks[follower]] += 1
        chosen[1:] = sorted(
            chosen[1:],
            key=lambda b: (
                b not in self._live,
                self._successions[leader, b],
                self._succeeds[b],
                b,
            ),
        )
        return tuple(chosen)


def require_valid_replicas(replicas: Sequence[int], broker_ids: Set[int]) -> None:
    """Raise ``InvalidReplicaAssignment`` if the replicas that a caller chose cannot be used."""
    if not replicas:
        raise InvalidReplicaAssignment(
            "The manual partition assignment includes an empty replica list."
        )
    for broker_id in replicas:
        if broker_id not in broker_ids:
            raise InvalidReplicaAssignment(
                f"The manual partition assignment includes broker {broker_id},"
                " but no such broker is registered."
            )
    repeated = _first_repeated(replicas)
    if repeated is not None:
        raise InvalidReplicaAssignment(
            f"The manual partition assignment includes the broker {repeated} more than once."
        )


def _first_repeated(values: Iterable[int]) -> int | None:
    seen: set[int] = set()
    for value in values:
        if value in seen:
            return value
        seen.add(value)
    return None
