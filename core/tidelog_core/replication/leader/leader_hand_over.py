"""The hand-over of a leadership: the brokers to wait for, and when to write it or give up.

- *To a member of the ISR.* Nothing is appended any more. Once everything is replicated, the write
  names the successor. It must have fetched since: otherwise it may have died within its lease, and
  if the leader leaves, the only ISR member would be a dead broker. After the deadline a leader that
  leaves hands over regardless, and one that need not leave continues.
- *A diskless partition that moves.* It takes nothing more. Once the chain has all that the log has,
  the write that names the successor also ends the epoch there (``end_epoch``). If the chain does
  not get there in time, a leader that leaves names the successor without the end: that one seals
  the chain. Any other leader goes on, and tries again later. The successor need be no replica.
- *An administrator asks* for another leader of a diskless partition, by a reassignment or by
  another order of the replicas. Appends go on until the successor follows: then it has the records
  already when it leads. One that does not get there in time reads them when it leads.
- *A reassignment takes the leader out.* The write that ends it waits for the last records.

While the write may have landed nothing is acknowledged (``LeaderCommits.is_serving``).
"""

from __future__ import annotations

from dataclasses import dataclass

from tidelog_core.replication.change import ChangeReason, PartitionChange
from tidelog_core.replication.lead_changes import change_followers, hand_over, move_lead
from tidelog_core.replication.leader.led_log import LedLog
from tidelog_core.replication.leases.peer_leases import PeerLeases
from tidelog_core.replication.placement.reassignment import is_reassigning, target_replicas

FOLLOWED_MS = 1_000  # a successor that had everything so lately has the rest soon
ASKED_RETRY_MS = 5_000  # before a hand-over that was given up is tried again


@dataclass(frozen=True, slots=True)
class _Wanted:
    successor: int
    is_leaving: bool
    begun_ms: float
    deadline_ms: float
    ends_reassignment: bool = False  # written by it, and dropped with it
    replicas: tuple[int, ...] = ()  # of a diskless partition afterwards; (): as before


class LeaderHandOver:
    """The hand-over that ends one leader epoch, if any."""

    __slots__ = ("_asked_from_ms", "_asked_ms", "_broker_id", "_wanted")

    def __init__(self, broker_id: int) -> None:
        """``broker_id`` is the leader's."""
        self._broker_id = broker_id
        self._wanted: _Wanted | None = None
        self._asked_ms: float | None = None  # when a request to hand over was first seen
        self._asked_from_ms = 0.0  # no sooner: the chain was too slow for it

    @property
    def is_wanted(self) -> bool:
        """Whether appends are refused because the leadership is on its way elsewhere."""
        return self._wanted is not None

    @property
    def ends_reassignment(self) -> bool:
        """Whether a reassignment asks for it: it is dropped together with that."""
        return self._wanted is not None and self._wanted.ends_reassignment

    def is_to(self, successor: int) -> bool:
        """Whether the leadership is on its way to this broker."""
        return self._wanted is not None and self._wanted.successor == successor

    def begin(self, successor: int, *, is_leaving: bool, now_ms: float, time_ms: float) -> None:
        """Hand over as soon as everything is replicated; give up or go after ``time_ms``."""
        self._wanted = _Wanted(successor, is_leaving, now_ms, now_ms + time_ms)

    def drop(self) -> None:
        """Go on leading."""
        self._wanted = None

    def change(self, led: LedLog, peers: PeerLeases, now_ms: float) -> PartitionChange | None:
        """Return the write that hands over, ``None`` while it waits or if there is none."""
        wanted = self._wanted
        if wanted is None:
            return None
        if led.commits_by_chain:
            return self._move(wanted, led, peers, now_ms)
        follower = led.followers.get(wanted.successor)
        if (
            follower is None
            or wanted.successor not in led.partition.isr
            or peers.is_dead(wanted.successor)
        ):
            self._wanted = None
            return None
        is_heard = follower.asked_ms >= wanted.begun_ms
        if not is_heard or led.high_watermark < led.log_end_offset:
            if now_ms < wanted.deadline_ms:
                return None
            if not is_heard or not wanted.is_leaving:
                self._wanted = None
                return None
        is_leaving = wanted.is_leaving and len(led.partition.isr) > led.required_count
        return hand_over(led.partition, wanted.successor, is_leaving=is_leaving)

    def follow_request(self, led: LedLog, now_ms: float) -> None:
        """Begin to hand a diskless partition over if an administrator asks for it.

        Elections, moves and conversions put the leader first among the replicas.
        """
        target = target_replicas(led.partition)
        if target[0] == self._broker_id and not is_reassigning(led.partition):
            if self.ends_reassignment:
                self._wanted = None  # It was cancelled.
            self._asked_ms = None
            return
        wanted = self._wanted
        if wanted is None or (wanted.ends_reassignment and wanted.replicas != target):
            self._asked_ms = now_ms if self._asked_ms is None else self._asked_ms
            is_late = now_ms - self._asked_ms >= led.rules.follow_ms
            is_ready = is_late or self._has_followed(target[0], led, now_ms)
            if now_ms < self._asked_from_ms or not is_ready:
                self._wanted = None
                return
            deadline_ms = now_ms + led.rules.hand_over_ms
            self._wanted = _Wanted(
                target[0], False, now_ms, deadline_ms, ends_reassignment=True, replicas=target
            )

    def must_wait(self, successor: int, led: LedLog, now_ms: float) -> bool:
        """Whether a reassignment that takes this leader out waits for the last records."""
        if self._wanted is None:
            deadline_ms = now_ms + led.rules.hand_over_ms
            self._wanted = _Wanted(successor, True, now_ms, deadline_ms, ends_reassignment=True)
        return led.high_watermark < led.log_end_offset and now_ms < self._wanted.deadline_ms

    def _move(
        self, wanted: _Wanted, led: LedLog, peers: PeerLeases, now_ms: float
    ) -> PartitionChange | None:
        """Return the write that names a diskless partition's successor, once the chain has all."""
        successor, end_offset = wanted.successor, led.log_end_offset
        if successor == self._broker_id:  # Asked for when another broker led.
            self._wanted = None
            return change_followers(led.partition, wanted.replicas)
        is_able = peers.may_lead_diskless(successor) and not peers.is_suspected(successor)
        is_stored = led.high_watermark == end_offset
        # A successor that does not follow closely has to read the rest when it leads.
        follower = led.followers.get(successor)
        has_all = (
            follower is None
            or follower.log_end_offset == end_offset
            or not follower.is_caught_up(end_offset, now_ms, led.rules.hand_over_ms)
        )
        if is_able and now_ms < wanted.deadline_ms and not (is_stored and has_all):
            return None
        if not is_able or not (is_stored or wanted.is_leaving):
            self._wanted = None
            self._asked_from_ms = now_ms + ASKED_RETRY_MS
            return None
        return move_lead(
            led.partition,
            successor,
            ChangeReason.HAND_OVER,
            replicas=wanted.replicas,
            end_offset=end_offset if is_stored else None,
        )

    def _has_followed(self, successor: int, led: LedLog, now_ms: float) -> bool:
        """Whether the broker has just had all that is committed, or is this one."""
        follower = led.followers.get(successor)
        if follower is None:
            return successor == self._broker_id
        return follower.is_caught_up(led.high_watermark, now_ms, FOLLOWED_MS)
