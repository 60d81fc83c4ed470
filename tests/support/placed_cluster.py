"""Diskless partitions with replicas in zones, whose leads and followers are spread again and again."""

from __future__ import annotations

import dataclasses
from collections import Counter, defaultdict
from uuid import UUID

from tidelog_core.admin.topics.assignment import spread
from tidelog_core.metadata.records import Partition
from tidelog_core.replication.placement.diskless_balance import balancing_moves
from tidelog_core.replication.placement.diskless_followers import (
    DisklessFollowers,
    count_followings,
)
from tidelog_core.replication.placement.heirs import heir_of, replicas_with
from tidelog_core.replication.placement.placer import ReplicaPlacer

ROUNDS_MAX = 30


class PlacedCluster:
    """What the nodes of a cluster do with its partitions, without the nodes."""

    def __init__(self, racks: dict[int, str | None]) -> None:
        self.racks = racks  # of the brokers that live
        self.partitions: list[Partition] = []

    def create(self, count: int, factor: int) -> None:
        """Create a topic as a node does."""
        placer = ReplicaPlacer(
            racks=self.racks,
            live=self.racks.keys(),
            existing=[partition.replicas for partition in self.partitions],
        )
        shapes = Counter((one.leader, one.replicas) for one in self.partitions)
        followers = DisklessFollowers(self.racks, count_followings(shapes), replicas_max=factor)
        topic_id = UUID(int=len({one.topic_id for one in self.partitions}) + 1)
        for number, replicas in enumerate(spread(placer, count, factor, followers)):
            self.partitions.append(
                Partition(
                    topic_id=topic_id,
                    partition=number,
                    replicas=replicas,
                    leader=replicas[0],
                    leader_epoch=0,
                    isr=replicas,
                )
            )

    def lose(self, broker_id: int) -> None:
        """Have the heirs take over from a broker that is gone."""
        del self.racks[broker_id]
        for place, partition in enumerate(self.partitions):
            if partition.leader == broker_id:
                heir = heir_of(partition, self.racks)
                assert heir is not None
                replicas = replicas_with(partition, heir)
                self.partitions[place] = dataclasses.replace(
                    partition, leader=heir, replicas=replicas
                )

    def settle(self) -> tuple[int, int]:
        """Move until nothing moves; return how many leads and how many followers moved."""
        leads = replicas = 0
        for _ in range(ROUNDS_MAX):
            moves = balancing_moves(self.partitions, self.racks, self.racks)
            if not moves:
                return leads, replicas
            by_place = {(m.partition.topic_id, m.partition.partition): m for m in moves}
            assert len(by_place) == len(moves)
            for place, partition in enumerate(self.partitions):
                move = by_place.get((partition.topic_id, partition.partition))
                if move is None:
                    continue
                assert len(move.replicas) == len(set(move.replicas)) == len(partition.replicas)
                leads += move.leader != partition.leader
                replicas += len(set(move.replicas) - set(partition.replicas))
                self.partitions[place] = dataclasses.replace(
                    partition, leader=move.leader, replicas=move.replicas
                )
        raise AssertionError(f"something still moves after {ROUNDS_MAX} rounds")

    @property
    def followers_of_a_zone_max(self) -> int:
        """The most brokers of one zone that follow one leader."""
        found: dict[tuple[int, str | None], set[int]] = defaultdict(set)
        for partition in self.partitions:
            for broker_id in partition.replicas[1:]:
                found[partition.leader, self.racks[broker_id]].add(broker_id)
        return max((len(some) for some in found.values()), default=0)

    def assert_zones_covered(self) -> None:
        """Every partition has replicas in as many zones as there can be."""
        for partition in self.partitions:
            assert partition.replicas[0] == partition.leader
            zones = {self.racks[broker_id] for broker_id in partition.replicas}
            assert len(zones) == min(len(partition.replicas), len(set(self.racks.values())))

    def assert_leads_spread(self) -> None:
        """No broker leads much more than another one."""
        counts = Counter(dict.fromkeys(self.racks, 0))
        counts.update(partition.leader for partition in self.partitions)
        share = len(self.partitions) // len(self.racks)
        assert max(counts.values()) - min(counts.values()) <= max(1, share // 4)

    def leaders_followed_by(self, broker_id: int) -> set[int]:
        """Return the leaders of which the broker follows something."""
        return {one.leader for one in self.partitions if broker_id in one.replicas[1:]}
