"""The leader's state of one partition: what it may commit, and how it changes the partition's item.

Possible interleavings, and why they are safe:

- *ISR writes.* The store may apply a write before, after or without the leader's knowledge,
  and other writers (takeovers, members that leave, reassignments) may come first.
  The leader therefore counts the maximal ISR (``leader_commits``).
- *Growth.* The fetch by which a replica joins must have come from its current registration
  (KIP-903): a broker that has restarted may lack what its previous process had fetched. The
  commit checks that registration, too.
- *Shrink.* ``leaving_members`` says which replica leaves, and when. It counts until the store has
  applied the change, and joins again once its lease has no step-down reason.
- *Hand-overs* are in ``leader_hand_over``. While a write that ends the epoch may land, nothing
  above its end is committed here, and nothing is appended.
- *A leader that drains* leaves the ISR with the hand-over on the same condition.
- *Conversions*: how a partition becomes diskless or replicated is in ``conversion``.

Source: Kafka's ``Partition``; KIP-497, KIP-903, KIP-966.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from tidelog_core.metadata.epoch_chains import EpochChain
from tidelog_core.metadata.records import Broker, Partition, check
from tidelog_core.metadata.store import Check
from tidelog_core.replication.change import ChangeReason, PartitionChange
from tidelog_core.replication.leader.follower_progress import FollowerProgress
from tidelog_core.replication.leader.leader_commits import LeaderCommits, Token
from tidelog_core.replication.leader.leaving_members import leaving_members
from tidelog_core.replication.leader.led_log import LedLog
from tidelog_core.replication.leases.peer_leases import PeerLeases
from tidelog_core.replication.placement.reassignment import (
    asked_leader,
    end_reassignment,
    is_reassigning,
)


class LeaderState(LeaderCommits[Token]):
    """One partition in one leader epoch of this broker. ``Token`` identifies a pending ack."""

    # -- changing the partition's item --

    @property
    def needs_read(self) -> bool:
        """Whether another node has, or may have, written the item: read it."""
        return self._proposals.needs_read

    def propose(
        self, brokers: Mapping[int, Broker], peers: PeerLeases, now_ms: float
    ) -> PartitionChange | None:
        """Return the write to commit now, ``None`` if there is nothing to write.

        One write at a time: report its outcome to ``on_written``, ``on_conflict``, ``on_unknown``
        or ``on_refused`` before the next call. The caller's lease must allow it to act.
        """
        proposals, hand_over = self._proposals, self._hand_over
        if self.is_deposed or not proposals.may_write(now_ms):
            return None
        self._turn_away(brokers, peers, now_ms)
        if self.commits_by_chain:
            hand_over.follow_request(self._led(), now_ms)
            ending = None
        else:
            ending = end_reassignment(self.partition, peers, self._own_checks(brokers))
        if ending is not None and ending.after.leader != self.broker_id:
            if hand_over.must_wait(ending.after.leader, self._led(), now_ms):
                return None
            change: PartitionChange | None = ending
        else:
            if not self.commits_by_chain and hand_over.ends_reassignment:
                hand_over.drop()  # The reassignment was cancelled or has another target.
            change = (
                hand_over.change(self._led(), peers, now_ms)
                or ending
                or (None if self._is_moving_chain else self._altered_isr(brokers, peers, now_ms))
                or self._converted(brokers, peers, now_ms)
            )
        if change is None and proposals.must_be_settled:
            # A further write settles whether the earlier proposals have landed.
            change = PartitionChange(self.partition, ChangeReason.ALTER_ISR)
        if change is not None:
            proposals.add(change, self.partition)
        return change

    def is_at_rest(self, peers: PeerLeases, now_ms: float) -> bool:
        """Whether ``propose`` returns nothing, no matter how much time passes.

        Every member of the ISR lives and has the whole log. This ends when something is appended,
        a follower may join, a peer dies, a hand-over begins or the item changes.
        """
        if (
            not self._proposals.are_settled
            or not self._proposals.is_due(now_ms)
            or self._hand_over.is_wanted
            or self.is_converting
            or is_reassigning(self.partition)
            or (self.commits_by_chain and asked_leader(self.partition) != self.broker_id)
        ):
            return False
        for broker_id in self.partition.isr:
            if broker_id != self.broker_id:
                member = self.followers.get(broker_id)
                if member is None or member.log_end_offset != self._followable_end:
                    return False
                if peers.has_died(broker_id):
                    return False
        return not any(follower.wants_in for follower in self.followers.values())

    def _led(self) -> LedLog:
        return LedLog(
            self.partition,
            self.followers,
            self.high_watermark,
            self.log_end_offset,
            self._required_count,
            self.commits_by_chain,
            self.rules,
        )

    def _own_checks(self, brokers: Mapping[int, Broker]) -> tuple[Check, ...]:
        """Return the check that this process is still the one that has registered last.

        The next one leads any epoch that begins after its start, maybe with a shorter log: so a
        late write of this one must not begin an epoch with this broker as leader.
        """
        own = brokers.get(self.broker_id)
        return () if own is None else (check(own),)

    def _is_current(
        self,
        follower_id: int,
        follower: FollowerProgress,
        brokers: Mapping[int, Broker],
        peers: PeerLeases,
    ) -> bool:
        broker = brokers.get(follower_id)
        return (
            broker is not None
            and broker.version == follower.replica_epoch
            and peers.is_live(follower_id)
            and not peers.is_stepping_down(follower_id)
        )

    def on_written(self, change: PartitionChange, now_ms: float) -> None:
        """Note that the change is stored."""
        self._proposals.on_written()
        after = dataclasses.replace(change.after, version=change.after.version + 1)
        self.on_partition(after, now_ms)

    def on_conflict(self) -> None:
        """Note that another node has written the item: read it, then call ``on_partition``."""
        self._proposals.on_conflict()

    def on_unknown(self, now_ms: float) -> None:
        """Note that the change may have been stored or may be yet."""
        self._proposals.on_unknown(now_ms + self.rules.retry_ms)

    def on_refused(self, change: PartitionChange, now_ms: float) -> None:
        """Note that the store has written nothing and will not."""
        self._proposals.on_refused(change, self.partition, now_ms + self.rules.retry_ms)
        self.advance(now_ms)

    def on_read(self, partition: Partition, now_ms: float) -> None:
        """Take the item as a reading begun after the last outcome shows it."""
        self._proposals.needs_read = False
        self.on_partition(partition, now_ms)

    def on_partition(self, partition: Partition, now_ms: float) -> None:
        """Take the item as any reading has shown it; older versions change nothing."""
        if partition.version <= self.partition.version or self.is_deposed:
            return
        if partition.leader_epoch != self.leader_epoch:
            self.depose()
            return
        before, self.partition = self.partition, partition
        if partition.is_diskless and not self.commits_by_chain:
            for follower in self.followers.values():
                if not follower.is_fed:  # Else it saw the item first, and may never say so again.
                    follower.forget_position(self._followable_end)  # See ``on_fetch``.
            self.commits_by_chain, self._conversion.entering = True, None
        if not partition.wal:
            self._conversion.is_tiered = False
        for follower_id in before.isr:
            if follower_id not in partition.isr and follower_id in self.followers:
                self.followers[follower_id].wants_in = False  # It must fetch again first.
        self._follow_replicas(partition, now_ms)
        self._proposals.on_partition(partition)
        self.advance(now_ms)

    # -- the ISR --

    def _altered_isr(
        self, brokers: Mapping[int, Broker], peers: PeerLeases, now_ms: float
    ) -> PartitionChange | None:
        isr = self.partition.isr
        joining = [
            follower_id
            for follower_id, follower in self.followers.items()
            if follower.wants_in
            and self._may_join(follower_id, follower)
            and self._is_current(follower_id, follower, brokers, peers)
        ]
        leaving = leaving_members(self._led(), peers, now_ms)
        if not joining and not leaving:
            return None
        after = tuple(b for b in isr if b not in leaving) + tuple(joining)
        return PartitionChange(
            dataclasses.replace(self.partition, isr=after),
            ChangeReason.ALTER_ISR,
            self._joining_checks(joining, brokers),
        )

    def _turn_away(self, brokers: Mapping[int, Broker], peers: PeerLeases, now_ms: float) -> None:
        """Stop waiting for replicas that cannot join just now."""
        for follower_id, follower in self.followers.items():
            if follower.wants_in and not self._is_current(follower_id, follower, brokers, peers):
                follower.wants_in = False
                self.advance(now_ms)

    def _joining_checks(
        self, joining: list[int], brokers: Mapping[int, Broker]
    ) -> tuple[Check, ...]:
        return tuple(check(brokers[follower_id]) for follower_id in joining)

    # -- handing over --

    def begin_hand_over(
        self,
        successor: int,
        *,
        is_leaving: bool,
        now_ms: float,
        time_ms: float | None = None,
    ) -> None:
        """Stop appending and hand over as soon as everything is replicated.

        After ``time_ms`` (by default the rules') a leader that leaves hands over regardless, and
        one that need not leave continues. A successor must have fetched since: otherwise it may
        have died within its lease, and if the leader leaves, the only ISR member would be a dead
        broker. The successor of a diskless partition need be no replica.
        """
        self._hand_over.begin(
            successor,
            is_leaving=is_leaving,
            now_ms=now_ms,
            time_ms=self.rules.hand_over_ms if time_ms is None else time_ms,
        )

    def is_handing_over_to(self, successor: int) -> bool:
        """Whether appends are refused because the leadership is on its way to this broker."""
        return self._hand_over.is_to(successor)

    @property
    def is_moving(self) -> bool:
        """Whether a follower's position may decide a write: of a hand-over or a conversion."""
        return self._hand_over.is_wanted or self.is_converting

    @property
    def _is_moving_chain(self) -> bool:
        """Whether producers of a diskless partition wait for its next leader: one write is left."""
        return self.commits_by_chain and self._hand_over.is_wanted

    # -- converting --

    @property
    def is_converting(self) -> bool:
        """Whether the partition is about to be diskless, or replicated again."""
        return self._conversion.is_wanted or self._proposals.may_convert

    @property
    def has_left_chain(self) -> bool:
        """Whether this epoch has been in a chain: another chain needs another epoch."""
        return self._conversion.has_left_chain

    @property
    def may_enter(self) -> bool:
        """Whether ``begin_entering`` may be called: no other change is under way, or may land."""
        return not (
            self.commits_by_chain
            or self.has_left_chain
            or self.is_converting
            or self.is_deposed
            or self.needs_read
            or self._hand_over.is_wanted
            or is_reassigning(self.partition)
        )

    def begin_entering(self, chain: EpochChain) -> None:
        """Make the partition diskless once the chain has all that was acknowledged.

        ``chain`` is of this leader epoch, and the caller puts everything from its first offset on.
        The tier has every record below that offset.
        """
        assert self.may_enter
        assert chain.leader_epoch == self.leader_epoch
        self._conversion.entering = chain
        self._chain_end = chain.first_offset

    def end_entering(self, now_ms: float) -> None:
        """The chain takes nothing more. The partition stays replicated, if it still is."""
        self._conversion.leave_chain()
        self.advance(now_ms)

    def begin_next_epoch(self) -> None:
        """Lead in another epoch, in which the partition may enter a chain again."""
        self._conversion.needs_epoch = not self.commits_by_chain

    def begin_return(self) -> None:
        """Make the partition replicated once its followers have everything."""
        if self.commits_by_chain:
            self._conversion.begin_return()

    def end_return(self) -> None:
        """Stay diskless, unless a write that may land says otherwise."""
        self._conversion.end_return()

    def note_chains_tiered(self) -> None:
        """Remove the chains from a replicated partition's item: the tier has their records."""
        self._conversion.is_tiered = bool(self.partition.wal) and not self.commits_by_chain

    def _converted(
        self, brokers: Mapping[int, Broker], peers: PeerLeases, now_ms: float
    ) -> PartitionChange | None:
        if self._hand_over.is_wanted or is_reassigning(self.partition):
            return None
        conversion, led = self._conversion, self._led()
        if conversion.is_returning and self.commits_by_chain:
            near = self._followers_with(self.high_watermark, brokers, peers)
            checks = self._own_checks(brokers) + self._joining_checks(near, brokers)
            return conversion.change_back(led, peers, now_ms, near=near, checks=checks)
        own_checks = self._own_checks(brokers)
        return conversion.change(led, chain_end=self._chain_end, own_checks=own_checks)

    def _followers_with(
        self, end_offset: int, brokers: Mapping[int, Broker], peers: PeerLeases
    ) -> list[int]:
        """Return the followers whose logs have every record below the offset."""
        return [
            follower_id
            for follower_id, follower in self.followers.items()
            if follower.log_end_offset >= end_offset
            and self._is_current(follower_id, follower, brokers, peers)
        ]
