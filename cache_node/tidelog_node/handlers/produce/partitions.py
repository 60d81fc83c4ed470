"""The replicas that a Produce request means, by topic name or by topic id."""

from __future__ import annotations

from collections.abc import Mapping

from tidelog_node.replicas.replica import Replica
from tidelog_node.replicas.replica_manager import ReplicaManager
from tidelog_node.requests.routes import RequestContext
from tidelog_node.wire.produce import TOPIC_ID_FROM, ProduceRequest

TopicReplicas = Mapping[bytes, Mapping[int, Replica]]

NO_REPLICAS: Mapping[int, Replica] = {}


def led_replicas(replicas: ReplicaManager, context: RequestContext) -> TopicReplicas:
    """Return the replicas that this node leads, by topic name, or id from ``TOPIC_ID_FROM`` on."""
    has_ids = context.api_version >= TOPIC_ID_FROM
    return replicas.led_by_id if has_ids else replicas.led_by_name


def followed_replicas(replicas: ReplicaManager, context: RequestContext) -> TopicReplicas:
    """Return the replicas that other nodes lead, likewise."""
    has_ids = context.api_version >= TOPIC_ID_FROM
    return replicas.followed_by_id if has_ids else replicas.followed_by_name


def has_diskless(request: ProduceRequest, replicas: TopicReplicas) -> bool:
    """Return whether a batch of the request goes into a chain."""
    for name, partitions in request.topics:
        of_topic = replicas.get(name, NO_REPLICAS)
        for index, _ in partitions:
            replica = of_topic.get(index)
            if replica is not None and (replica.is_diskless or replica.chain is not None):
                return True
    return False
