"""Topics and partitions in answers of Metadata."""

from __future__ import annotations

from collections.abc import Container, Mapping

from kio.schema.metadata.v13 import response as response_v13
from tidelog_core.admin.names import validate_topic_name
from tidelog_core.errors import ErrorCode, InvalidTopic
from tidelog_core.metadata.records import Broker, Partition, Topic
from tidelog_core.model import NO_LEADER

from tidelog_node.replication.zone_leaders import leader_of_zone
from tidelog_node.wire.messages import build


def shown_topic(topic: Topic, partitions: tuple[object, ...], operations: int) -> object:
    """Return a topic that exists."""
    return build(
        response_v13.MetadataResponseTopic,
        error_code=ErrorCode.none,
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.is_internal,
        partitions=partitions,
        topic_authorized_operations=operations,
    )


def shown_leader(
    brokers: Mapping[int, Broker],
    partition: Partition,
    vanished: Container[int],
    *,
    zone: str = "",
    unfit: Container[int] = (),
) -> int:
    """Return the leader for clients that can reach ``brokers``; ``NO_LEADER`` if there is none.

    With a ``zone`` it is the one for clients of that zone: none of ``unfit``, unless that is the
    real leader. A diskless partition gets another leader within a moment once its own has vanished.
    So clients are told that it has none: they ask again soon, instead of a port that refuses.
    """
    leader = partition.leader
    if leader not in brokers or partition.awaits_first_leader:
        return NO_LEADER
    if not partition.is_diskless:
        return leader
    if zone:
        leader = leader_of_zone(brokers, partition, zone, vanished=vanished, unfit=unfit)
    return NO_LEADER if leader in vanished else leader


def shown_partition(
    brokers: Mapping[int, Broker],
    partition: Partition,
    version: int,
    vanished: Container[int],
    *,
    zone: str,
    unfit: Container[int],
) -> response_v13.MetadataResponsePartition:
    """Return a partition with its leader, see ``shown_leader``."""
    replicas, isr = partition.replicas, partition.isr
    error = ErrorCode.none
    offline = tuple(replica for replica in replicas if replica not in brokers)
    if version == 0 and offline:
        # Version 0 has no list of offline replicas: it leaves them out and says so.
        replicas = tuple(replica for replica in replicas if replica not in offline)
        isr = tuple(replica for replica in isr if replica not in offline)
        error = ErrorCode.replica_not_available
    leader = shown_leader(brokers, partition, vanished, zone=zone, unfit=unfit)
    if leader == NO_LEADER:
        error = ErrorCode.leader_not_available
    return build(
        response_v13.MetadataResponsePartition,
        error_code=error,
        partition_index=partition.partition,
        leader_id=leader,
        leader_epoch=partition.leader_epoch,
        replica_nodes=replicas,
        isr_nodes=isr,
        offline_replicas=offline,
    )


def unknown_name_error(name: str) -> ErrorCode:
    """Return the error for a topic that does not exist."""
    try:
        validate_topic_name(name)
    except InvalidTopic as error:
        return error.code
    return ErrorCode.unknown_topic_or_partition
