"""Brings each replica's role in line with the record of its partition.

A partition with several replicas has a ``ReplicaRole``, and every diskless one. Any other with a
single replica has none: its leader commits by appending.
"""

from __future__ import annotations

from functools import partial

from tidelog_core.metadata.records import Partition
from tidelog_core.replication.leader.rules import ReplicationRules
from tidelog_core.replication.partition_state import RoleChange
from tidelog_core.subscribers import Subscribers

from tidelog_node.node_context import NodeContext
from tidelog_node.replicas.replica import Replica
from tidelog_node.replicas.role import ReplicaRole


class RoleChanges:
    """Makes replicas lead or follow. For the node's event loop only.

    The caller holds ``Replica.opening``.
    """

    def __init__(self, node: NodeContext, *, was_clean: bool) -> None:
        """``was_clean`` says whether the last shutdown left every log complete."""
        self._node = node
        self._was_clean = was_clean
        # The subscribers get the replica.
        self.following = Subscribers[Replica]()  # it follows a new leader
        self.wants_write = Subscribers[Replica]()  # its leader may have to write the item
        # It leads by its record, but its log may lack records that the tier has. It leads once the
        # epoch is settled (``ReplicaManager.confirm_lead``), or at once if there are no
        # subscribers.
        self.uncertain_lead = Subscribers[Replica]()
        self.led_by_chain: set[Replica] = set()  # the diskless ones that this node leads
        # The lead of a partition with a role ends; its log still has the uncommitted records.
        self.ending_lead = Subscribers[Replica]()
        # It leads a diskless partition by its record, but no chain of this node has the leader
        # epoch. It leads once the partition is entered (``ReplicaManager.confirm_lead``). May be
        # notified again for the same epoch.
        self.unentered_lead = Subscribers[Replica]()

    def make(self, replica: Replica) -> ReplicaRole:
        """Return a role. The records in the replica's log count as committed."""
        # A chain that takes objects proves by itself that no other node leads its partitions.
        can_serve = self._node.membership.can_serve

        def may_serve() -> bool:
            return replica.is_diskless or can_serve()

        return ReplicaRole(
            self._node.broker_id,
            clock_ms=self._node.membership.now_ms,
            may_serve=may_serve,
            wake_readers=replica.wake_readers,
            notify_waiters=replica.notify_waiters,
            wants_write=partial(self.wants_write.notify, replica),
        )

    def follow_alone(self, replica: Replica, partition: Partition) -> None:
        """Follow the record of a partition with this replica only."""
        was_leader, replica.is_leader = replica.is_leader, self._node.membership.leads(partition)
        self._count(replica, partition, was_leader=was_leader)
        if replica.is_leader:
            replica.settled_epoch = partition.leader_epoch  # no other log can have more
        if replica.leader_epoch != partition.leader_epoch:
            replica.leader_epoch = partition.leader_epoch
            if replica.is_leader and replica.opened_log is not None:
                replica.opened_log.assign_leader_epoch(partition.leader_epoch)
            replica.wake()
        elif was_leader != replica.is_leader:
            replica.wake()  # Its item became unreadable, or readable again.

    def follow(self, replica: Replica, partition: Partition) -> None:
        """Follow the record of a partition that has a role. Raises as ``Replica.log``."""
        role = replica.role
        assert role is not None
        rules = ReplicationRules(
            min_insync_replicas=replica.config.min_insync_replicas,
            lag_time_max_ms=self._node.config().replica_lag_time_max_ms,
        )
        leads = self._node.membership.leads(partition)
        if leads and replica.is_diskless:
            if not has_entered(replica, partition):
                # It may have been entered already in an epoch that the image does not show yet.
                is_ahead = replica.settled_epoch > partition.leader_epoch
                if not is_ahead:
                    leave_chain(replica)
                self._keep_waiting(replica, role, partition)
                if not is_ahead:
                    self.unentered_lead.notify(replica)
                return
        elif leads and self.uncertain_lead and self._is_uncertain(replica, role, partition):
            self._keep_waiting(replica, role, partition)
            self.uncertain_lead.notify(replica)
            return
        if leads and (role.leader is None or role.leader.leader_epoch != partition.leader_epoch):
            replica.keep_back_deleted()
        was_leader = replica.is_leader
        if not leads:
            leave_chain(replica)
            self._note_ending(replica, role)
            _cut_uncommitted(replica, role)
        elif replica.chain is not None and not _may_keep_chain(replica, role, partition):
            leave_chain(replica)
        change = role.on_partition(partition, replica.log, leads=leads, rules=rules)
        replica.is_leader = role.leader is not None
        self._note_led(replica)
        self._count(replica, partition, was_leader=was_leader)
        replica.leader_epoch = partition.leader_epoch
        if replica.is_leader:
            replica.settled_epoch = partition.leader_epoch
        if change is RoleChange.NONE:
            replica.notify_waiters()  # The ISR may have changed, for example.
        else:
            replica.wake()
        if change is RoleChange.BECAME_FOLLOWER:
            self.following.notify(replica)

    def end_lead(self, replica: Replica) -> None:
        """End the lead of a diskless partition, whose chain takes nothing more.

        It is to be entered again, in a later leader epoch, if its record still names this node.
        """
        role, partition = replica.role, replica.followed
        if role is not None and not replica.is_diskless:
            leave_chain(replica)
            role.end_entering(replica.opened_log)  # The replicas go on alone.
            return
        if role is None or partition is None or not replica.is_leader:
            return
        leave_chain(replica)
        self._keep_waiting(replica, role, partition)
        replica.settled_epoch = -1
        if self._node.membership.leads(partition):
            self.unentered_lead.notify(replica)

    def _keep_waiting(self, replica: Replica, role: ReplicaRole, partition: Partition) -> None:
        """Keep the replica from leading and following until its leadership is confirmed."""
        self._note_ending(replica, role)
        role.end()
        replica.is_leader, replica.leader_epoch = False, partition.leader_epoch
        self.led_by_chain.discard(replica)
        replica.wake()

    def _note_ending(self, replica: Replica, role: ReplicaRole) -> None:
        if role.leader is not None:
            self.ending_lead.notify(replica)

    def drop(self, replica: Replica) -> None:
        """End the role of a replica that is gone from this node."""
        leave_chain(replica)
        self.led_by_chain.discard(replica)
        if replica.role is not None:
            replica.role.end()
        replica.is_leader = False

    def _note_led(self, replica: Replica) -> None:
        if replica.is_leader and replica.is_diskless:
            self.led_by_chain.add(replica)
        else:
            self.led_by_chain.discard(replica)

    def _count(self, replica: Replica, partition: Partition, *, was_leader: bool) -> None:
        """Count a leadership that begins. The replica still has the epoch before."""
        is_same = was_leader and replica.leader_epoch == partition.leader_epoch
        if replica.is_leader and not is_same:
            self._node.counters.leadership_change_count += 1

    def _is_uncertain(self, replica: Replica, role: ReplicaRole, partition: Partition) -> bool:
        """Whether the election may have been unclean, or the log may have lost its end."""
        broker_id = self._node.broker_id
        if replica.settled_epoch == partition.leader_epoch or partition.isr != (broker_id,):
            return False
        before = role.partition
        was_in_sync = (
            before is not None
            and before.version + 1 == partition.version
            and broker_id in before.isr
        )
        return not was_in_sync or not (self._was_clean or replica.settled_epoch >= 0)


