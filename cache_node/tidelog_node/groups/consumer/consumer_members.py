"""ConsumerGroupHeartbeat of a consumer group's members of the new protocol (KIP-848).

``migration.classic_members`` handles the requests of members that joined by JoinGroup.
"""

from __future__ import annotations

import dataclasses

from kio.schema.errors import ErrorCode
from tidelog_core.metadata.coordination.consumer_groups import (
    LEFT_FOR_NOW_EPOCH,
    NO_PARTITIONS,
    ConsumerMember,
)

from tidelog_node.groups.consumer.consumer_group import ConsumerGroup
from tidelog_node.groups.consumer.heartbeat import ConsumerGroupSettings, ConsumerHeartbeat
from tidelog_node.groups.consumer.topic_pattern import InvalidPattern, TopicPattern
from tidelog_node.groups.deadlines import Wait
from tidelog_node.groups.heartbeat_answer import (
    JOIN_EPOCH,
    HeartbeatAnswer,
    Refused,
    in_other_epoch,
)
from tidelog_node.groups.step import Step
from tidelog_node.groups.subscribed_topics import TopicsByName


def heartbeat(
    group: ConsumerGroup,
    request: ConsumerHeartbeat,
    *,
    now_ms: int,
    settings: ConsumerGroupSettings,
    topics: TopicsByName,
) -> tuple[HeartbeatAnswer, Step]:
    """Take a heartbeat: a join, a report, a sign of life or a leave.

    If the answer is an error, the group is unchanged.
    """
    step = group.begin(now_ms)
    try:
        if request.is_leaving:
            return _leave(group, request, settings), step
        return _heartbeat(group, request, settings, topics), step
    except Refused as refusal:
        return refusal.answer, step


def _heartbeat(
    group: ConsumerGroup,
    request: ConsumerHeartbeat,
    settings: ConsumerGroupSettings,
    topics: TopicsByName,
) -> HeartbeatAnswer:
    known = caller(group, request, settings)
    _require_pattern(request)
    if known is None:
        before = ConsumerMember(member_id=request.member_id)
    elif known.member_id != request.member_id:
        before = group.replace(known, request.member_id)
    else:
        before = known
    reported = _reported(before, request)
    sees_others = group.subscriptions.take_viewer(request.member_id, request.viewer, topics)
    member = group.settle(
        before,
        reported,
        sees_others=sees_others,
        seen_epoch=request.member_epoch,
        owned=request.owned,
        settings=settings,
        topics=topics,
    )
    group.expect(member.member_id, Wait.SESSION, settings.session_timeout_ms)
    must_tell = request.is_full or member.assigned != before.assigned
    return HeartbeatAnswer(
        member_id=member.member_id,
        member_epoch=member.epoch,
        heartbeat_interval_ms=settings.heartbeat_interval_ms,
        assigned=member.assigned if must_tell else None,
    )


def caller(
    group: ConsumerGroup, request: ConsumerHeartbeat, settings: ConsumerGroupSettings
) -> ConsumerMember | None:
    """Return the caller, or the member that it replaces, or ``None`` for a new member.

    For heartbeats of members that do not leave. Raises ``Refused``.
    """
    _require_alive(group)
    group.require_place(request.member_id, settings)
    is_joining = request.member_epoch == JOIN_EPOCH
    if request.instance_id is None:
        known = group.roster.get(request.member_id)
        if known is None and is_joining:
            return None
        return _in_epoch(group.member(request.member_id), request)
    if not is_joining:
        return _in_epoch(group.static_member(request.instance_id, request.member_id), request)
    holder = group.roster.static(request.instance_id)
    if holder is not None and holder.classic is None and holder.epoch != LEFT_FOR_NOW_EPOCH:
        raise Refused(
            ErrorCode.unreleased_instance_id,
            f"Static member {request.member_id} with instance id {request.instance_id} cannot"
            f" join the group because the instance id is owned by {holder.member_id} member.",
        )
    return holder


def _require_alive(group: ConsumerGroup) -> None:
    if group.is_dead:
        raise Refused(ErrorCode.coordinator_not_available, "The group was deleted.")


def _require_pattern(request: ConsumerHeartbeat) -> None:
    if request.subscribed_pattern:
        try:
            TopicPattern(request.subscribed_pattern)
        except InvalidPattern as problem:
            raise Refused(
                ErrorCode.invalid_regular_expression,
                f"SubscribedTopicRegex `{request.subscribed_pattern}` is not a valid regular"
                f" expression: {problem}.",
            ) from None


def _leave(
    group: ConsumerGroup, request: ConsumerHeartbeat, settings: ConsumerGroupSettings
) -> HeartbeatAnswer:
    _require_alive(group)
    if request.instance_id is None:
        member = group.member(request.member_id)
    else:
        member = group.static_member(request.instance_id, request.member_id)
    if request.member_epoch == LEFT_FOR_NOW_EPOCH and request.instance_id is not None:
        group.step.must_store = True
        group.expect_no_more(member.member_id, Wait.REBALANCE)
        group.roster.put(
            dataclasses.replace(member, epoch=LEFT_FOR_NOW_EPOCH, revoking=NO_PARTITIONS)
        )
    else:
        group.fence(member, settings)
    return HeartbeatAnswer(member_id=request.member_id, member_epoch=request.member_epoch)


def _in_epoch(member: ConsumerMember, request: ConsumerHeartbeat) -> ConsumerMember:
    """Return the member. Raises ``Refused`` if the caller is not in its epoch.

    A member that has not got the answers since its previous epoch may repeat its heartbeat in
    that one, as often as answers are lost, as long as it still owns the partitions it reports.
    Kafka tolerates one lost answer, unless it took partitions from the member.
    """
    is_of_before = (
        request.member_epoch == member.previous_epoch < member.epoch
        and request.owned is not None
        and request.owned <= member.held
    )
    if request.member_epoch == member.epoch or is_of_before:
        return member
    raise in_other_epoch("consumer", received=request.member_epoch, known=member.epoch)


def _reported(before: ConsumerMember, request: ConsumerHeartbeat) -> ConsumerMember:
    """Return the member with the request's values; absent ones stay."""
    names = request.subscribed_topics
    reported = dataclasses.replace(
        before,
        instance_id=before.instance_id if request.instance_id is None else request.instance_id,
        rack_id=before.rack_id if request.rack_id is None else request.rack_id,
        rebalance_timeout_ms=(
            before.rebalance_timeout_ms
            if request.rebalance_timeout_ms is None
            else request.rebalance_timeout_ms
        ),
        subscribed_topics=before.subscribed_topics if names is None else tuple(sorted(set(names))),
        subscribed_pattern=(
            before.subscribed_pattern
            if request.subscribed_pattern is None
            else request.subscribed_pattern
        ),
        assignor=before.assignor if request.assignor is None else request.assignor,
        client_id=request.client_id,
        client_host=request.client_host,
        classic=None,
    )
    return before if reported == before else reported
