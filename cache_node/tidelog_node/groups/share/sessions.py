"""Share sessions: the partitions that a member of a share group fetches (KIP-932).

A member opens a session with epoch 0 and names its partitions. Each further request has the
next epoch, and names only changes. Epoch -1 closes the session. A member has a session with
every node that leads partitions of its share group; it also ends with the member's connection.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field

from tidelog_core.errors import (
    InvalidShareSessionEpoch,
    ShareSessionLimitReached,
    ShareSessionNotFound,
)
from tidelog_core.model import INT32_MAX

from tidelog_node.wire.share_fetch import PartitionKey

INITIAL_EPOCH = 0
FINAL_EPOCH = -1


@dataclass(slots=True, eq=False)
class ShareSession:
    """One member's session."""

    group_id: str
    member_id: str
    connection: Hashable  # that opened it
    next_epoch: int = INITIAL_EPOCH + 1  # of the next request
    partitions: dict[PartitionKey, None] = field(default_factory=dict)  # in the order of addition

    def rotated(self) -> list[PartitionKey]:
        """Return the partitions, each time beginning with another, so that none is always last."""
        keys = list(self.partitions)
        if not keys:
            return keys
        at = self.next_epoch % len(keys)
        return keys[at:] + keys[:at]

    def change(self, added: Iterable[PartitionKey], forgotten: Iterable[PartitionKey]) -> None:
        """Add and remove partitions."""
        for key in added:
            self.partitions.setdefault(key)
        for key in forgotten:
            self.partitions.pop(key, None)


class ShareSessions:
    """The sessions of one node."""

    def __init__(self) -> None:
        self._sessions: dict[tuple[str, str], ShareSession] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def open(
        self, group_id: str, member_id: str, connection: Hashable, *, sessions_max: int
    ) -> ShareSession:
        """Return a new session. The member must have none. Raises ``ShareSessionLimitReached``."""
        assert (group_id, member_id) not in self._sessions
        if len(self._sessions) >= sessions_max:
            raise ShareSessionLimitReached(
                f"there are {len(self._sessions)} share sessions, which is all that"
                f" group.share.max.share.sessions={sessions_max} allows"
            )
        session = ShareSession(group_id, member_id, connection)
        self._sessions[group_id, member_id] = session
        return session

    def find(self, group_id: str, member_id: str) -> ShareSession | None:
        """Return the member's session, if it has one."""
        return self._sessions.get((group_id, member_id))

    def follow(self, group_id: str, member_id: str, epoch: int) -> ShareSession:
        """Return the session of the request and advance its epoch.

        Raises ``ShareSessionNotFound``, ``InvalidShareSessionEpoch``.
        """
        session = self._sessions.get((group_id, member_id))
        if session is None:
            raise ShareSessionNotFound(f"member {member_id!r} has no share session")
        if epoch != FINAL_EPOCH:
            if epoch != session.next_epoch:
                raise InvalidShareSessionEpoch(
                    f"share session epoch {epoch}, expected {session.next_epoch}"
                )
            session.next_epoch = 1 if epoch == INT32_MAX else epoch + 1
        return session

    def close(self, session: ShareSession) -> None:
        """Remove the session if it is still open."""
        key = (session.group_id, session.member_id)
        if self._sessions.get(key) is session:
            del self._sessions[key]

    def over(self, connection: Hashable) -> list[ShareSession]:
        """Return the sessions that the connection has opened."""
        return [s for s in self._sessions.values() if s.connection is connection]
