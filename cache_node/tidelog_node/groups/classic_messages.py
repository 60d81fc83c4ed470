"""JoinGroup, SyncGroup and LeaveGroup requests and answers, and callers of others, as values.

JoinGroup and SyncGroup are answered later, often during another member's request, so each
carries a number that the group repeats in its answer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NewType

from kio.schema.errors import ErrorCode

RequestNumber = NewType("RequestNumber", int)

UNKNOWN_MEMBER_ID = ""
NO_GENERATION = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupLimits:
    """The settings that a join depends on, at the time of the join."""

    initial_rebalance_delay_ms: int
    members_max: int


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinRequest:
    """A JoinGroup request, with a member id to assign if it has none."""

    number: RequestNumber
    member_id: str  # empty: the request needs one
    group_instance_id: str | None
    new_member_id: str
    client_id: str
    client_host: str
    protocol_type: str
    protocols: tuple[tuple[str, bytes], ...]  # by preference: name, opaque metadata
    session_timeout_ms: int
    rebalance_timeout_ms: int
    must_know_member_id: bool  # since version 4
    can_skip_assignment: bool  # since version 9


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinedMember:
    """A member as described to the leader."""

    member_id: str
    group_instance_id: str | None
    metadata: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinAnswer:
    """The answer to a JoinGroup request."""

    error: ErrorCode = ErrorCode.none
    member_id: str = UNKNOWN_MEMBER_ID
    generation: int = NO_GENERATION
    protocol_type: str | None = None
    protocol_name: str | None = None
    leader: str = UNKNOWN_MEMBER_ID
    skip_assignment: bool = False
    members: tuple[JoinedMember, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncRequest:
    """A SyncGroup request; only the leader's carries assignments."""

    number: RequestNumber
    member_id: str
    group_instance_id: str | None
    generation: int
    protocol_type: str | None
    protocol_name: str | None
    assignments: tuple[tuple[str, bytes], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncAnswer:
    """The answer to a SyncGroup request."""

    error: ErrorCode = ErrorCode.none
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignment: bytes = b""


@dataclass(frozen=True, slots=True)
class MemberIdentity:
    """A leaving member: by member id, or by instance id alone (an administrator's removal)."""

    member_id: str
    group_instance_id: str | None = None


@dataclass(frozen=True, slots=True)
class GroupCaller:
    """The sender of a heartbeat or a commit, as it says: a member in a generation, or no member."""

    member_id: str = UNKNOWN_MEMBER_ID
    group_instance_id: str | None = None
    generation: int = NO_GENERATION  # the epoch of a member of a consumer group

    @property
    def is_no_member(self) -> bool:
        """Whether it says to be no member: an administrator, or a consumer without a group."""
        return (
            self.generation < 0
            and self.member_id == UNKNOWN_MEMBER_ID
            and self.group_instance_id is None
        )
