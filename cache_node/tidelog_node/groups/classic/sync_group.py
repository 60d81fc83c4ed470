"""SyncGroup of a classic group: takes the leader's assignment, and gives each member its own.

Source: ``classicGroupSync`` in ``GroupMetadataManager`` of Kafka 4.
"""

from __future__ import annotations

from collections.abc import Mapping

from kio.schema.errors import ErrorCode

from tidelog_node.groups.classic.classic_group import ClassicGroup, Phase
from tidelog_node.groups.classic.member import Member
from tidelog_node.groups.classic_messages import SyncAnswer, SyncRequest
from tidelog_node.groups.step import Step


def sync(group: ClassicGroup, request: SyncRequest, *, now_ms: int) -> Step:
    """Take a member's SyncGroup; the leader's has all assignments."""
    step = group.begin(now_ms)
    error = _refusal(group, request)
    if error is not ErrorCode.none:
        step.syncs.append((request.number, SyncAnswer(error=error)))
        return step
    member = group.member(request.member_id)
    group.wait.note_sync(member.member_id)
    if group.phase is Phase.STABLE:
        step.syncs.append((request.number, _answer(group, member)))
        return step
    group.fail_sync(member, ErrorCode.rebalance_in_progress)
    member.awaited_sync = request.number
    if member.member_id == group.roster.leader:
        _assign(group, dict(request.assignments))
    return step


def _refusal(group: ClassicGroup, request: SyncRequest) -> ErrorCode:
    """Return why the request is refused, or ``none``."""
    error = group.validate_member(request.member_id, request.group_instance_id)
    if error is not ErrorCode.none:
        return error
    if request.generation != group.generation:
        return ErrorCode.illegal_generation
    for asked, ours in (
        (request.protocol_type, group.protocol_type),
        (request.protocol_name, group.protocol_name),
    ):
        if asked is not None and ours is not None and asked != ours:
            return ErrorCode.inconsistent_group_protocol
    if group.phase is Phase.PREPARING_REBALANCE:
        return ErrorCode.rebalance_in_progress
    return ErrorCode.none


def _assign(group: ClassicGroup, assignments: Mapping[str, bytes]) -> None:
    """Give each member its assignment, and answer those that wait for it."""
    group.enter(Phase.STABLE)
    group.step.must_store = True
    for member in group.roster:
        member.assignment = assignments.get(member.member_id, b"")
        if member.awaited_sync is not None:
            group.step.syncs.append((member.awaited_sync, _answer(group, member)))
            member.awaited_sync = None
            group.renew_session(member)


def _answer(group: ClassicGroup, member: Member) -> SyncAnswer:
    return SyncAnswer(
        protocol_type=group.protocol_type,
        protocol_name=group.protocol_name,
        assignment=member.assignment,
    )