def has_entered(replica: Replica, partition: Partition) -> bool:
    """Return whether a chain of this node has the diskless partition in its leader epoch."""
    return replica.chain is not None and replica.settled_epoch == partition.leader_epoch


def _cut_uncommitted(replica: Replica, role: ReplicaRole) -> None:
    """When a diskless leader has to follow, cut the records that are not known to be committed.

    They may never be, and others may have got their offsets. A process that has not led yet, or
    whose lead has ended before, compares its log with the chains instead: see ``ChainFeed``.
    """
    if not replica.is_diskless or role.leader is None:
        return
    log = replica.log
    if log.log_end_offset > log.high_watermark:
        log.truncate_to(log.high_watermark)


def _may_keep_chain(replica: Replica, role: ReplicaRole, partition: Partition) -> bool:
    """Return whether a partition that is not led by its chain is about to be, or is already.

    Its leader knows before the image does that the item has been written.
    """
    if replica.is_diskless:
        return True
    leader = role.leader
    if leader is None or leader.leader_epoch != partition.leader_epoch:
        return False
    return leader.is_entering or leader.commits_by_chain


def leave_chain(replica: Replica) -> None:
    """Have the chain that has the replica take nothing more of it."""
    if replica.chain is not None:
        replica.chain.leave(replica)
