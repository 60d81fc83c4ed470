"""What a partition's leader may commit: followers' positions, the high watermark, pending acks.

Theory of operation. The offset of a follower's fetch is the end of its log, once the fetch
has passed the divergence check (only then may ``on_fetch`` be called). The high watermark is
the lowest log end in the ISR and never goes back.

- *The ISR* is the **maximal ISR**: the members of the last known stored ISR and of every ISR
  that the leader has proposed since and that may still land (``proposals``).
- *A replica that is about to join* counts, too. It may join when its log reaches both the high
  watermark and the start of this leader's epoch. The second matters in a new leader: its high
  watermark may lag behind what the last leader committed, but its log end cannot.
- *A new leader* does not know the followers' log ends, so its high watermark stays until
  every ISR member has fetched in this epoch (or has left the ISR).
- *Fencing.* The caller checks its lease before each call that leads to an answer. While a
  hand-over may have landed nothing is acknowledged (``is_serving``): the successor may lead.
- *Diskless partitions* (``commits_by_chain``). The object store commits: a record is committed
  once its object is in the leader's chain (``on_chain_committed``). Followers hold nothing
  back, and ``min_insync_replicas`` does not apply. The leader may lead only after everything in
  its log was committed by the chains before its own. While the partition becomes diskless or
  replicated again both count (``conversion``).
- Acks are pending by offset. They complete when the high watermark passes them, and all
  fail when the leadership ends: the producer retries at the next leader, which has the
  records if they were committed, and then also the producer's sequence numbers.

Source: Kafka's ``Partition`` and ``Replica``; KIP-497, KIP-903, KIP-966.
"""

from __future__ import annotations

from typing import Generic, TypeVar

from tidelog_core.errors import (
    NotEnoughReplicas,
    NotEnoughReplicasAfterAppend,
    NotLeaderOrFollower,
    OffsetOutOfRange,
    TidelogError,
)
from tidelog_core.metadata.records import Partition
from tidelog_core.replication.leader.follower_progress import (
    FollowerContact,
    FollowerProgress,
)
from tidelog_core.replication.leader.leader_conversion import LeaderConversion
from tidelog_core.replication.leader.leader_hand_over import LeaderHandOver
from tidelog_core.replication.leader.pending_acks import PendingAcks, ReleasedAck
from tidelog_core.replication.leader.proposals import Proposals
from tidelog_core.replication.leader.rules import ReplicationRules

Token = TypeVar("Token")


class LeaderCommits(Generic[Token]):
    """The records of one partition in one leader epoch of this broker.

    ``Token`` identifies a pending ack.
    """

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
    def is_entering(self) -> bool:
        """Whether the chain counts besides the ISR, because the partition will be diskless."""
        return self._conversion.entering is not None

    @property
    def _followable_end(self) -> int:
        """The end of the records for followers; of a diskless partition, the committed ones."""
        return self.high_watermark if self.commits_by_chain else self.log_end_offset

    @property
    def _required_count(self) -> int:
        if self.commits_by_chain:
            return 0
        return min(self.rules.min_insync_replicas, len(self.partition.replicas))

    @property
    def _is_returning(self) -> bool:
        is_wanted = self._conversion.is_returning or self._proposals.may_convert
        return self.commits_by_chain and is_wanted

    @property
    def _is_paused(self) -> bool:
        # While its write may land nothing is appended, however long that takes: the replicas that
        # it names lack what would be acknowledged.
        return self._proposals.may_convert or self._conversion.is_paused

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

    def succeed(self, before: LeaderCommits[Token]) -> None:
        """Take over the pending acks of the previous leader epoch, which this broker also led."""
        self._acks, before._acks = before._acks, self._acks
        self._release()

    def depose(self) -> None:
        """End this leadership: another broker leads, or this one no longer may."""
        self.is_deposed = True
        self._acks.fail_all(NotLeaderOrFollower("another broker leads the partition"))

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
