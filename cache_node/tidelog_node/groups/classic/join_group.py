"""JoinGroup of a classic group: admits or replaces a member, and begins rebalances.

Source: ``classicGroupJoin`` and related functions in ``GroupMetadataManager`` of Kafka 4.
"""

from __future__ import annotations

import dataclasses

from kio.schema.errors import ErrorCode

from tidelog_node.groups.classic.classic_group import ClassicGroup, Phase
from tidelog_node.groups.classic.member import Member
from tidelog_node.groups.classic_messages import (
    UNKNOWN_MEMBER_ID,
    GroupLimits,
    JoinAnswer,
    JoinRequest,
)
from tidelog_node.groups.step import Step

# As in Kafka, where it is not a setting either.
NEW_MEMBER_JOIN_TIMEOUT_MS = 5 * 60 * 1000
PENDING_MEMBERS_MAX = 10_000  # ids of one group, assigned and not yet used


def join(group: ClassicGroup, request: JoinRequest, *, now_ms: int, limits: GroupLimits) -> Step:
    """Take a JoinGroup: of a new member, for a rebalance, or during one."""
    step = group.begin(now_ms)
    if not _accepts(group, request.member_id, limits):
        group.drop(request.member_id)
        _answer_join(group, request, ErrorCode.group_max_size_reached, member_id="")
        group.complete_join_if_all_joined()
    elif group.phase is Phase.DEAD:
        _answer_join(group, request, ErrorCode.coordinator_not_available)
    elif not _supports_protocols(group, request):
        _answer_join(group, request, ErrorCode.inconsistent_group_protocol)
    elif request.member_id == UNKNOWN_MEMBER_ID:
        _join_unknown(group, request, limits)
    elif request.member_id in group.pending_members and request.group_instance_id is None:
        _add(group, request, request.member_id, limits)
    else:
        _join_known(group, request, limits)
    return step


def _accepts(group: ClassicGroup, member_id: str, limits: GroupLimits) -> bool:
    if member_id == UNKNOWN_MEMBER_ID and len(group.pending_members) >= PENDING_MEMBERS_MAX:
        return False
    member = group.roster.get(member_id)
    match group.phase:
        case Phase.EMPTY | Phase.DEAD:
            return True
        case Phase.PREPARING_REBALANCE:
            # Waiting requests are counted, not members: after the limit was lowered, the last
            # members to rejoin are refused.
            is_waiting = member is not None and member.awaited_join is not None
            return is_waiting or group.roster.joined_count < limits.members_max
        case Phase.COMPLETING_REBALANCE | Phase.STABLE:
            return member is not None or len(group.roster) < limits.members_max


def _supports_protocols(group: ClassicGroup, request: JoinRequest) -> bool:
    if not request.protocol_type or not request.protocols:
        return False
    if group.phase is Phase.EMPTY:
        return True
    names = [name for name, _ in request.protocols]
    return request.protocol_type == group.protocol_type and group.roster.supports_any(names)


def _join_unknown(group: ClassicGroup, request: JoinRequest, limits: GroupLimits) -> None:
    if request.group_instance_id is not None:
        old_member_id = group.roster.static_member_id(request.group_instance_id)
        if old_member_id is not None:
            _replace_static(group, request, old_member_id)
        else:
            _add(group, request, request.new_member_id, limits)
    elif request.must_know_member_id:
        # A client that never gets the answer must not become a member, or it would hold up the
        # rebalance. It gets an id and has to join again with it.
        group.assign_member_id(request.new_member_id, request.session_timeout_ms)
        _answer_join(group, request, ErrorCode.member_id_required, member_id=request.new_member_id)
    else:
        _add(group, request, request.new_member_id, limits)


