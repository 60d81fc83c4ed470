"""The leader's state of one partition: followers, ISR, high watermark, pending acks.

Theory of operation. The offset of a follower's fetch is the end of its log, once the fetch
has passed the divergence check (only then may ``LeaderState.on_fetch`` be called). The high
watermark is the lowest log end in the ISR and never goes back.

Possible interleavings, and why they are safe:

- *ISR writes.* The store may apply a write before, after or without the leader's knowledge,
  and other writers (takeovers, members that leave, reassignments) may come first.
  The leader therefore counts the **maximal ISR**: the members of the last known stored ISR
  and of every ISR that it has proposed since and that may still land (``proposals``).
- *Growth.* A replica may join when its log reaches both the high watermark and the start
  of this leader's epoch. The second matters in a new leader: its high watermark may lag
  behind what the last leader committed, but its log end cannot. The fetch must have come
  from the replica's current registration (KIP-903): a broker that has restarted may lack
  what its previous process had fetched. The commit checks that registration, too.
- *Shrink.* ``leaving_members`` says which replica leaves, and when. It counts until the store has
  applied the change, and joins again once its lease has no step-down reason.
- *Hand-overs* are in ``leader_hand_over``. While a write that ends the epoch may land, nothing
  above its end is committed here, and nothing is appended.
- *A leader that drains* leaves the ISR with the hand-over on the same condition.
- *A new leader* does not know the followers' log ends, so its high watermark stays until
  every ISR member has fetched in this epoch (or has left the ISR).
- *Fencing.* The caller checks its lease before each call that leads to an answer. While a
  hand-over may have landed nothing is acknowledged (``is_serving``): the successor may lead.
- *Diskless partitions* (``commits_by_chain``). The object store commits: a record is committed
  once its object is in the leader's chain (``on_chain_committed``). Followers hold nothing
  back, and ``min_insync_replicas`` does not apply. The leader may lead only after everything in
  its log was committed by the chains before its own. How a partition becomes diskless or
  replicated is in ``conversion``.
- Acks are pending by offset. They complete when the high watermark passes them, and all
  fail when the leadership ends: the producer retries at the next leader, which has the
  records if they were committed, and then also the producer's sequence numbers.

Source: Kafka's ``Partition`` and ``Replica``; KIP-497, KIP-903, KIP-966.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Generic, TypeVar

from tidelog_core.errors import (
    NotEnoughReplicas,
    NotEnoughReplicasAfterAppend,
    NotLeaderOrFollower,
    OffsetOutOfRange,
    TidelogError,
)
from tidelog_core.metadata.epoch_chains import EpochChain
from tidelog_core.metadata.records import Broker, Partition, check
from tidelog_core.metadata.store import Check
from tidelog_core.replication.change import ChangeReason, PartitionChange
from tidelog_core.replication.follower_progress import (
    FollowerContact,
    FollowerProgress,
)
from tidelog_core.replication.leader_conversion import LeaderConversion
from tidelog_core.replication.leader_hand_over import LeaderHandOver
from tidelog_core.replication.leaving_members import leaving_members
from tidelog_core.replication.led_log import LedLog
from tidelog_core.replication.peer_leases import PeerLeases
from tidelog_core.replication.pending_acks import PendingAcks, ReleasedAck
from tidelog_core.replication.proposals import Proposals
from tidelog_core.replication.reassignment import asked_leader, end_reassignment, is_reassigning
from tidelog_core.replication.rules import ReplicationRules

Token = TypeVar("Token")


class LeaderState(Generic[Token]):
    """One partition in one leader epoch of this broker. ``Token`` identifies a pending ack."""

    def __init__(
        self,
        partition: Partition,
        *,
        log_end_offset: int,
        high_watermark: int,
        rules: ReplicationRules,
        now_ms: float,
    ) -> None:
        self.partition = partition  # the newest record that is known
        self.broker_id = partition.leader
        self.leader_epoch = partition.leader_epoch
        self.epoch_start_offset = log_end_offset
        self.rules = rules
        self.commits_by_chain = partition.is_diskless
        # The tier or the chain has every record below. Only known where chains count.
        self._chain_end = log_end_offset
        self.high_watermark = high_watermark
        self.log_end_offset = log_end_offset
        self.is_deposed = False
        self._proposals = Proposals(partition)
        self._hand_over = LeaderHandOver(partition.leader)
        self._conversion = LeaderConversion()
        self._acks: PendingAcks[Token] = PendingAcks()
        self.followers: dict[int, FollowerProgress] = {}
        self._follow_replicas(partition, now_ms)
        self.advance(now_ms)

    # -- current state --

    @property
    def maximal_isr(self) -> frozenset[int]:
        """Every broker that may be in the stored ISR, this one included."""
        return self._proposals.maximal_isr

    @property
    def needs_read(self) -> bool:
        """Whether another node has, or may have, written the item: read it."""
        return self._proposals.needs_read

    @property
    def is_serving(self) -> bool:
        """Whether this leader may answer: its own hand-over cannot have made another one leader."""
        return not (self.is_deposed or self._proposals.may_lead_elsewhere)

    @property
    def is_high_watermark_settled(self) -> bool:
        """Whether everything that earlier leaders committed is below the high watermark.

        Until then the end of the partition is not known to consumers (KIP-207).
        """
        return self.high_watermark >= self.epoch_start_offset

    @property
    def in_sync_count(self) -> int:
        """The number of replicas in sync for certain, with any outcome of the proposals."""
        return self._proposals.in_sync_count

    @property
    def is_under_min_isr(self) -> bool:
        """Whether too few replicas are in sync to commit anything."""
        return self._proposals.in_sync_count < self._required_count

    @property
    def _followable_end(self) -> int:
        """The end of the records for followers; of a diskless partition, the committed ones."""
        return self.high_watermark if self.commits_by_chain else self.log_end_offset

    @property
    def _required_count(self) -> int:
        if self.commits_by_chain:
            return 0
        return min(self.rules.min_insync_replicas, len(self.partition.replicas))

    # -- producing --

    def require_appendable(self, *, needs_all: bool) -> None:
        """Raise if a produce request must be refused before anything is written.

        ``needs_all`` is acks=all. Raises ``NotLeaderOrFollower``, ``NotEnoughReplicas``.
        """
        if not self.is_serving or self._hand_over.is_wanted:
            raise NotLeaderOrFollower("the partition is changing its leader")
        if self._is_returning and self._is_paused:
            raise NotLeaderOrFollower("the partition is becoming replicated, try again")
        if needs_all and self.is_under_min_isr:
            raise NotEnoughReplicas(
                f"{self.in_sync_count} replicas are in sync,"
                f" {self.rules.min_insync_replicas} are required"
            )

    def on_append(self, log_end_offset: int, now_ms: float) -> bool:
        """Note the log's new end. Returns whether the high watermark moved."""
        if not self.commits_by_chain:
            for follower in self.followers.values():
                follower.note_growth(self.log_end_offset)
        self.log_end_offset = log_end_offset
        return self.advance(now_ms)

    def on_chain_committed(self, end_offset: int, now_ms: float) -> bool:
        """Note that the chain has every record below this. Returns whether the HW moved."""
        if self.commits_by_chain:
            for follower in self.followers.values():
                follower.note_growth(self.high_watermark)
        self._chain_end = max(self._chain_end, end_offset)
        return self.advance(now_ms)

    def add_pending_ack(self, required_offset: int, token: Token) -> None:
        """Release ``token`` once every record below ``required_offset`` is committed."""
        self._acks.add(required_offset, token)
        if required_offset <= self.high_watermark:
            self._release()  # All other tokens below the high watermark are already released.

    def take_released(self) -> list[ReleasedAck[Token]]:
        """Return the acks to give, each once. None while this leader may not answer."""
        if not self.is_serving and not self.is_deposed:
            return []
        return self._acks.take()

    # -- followers --

    def on_fetch(
        self,
        follower_id: int,
        fetch_offset: int,
        *,
        replica_epoch: int,
        log_start_offset: int,
        now_ms: float,
        contact: FollowerContact | None = None,
        is_fed: bool = False,
    ) -> bool:
        """Note a fetch whose sender's log does not diverge. Returns whether the HW moved.

        ``is_fed``: the sender knows that the partition is diskless, and keeps the records below its
        fetch offset. Otherwise the fetch does not count for a diskless partition: the sender will
        truncate its log to the records that it knows to be committed.
        ``contact`` belongs to the fetch session. Its later requests repeat this position until
        the follower names another offset or ``end_contact`` is called.
        Raises ``NotLeaderOrFollower`` for a broker without a replica or a fetch of an earlier
        registration, ``OffsetOutOfRange`` past the log end; the fetch is then ignored.
        """
        follower = self.followers.get(follower_id)
        if follower is None:
            raise NotLeaderOrFollower(f"broker {follower_id} holds no replica")
        if replica_epoch < follower.replica_epoch:
            raise NotLeaderOrFollower(f"broker {follower_id} has registered again since")
        if fetch_offset > self.log_end_offset:
            start = self.partition.log_start_offset
            raise OffsetOutOfRange(
                "the leader's log", fetch_offset, start=start, end=self.log_end_offset
            )
        if self.commits_by_chain and not is_fed:
            return False
        follower.note_fetch(
            fetch_offset,
            leader_end_offset=self._followable_end,
            log_start_offset=log_start_offset,
            replica_epoch=replica_epoch,
            now_ms=now_ms,
            contact=contact,
        )
        follower.is_fed = is_fed
        follower.wants_in = self._may_join(follower_id, follower)
        return self.advance(now_ms)

    def end_contact(self, follower_id: int, contact: FollowerContact) -> None:
        """Note that the session no longer contains this partition."""
        follower = self.followers.get(follower_id)
        if follower is not None:
            follower.end_contact(contact, self._followable_end)

    def _may_join(self, follower_id: int, follower: FollowerProgress) -> bool:
        return (
            follower_id not in self.partition.isr
            and follower.log_end_offset >= self.high_watermark
            and follower.log_end_offset >= self.epoch_start_offset
        )

    def advance(self, now_ms: float) -> bool:
        """Move the high watermark as far as it may go. Returns whether it moved."""
        offset = self.log_end_offset
        if self.commits_by_chain:
            return self._advance_to(min(offset, self._chain_end, self._proposals.end_max))
        if self.is_entering or self._proposals.may_convert:
            offset = min(offset, self._chain_end)
            if offset <= self.high_watermark:
                return False
        for follower_id, follower in self.followers.items():
            if follower.log_end_offset < offset and (
                follower_id in self.maximal_isr or self._is_about_to_join(follower, now_ms)
            ):
                offset = follower.log_end_offset
                if offset <= self.high_watermark:
                    return False  # True of most appends, so it is checked first.
        return self._advance_to(offset)

    def _advance_to(self, offset: int) -> bool:
        if offset <= self.high_watermark or self.is_deposed or self.is_under_min_isr:
            return False
        self.high_watermark = offset
        self._release()
        return True

    def _is_about_to_join(self, follower: FollowerProgress, now_ms: float) -> bool:
        # Were the leader not to wait for it, it would always be a little behind and never
        # join under a steady load.
        return follower.wants_in and follower.is_caught_up(
            self.log_end_offset, now_ms, self.rules.lag_time_max_ms
        )

    def resume(self, now_ms: float) -> None:
        """Give every follower its time again, after this process was fenced or stopped."""
        for follower_id in self.partition.isr:
            if follower_id in self.followers:
                self.followers[follower_id].last_caught_up_ms = now_ms

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

    @property
    def is_handing_over(self) -> bool:
        """Whether appends are refused because the leadership is on its way elsewhere."""
        return self._hand_over.is_wanted

    def is_handing_over_to(self, successor: int) -> bool:
        """Whether it is on its way to this broker."""
        return self._hand_over.is_to(successor)

    @property
    def is_moving(self) -> bool:
        """Whether a follower's position may decide a write: of a hand-over or a conversion."""
        return self._hand_over.is_wanted or self.is_converting

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

    # -- converting --

    @property
    def is_converting(self) -> bool:
        """Whether the partition is about to be diskless, or replicated again."""
        return self._conversion.is_wanted or self._proposals.may_convert

    @property
    def is_entering(self) -> bool:
        """Whether the chain counts besides the ISR, because the partition will be diskless."""
        return self._conversion.entering is not None

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

    @property
    def _is_returning(self) -> bool:
        is_wanted = self._conversion.is_returning or self._proposals.may_convert
        return self.commits_by_chain and is_wanted

    @property
    def _is_paused(self) -> bool:
        # While its write may land nothing is appended, however long that takes: the replicas that
        # it names lack what would be acknowledged.
        return self._proposals.may_convert or self._conversion.is_paused

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

    # -- changing the partition's item --

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

    @property
    def _is_moving_chain(self) -> bool:
        """Whether producers of a diskless partition wait for its next leader: one write is left."""
        return self.commits_by_chain and self._hand_over.is_wanted

    def _turn_away(self, brokers: Mapping[int, Broker], peers: PeerLeases, now_ms: float) -> None:
        """Stop waiting for replicas that cannot join just now."""
        for follower_id, follower in self.followers.items():
            if follower.wants_in and not self._is_current(follower_id, follower, brokers, peers):
                follower.wants_in = False
                self.advance(now_ms)

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

    def _own_checks(self, brokers: Mapping[int, Broker]) -> tuple[Check, ...]:
        """Return the check that this process is still the one that has registered last.

        The next one leads whatever epoch begins after its start, maybe with a shorter log: so a
        late write of this one must not begin an epoch with this broker as leader.
        """
        own = brokers.get(self.broker_id)
        return () if own is None else (check(own),)

    def _joining_checks(
        self, joining: list[int], brokers: Mapping[int, Broker]
    ) -> tuple[Check, ...]:
        return tuple(check(brokers[follower_id]) for follower_id in joining)

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

    def succeed(self, before: LeaderState[Token]) -> None:
        """Take over the pending acks of the previous leader epoch, which this broker also led."""
        self._acks, before._acks = before._acks, self._acks
        self._release()

    def depose(self) -> None:
        """End this leadership: another broker leads, or this one no longer may."""
        self.is_deposed = True
        self._acks.fail_all(NotLeaderOrFollower("another broker leads the partition"))

    def _follow_replicas(self, partition: Partition, now_ms: float) -> None:
        for follower_id in partition.replicas:
            if follower_id != self.broker_id and follower_id not in self.followers:
                progress = FollowerProgress()
                if follower_id in partition.isr:
                    progress.last_caught_up_ms = now_ms  # It gets its time to find us.
                self.followers[follower_id] = progress
        for follower_id in list(self.followers):
            if follower_id not in partition.replicas:
                del self.followers[follower_id]

    def _release(self) -> None:
        error: TidelogError | None = None
        if self.is_under_min_isr:
            error = NotEnoughReplicasAfterAppend(
                f"written, but only {self.in_sync_count} replicas are in sync"
            )
        self._acks.release(self.high_watermark, error)
