"""Builds the node's transaction coordinator, marker writer and offset store."""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import dataclass

from tidelog_node.assembly.logs import Logs
from tidelog_node.coordinator.coordinator import GroupCoordinator
from tidelog_node.node_context import NodeContext
from tidelog_node.transactions.coordinator import TransactionCoordinator
from tidelog_node.transactions.group_offsets import TransactionalOffsets
from tidelog_node.transactions.marker_writer import BrokerMarkers, MarkerWriter
from tidelog_node.transactions.markers import MarkerSender
from tidelog_node.transactions.peers import Peers
from tidelog_node.transactions.producer_ids import ProducerIds
from tidelog_node.transactions.verifier import TransactionVerifier


@dataclass(frozen=True, slots=True)
class Transactions:
    """The node's parts in transactions."""

    producer_ids: ProducerIds
    coordinator: TransactionCoordinator  # not started
    verifier: TransactionVerifier
    writer: MarkerWriter
    offsets: TransactionalOffsets


def build_transactions(
    stack: AsyncExitStack, node: NodeContext, logs: Logs, groups: GroupCoordinator
) -> Transactions:
    """Return the parts; the stack closes their connections."""
    # A question about a transaction must not wait behind markers that are being replicated.
    marker_peers, question_peers = Peers(node, connections_max=1), Peers(node)
    stack.push_async_callback(marker_peers.close)
    stack.push_async_callback(question_peers.close)
    producer_ids = ProducerIds(node.store)
    offsets = TransactionalOffsets(node, groups=groups)
    writer = MarkerWriter(node, replicas=logs.replicas, flusher=logs.flusher, offsets=offsets)
    target = BrokerMarkers(node, own=writer, peers=marker_peers)
    coordinator = TransactionCoordinator(
        node,
        take_producer_id=producer_ids.take,
        markers=MarkerSender(view=node.view, target=target),
    )
    verifier = TransactionVerifier(node, coordinator=coordinator, peers=question_peers)
    return Transactions(producer_ids, coordinator, verifier, writer, offsets)