def _join_known(group: ClassicGroup, request: JoinRequest, limits: GroupLimits) -> None:
    error = group.validate_member(request.member_id, request.group_instance_id)
    if error is not ErrorCode.none:
        _answer_join(group, request, error)
        return
    member = group.member(request.member_id)
    is_unchanged = member.protocols == request.protocols
    # A member that rejoins unchanged has missed the answer, and gets it again. The leader of a
    # stable group rejoins for a new assignment.
    is_leader_of_stable = group.phase is Phase.STABLE and group.roster.leader == member.member_id
    if group.phase is Phase.PREPARING_REBALANCE or not is_unchanged or is_leader_of_stable:
        _update(group, member, request)
        group.rebalance_or_complete_join(limits)
    else:
        group.renew_session(member)
        answer = group.generation_answer(member)
        group.step.joins.append((request.number, answer))


def _add(group: ClassicGroup, request: JoinRequest, member_id: str, limits: GroupLimits) -> None:
    if not len(group.roster):
        group.protocol_type = request.protocol_type
    # The client may disconnect before the answer, and no missing heartbeat would show it, since
    # it does not know its id yet. If it is still connected, it joins again.
    member = Member(
        member_id=member_id,
        group_instance_id=request.group_instance_id,
        client_id=request.client_id,
        client_host=request.client_host,
        session_timeout_ms=request.session_timeout_ms,
        rebalance_timeout_ms=request.rebalance_timeout_ms,
        protocols=request.protocols,
        is_new=True,
        awaited_join=request.number,
    )
    group.add(member, NEW_MEMBER_JOIN_TIMEOUT_MS)
    group.rebalance_or_complete_join(limits)


def _update(group: ClassicGroup, member: Member, request: JoinRequest) -> None:
    group.roster.set_protocols(member, request.protocols)
    member.session_timeout_ms = request.session_timeout_ms
    member.rebalance_timeout_ms = request.rebalance_timeout_ms
    if member.awaited_join is not None:
        # The client has sent another request instead of waiting for the first.
        group.fail_join(member, ErrorCode.rebalance_in_progress)
    group.roster.await_join(member, request.number)


def _replace_static(group: ClassicGroup, request: JoinRequest, old_member_id: str) -> None:
    """Give a returning static member its old place under a new id."""
    old = group.member(old_member_id)
    old_leader = group.roster.leader
    group.fail_join(old, ErrorCode.fenced_instance_id)
    group.fail_sync(old, ErrorCode.fenced_instance_id)
    member = Member(
        member_id=request.new_member_id,
        group_instance_id=old.group_instance_id,
        client_id=request.client_id,
        client_host=request.client_host,
        session_timeout_ms=request.session_timeout_ms,
        rebalance_timeout_ms=request.rebalance_timeout_ms,
        protocols=request.protocols,
        assignment=old.assignment,
        awaited_join=request.number,
    )
    group.replace(old_member_id, member)
    match group.phase:
        case Phase.STABLE if (
            member.has_preferences_of(old) or group.roster.select_protocol() == group.protocol_name
        ):
            group.step.must_store = True
            _answer_replaced(group, member, request, old_leader)
        case Phase.STABLE | Phase.COMPLETING_REBALANCE:
            # The leader may already be assigning partitions to the old id.
            group.prepare_rebalance(None)
        case _:
            group.complete_join_unless_initial()


def _answer_replaced(
    group: ClassicGroup, member: Member, request: JoinRequest, old_leader: str | None
) -> None:
    answer = group.generation_answer(member)
    is_leader = group.roster.leader == member.member_id
    if request.can_skip_assignment:
        answer = dataclasses.replace(answer, skip_assignment=is_leader)
    else:
        # An old client that is named leader would assign again and expect a rebalance.
        answer = dataclasses.replace(answer, leader=old_leader or "", members=())
    group.roster.await_join(member, None)
    group.step.joins.append((request.number, answer))


def _answer_join(
    group: ClassicGroup, request: JoinRequest, error: ErrorCode, *, member_id: str | None = None
) -> None:
    echoed = request.member_id if member_id is None else member_id
    group.step.joins.append((request.number, JoinAnswer(error=error, member_id=echoed)))
