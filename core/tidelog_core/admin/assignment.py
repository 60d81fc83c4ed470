"""Which brokers hold which partition: spread by us, or given by the caller and checked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set

from tidelog_core.errors import InvalidReplicaAssignment, InvalidReplicationFactor
from tidelog_core.metadata.image import ClusterImage
from tidelog_core.metadata.records import Broker
from tidelog_core.replication.placement import place_replicas

Replicas = tuple[int, ...]


def spread(
    partition_count: int,
    replication_factor: int,
    *,
    brokers: Mapping[int, Broker],
    load: Mapping[int, int],
    live: Set[int] | None = None,
    replica_load: Mapping[int, int] | None = None,
) -> tuple[Replicas, ...]:
    """Return the replicas of ``partition_count`` partitions, the leader first.

    See ``place_replicas``; ``live`` is all of the brokers where nothing is known of that.
    Raises ``InvalidReplicationFactor``.
    """
    try:
        return place_replicas(
            partition_count,
            replication_factor,
            racks={broker_id: broker.rack for broker_id, broker in brokers.items()},
            live=brokers.keys() if live is None else live,
            leader_load=load,
            replica_load=replica_load,
        )
    except InvalidReplicationFactor as error:
        raise InvalidReplicationFactor(
            f"Unable to replicate the partition {replication_factor} time(s): {error}"
        ) from None


def leader_load(image: ClusterImage) -> Mapping[int, int]:
    """Return how many partitions each broker is the preferred leader of."""
    return Counter(
        partition.replicas[0]
        for partitions in image.partitions_by_topic.values()
        for partition in partitions
        if partition.replicas
    )


def replica_load(image: ClusterImage) -> Mapping[int, int]:
    """Return how many replicas each broker holds."""
    return Counter(
        broker_id
        for partitions in image.partitions_by_topic.values()
        for partition in partitions
        for broker_id in partition.replicas
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


def _first_repeated(values: Iterable[int]) -> int | None:
    seen: set[int] = set()
    for value in values:
        if value in seen:
            return value
        seen.add(value)
    return None
