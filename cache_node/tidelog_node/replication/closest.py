"""Selects the replica in a consumer's rack for its reads.

A consumer of a diskless partition that names no rack is sent to its zone's replica too, if the zone
is known otherwise (``SessionZones``): the documentation asks clients of these to give their zone.

Only ISR members that have the offset are candidates: a lagging replica would be returned again
after every refresh of the consumer's metadata.
Source: KIP-392, ``RackAwareReplicaSelector``.
"""

from __future__ import annotations

from tidelog_node.node_context import NodeContext
from tidelog_node.replicas.replica import Replica
from tidelog_node.replication.session_zones import SessionZones
from tidelog_node.requests.session import Session


class RackAwareness:
    """Finds replicas by rack. For the node's event loop only."""

    def __init__(self, node: NodeContext) -> None:
        self._node = node
        self._zones = SessionZones(node)

    def find(
        self, replica: Replica, rack: bytes, offset: int, client: Session | None
    ) -> int | None:
        """Return the broker to read ``offset`` from, ``None`` for this one."""
        leader = replica.leader
        if leader is None or not leader.followers or offset < replica.log.local_log_start_offset:
            return None
        wanted = self._zone(replica, rack, client)
        if wanted is None:
            return None
        brokers = self._node.view.image.brokers
        own = brokers.get(self._node.broker_id)
        if own is not None and own.rack == wanted:
            return None
        best: int | None = None
        best_end = -1
        for broker_id, follower in leader.followers.items():
            broker = brokers.get(broker_id)
            if (
                broker is not None
                and broker.rack == wanted
                and broker_id in leader.partition.isr
                and self._node.membership.is_live(broker_id)
                and follower.log_start_offset <= offset <= follower.log_end_offset
                and follower.log_end_offset > best_end
            ):
                best, best_end = broker_id, follower.log_end_offset
        return best

    def _zone(self, replica: Replica, rack: bytes, client: Session | None) -> str | None:
        if rack:
            return rack.decode(errors="replace")
        if client is None or not replica.is_diskless:
            return None
        return self._zones.of(client)
