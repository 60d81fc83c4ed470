"""Who may commit offsets of a classic group.

Source: ``ClassicGroup.validateOffsetCommit`` of Kafka 4.
"""

from __future__ import annotations

from kio.schema.errors import ErrorCode

from tidelog_node.groups.classic.classic_group import ClassicGroup, Phase
from tidelog_node.groups.classic_messages import GroupCaller


def validate_commit(group: ClassicGroup, caller: GroupCaller, *, now_ms: int) -> ErrorCode:
    """Return whether the caller may commit offsets; a member's commit renews its session.

    Without a generation the caller is an administrator or a consumer that assigns itself
    partitions, and may commit only while the group is empty.
    """
    if caller.generation < 0 and group.phase is Phase.EMPTY:
        return ErrorCode.none
    error = group.validate_member(caller.member_id, caller.group_instance_id)
    if error is not ErrorCode.none:
        return error
    if caller.generation != group.generation:
        return ErrorCode.illegal_generation
    if group.phase is Phase.COMPLETING_REBALANCE:
        return ErrorCode.rebalance_in_progress
    group.begin(now_ms)
    group.renew_session(group.member(caller.member_id))
    return ErrorCode.none


def validate_transactional_commit(group: ClassicGroup, caller: GroupCaller) -> ErrorCode:
    """Return whether a producer may commit the group's offsets with its transaction.

    Producers before version 3 of the API give neither member nor generation, and may always
    commit.
    """
    if caller.is_no_member or (caller.generation < 0 and group.phase is Phase.EMPTY):
        return ErrorCode.none
    error = group.validate_member(caller.member_id, caller.group_instance_id)
    if error is ErrorCode.none and caller.generation != group.generation:
        return ErrorCode.illegal_generation
    return error
