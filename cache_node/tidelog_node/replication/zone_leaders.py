"""Names the replica of a client's zone as the leader of diskless partitions.

Producers write where Metadata says that the leader is. If nodes are gateways, every replica of a
diskless partition takes records. So Metadata names the replica of the client's zone, if the zone is
known, and the client's records stay in the zone. The leader epoch is the leader's.

Only leaders serve share groups. Java's consumers ignore a leader's name in a refusal if its epoch
is not new, and ask for Metadata instead. So a connection on which a client has fetched for a share
group gets the real leaders from then on.
"""

from __future__ import annotations

from collections.abc import Container, Mapping

from tidelog_core.config import topic_config
from tidelog_core.log.append_checks import LOG_APPEND_TIME, inspects_records
from tidelog_core.metadata.image.cluster_image import ClusterImage
from tidelog_core.metadata.records import Broker, Partition, Topic
from tidelog_core.model import RESERVED_TOPICS

from tidelog_node.node_context import NodeContext
from tidelog_node.replication.session_zones import SessionZones
from tidelog_node.requests.session import NO_NODE, Session


class ZoneLeaders:
    """The topics that have a leader in every zone. For the node's event loop."""

    def __init__(self, node: NodeContext) -> None:
        self._node = node
        self._zones = SessionZones(node) if node.static_config.diskless_gateways_enable else None

    def zone_of(self, session: Session) -> str:
        """Return the client's zone; empty if it is not known, or nodes are no gateways."""
        if self._zones is None or session.node_id != NO_NODE or session.is_sharing:
            return ""
        return self._zones.of(session) or ""

    def zone_of_topic(self, session: Session, image: ClusterImage, name: str) -> str:
        """Return the client's zone if the topic's partitions have leaders of zones, else empty."""
        zone = self.zone_of(session)
        topic = image.topics.get(name) if zone else None
        return zone if topic is not None and self._may_pass(topic) else ""

    def _may_pass(self, topic: Topic) -> bool:
        """Whether batches of the topic may go through a gateway: no leader changes their bytes."""
        if topic.name in RESERVED_TOPICS or topic.configs.get("diskless.enable") != "true":
            return False
        config = topic_config(topic.configs, self._node.config())
        return not inspects_records(config) and config.message_timestamp_type != LOG_APPEND_TIME


def leader_of_zone(
    brokers: Mapping[int, Broker],
    partition: Partition,
    zone: str,
    *,
    vanished: Container[int] = (),
    unfit: Container[int] = (),
) -> int:
    """Return the live replica in the zone, the leader if that is one or if there is none.

    A partition that is not diskless yet, or any more, has one leader for all. A broker of
    ``vanished`` is none that clients are sent to, one of ``unfit`` none that takes records for
    others: it cannot write the object store or its disk, or it is leaving. If the leader is unfit
    too, clients would gain nothing by going there: in an outage of the store all brokers are.

    One in the ISR is near the leader's high watermark.
    """
    if partition.leader in unfit:
        unfit = ()
    there = [
        broker_id
        for broker_id in partition.replicas
        if broker_id in brokers
        and brokers[broker_id].rack == zone
        and broker_id not in vanished
        and broker_id not in unfit
    ]
    if not partition.is_diskless or partition.leader in there or not there:
        return partition.leader
    return min(there, key=lambda broker_id: (broker_id not in partition.isr, broker_id))
