"""A leader's conversion of its partition between replicated and diskless, see ``conversion``."""

from __future__ import annotations

from collections.abc import Sequence

from tidelog_core.metadata.epoch_chains import EpochChain
from tidelog_core.metadata.store import Check
from tidelog_core.replication.change import PartitionChange
from tidelog_core.replication.leader.conversion import (
    Return,
    become_diskless,
    become_replicated,
    begin_next_epoch,
    copies_required,
    forget_chains,
)
from tidelog_core.replication.leader.follower_progress import UNKNOWN_OFFSET
from tidelog_core.replication.leader.led_log import LedLog
from tidelog_core.replication.leases.peer_leases import PeerLeases


class LeaderConversion:
    """The conversion that one leader epoch prepares, if any."""

    __slots__ = ("_return", "entering", "has_left_chain", "is_tiered", "needs_epoch")

    def __init__(self) -> None:
        # A replicated partition becomes diskless: its chain counts besides the ISR.
        self.entering: EpochChain | None = None
        # The epoch has been in a chain, and has left it: another chain needs another epoch.
        self.has_left_chain = False
        self.needs_epoch = False
        self.is_tiered = False  # the tier has all that the chains of a replicated partition have
        self._return: Return | None = None  # a diskless partition is about to be replicated

    @property
    def is_wanted(self) -> bool:
        """Whether there is anything to write sooner or later."""
        is_changing = self.entering is not None or self._return is not None
        return is_changing or self.is_tiered or self.needs_epoch

    @property
    def is_returning(self) -> bool:
        """Whether the partition becomes replicated again."""
        return self._return is not None

    @property
    def is_paused(self) -> bool:
        """Whether nothing is appended, so that followers get everything."""
        back = self._return
        return back is not None and back.is_paused

    def leave_chain(self) -> None:
        """The chain takes nothing more of this epoch."""
        self.entering = None
        self.has_left_chain = True

    def begin_return(self) -> None:
        """Make the partition replicated once its followers have everything."""
        if self._return is None:
            self._return = Return()

    def end_return(self) -> None:
        """Stay diskless."""
        self._return = None

    def change(
        self, led: LedLog, *, chain_end: int, own_checks: tuple[Check, ...]
    ) -> PartitionChange | None:
        """Return the write that is due, ``None`` if there is none. See also ``change_back``.

        The chain, or the tier, has every record below ``chain_end``.
        """
        if self.entering is not None:
            has_all = led.high_watermark <= chain_end
            return become_diskless(led.partition, self.entering) if has_all else None
        if self.needs_epoch and not led.commits_by_chain:
            return begin_next_epoch(led.partition, own_checks)
        if self.is_tiered:
            return forget_chains(led.partition)
        return None

    def change_back(
        self,
        led: LedLog,
        peers: PeerLeases,
        now_ms: float,
        *,
        near: Sequence[int],
        checks: tuple[Check, ...],
    ) -> PartitionChange | None:
        """Return the write that makes a diskless partition replicated, ``None`` if it must wait.

        ``near`` are the followers whose logs have every committed record. ``checks`` are of these
        and of the leader.
        """
        back, partition, followers = self._return, led.partition, led.followers
        assert back is not None
        required = copies_required(partition, led.rules.min_insync_replicas)
        if back.deadline_ms is None:
            live = [b for b in partition.isr if b in followers and peers.is_live(b)]
            is_heard = all(followers[b].log_end_offset != UNKNOWN_OFFSET for b in live)
            count = len({*near, *live}) + 1
            if now_ms < back.retry_from_ms or count < required or not is_heard:
                return None
            back.deadline_ms = now_ms + led.rules.hand_over_ms
        if led.high_watermark == led.log_end_offset and len(near) + 1 >= required:
            late = [b for b in partition.isr if b in followers and b not in near]
            if now_ms >= back.deadline_ms or not any(map(peers.is_live, late)):
                return become_replicated(partition, (partition.leader, *near), checks)
        if now_ms >= back.deadline_ms:
            back.give_up(now_ms)
        return None
