"""Which brokers hold which partition: spread by us, or given by the caller and checked."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set
from itertools import zip_longest

from tidelog_core.errors import InvalidReplicaAssignment, InvalidReplicationFactor
from tidelog_core.metadata.image import ClusterImage
from tidelog_core.metadata.records import Broker

Replicas = tuple[int, ...]


def spread(
    partition_count: int,
    replication_factor: int,
    *,
    brokers: Mapping[int, Broker],
    load: Mapping[int, int],
    first_partition: int = 0,
) -> tuple[Replicas, ...]:
    """Return the replicas of ``partition_count`` partitions, the leader first.

    Leaders go round the brokers, beginning with the one of the least ``load`` (see
    ``leader_load``), so that many small topics spread as well as one wide topic.
    Followers take brokers of other racks first, and rotate so that the partitions of
    one leader do not all share the same followers. Raises ``InvalidReplicationFactor``.
    """
    if not brokers:
        raise InvalidReplicationFactor(
            f"Unable to replicate the partition {replication_factor} time(s):"
            " All brokers are currently fenced."
        )
    if replication_factor > len(brokers):
        raise InvalidReplicationFactor(
            f"Unable to replicate the partition {replication_factor} time(s): The target"
            f" replication factor of {replication_factor} cannot be reached because only"
            f" {len(brokers)} broker(s) are registered."
        )
    ring = _interleave_racks(brokers)
    start = min(range(len(ring)), key=lambda index: (load.get(ring[index], 0), index))
    return tuple(
        _replicas(ring, brokers, replication_factor, leader=start + index, shift=first_partition)
        for index in range(partition_count)
    )


def leader_load(image: ClusterImage) -> Mapping[int, int]:
    """Return how many partitions each broker is the preferred leader of."""
    return Counter(
        partition.replicas[0]
        for partitions in image.partitions_by_topic.values()
        for partition in partitions
        if partition.replicas
    )


def validate_assignment(
    replicas: Sequence[int], *, broker_ids: Set[int], replication_factor: int | None
) -> None:
    """Raise ``InvalidReplicaAssignment`` where the caller's replicas cannot be used."""
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
    if replication_factor is not None and len(replicas) != replication_factor:
        raise InvalidReplicaAssignment(
            f"The manual partition assignment includes a partition with {len(replicas)}"
            " replica(s), but this is not consistent with previous partitions, which have"
            f" {replication_factor} replica(s)."
        )


def _replicas(
    ring: Sequence[int],
    brokers: Mapping[int, Broker],
    replication_factor: int,
    *,
    leader: int,
    shift: int,
) -> Replicas:
    first = ring[leader % len(ring)]
    others = [ring[(leader + 1 + index) % len(ring)] for index in range(len(ring) - 1)]
    if others:
        turn = (shift + leader // len(ring)) % len(others)
        others = others[turn:] + others[:turn]
    chosen = [first]
    racks = {brokers[first].rack}
    # A broker without a rack is no nearer to one than to another.
    for broker_id in others:
        rack = brokers[broker_id].rack
        if len(chosen) < replication_factor and (rack is None or rack not in racks):
            chosen.append(broker_id)
            racks.add(rack)
    chosen += [broker_id for broker_id in others if broker_id not in chosen]
    return tuple(chosen[:replication_factor])


def _interleave_racks(brokers: Mapping[int, Broker]) -> list[int]:
    """Return the broker ids so that neighbours are in different racks as far as possible."""
    by_rack: dict[str, list[int]] = defaultdict(list)
    for broker_id in sorted(brokers):
        by_rack[brokers[broker_id].rack or ""].append(broker_id)
    rounds = zip_longest(*(by_rack[rack] for rack in sorted(by_rack)))
    return [broker_id for some in rounds for broker_id in some if broker_id is not None]


def _first_repeated(values: Iterable[int]) -> int | None:
    seen: set[int] = set()
    for value in values:
        if value in seen:
            return value
        seen.add(value)
    return None
