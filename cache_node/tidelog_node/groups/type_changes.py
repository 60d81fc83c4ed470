"""The requests that may change a group's kind: joins and heartbeats.

A consumer group replaces an empty classic group, or takes over its members and may have to give
them back (``step.downgrade``). A classic group replaces an empty consumer group. A share group
begins where no group exists, and stays one. Each function returns the group to use from then on.
"""

from __future__ import annotations

from collections.abc import Mapping

from kio.schema.errors import ErrorCode
from tidelog_core.metadata.coordination.consumer_groups import ConsumerMember

from tidelog_node.groups import any_group
from tidelog_node.groups.any_group import Group
from tidelog_node.groups.classic.classic_group import ClassicGroup
from tidelog_node.groups.classic_messages import GroupLimits, JoinRequest
from tidelog_node.groups.consumer import consumer_members
from tidelog_node.groups.consumer.consumer_group import ConsumerGroup
from tidelog_node.groups.consumer.heartbeat import ConsumerGroupSettings, ConsumerHeartbeat
from tidelog_node.groups.consumer.pattern_matches import Matches
from tidelog_node.groups.consumer.pattern_view import PatternView
from tidelog_node.groups.heartbeat_answer import JOIN_EPOCH, HeartbeatAnswer, Refused
from tidelog_node.groups.migration.upgrade import as_consumer_group
from tidelog_node.groups.share.heartbeat import ShareGroupSettings, ShareHeartbeat
from tidelog_node.groups.share.share_group import ShareGroup
from tidelog_node.groups.step import Step
from tidelog_node.groups.subscribed_topics import TopicsByName


def join(
    group: Group,
    request: JoinRequest,
    *,
    now_ms: int,
    limits: GroupLimits,
    settings: ConsumerGroupSettings,
    topics: TopicsByName,
) -> tuple[Group, Step]:
    """Let a classic member join; the step has the answer, now or later."""
    if isinstance(group, ConsumerGroup) and group.is_empty:
        group = ClassicGroup(group.group_id, now_ms=now_ms, generation=group.epoch)
    step = any_group.join(
        group, request, now_ms=now_ms, limits=limits, settings=settings, topics=topics
    )
    return group, step


def heartbeat_caller(
    group: Group,
    request: ConsumerHeartbeat,
    *,
    now_ms: int,
    settings: ConsumerGroupSettings,
    topics: TopicsByName,
) -> ConsumerMember | None:
    """Return the member whose heartbeat waits while patterns are matched. Raises ``Refused``."""
    if isinstance(group, ClassicGroup) and not request.subscribed_pattern:
        return None  # It does not wait.
    found = as_consumer_group(group, request, now_ms=now_ms, settings=settings, topics=topics)
    return consumer_members.caller(found, request, settings)


def new_view(
    group: Group, request: ConsumerHeartbeat, caller: ConsumerMember | None
) -> PatternView | None:
    """Return how the caller sees its pattern, if the group may not know that yet."""
    pattern = request.subscribed_pattern
    if pattern is None and caller is not None:
        pattern = caller.subscribed_pattern
    if not pattern:
        return None
    view = PatternView(pattern, request.viewer)
    if request.subscribed_pattern is None and isinstance(group, ConsumerGroup):
        known = None if caller is None else group.roster.view_of(caller)
        return None if view == known else view
    return view


def consumer_heartbeat(
    group: Group,
    request: ConsumerHeartbeat,
    matches: Mapping[PatternView, Matches],
    *,
    now_ms: int,
    settings: ConsumerGroupSettings,
    topics: TopicsByName,
) -> tuple[Group, HeartbeatAnswer, Step]:
    """Take a consumer's heartbeat, which may upgrade a classic group."""
    try:
        found = as_consumer_group(group, request, now_ms=now_ms, settings=settings, topics=topics)
    except Refused as refusal:
        return group, refusal.answer, Step()
    found.subscriptions.take_matches(matches)
    answer, step = consumer_members.heartbeat(
        found, request, now_ms=now_ms, settings=settings, topics=topics
    )
    if isinstance(group, ClassicGroup) and answer.error is ErrorCode.none:
        abandoned = group.abandon(now_ms)
        step.joins, step.syncs = abandoned.joins, abandoned.syncs
        return found, answer, step
    return group, answer, step


def share_heartbeat(
    group: Group,
    request: ShareHeartbeat,
    *,
    is_absent: bool,
    now_ms: int,
    settings: ShareGroupSettings,
    topics: TopicsByName,
) -> tuple[Group, HeartbeatAnswer, Step]:
    """Take a share group member's heartbeat, which may begin the group if it ``is_absent``."""
    found = group
    if request.member_epoch == JOIN_EPOCH and is_absent:
        found = ShareGroup(group.group_id, now_ms=now_ms)
    if not isinstance(found, ShareGroup):
        message = f"Group {group.group_id} is not a share group."
        answer = HeartbeatAnswer(error=ErrorCode.group_id_not_found, message=message)
        return group, answer, Step()
    answer, step = found.heartbeat(request, now_ms=now_ms, settings=settings, topics=topics)
    return (found if answer.error is ErrorCode.none else group), answer, step
