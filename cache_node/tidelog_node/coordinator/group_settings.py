"""Combines the node's settings with a group's own settings."""

from __future__ import annotations

from tidelog_node.groups.assignment.assignors import ASSIGNORS
from tidelog_node.groups.consumer.heartbeat import ConsumerGroupSettings
from tidelog_node.groups.share.heartbeat import ShareGroupSettings
from tidelog_node.node_context import NodeContext


class GroupSettings:
    """The effective settings of each group."""

    def __init__(self, node: NodeContext, *, assigned_at_once_members_max: int) -> None:
        self._node = node
        self._assigned_at_once_members_max = assigned_at_once_members_max

    @property
    def assignors(self) -> tuple[str, ...]:
        """The assignors that members may choose, the default first; never empty."""
        return self._node.config().group_consumer_assignors or tuple(ASSIGNORS)

    def consumer(self, group_id: str) -> ConsumerGroupSettings:
        """Return the settings of a consumer group."""
        config = self._node.config()
        own = self._node.view.image.group_config(group_id, config)
        policy = config.group_consumer_migration_policy
        return ConsumerGroupSettings(
            session_timeout_ms=own.consumer_session_timeout_ms,
            heartbeat_interval_ms=own.consumer_heartbeat_interval_ms,
            assignment_interval_ms=config.group_consumer_assignment_interval_ms,
            members_max=config.group_consumer_max_size,
            classic_members_max=config.group_max_size,
            assignors=self.assignors,
            can_upgrade=policy in ("bidirectional", "upgrade"),
            can_downgrade=policy in ("bidirectional", "downgrade"),
            hides_topics=bool(config.authorizer_class_name) and not config.authorizer_dry_run,
            assigned_at_once_members_max=self._assigned_at_once_members_max,
        )

    def share(self, group_id: str) -> ShareGroupSettings:
        """Return the settings of a share group."""
        config = self._node.config()
        own = self._node.view.image.group_config(group_id, config)
        return ShareGroupSettings(
            session_timeout_ms=own.share_session_timeout_ms,
            heartbeat_interval_ms=own.share_heartbeat_interval_ms,
            members_max=config.group_share_max_size,
        )
