"""Keeps the notes of leaders on diskless partitions until the parts for these are started.

A leader sends each high watermark once in a session. A lost one would be missing here until the
leader commits further records.
"""

from __future__ import annotations

from tidelog_core.replication.follower_state import Append, FollowerState
from tidelog_core.subscribers import Subscribers

from tidelog_node.replicas.replica import Replica


class KeptNotes:
    """The last note on each replica, until ``pass_on``."""

    def __init__(self, committed: Subscribers[[Replica, FollowerState, Append]]) -> None:
        """Keep all that ``committed`` notifies of from now on."""
        self._committed = committed
        self._notes: dict[Replica, tuple[FollowerState, Append]] = {}
        self._unsubscribe = committed.subscribe(self._keep)

    def pass_on(self) -> None:
        """Notify of the kept notes, except of replicas whose role has changed; keep no more."""
        self._unsubscribe()
        notes, self._notes = self._notes, {}
        for replica, (follower, said) in notes.items():
            role = replica.role
            if role is not None and role.follower is follower:
                self._committed.notify(replica, follower, said)

    def _keep(self, replica: Replica, follower: FollowerState, said: Append) -> None:
        self._notes[replica] = follower, said
