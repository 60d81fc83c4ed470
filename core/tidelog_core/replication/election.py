"""Elects leaders: each node decides for itself, one conditional write settles it.

Theory of operation. There is no controller. Every node checks the partitions that it has a
replica of, and decides whether it should act:

- A leader is gone when its lease is dead, or when the partition has no leader. One node writes
  all takeovers from a dead leader (``election_coordinators``). If it does not, or if there is no
  leader, the first live member of the ISR in replica order takes over; the second one
  a delay later, the third two delays later. Several may act at the same time:
  the write expects the partition's version, so one wins and the others read again.
- The write is committed with a check that the dead leader's lease item has not moved.
  A leader that has renewed since keeps its partition: it acts only after that
  renewal, and from then on no takeover decided earlier can land (see ``leases``).
- Only a member of the *stored* ISR takes over. The leader counts every replica that the
  store may name towards the high watermark (``LeaderCommits.maximal_isr``), so every such
  member has every acknowledged record. A successor stops fetching when it leads,
  so a leader that has not seen the takeover cannot commit anything new either.
- A takeover removes dead members from the ISR: a new leader would wait for them and never get them.
  Where the leader lives, the coordinator takes them out, checked against their leases too.
- A restarted node never continues the epoch that it led before: its followers
  may have more of that epoch than it still has. ``LeaderElector.start`` notes the epochs
  of the first reading. A partition that names this node leader in such an epoch is
  taken over again, with the next epoch. A later epoch was written after this process had
  started, so no earlier process has led in it.
- After its machine went down, a node may lack records that it had acknowledged to the leader
  (see ``leave_isr``). It must leave every ISR before it renews its lease for the first time,
  and once more after its registration and before it leads: until then a leader's write that
  relies on its previous registration may land.
- A broker that should not lead publishes a reason with its lease (``StepDownReason``): its disk
  takes no records, or it is stopping. It hands over to ISR members without a reason, takes over
  after them, and is not given leadership back as the preferred leader. It leads what no other
  broker can. If it cannot write the object store, that counts for diskless partitions alone.
- A *diskless* partition may be led by any live broker. Each broker computes the same heir
  (``heirs``), and the heir writes its own takeover. The write only names the leader. It leads once
  it has ended the former leader's chain, and has entered the partition into its own.
- A partition of the cluster's own topics whose replicas are all dead may be led by any live broker
  too: where brokers come and go with the load, none of its replicas may ever come back
  (``LeaderElector.adopt``).
- Without any live member of the ISR the partition waits, unless the topic allows unclean
  elections: then the first live replica takes over with itself as the only member,
  provided (checked in the commit) that no lease of an ISR member has moved.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Container, Iterable
from uuid import UUID

from tidelog_core.metadata.image.readings import is_readable
from tidelog_core.metadata.records import Partition
from tidelog_core.model import NO_LEADER
from tidelog_core.replication.change import ChangeReason, PartitionChange
from tidelog_core.replication.lead_changes import leave_isr, move_lead
from tidelog_core.replication.leases.election_coordinators import (
    COORDINATOR_PLACES,
    STEP_IN_DELAY_MS,
)
from tidelog_core.replication.leases.peer_leases import PeerLeases
from tidelog_core.replication.placement.heirs import heir_of

PREFERRED_STABLE_MS = 300_000  # Kafka's leader.imbalance.check.interval.seconds
REPLICAS_KEPT = 2  # of a partition of the cluster's own topics that has no live replica

PartitionKey = tuple[UUID, int]


class LeaderElector:
    """Decides, for one process of one broker, when to take a partition over."""

    def __init__(
        self,
        broker_id: int,
        *,
        step_in_delay_ms: int = STEP_IN_DELAY_MS,
        preferred_stable_ms: int = PREFERRED_STABLE_MS,
    ) -> None:
        self._broker_id = broker_id
        self._step_in_delay_ms = step_in_delay_ms
        self._preferred_stable_ms = preferred_stable_ms
        self._start_epochs: dict[PartitionKey, int] = {}
        self._vacant_since: dict[PartitionKey, tuple[int, float]] = {}  # leader epoch, time
        self._preferred_since: dict[PartitionKey, float] = {}
        self._to_leave: set[PartitionKey] = set()
        self.is_stepping_down = False  # this broker; its own lease may show it later
        self.can_store = True  # this broker can write the object store

    def start(self, partitions: Iterable[Partition]) -> None:
        """Take the first reading of the cluster after this process has registered."""
        for partition in partitions:
            self._start_epochs[_key(partition)] = partition.leader_epoch

    def note_lacking(self, partitions: Iterable[Partition]) -> None:
        """Note that this broker may lack records although it is in these ISRs.

        For partitions that became readable only after this broker left every other ISR. It takes
        over none of them before it has left their ISRs.
        """
        self._to_leave.update(map(_key, partitions))

    def departures(self, partitions: Iterable[Partition]) -> list[PartitionChange]:
        """Return the writes that take this broker out of the ISRs that it must leave."""
        changes = []
        for partition in partitions if self._to_leave else ():
            if _key(partition) not in self._to_leave or not is_readable(partition):
                continue
            change = leave_isr(partition, self._broker_id)
            if change is None:
                self._to_leave.discard(_key(partition))
            else:
                changes.append(change)
        return changes

    def leads(self, partition: Partition) -> bool:
        """Whether this process leads the partition, according to the record.

        False if it may lack records: other brokers that do not know this may have made it leader,
        and ``departures`` gives the leadership up.
        """
        return (
            partition.leader == self._broker_id
            and partition.leader_epoch > self._start_epochs.get(_key(partition), -1)
            and not self._lacks(partition)
        )

    def takeover(
        self,
        partition: Partition,
        peers: PeerLeases,
        *,
        is_unclean_allowed: bool,
        now_ms: float,
        is_coordinated: bool = False,
    ) -> PartitionChange | None:
        """Return the write that makes this broker leader, if it should take over now.

        The caller's own lease must allow it to act. ``is_coordinated``: other nodes write all
        takeovers from the dead leader; this broker waits as long as they make progress.
        """
        key = _key(partition)
        if not self._is_vacant(partition, peers):
            self._vacant_since.pop(key, None)
            return None
        if self._broker_id not in partition.replicas or self._lacks(partition):
            return None
        since_ms = self._note_vacant(partition, now_ms)
        candidates = self.candidates(partition, peers)
        is_clean = bool(candidates)
        if not is_clean and is_unclean_allowed:
            candidates = self._live(partition.replicas, peers)
        if self._broker_id not in candidates:
            return None
        place = 0 if partition.leader == self._broker_id else candidates.index(self._broker_id)
        unattended_ms = peers.unattended_ms(partition.leader, now_ms)
        if is_clean and is_coordinated and unattended_ms is not None:
            place += COORDINATOR_PLACES
            since_ms = max(since_ms, now_ms - unattended_ms)
        if now_ms < since_ms + place * self._step_in_delay_ms:
            return None
        return self._change(partition, peers, self._broker_id, is_clean=is_clean)

    def _note_vacant(self, partition: Partition, now_ms: float) -> float:
        """Return the time since which the partition has had no leader after its leader epoch."""
        key = _key(partition)
        epoch, since_ms = self._vacant_since.get(key, (partition.leader_epoch, now_ms))
        if epoch != partition.leader_epoch:
            since_ms = now_ms
        self._vacant_since[key] = (partition.leader_epoch, since_ms)
        return since_ms

    def inherit(
        self, partition: Partition, peers: PeerLeases, live: Iterable[int]
    ) -> PartitionChange | None:
        """Return the write that elects this broker for a diskless partition, if it should lead.

        It may lead once it has entered the partition into its chain. ``live`` are the brokers that
        can serve, this one among them. Its own lease must allow it to act. A leader that was
        silent for a while is taken for dead before its lease is over.
        """
        if not is_readable(partition):
            return None
        if partition.leader == self._broker_id:
            if self.leads(partition):
                return None
        elif partition.leader != NO_LEADER and not peers.is_suspected(partition.leader):
            return None
        if partition.leader != self._broker_id and self._heir(partition, peers, live) != (
            self._broker_id
        ):
            return None
        must_stay_dead = {partition.leader} - {NO_LEADER, self._broker_id}
        checks = tuple(peers.check(broker_id) for broker_id in must_stay_dead)
        return move_lead(partition, self._broker_id, ChangeReason.TAKEOVER, checks)

    def would_inherit(self, partition: Partition, peers: PeerLeases, live: Iterable[int]) -> bool:
        """Whether this broker would lead the diskless partition if its leader were gone: a guess.

        ``live`` as for ``inherit``.
        """
        if not is_readable(partition) or partition.leader in (NO_LEADER, self._broker_id):
            return False
        others = (broker_id for broker_id in live if broker_id != partition.leader)
        return self._heir(partition, peers, others) == self._broker_id

    def adopt(
        self, partition: Partition, peers: PeerLeases, live: Iterable[int]
    ) -> PartitionChange | None:
        """Return the write that makes this broker leader of a partition without a live replica.

        For the cluster's own topics, which carry leadership only: their replicas may all have gone
        for good. Every broker computes the same one that takes it. The first replicas stay, for the
        others may only start later than this broker: then they lead again as the preferred ones.
        """
        if self._broker_id in partition.replicas or not self._is_vacant(partition, peers):
            return None
        if not all(map(peers.is_dead, partition.replicas)):
            return None
        if self._heir(partition, peers, live) != self._broker_id:
            return None
        must_stay_dead = {partition.leader, *partition.isr} - {NO_LEADER}
        checks = tuple(peers.check(broker_id) for broker_id in sorted(must_stay_dead))
        after = dataclasses.replace(
            partition,
            leader=self._broker_id,
            leader_epoch=partition.leader_epoch + 1,
            replicas=(*partition.replicas[:REPLICAS_KEPT], self._broker_id),
            isr=(self._broker_id,),
            adding=(),
            removing=(),
        )
        return PartitionChange(after, ChangeReason.TAKEOVER, checks)

    def diskless_successor(
        self, partition: Partition, peers: PeerLeases, live: Iterable[int]
    ) -> int | None:
        """Return the other broker that should lead a diskless partition, ``None`` if none can.

        Likewise for a partition of the cluster's own topics that has no other live replica.
        """
        others = (b for b in live if b != self._broker_id and peers.may_lead_diskless(b))
        return heir_of(partition, (b for b in others if not peers.is_suspected(b)))

    def _heir(self, partition: Partition, peers: PeerLeases, live: Iterable[int]) -> int | None:
        live = [b for b in live if b == self._broker_id or not peers.is_suspected(b)]
        able = [b for b in live if self._may_lead_diskless(b, peers)]
        return heir_of(partition, able or live)

    def elect(
        self, partition: Partition, peers: PeerLeases, *, now_ms: float
    ) -> PartitionChange | None:
        """Return the write that makes the first choice leader in place of a dead one, if any.

        For the one node that writes for all others; its own lease must allow it to act. It elects
        only brokers that have outlived the dead leader. Others may have died with it, and the old
        leader could then not lead again even if it came back first.
        """
        if not is_readable(partition) or partition.leader in (NO_LEADER, self._broker_id):
            return None
        if not peers.has_died(partition.leader):
            return None
        successors = (b for b in self.candidates(partition, peers) if self._lives(b, peers, now_ms))
        successor = next(successors, None)
        if successor is None or (successor == self._broker_id and self._lacks(partition)):
            return None
        return self._change(partition, peers, successor, is_clean=True)

    def shrink_isr(
        self, partition: Partition, peers: PeerLeases, dead: Container[int], *, now_ms: float
    ) -> PartitionChange | None:
        """Return the write that removes dead followers from the ISR of a live leader.

        For the one node that writes for all leaders after the death of ``dead``. A leader that may
        have died with them is skipped, as in ``elect``. The write checks the leases of the removed
        brokers, so one that has come back stays.
        """
        leader = partition.leader
        if not is_readable(partition) or leader == NO_LEADER or leader not in partition.isr:
            return None
        if leader in dead or not self._lives(leader, peers, now_ms):
            return None
        gone = {b for b in partition.isr if b in dead and peers.has_died(b)}
        if not gone:
            return None
        return PartitionChange(
            dataclasses.replace(partition, isr=tuple(b for b in partition.isr if b not in gone)),
            ChangeReason.ALTER_ISR,
            tuple(peers.check(broker_id) for broker_id in sorted(gone)),
        )

    def candidates(self, partition: Partition, peers: PeerLeases) -> list[int]:
        """Return the brokers that may take over without loss, the first choice first."""
        members = [broker_id for broker_id in partition.replicas if broker_id in partition.isr]
        return sorted(self._live(members, peers), key=lambda b: self._steps_down(b, peers))

    def preferred_successor(
        self, partition: Partition, peers: PeerLeases, *, now_ms: float
    ) -> int | None:
        """Return the preferred leader if it has been able to lead for the stable interval.

        For the partition's leader, which then hands over to it.
        """
        key = _key(partition)
        preferred = partition.replicas[0]
        if (
            preferred == self._broker_id
            or preferred not in partition.isr
            or not peers.is_live(preferred)
            or peers.is_stepping_down(preferred)
        ):
            self._preferred_since.pop(key, None)
            return None
        since_ms = self._preferred_since.setdefault(key, now_ms)
        return preferred if now_ms >= since_ms + self._preferred_stable_ms else None

    def drain_successor(self, partition: Partition, peers: PeerLeases) -> int | None:
        """Return the broker that should lead instead of this one, ``None`` if there is none."""
        others = (b for b in self.candidates(partition, peers) if b != self._broker_id)
        return next(others, None)

    def fit_successor(self, partition: Partition, peers: PeerLeases) -> int | None:
        """Return a fit broker to lead instead of this unfit one, ``None`` if there is none."""
        successor = self.drain_successor(partition, peers)
        return None if successor is None or peers.is_stepping_down(successor) else successor

    def forget(self, partition: Partition) -> None:
        """Drop the state of a partition that this node no longer holds."""
        for kept in (self._start_epochs, self._vacant_since, self._preferred_since):
            kept.pop(_key(partition), None)
        self._to_leave.discard(_key(partition))

    def _lacks(self, partition: Partition) -> bool:
        """Whether this broker may lack records and must therefore leave the ISR."""
        return (
            _key(partition) in self._to_leave and leave_isr(partition, self._broker_id) is not None
        )

    def _is_vacant(self, partition: Partition, peers: PeerLeases) -> bool:
        if not is_readable(partition):
            return False
        if partition.leader == self._broker_id:
            return not self.leads(partition)
        return partition.leader == NO_LEADER or peers.is_dead(partition.leader)

    def _steps_down(self, broker_id: int, peers: PeerLeases) -> bool:
        if broker_id == self._broker_id:
            return self.is_stepping_down
        return peers.is_stepping_down(broker_id)

    def _may_lead_diskless(self, broker_id: int, peers: PeerLeases) -> bool:
        if broker_id == self._broker_id:
            return self.can_store and not self.is_stepping_down
        return peers.may_lead_diskless(broker_id)

    def _live(self, broker_ids: Iterable[int], peers: PeerLeases) -> list[int]:
        return [b for b in broker_ids if b == self._broker_id or not peers.is_dead(b)]

    def _lives(self, broker_id: int, peers: PeerLeases, now_ms: float) -> bool:
        """Whether the broker has outlived all brokers dead by now, rather than died with them."""
        return broker_id == self._broker_id or peers.is_fresh(broker_id, now_ms)

    def _change(
        self, partition: Partition, peers: PeerLeases, successor: int, *, is_clean: bool
    ) -> PartitionChange:
        isr: tuple[int, ...] = (successor,)
        must_stay_dead = {partition.leader} - {NO_LEADER, self._broker_id}
        if is_clean:
            isr = tuple(self._live(partition.isr, peers))
        else:
            must_stay_dead |= set(partition.isr) - {self._broker_id}
        return PartitionChange(
            dataclasses.replace(
                partition,
                leader=successor,
                leader_epoch=partition.leader_epoch + 1,
                isr=isr,
            ),
            ChangeReason.TAKEOVER if is_clean else ChangeReason.UNCLEAN_TAKEOVER,
            tuple(peers.check(broker_id) for broker_id in sorted(must_stay_dead)),
        )


def _key(partition: Partition) -> PartitionKey:
    return partition.topic_id, partition.partition
