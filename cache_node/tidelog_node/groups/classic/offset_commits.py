"""Who may commit offsets of a classic group.

Source: ``ClassicGroup.validateOffsetCommit`` of Kafka 4.
"""

from __future__ import annotations

from kio.schema.errors import ErrorCode

from tidelog_node.groups.classic.classic_group import ClassicGroup, Phase


def validate_commit(
    group: ClassicGroup,
    member_id: str,
    *,
    group_instance_id: str | None,
    generation: int,
    now_ms: int,
) -> ErrorCode:
    """Return whether the caller may commit offsets; a member's commit renews its session.

    Without a generation the caller is an administrator or a consumer that assigns itself
    partitions, and may commit only while the group is empty.
    """
    if generation < 0 and group.phase is Phase.EMPTY:
        return ErrorCode.none
    error = group.validate_member(member_id, group_instance_id)
    if error is not ErrorCode.none:
        return error
    if generation != group.generation:
        return ErrorCode.illegal_generation
    if group.phase is Phase.COMPLETING_REBALANCE:
        return ErrorCode.rebalance_in_progress
    group.begin(now_ms)
    group.renew_session(group.member(member_id))
    return ErrorCode.none


def validate_transactional_commit(
    group: ClassicGroup, member_id: str, *, group_instance_id: str | None, generation: int
) -> ErrorCode:
    """Return whether a producer may commit the group's offsets with its transaction.

    Producers before version 3 of the API give neither member nor generation, and may always
    commit.
    """
    if generation < 0 and group.phase is Phase.EMPTY:
        return ErrorCode.none
    if generation < 0 and not member_id and group_instance_id is None:
        return ErrorCode.none
    error = group.validate_member(member_id, group_instance_id)
    if error is ErrorCode.none and generation != group.generation:
        return ErrorCode.illegal_generation
    return error
