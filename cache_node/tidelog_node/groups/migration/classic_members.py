"""JoinGroup, SyncGroup, Heartbeat and LeaveGroup of classic members in a consumer group.

While a group moves from one protocol to the other, its classic members never wait. A join is
answered at once, with the member's epoch as generation and without a leader. The sync that follows
returns the coordinator's assignment. A heartbeat asks for the next join whenever the member has to
give partitions up or can get some.
Source: KIP-848, and ``classicGroupJoinToConsumerGroup`` and related functions in Kafka 4.1.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from kio.schema.errors import ErrorCode
from tidelog_core.metadata.coordination.consumer_groups import (
    ClassicProtocols,
    ConsumerMember,
    MemberState,
)

from tidelog_node.groups.classic_messages import (
    UNKNOWN_MEMBER_ID,
    GroupCaller,
    JoinAnswer,
    JoinRequest,
    MemberIdentity,
    SyncAnswer,
    SyncRequest,
)
from tidelog_node.groups.consumer.consumer_group import (
    ConsumerGroup,
    ConsumerPhase,
)
from tidelog_node.groups.consumer.heartbeat import ConsumerGroupSettings
from tidelog_node.groups.deadlines import Wait
from tidelog_node.groups.heartbeat_answer import Refused
from tidelog_node.groups.migration.consumer_protocol import (
    MalformedProtocol,
    Subscription,
    decode_subscription,
)
from tidelog_node.groups.migration.conversion import assignment_of, with_ids
from tidelog_node.groups.step import Downgrade, Step
from tidelog_node.groups.subscribed_topics import TopicsByName
from tidelog_node.groups.subscription import CONSUMER_PROTOCOL_TYPE


def join(
    group: ConsumerGroup,
    request: JoinRequest,
    *,
    now_ms: int,
    settings: ConsumerGroupSettings,
    topics: TopicsByName,
) -> Step:
    """Let a classic member join, or rejoin for its next partitions."""
    step = group.begin(now_ms)
    try:
        answer = _join(group, request, settings=settings, topics=topics)
    except Refused as refusal:
        answer = JoinAnswer(error=refusal.error)
    step.joins.append((request.number, answer))
    return step


def sync(group: ConsumerGroup, request: SyncRequest, *, now_ms: int) -> Step:
    """Answer a classic member with the partitions of its generation."""
    step = group.begin(now_ms)
    try:
        answer = _sync(group, request)
    except Refused as refusal:
        answer = SyncAnswer(error=refusal.error)
    step.syncs.append((request.number, answer))
    return step


def heartbeat(group: ConsumerGroup, caller: GroupCaller, *, now_ms: int) -> ErrorCode:
    """Renew a classic member's session. The answer says whether to join again."""
    group.begin(now_ms)
    try:
        member = _classic_member(group, caller.member_id, caller.group_instance_id)
    except Refused as refusal:
        return refusal.error
    if caller.generation != member.epoch:
        return ErrorCode.illegal_generation
    assert member.classic is not None
    group.expect(member.member_id, Wait.SESSION, member.classic.session_timeout_ms)
    missing = member.target - member.assigned
    can_get_more = member.state is MemberState.UNRELEASED_PARTITIONS and all(
        group.roster.is_free(partition) for partition in missing
    )
    if (
        member.epoch < group.epoch
        or member.state is MemberState.UNREVOKED_PARTITIONS
        or can_get_more
    ):
        group.expect_join(member)
        return ErrorCode.rebalance_in_progress
    return ErrorCode.none


def leave(
    group: ConsumerGroup, identities: Sequence[MemberIdentity], *, now_ms: int
) -> tuple[list[ErrorCode], Step]:
    """Remove classic members, or static ones for an administrator. One error code each."""
    step = group.begin(now_ms)
    errors, leaving = [], []
    for identity in identities:
        try:
            member = _leaving_member(group, identity)
        except Refused as refusal:
            errors.append(refusal.error)
        else:
            errors.append(ErrorCode.none)
            leaving.append(member.member_id)
    if leaving:
        group.remove(dict.fromkeys(leaving))
    return errors, step


def _join(
    group: ConsumerGroup,
    request: JoinRequest,
    *,
    settings: ConsumerGroupSettings,
    topics: TopicsByName,
) -> JoinAnswer:
    if group.is_dead:
        raise Refused(ErrorCode.coordinator_not_available, "The group was deleted.")
    is_unknown = request.member_id == UNKNOWN_MEMBER_ID
    member_id = request.new_member_id if is_unknown else request.member_id
    group.require_place(member_id, settings)
    _require_protocols(group, request)
    if is_unknown and request.must_know_member_id and request.group_instance_id is None:
        return JoinAnswer(error=ErrorCode.member_id_required, member_id=member_id)
    try:
        subscription = decode_subscription(request.protocols[0][1])
    except MalformedProtocol as problem:
        raise Refused(ErrorCode.inconsistent_group_protocol, str(problem)) from None
    known = joining_member(group, request)
    if known is None:
        before = ConsumerMember(member_id=member_id)
    elif known.member_id != member_id:
        before = group.replace(known, member_id)
    else:
        before = known
    member = group.settle(
        before,
        _reported(before, request, subscription),
        seen_epoch=before.epoch,
        owned=with_ids(subscription.owned, topics),
        settings=settings,
        topics=topics,
    )
    group.expect_no_more(member_id, Wait.JOIN)
    group.expect(member_id, Wait.SESSION, request.session_timeout_ms)
    group.expect(member_id, Wait.SYNC, request.rebalance_timeout_ms)
    if known is not None and known.classic is None and group.can_be_classic(settings):
        # The last member of the new protocol is a static one that returned as a classic one.
        is_stable = group.phase is ConsumerPhase.STABLE
        group.step.downgrade = Downgrade(must_rebalance=not is_stable)
    return JoinAnswer(
        member_id=member_id,
        generation=member.epoch,
        protocol_type=CONSUMER_PROTOCOL_TYPE,
        protocol_name=request.protocols[0][0],
    )


