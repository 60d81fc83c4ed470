"""Which handlers serve what is not on the hot path."""

from __future__ import annotations

from typing import Any

from tidelog_core.clock import wall_clock_ms

from tidelog_node.coordinator.coordinator import GroupCoordinator
from tidelog_node.coordinator.share_offsets import ShareOffsets
from tidelog_node.handlers.alter_log_dirs import AlterLogDirsHandler
from tidelog_node.handlers.cluster import ClusterHandlers
from tidelog_node.handlers.configs import ConfigHandlers
from tidelog_node.handlers.controllers import ControllerHandlers
from tidelog_node.handlers.delete_records import DeleteRecordsHandler
from tidelog_node.handlers.elections import ElectionHandlers
from tidelog_node.handlers.find_coordinator import FindCoordinatorHandlers
from tidelog_node.handlers.groups import GroupHandlers
from tidelog_node.handlers.leader_epoch import LeaderEpochHandler
from tidelog_node.handlers.list_offsets import ListOffsetsHandler
from tidelog_node.handlers.log_dirs import LogDirsHandler
from tidelog_node.handlers.metadata import MetadataHandlers
from tidelog_node.handlers.offsets import OffsetHandlers
from tidelog_node.handlers.producer_ids import ProducerIdHandlers
from tidelog_node.handlers.producers import ProducersHandler
from tidelog_node.handlers.reassignments import ReassignmentHandlers
from tidelog_node.handlers.share_offsets import ShareOffsetHandlers
from tidelog_node.handlers.topics import TopicHandlers
from tidelog_node.handlers.transactions import TransactionHandlers
from tidelog_node.parts import ClusterParts, DataParts, TransactionParts
from tidelog_node.routes import Route
from tidelog_node.settings import NodeSettings


def control_routes(
    settings: NodeSettings,
    cluster: ClusterParts,
    data: DataParts,
    coordinator: GroupCoordinator,
    transactions: TransactionParts,
) -> list[Route]:
    """Return the routes of everything but Produce, Fetch and ApiVersions."""
    can_serve = cluster.member.membership.can_serve
    parts: dict[str, Any] = {
        "view": cluster.view,
        "store": cluster.store,
        "node_config": cluster.node_config,
        "broker_id": settings.broker_id,
        "clock_ms": wall_clock_ms,
    }
    member = cluster.member
    live: dict[str, Any] = {"live_brokers": member.membership.live_brokers}
    static: dict[str, Any] = {"static_config": cluster.static_config}
    replicas, store = data.replicas, cluster.store
    find_coordinator = FindCoordinatorHandlers(**parts, **live)
    return [
        *MetadataHandlers(**parts, **live).routes(),
        *TopicHandlers(**parts, **live, **static).routes(),
        *ConfigHandlers(**parts, **static).routes(),
        *ClusterHandlers(**parts, live_brokers=member.membership.live_brokers).routes(),
        *find_coordinator.routes(),
        *GroupHandlers(coordinator=coordinator).routes(),
        *ShareOffsetHandlers(
            offsets=ShareOffsets(store=store, view=cluster.view, coordinator=coordinator),
            view=cluster.view,
        ).routes(),
        *OffsetHandlers(
            coordinator=coordinator,
            transactional=transactions.offsets,
            view=cluster.view,
            node_config=cluster.node_config,
        ).routes(),
        *ElectionHandlers(view=cluster.view, store=store, peers=member.membership.peers).routes(),
        *ReassignmentHandlers(view=cluster.view, store=store).routes(),
        *ProducerIdHandlers(
            producer_ids=transactions.producer_ids, coordinator=transactions.coordinator
        ).routes(),
        *TransactionHandlers(
            coordinator=transactions.coordinator,
            writer=transactions.writer,
            view=cluster.view,
            clock_ms=wall_clock_ms,
            ensure_shards=find_coordinator.ensure_shards,
        ).routes(),
        *ProducersHandler(replicas=replicas, can_serve=can_serve).routes(),
        *ListOffsetsHandler(
            replicas=replicas, inspector=data.inspector, can_serve=can_serve
        ).routes(),
        *LeaderEpochHandler(replicas=replicas, can_serve=can_serve).routes(),
        *LogDirsHandler(
            replicas=replicas, data_dir=settings.data_dir, health=cluster.health
        ).routes(),
        *AlterLogDirsHandler(
            replicas=replicas, view=cluster.view, data_dir=settings.data_dir
        ).routes(),
        *ControllerHandlers().routes(),
        *DeleteRecordsHandler(replicas=replicas, store=store, can_serve=can_serve).routes(),
    ]
