"""A node's part in transactions, made of its real parts, on one store."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tidelog_core.config import NodeConfig
from tidelog_core.errors import CoordinatorNotAvailable
from tidelog_core.metadata.image import ClusterView
from tidelog_core.metadata.records import Partition
from tidelog_core.metadata.store import MetadataStore
from tidelog_node.coordinator.coordinator import GroupCoordinator
from tidelog_node.dialing.dialer import Dialer
from tidelog_node.transactions.coordinator import TransactionCoordinator
from tidelog_node.transactions.group_offsets import TransactionalOffsets
from tidelog_node.transactions.markers import Marker, MarkerResults, MarkerSender
from tidelog_node.transactions.peers import Peers
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


def transaction_parts(
    store: MetadataStore, view: ClusterView, groups: GroupCoordinator, *, broker_id: int = 1
) -> Parts:
    """Return the parts; the coordinator is not started, and follows the view all the same."""

    def leads(partition: Partition) -> bool:
        return partition.leader == broker_id

    producer_ids = ProducerIds(store)
    coordinator = TransactionCoordinator(
        store=store,
        view=view,
        node_config=NodeConfig,
        take_producer_id=producer_ids.take,
        markers=MarkerSender(view=view, target=NobodyLeads()),
        leads=leads,
        can_serve=lambda: True,
    )
    verifier = TransactionVerifier(
        view=view,
        broker_id=broker_id,
        coordinator=coordinator,
        peers=Peers(view=view, dialer=Dialer(broker_id)),
    )
    offsets = TransactionalOffsets(
        store=store, view=view, groups=groups, verifier=verifier, broker_id=broker_id
    )
    return Parts(producer_ids, coordinator, offsets)
