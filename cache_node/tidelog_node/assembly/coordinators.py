"""Builds the node's coordinators of groups and transactions, marker writer and offset store."""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import dataclass

from tidelog_node.assembly.logs import Logs
from tidelog_node.coordinator.coordinator import GroupCoordinator
from tidelog_node.coordinator.hosted_groups import HostedGroups
from tidelog_node.dialing.peers import Peers
from tidelog_node.node_context import NodeContext
from tidelog_node.transactions.broker_markers import BrokerMarkers
from tidelog_node.transactions.coordinator import TransactionCoordinator
from tidelog_node.transactions.marker_writer import MarkerWriter
from tidelog_node.transactions.markers import MarkerSender
from tidelog_node.transactions.pending_group_offsets import TransactionalOffsets
from tidelog_node.transactions.producer_ids import ProducerIds
from tidelog_node.transactions.verifier import TransactionVerifier


@dataclass(frozen=True, slots=True)
class Coordinators:
    """The node's coordinators, not started, and its other parts in transactions."""

    hosted: HostedGroups
    groups: GroupCoordinator
    producer_ids: ProducerIds
    transactions: TransactionCoordinator
    verifier: TransactionVerifier
    writer: MarkerWriter
    offsets: TransactionalOffsets


def build_coordinators(stack: AsyncExitStack, node: NodeContext, logs: Logs) -> Coordinators:
    """Return the parts; the stack closes their connections."""
    hosted = HostedGroups(node)
    groups = GroupCoordinator(node, hosted)
    # A question about a transaction must not wait behind markers that are being replicated.
    marker_peers = Peers(node.view, node.dialer, connections_max=1)
    question_peers = Peers(node.view, node.dialer)
    stack.push_async_callback(marker_peers.close)
    stack.push_async_callback(question_peers.close)
    producer_ids = ProducerIds(node.store)
    offsets = TransactionalOffsets(node, groups=groups)
    writer = MarkerWriter(node, replicas=logs.replicas, flusher=logs.flusher, offsets=offsets)
    target = BrokerMarkers(node, own=writer, peers=marker_peers)
    transactions = TransactionCoordinator(
        node,
        take_producer_id=producer_ids.take,
        markers=MarkerSender(view=node.view, target=target),
    )
    verifier = TransactionVerifier(node, coordinator=transactions, peers=question_peers)
    return Coordinators(hosted, groups, producer_ids, transactions, verifier, writer, offsets)
