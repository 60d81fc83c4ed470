"""One member of a classic group, as its coordinator sees it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from tidelog_core.metadata.coordination.groups import GroupMember

from tidelog_node.groups.classic_messages import RequestNumber


@dataclass(slots=True, kw_only=True)
class Member:
    """A member's properties and waiting requests. Only its group changes it."""

    member_id: str
    group_instance_id: str | None  # set: a static member, which keeps its place over restarts
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]
    assignment: bytes = b""
    is_new: bool = False  # has never got an answer, so it cannot send heartbeats
    awaited_join: RequestNumber | None = None  # changed by the roster, which counts it
    awaited_sync: RequestNumber | None = None
    session_deadline_ms: int | None = None  # None: the member is not expected to send anything
    # The record as last stored.
    _record: GroupMember | None = field(default=None, compare=False, repr=False)

    @property
    def protocol_names(self) -> frozenset[str]:
        """The names of the member's protocols."""
        return frozenset(name for name, _ in self.protocols)

    def has_preferences_of(self, other: Member) -> bool:
        """Return whether both have the same protocols in the same order of preference."""
        return [name for name, _ in self.protocols] == [name for name, _ in other.protocols]

    def metadata(self, protocol_name: str | None) -> bytes:
        """Return the member's metadata for the protocol; empty if it does not support it."""
        for name, metadata in self.protocols:
            if name == protocol_name:
                return metadata
        return b""

    def vote(self, candidates: Collection[str]) -> str:
        """Return the candidate that the member prefers; it must support at least one."""
        return next(name for name, _ in self.protocols if name in candidates)

    def to_record(self) -> GroupMember:
        """Return the member's record: the same object while the record is unchanged.

        Every write of a group asks for all records, and hardly any has changed.
        """
        known = self._record
        if (
            known is None
            or known.protocols is not self.protocols
            or known.assignment is not self.assignment
            or known.session_timeout_ms != self.session_timeout_ms
            or known.rebalance_timeout_ms != self.rebalance_timeout_ms
        ):
            known = self._record = self._new_record()
        return known

    def _new_record(self) -> GroupMember:
        return GroupMember(
            member_id=self.member_id,
            group_instance_id=self.group_instance_id,
            client_id=self.client_id,
            client_host=self.client_host,
            session_timeout_ms=self.session_timeout_ms,
            rebalance_timeout_ms=self.rebalance_timeout_ms,
            protocols=self.protocols,
            assignment=self.assignment,
        )

    @classmethod
    def from_record(cls, record: GroupMember) -> Member:
        """Return a stored member without a session, which is yet to begin."""
        return cls(
            member_id=record.member_id,
            group_instance_id=record.group_instance_id,
            client_id=record.client_id,
            client_host=record.client_host,
            session_timeout_ms=record.session_timeout_ms,
            rebalance_timeout_ms=record.rebalance_timeout_ms,
            protocols=record.protocols,
            assignment=record.assignment,
        )
