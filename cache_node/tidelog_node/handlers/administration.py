"""The administration of topics in a node, and how handlers answer for one change."""

from __future__ import annotations

from typing import Any, TypeVar

from tidelog_core.admin.failures import admin_error_code
from tidelog_core.admin.topics.topic_admin import TopicAdmin
from tidelog_core.errors import ErrorCode, TidelogError

from tidelog_node.node_context import NodeContext
from tidelog_node.wire.messages import build

T = TypeVar("T")


def topic_admin(node: NodeContext) -> TopicAdmin:
    """Return the administration of topics, which places replicas on the live brokers."""
    return TopicAdmin(
        store=node.store,
        view=node.view,
        node_config=node.config,
        clock_ms=node.clock_ms,
        live=lambda image: node.membership.live_brokers(image).keys(),
    )


def admin_outcome(cls: type[T], error: TidelogError | None, **fields: Any) -> T:
    """Return the part of an answer that reports one change as made, or its error."""
    return build(
        cls,
        error_code=ErrorCode.none if error is None else admin_error_code(error),
        error_message=None if error is None else str(error),
        **fields,
    )
