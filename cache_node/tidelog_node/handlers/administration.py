"""Applies changes of topics and settings for the handlers."""

from __future__ import annotations

from tidelog_core.admin.service import ClusterAdmin

from tidelog_node.node_context import NodeContext


def cluster_admin(node: NodeContext) -> ClusterAdmin:
    """Return what changes topics and settings, and places replicas on the live brokers."""
    return ClusterAdmin(
        store=node.store,
        view=node.view,
        node_config=node.config,
        clock_ms=node.clock_ms,
        live=lambda image: node.standing.live_brokers(image).keys(),
    )
