"""A node's part in transactions, made of its real parts, on one store."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tidelog_core.errors import CoordinatorNotAvailable
from tidelog_node.coordinator.coordinator import GroupCoordinator
from tidelog_node.dialing.peers import Peers
from tidelog_node.node_context import NodeContext
from tidelog_node.transactions.coordinator import TransactionCoordinator
from tidelog_node.transactions.markers import Marker, MarkerResults, MarkerSender
from tidelog_node.transactions.pending_group_offsets import TransactionalOffsets
from tidelog_node.transactions.producer_ids import ProducerIds
from tidelog_node.transactions.verifier import TransactionVerifier


class NobodyLeads:
    """The leaders of a cluster in which no data partition has one."""

    async def write_markers(self, broker_id: int, markers: Sequence[Marker]) -> MarkerResults:
        raise CoordinatorNotAvailable(f"broker {broker_id} takes none of {len(markers)} markers")


@dataclass(frozen=True)
class Parts:
    producer_ids: ProducerIds
    coordinator: TransactionCoordinator
    offsets: TransactionalOffsets
    verifier: TransactionVerifier


def transaction_parts(node: NodeContext, groups: GroupCoordinator) -> Parts:
    """Return the parts; the coordinator is not started, and follows the view all the same."""
    producer_ids = ProducerIds(node.store)
    coordinator = TransactionCoordinator(
        node,
        take_producer_id=producer_ids.take,
        markers=MarkerSender(view=node.view, target=NobodyLeads()),
    )
    verifier = TransactionVerifier(
        node, coordinator=coordinator, peers=Peers(node.view, node.dialer)
    )
    offsets = TransactionalOffsets(node, groups=groups)
    return Parts(producer_ids, coordinator, offsets, verifier)
