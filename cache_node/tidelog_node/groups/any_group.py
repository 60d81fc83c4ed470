"""The requests of the classic protocol, as every group that serves them answers.

A share group serves none of them: it has no classic members and no committed offsets.
Source: ``GroupMetadataManager`` of Kafka 4.1, and ``ShareGroup.validateOffsetCommit``.
"""

from __future__ import annotations

from collections.abc import Sequence

from kio.schema.errors import ErrorCode

from tidelog_node.groups.classic import join_group, offset_commits, sync_group
from tidelog_node.groups.classic.classic_group import ClassicGroup
from tidelog_node.groups.classic_messages import (
    GroupCaller,
    GroupLimits,
    JoinAnswer,
    JoinRequest,
    MemberIdentity,
    SyncAnswer,
    SyncRequest,
)
from tidelog_node.groups.consumer.consumer_group import ConsumerGroup
from tidelog_node.groups.consumer.heartbeat import ConsumerGroupSettings
from tidelog_node.groups.migration import classic_members
from tidelog_node.groups.share.share_group import ShareGroup
from tidelog_node.groups.step import Step
from tidelog_node.groups.subscribed_topics import TopicsByName

Group = ClassicGroup | ConsumerGroup | ShareGroup


def join(
    group: Group,
    request: JoinRequest,
    *,
    now_ms: int,
    limits: GroupLimits,
    settings: ConsumerGroupSettings,
    topics: TopicsByName,
) -> Step:
    """Let a classic member join; the step has the answer, now or later."""
    if isinstance(group, ConsumerGroup):
        return classic_members.join(group, request, now_ms=now_ms, settings=settings, topics=topics)
    if isinstance(group, ShareGroup):
        step = Step()
        refused = JoinAnswer(error=ErrorCode.inconsistent_group_protocol)
        step.joins.append((request.number, refused))
        return step
    return join_group.join(group, request, now_ms=now_ms, limits=limits)


def sync(group: Group, request: SyncRequest, *, now_ms: int) -> Step:
    """Give a classic member its assignment; the step has the answer, now or later."""
    if isinstance(group, ConsumerGroup):
        return classic_members.sync(group, request, now_ms=now_ms)
    if isinstance(group, ShareGroup):
        step = Step()
        step.syncs.append((request.number, SyncAnswer(error=ErrorCode.unknown_member_id)))
        return step
    return sync_group.sync(group, request, now_ms=now_ms)


def heartbeat(group: Group, caller: GroupCaller, *, now_ms: int) -> ErrorCode:
    """Return the answer to a classic member's heartbeat."""
    if isinstance(group, ShareGroup):
        return ErrorCode.unknown_member_id
    if isinstance(group, ConsumerGroup):
        return classic_members.heartbeat(group, caller, now_ms=now_ms)
    return group.heartbeat(caller, now_ms=now_ms)


def leave(
    group: Group, identities: Sequence[MemberIdentity], *, now_ms: int
) -> tuple[list[ErrorCode], Step]:
    """Remove classic members; one error code each."""
    if isinstance(group, ShareGroup):
        return [ErrorCode.unknown_member_id for _ in identities], Step()
    if isinstance(group, ConsumerGroup):
        return classic_members.leave(group, identities, now_ms=now_ms)
    return group.leave(identities, now_ms=now_ms)


def validate_commit(
    group: Group, caller: GroupCaller, *, knows_epochs: bool, now_ms: int
) -> ErrorCode:
    """Return whether the caller may commit offsets."""
    if isinstance(group, ShareGroup):
        return ErrorCode.group_id_not_found
    if isinstance(group, ConsumerGroup):
        return group.validate_commit(caller, knows_epochs=knows_epochs)
    return offset_commits.validate_commit(group, caller, now_ms=now_ms)


def validate_transactional_commit(group: Group, caller: GroupCaller) -> ErrorCode:
    """Return whether a producer may commit the group's offsets with its transaction."""
    if isinstance(group, ShareGroup):
        return ErrorCode.group_id_not_found
    if isinstance(group, ConsumerGroup):
        return group.validate_transactional_commit(caller)
    return offset_commits.validate_transactional_commit(group, caller)