def _reported(
    before: ConsumerMember, request: JoinRequest, subscription: Subscription
) -> ConsumerMember:
    """Return the member as its request describes it."""
    return dataclasses.replace(
        before,
        instance_id=request.group_instance_id or before.instance_id,
        rack_id=subscription.rack_id or before.rack_id,
        rebalance_timeout_ms=request.rebalance_timeout_ms,
        subscribed_topics=subscription.topics,
        subscribed_pattern=None,
        client_id=request.client_id,
        client_host=request.client_host,
        classic=ClassicProtocols(
            session_timeout_ms=request.session_timeout_ms, protocols=request.protocols
        ),
    )


def _require_protocols(group: ConsumerGroup, request: JoinRequest) -> None:
    common = group.roster.common_classic_protocols()
    names = {name for name, _ in request.protocols}
    if (
        request.protocol_type != CONSUMER_PROTOCOL_TYPE
        or not names
        or (common is not None and common.isdisjoint(names))
    ):
        raise Refused(
            ErrorCode.inconsistent_group_protocol,
            f"Member {request.member_id}'s protocols are not supported.",
        )


def joining_member(group: ConsumerGroup, request: JoinRequest) -> ConsumerMember | None:
    """Return the caller, or the member that it replaces, or ``None`` for a new member.

    Raises ``Refused``.
    """
    instance_id = request.group_instance_id
    if instance_id is None:
        return group.roster.get(request.member_id)
    if request.member_id == UNKNOWN_MEMBER_ID:
        return group.roster.static(instance_id)
    return group.static_member(instance_id, request.member_id)


def syncing_member(group: ConsumerGroup, request: SyncRequest) -> ConsumerMember:
    """Return the caller of SyncGroup. Raises ``Refused``."""
    member = _classic_member(group, request.member_id, request.group_instance_id)
    if request.generation != member.epoch:
        raise Refused(ErrorCode.illegal_generation, "The generation is not the member's epoch.")
    return member


def _sync(group: ConsumerGroup, request: SyncRequest) -> SyncAnswer:
    member = syncing_member(group, request)
    assert member.classic is not None
    protocol_name = member.classic.protocols[0][0]
    for asked, ours in (
        (request.protocol_type, CONSUMER_PROTOCOL_TYPE),
        (request.protocol_name, protocol_name),
    ):
        if asked is not None and asked != ours:
            raise Refused(ErrorCode.inconsistent_group_protocol, f"{asked} is not {ours}.")
    # A new coordinator may not know all names of the assignment's topics.
    is_outdated = group.epoch > member.epoch or group.has_changed_topics
    if is_outdated and member.state is not MemberState.UNREVOKED_PARTITIONS:
        group.expect_join(member)
        raise Refused(ErrorCode.rebalance_in_progress, "The member has to join again.")
    group.expect_no_more(member.member_id, Wait.SYNC)
    group.expect(member.member_id, Wait.SESSION, member.classic.session_timeout_ms)
    names = {topic.topic_id: name for name, topic in group.topics.items()}
    return SyncAnswer(
        protocol_type=request.protocol_type,
        protocol_name=request.protocol_name,
        assignment=assignment_of(member, member.assigned, names),
    )


def _leaving_member(group: ConsumerGroup, identity: MemberIdentity) -> ConsumerMember:
    if identity.group_instance_id is not None and identity.member_id == UNKNOWN_MEMBER_ID:
        member = group.roster.static(identity.group_instance_id)
        if member is not None and member.classic is not None:
            return member
        raise Refused(
            ErrorCode.unknown_member_id,
            f"Instance id {identity.group_instance_id} is no classic member's.",
        )
    return _classic_member(group, identity.member_id, identity.group_instance_id)


def _classic_member(
    group: ConsumerGroup, member_id: str, instance_id: str | None
) -> ConsumerMember:
    if group.is_dead:
        raise Refused(ErrorCode.coordinator_not_available, "The group was deleted.")
    if instance_id is None:
        member = group.member(member_id)
    else:
        member = group.static_member(instance_id, member_id)
    if member.classic is None:
        raise Refused(
            ErrorCode.unknown_member_id, f"Member {member_id} does not use the classic protocol."
        )
    return member
