"""Decides whether a group is a consumer group, or may become one when a consumer joins.

Source: ``validateOnlineUpgrade`` of Kafka's ``GroupMetadataManager``.
"""

from __future__ import annotations

from kio.schema.errors import ErrorCode

from tidelog_node.groups.classic.classic_group import ClassicGroup
from tidelog_node.groups.consumer.consumer_group import ConsumerGroup
from tidelog_node.groups.consumer.heartbeat import ConsumerGroupSettings, ConsumerHeartbeat
from tidelog_node.groups.epoch_group import EpochGroup
from tidelog_node.groups.heartbeat_answer import JOIN_EPOCH, Refused
from tidelog_node.groups.migration.consumer_protocol import MalformedProtocol
from tidelog_node.groups.migration.conversion import upgraded
from tidelog_node.groups.subscribed_topics import TopicsByName


class _NotUpgraded(Exception):
    """The classic group cannot become a consumer group."""


def as_consumer_group(
    group: ClassicGroup | EpochGroup,
    request: ConsumerHeartbeat,
    *,
    now_ms: int,
    settings: ConsumerGroupSettings,
    topics: TopicsByName,
) -> ConsumerGroup:
    """Return the group, or the one it becomes if the caller joins. Raises ``Refused``."""
    if isinstance(group, ConsumerGroup):
        return group
    is_joining = request.member_epoch == JOIN_EPOCH
    if not isinstance(group, ClassicGroup) or not is_joining or group.is_dead:
        raise Refused(
            ErrorCode.group_id_not_found, f"Group {group.group_id} is not a consumer group."
        )
    found = ConsumerGroup(group.group_id, now_ms=now_ms, epoch=group.generation)
    if group.is_empty:
        return found
    try:
        if not settings.can_upgrade:
            raise _NotUpgraded("the online upgrade is disabled")
        if not group.uses_consumer_protocol:
            raise _NotUpgraded("the group does not use the consumer embedded protocol")
        if len(group.roster) > settings.members_max:
            raise _NotUpgraded("the group size exceeds the consumer group maximum size")
        found.take_in(upgraded(group, topics), settings)
    except (_NotUpgraded, MalformedProtocol) as problem:
        raise Refused(
            ErrorCode.group_id_not_found,
            f"Cannot upgrade classic group {group.group_id} to consumer group because {problem}.",
        ) from None
    return found
