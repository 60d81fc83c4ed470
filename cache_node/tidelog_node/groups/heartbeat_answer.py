"""The heartbeat answer to members of consumer groups and share groups."""

from __future__ import annotations

from dataclasses import dataclass

from kio.schema.errors import ErrorCode
from tidelog_core.metadata.coordination.consumer_groups import Partitions

JOIN_EPOCH = 0
LEAVE_EPOCH = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatAnswer:
    """The answer to a ConsumerGroupHeartbeat or ShareGroupHeartbeat request."""

    error: ErrorCode = ErrorCode.none
    message: str | None = None
    member_id: str | None = None
    member_epoch: int = 0
    heartbeat_interval_ms: int = 0
    assigned: Partitions | None = None  # None: unchanged since the last answer


class Refused(Exception):
    """A request is refused with an error, and the group is unchanged."""

    def __init__(self, error: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.error = error
        self.message = message

    @property
    def answer(self) -> HeartbeatAnswer:
        """The answer with the error."""
        return HeartbeatAnswer(error=self.error, message=self.message)


def not_a_member(member_id: str, group_id: str) -> Refused:
    """Return the refusal for a caller that is not a member."""
    return Refused(
        ErrorCode.unknown_member_id, f"Member {member_id} is not a member of group {group_id}."
    )


def in_other_epoch(kind: str, *, received: int, known: int, note: str = "") -> Refused:
    """Return the refusal for a caller in another epoch than the member's."""
    comparison = "greater" if received > known else "smaller"
    return Refused(
        ErrorCode.fenced_member_epoch,
        f"The {kind} group member has a {comparison} member epoch ({received}) than the one"
        f" known by the group coordinator ({known}){note}. The member must abandon all its"
        " partitions and rejoin.",
    )
