"""Spreads the leads of diskless partitions over the live brokers, without a controller.

Every node computes the same moves from the same image and the same live brokers, and makes those
of its own partitions. Each broker is to lead as many as the others, give or take one; brokers that
lead most keep the odd ones, so nothing moves that need not. A replica gets the lead before a broker
that has none. Nodes that see different brokers for a moment may move too much. That is put right
later.

A partition that moves gets the followers of its new leader (``diskless_followers``), so every zone
that had a replica has one afterwards. Of partitions that stay, followers are replaced where a
broker has gone, a zone is left out, or too many brokers of a zone follow one leader.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from uuid import UUID

from tidelog_core.metadata.records import Partition
from tidelog_core.replication.placement.diskless_followers import (
    DisklessFollowers,
    Racks,
    Shape,
    count_followings,
)
from tidelog_core.replication.placement.heirs import replicas_with, spread_rank

# A partition that moves takes no records for a moment, so small differences are left alone.
IMBALANCE_MIN = 2
IMBALANCE_PARTS = 4  # of a broker's share, one part more or less
# Partitions that get another leader at once, of one leader: each takes no records for a moment.
LEADS_MOVED_MAX = 500
FOLLOWERS_MOVED_MAX = 200  # partitions at once, of one leader: new followers read what they lack
# Of all leaders: their writes go through one changelog, and conflict where nodes write together.
FOLLOWERS_MOVED_TOGETHER_MAX = 3_000


_SHAPE = attrgetter("leader", "replicas")
_Key = tuple[UUID, int]
_Heirs = dict[_Key, tuple[Partition, int]]


@dataclass(frozen=True, slots=True)
class DisklessMove:
    """The new replicas of a partition, its leader first."""

    partition: Partition
    replicas: tuple[int, ...]

    @property
    def leader(self) -> int:
        """The broker that shall lead: the same as before, or another one."""
        return self.replicas[0]


def balancing_moves(
    partitions: Sequence[Partition], able: Collection[int], racks: Racks | None = None
) -> list[DisklessMove]:
    """Return the partitions to change, those with another leader first.

    ``partitions`` are all diskless ones, ``able`` the brokers that may lead. ``racks`` has the
    brokers that keep their replicas, also some that are away for a moment; by default the able
    ones without racks. Empty while a partition is led by no able broker: elections come first.
    """
    # There are few shapes. So 36,000 partitions that are placed cost some milliseconds.
    shapes = Counter(map(_SHAPE, partitions))
    led = Counter(dict.fromkeys(sorted(able), 0))
    for (leader, _), count in shapes.items():
        if leader not in led:
            return []
        led[leader] += count
    heirs = _heirs(partitions, led) if _is_uneven(led) else {}
    for partition, heir in heirs.values():
        shapes[_SHAPE(partition)] -= 1
        shapes[heir, replicas_with(partition, heir)] += 1
    followers = DisklessFollowers(
        dict.fromkeys(able) if racks is None else racks,
        count_followings(shapes),
        replicas_max=max((len(replicas) for _, replicas in shapes), default=1),
    )
    moves = [
        DisklessMove(
            partition, followers.replicas_of(heir, len(partition.replicas), partition.replicas)
        )
        for partition, heir in heirs.values()
    ]
    return moves + _followers_moved(partitions, shapes, heirs, followers)


def _followers_moved(
    partitions: Iterable[Partition],
    shapes: Mapping[Shape, int],
    heirs: _Heirs,
    followers: DisklessFollowers,
) -> list[DisklessMove]:
    """Return the partitions that keep their leader and get other followers."""
    wanted = {
        shape: replicas
        for shape, count in shapes.items()
        if count and len(shape[1]) > 1 and not followers.is_placed(*shape)
        if set(replicas := followers.replicas_of(shape[0], len(shape[1]), shape[1]))
        != set(shape[1])
    }
    moves: list[DisklessMove] = []
    moved: Counter[int] = Counter()  # by leader
    leaders = {leader for leader, _ in wanted}
    moved_max = FOLLOWERS_MOVED_TOGETHER_MAX // max(1, len(leaders))
    moved_max = max(1, min(moved_max, FOLLOWERS_MOVED_MAX))
    for partition in partitions if wanted else ():
        found = wanted.get(_SHAPE(partition))
        if found is None or _key(partition) in heirs:
            continue
        if moved[partition.leader] < moved_max:
            moved[partition.leader] += 1
            moves.append(DisklessMove(partition, found))
    return moves


def _is_uneven(led: Mapping[int, int]) -> bool:
    if not led:
        return False
    share = sum(led.values()) // len(led)
    return max(led.values()) - min(led.values()) >= max(IMBALANCE_MIN, share // IMBALANCE_PARTS)


def _heirs(partitions: Iterable[Partition], counts: Mapping[int, int]) -> _Heirs:
    """Return the partitions whose lead moves, each with the broker that gets it."""
    led: dict[int, list[Partition]] = {broker_id: [] for broker_id in counts}
    for partition in partitions:
        led[partition.leader].append(partition)
    share, odd = divmod(sum(counts.values()), len(counts))
    lacks: dict[int, int] = {}
    surplus: dict[int, int] = {}
    for place, broker_id in enumerate(sorted(counts, key=lambda b: (-counts[b], b))):
        missing = share + (place < odd) - counts[broker_id]
        if missing:
            (lacks if missing > 0 else surplus)[broker_id] = abs(missing)
    moving = {donor: sorted(led[donor], key=spread_rank) for donor in surplus}
    surplus, lacks = _bounded(surplus, lacks)
    heirs = _to_replicas(moving, surplus, lacks)
    left = [p for donor, held in moving.items() for p in _last(held, surplus[donor], heirs)]
    takers = [broker_id for broker_id, missing in lacks.items() for _ in range(missing)]
    for partition, taker in zip(left, _in_turns(takers), strict=True):
        heirs[_key(partition)] = partition, taker
    return heirs


def _bounded(
    surplus: Mapping[int, int], lacks: Mapping[int, int]
) -> tuple[dict[int, int], dict[int, int]]:
    """Return as much of both as may move at once: the same sum. Those that lack most come first."""
    given = {donor: min(count, LEADS_MOVED_MAX) for donor, count in surplus.items()}
    left, taken = sum(given.values()), dict[int, int]()
    for taker in sorted(lacks, key=lambda b: (-lacks[b], b)):
        taken[taker] = min(lacks[taker], left)
        left -= taken[taker]
    return given, taken


def _to_replicas(
    moving: Mapping[int, Sequence[Partition]], surplus: dict[int, int], lacks: dict[int, int]
) -> _Heirs:
    """Return the partitions that replicas get, and remove them from those left to move."""
    heirs: _Heirs = {}
    for donor, held in moving.items():
        for partition in held:
            takers = [b for b in partition.replicas if lacks.get(b, 0)]
            if not surplus[donor]:
                break
            if takers:
                taker = max(takers, key=lambda b: (lacks[b], -b))
                heirs[_key(partition)] = partition, taker
                lacks[taker] -= 1
                surplus[donor] -= 1
    return heirs


def _last(held: Sequence[Partition], count: int, heirs: _Heirs) -> Sequence[Partition]:
    staying = [partition for partition in held if _key(partition) not in heirs]
    return staying[len(staying) - count :]


def _in_turns(takers: Sequence[int]) -> list[int]:
    """Return the takers so that neighbours differ where they can: leads of a topic are spread."""
    seen: dict[int, int] = {}
    places = []
    for taker in takers:
        seen[taker] = seen.get(taker, 0) + 1
        places.append((seen[taker], taker))
    return [taker for _, taker in sorted(places)]


def _key(partition: Partition) -> _Key:
    return partition.topic_id, partition.partition
