"""Sends markers to brokers: over the wire, or to this node's own writer."""

from __future__ import annotations

from collections.abc import Sequence

from kio.schema.write_txn_markers.v1 import response as markers_response
from tidelog.wire.requests import Api
from tidelog_core.errors import StorageError
from tidelog_core.model import TopicPartition

from tidelog_node.dialing.peers import Peers
from tidelog_node.node_context import NodeContext
from tidelog_node.transactions.marker_messages import to_request
from tidelog_node.transactions.marker_writer import MarkerWriter
from tidelog_node.transactions.markers import Marker, MarkerResults

WRITE_TXN_MARKERS = Api(27, 1, 1)
ANSWER_SECONDS_MAX = 15.0


class BrokerMarkers:
    """Sends markers to a broker over the wire, or to this node's own writer."""

    def __init__(self, node: NodeContext, *, own: MarkerWriter, peers: Peers) -> None:
        self._node = node
        self._own = own
        self._peers = peers

    async def write_markers(self, broker_id: int, markers: Sequence[Marker]) -> MarkerResults:
        """Return each marker's result. Raises ``TidelogError`` if the broker does not answer."""
        if broker_id == self._node.broker_id:
            return await self._own.write(markers)
        answer = await self._peers.request(
            broker_id, WRITE_TXN_MARKERS, to_request(markers), timeout_s=ANSWER_SECONDS_MAX
        )
        if not isinstance(answer, markers_response.WriteTxnMarkersResponse):
            raise StorageError(f"broker {broker_id} answers markers with {answer!r}")
        return {
            (result.producer_id, TopicPartition(topic.name, partition.partition_index)): (
                partition.error_code
            )
            for result in answer.markers
            for topic in result.topics
            for partition in topic.partitions
        }
