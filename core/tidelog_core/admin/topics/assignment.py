"""Assigns replicas to brokers: computed, or given by the caller and checked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set

from tidelog_core.errors import InvalidReplicaAssignment, InvalidReplicationFactor
from tidelog_core.metadata.image.cluster_image import ClusterImage
from tidelog_core.metadata.records import Broker
from tidelog_core.replication.placement.diskless_followers import (
    DisklessFollowers,
    count_followings,
)
from tidelog_core.replication.placement.placer import (
    ReplicaPlacer,
    Replicas,
    require_valid_replicas,
)


def placer(
    brokers: Mapping[int, Broker], *, existing: Iterable[Replicas], live: Set[int] | None = None
) -> ReplicaPlacer:
    """Return the placer of new partitions. Without ``live`` all brokers count as live."""
    return ReplicaPlacer(
        racks={broker_id: broker.rack for broker_id, broker in brokers.items()},
        live=brokers.keys() if live is None else live,
        existing=existing,
    )


def diskless_followers(
    image: ClusterImage, live: Set[int] | None, replication_factor: int
) -> DisklessFollowers:
    """Return the followers of new diskless partitions, as those that there are have them."""
    partitions = (
        partition
        for name in image.topics
        for partition in image.partitions(name)
        if partition.is_diskless
    )
    return DisklessFollowers(
        {b: broker.rack for b, broker in image.brokers.items() if live is None or b in live},
        count_followings(Counter((one.leader, one.replicas) for one in partitions)),
        replicas_max=replication_factor,
    )


def spread(
    placer: ReplicaPlacer,
    partition_count: int,
    replication_factor: int,
    followers: DisklessFollowers | None = None,
) -> tuple[Replicas, ...]:
    """Return the replicas of a topic's new partitions, the leader first.

    ``followers`` are those of a diskless topic. Raises ``InvalidReplicationFactor``.
    """
    try:
        return placer.place(partition_count, replication_factor, followers)
    except InvalidReplicationFactor as error:
        raise InvalidReplicationFactor(
            f"Unable to replicate the partition {replication_factor} time(s): {error}"
        ) from None


def existing_replicas(image: ClusterImage) -> Iterator[Replicas]:
    """Yield the replicas of every partition, except those whose item was never readable."""
    for partitions in image.partitions_by_topic.values():
        for partition in partitions:
            if partition.replicas:
                yield partition.replicas


def validate_assignment(
    replicas: Sequence[int], *, broker_ids: Set[int], replication_factor: int | None
) -> None:
    """Raise ``InvalidReplicaAssignment`` if the caller's replicas cannot be used."""
    require_valid_replicas(replicas, broker_ids)
    if replication_factor is not None and len(replicas) != replication_factor:
        raise InvalidReplicaAssignment(
            f"The manual partition assignment includes a partition with {len(replicas)}"
            " replica(s), but this is not consistent with previous partitions, which have"
            f" {replication_factor} replica(s)."
        )
