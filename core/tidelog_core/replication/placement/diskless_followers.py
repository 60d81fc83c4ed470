"""Selects the followers of a broker's diskless partitions: one in each zone, always the same.

A follower reads each object of its leader's chain once, for all partitions that it follows there.
So the fewer brokers of a zone follow a leader, the fewer requests an object costs. This is the
opposite of replicated topics, whose ``ReplicaPlacer`` spreads a leader's followers.

For each leader there is a list of followers. First comes one of each other zone, then a second one
of every zone, and so on; a partition with three replicas uses the first two. In every zone the
leaders are divided among its brokers, give or take one. **What is so stays so**: the broker that
follows most of a leader's partitions in a zone keeps them, unless it has more leaders than its
part. So a broker that comes takes its part of the leaders, whose partitions move; one that goes
leaves its part to the others; nothing else moves. All brokers without a rack count as one zone.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

Shape = tuple[int, tuple[int, ...]]  # a partition's leader and its replicas, the leader included
Racks = Mapping[int, str | None]  # by broker
Followings = Mapping[tuple[int, int], int]  # partitions by leader and follower


def count_followings(shapes: Mapping[Shape, int]) -> Counter[tuple[int, int]]:
    """Return how many of a leader's partitions each other broker follows."""
    followings: Counter[tuple[int, int]] = Counter()
    for (leader, replicas), count in shapes.items():
        for broker_id in replicas:
            if broker_id != leader:
                followings[leader, broker_id] += count
    return followings


class DisklessFollowers:
    """The followers of every leader. A value: made of one reading of the cluster."""

    def __init__(self, racks: Racks, followings: Followings, *, replicas_max: int) -> None:
        """``racks`` are those of the brokers that have, or may get, replicas."""
        self.racks = racks
        self._followings = followings
        self._zones = _by_zone(racks)
        # By leader and zone: the partitions that are followed there.
        self._in_zone: Counter[tuple[int, str | None]] = Counter()
        for (leader, follower), count in followings.items():
            if follower in racks:
                self._in_zone[leader, racks[follower]] += count
        self._lists = self._listed(replicas_max - 1)
        self._allowed: dict[int, frozenset[int]] = {}

    def replicas_of(self, leader: int, count: int, before: Iterable[int] = ()) -> tuple[int, ...]:
        """Return the replicas of a partition of the leader, the leader first.

        Where there are too few brokers, those of ``before`` follow that are none yet.
        """
        replicas = [leader, *self._lists.get(leader, ())[: count - 1]]
        replicas += [broker_id for broker_id in before if broker_id not in replicas]
        return tuple(replicas[:count])

    def is_placed(self, leader: int, replicas: Sequence[int]) -> bool:
        """Return whether the followers of a partition may stay.

        They are brokers that have replicas, in as many zones as there can be. One more follower of
        a zone is left alone, if the one of the list has at least half of the leader's partitions
        there: what an administrator has placed, or what a move has left.
        """
        zones = {self.racks[broker_id] for broker_id in replicas if broker_id in self.racks}
        if len(zones) < min(len(replicas), len(self._zones)):
            return False
        allowed = self._allowed.get(leader)
        if allowed is None:
            allowed = self._allowed[leader] = self._may_follow(leader)
        return all(broker_id == leader or broker_id in allowed for broker_id in replicas)

    def _may_follow(self, leader: int) -> frozenset[int]:
        listed = self._lists.get(leader, ())
        allowed = set(listed)
        for zone, brokers in self._zones.items():
            of_list = sum(self._followings.get((leader, b), 0) for b in listed if b in brokers)
            if of_list * 2 < self._in_zone[leader, zone]:
                continue
            others = [b for b in brokers if b not in allowed and (leader, b) in self._followings]
            if others:
                allowed.add(max(others, key=lambda b: (self._followings[leader, b], -b)))
        return frozenset(allowed)

    def _listed(self, depth: int) -> dict[int, list[int]]:
        lists: dict[int, list[int]] = {leader: [] for leader in sorted(self.racks)}
        is_first = True
        while depth > 0:
            found: dict[int, list[int]] = defaultdict(list)
            for zone, brokers in self._zones.items():
                leaders = [
                    leader
                    for leader in lists
                    if len(lists[leader]) < depth and not (is_first and self.racks[leader] == zone)
                ]
                for leader, follower in self._divide(leaders, brokers, lists).items():
                    found[leader].append(follower)
            for leader, followers in found.items():
                lists[leader] += sorted(followers, key=lambda b: self._order(leader, b))
            if not found and not is_first:
                break
            is_first = False
        return lists

    def _divide(
        self, leaders: Sequence[int], brokers: Sequence[int], lists: Mapping[int, Sequence[int]]
    ) -> dict[int, int]:
        """Return the follower of each leader in one zone, ``lists`` being those before it."""
        part, odd = divmod(len(leaders), len(brokers))
        loads = dict.fromkeys(brokers, 0)
        given: dict[int, int] = {}
        wanted = sorted(
            (-count, leader, broker_id)
            for leader in leaders
            for broker_id in brokers
            if (count := self._followings.get((leader, broker_id), 0))
            and broker_id not in lists[leader]
        )
        for _, leader, broker_id in wanted:
            is_odd = loads[broker_id] == part
            if leader in given or loads[broker_id] > part or (is_odd and not odd):
                continue
            odd -= is_odd
            loads[broker_id] += 1
            given[leader] = broker_id
        for leader in leaders:
            able = [b for b in brokers if b != leader and b not in lists[leader]]
            if leader not in given and able:
                given[leader] = min(able, key=lambda b: (loads[b], b))
                loads[given[leader]] += 1
        return given

    def _order(self, leader: int, follower: int) -> tuple[int, int]:
        """Return the place of a zone in the leader's list: most used first, then in turns."""
        zones = list(self._zones)
        zone = self.racks[follower]
        distance = (zones.index(zone) - zones.index(self.racks[leader])) % len(zones)
        return -self._in_zone[leader, zone], distance


def _by_zone(racks: Racks) -> dict[str | None, list[int]]:
    zones: dict[str | None, list[int]] = {}
    for broker_id in sorted(racks, key=lambda b: (racks[b] or "", b)):
        zones.setdefault(racks[broker_id], []).append(broker_id)
    return zones
