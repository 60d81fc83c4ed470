"""Applies a leader's answer in turns of the event loop.

A usual answer takes one turn. One with many small batches would stop the loop for most of a second:
it is applied in several turns (``TurnRoom``), and other tasks run between them. Until the last one
no fetch is sent, so the session still has the fetches that the answer is for.

To a partition whose records are not all applied, the rest is like a later answer, to a fetch from
the end that its log has now. So ``FollowedPartitions.take`` checks it like one in every turn:

- This node leads the partition, follows it in another leader epoch, or follows it no more because
  it was deleted or moved: the rest is dropped.
- The log ends elsewhere, because it was truncated, restarted or replaced by a shorter one: the rest
  is dropped, and the next fetch begins at the new end. If a replaced log ends where the last turn
  did, it has the same records, and the rest is appended to it.
- The log went offline: the partition waits outside the session.
- The partition became diskless: no more records are appended. The leader's high watermark is
  passed to the feed.
- This node registered again: the rest is appended. The next fetch begins another session.
- The fetcher was closed: its task is cancelled, and the rest is dropped with the connection.
"""

from __future__ import annotations

from tidelog_node.follower.followed import FollowedPartitions, PartitionAnswer
from tidelog_node.follower.turn_room import TurnRoom


class FetchedAnswer:
    """One answer of a leader. The records are views of the connection's buffer."""

    __slots__ = ("_answered_ms", "_followed", "_left")

    def __init__(
        self, followed: FollowedPartitions, answers: list[PartitionAnswer], *, answered_ms: float
    ) -> None:
        self._followed = followed
        self._left = answers[::-1]  # the next one is the last
        self._answered_ms = answered_ms

    def apply_turn(self) -> bool:
        """Apply as much as one turn may; return whether that was the rest."""
        room, left = TurnRoom(), self._left
        while left:
            if room.is_used_up:
                self._followed.update_fetches()  # Else the last turn would update all of them.
                return False
            rest = self._followed.take(left.pop(), room)
            room.note_partition()
            if rest is not None:
                left.append(rest)
        self._followed.note_answer(self._answered_ms)
        return True

    def fetch_rest_again(self) -> None:
        """Have the leader send the unapplied records again."""
        for answer in self._left:
            self._followed.fetch_again(answer.key)
        self._left.clear()
