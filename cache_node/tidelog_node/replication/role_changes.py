"""Brings each replica's role in line with the record of its partition.

A partition with several replicas has a ``ReplicaRole``. One with a single replica has none: its
leader commits by appending.
"""

from __future__ import annotations

from functools import partial

from tidelog_core.metadata.records import Partition
from tidelog_core.replication.leader_state import ReplicationRules
from tidelog_core.replication.partition_state import RoleChange
from tidelog_core.subscribers import Subscribers

from tidelog_node.node_context import NodeContext
from tidelog_node.replica import Replica
from tidelog_node.replication.role import ReplicaRole


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

    def make(self, replica: Replica) -> ReplicaRole:
        """Return a role for one of several replicas. The records in its log count as committed."""
        return ReplicaRole(
            self._node.broker_id,
            clock_ms=self._node.standing.now_ms,
            may_serve=self._node.standing.can_serve,
            wake_readers=replica.wake_readers,
            notify_waiters=replica.notify_waiters,
            wants_write=partial(self.wants_write.notify, replica),
        )

    def follow_alone(self, replica: Replica, partition: Partition) -> None:
        """Follow the record of a partition with this replica only."""
        was_leader, replica.is_leader = replica.is_leader, self._node.standing.leads(partition)
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
        """Follow the record of a partition with several replicas. Raises as ``Replica.log``."""
        role = replica.role
        assert role is not None
        rules = ReplicationRules(
            min_insync_replicas=replica.config.min_insync_replicas,
            lag_time_max_ms=self._node.config().replica_lag_time_max_ms,
        )
        leads = self._node.standing.leads(partition)
        if leads and self.uncertain_lead and self._is_uncertain(replica, role, partition):
            role.end()
            replica.is_leader, replica.leader_epoch = False, partition.leader_epoch
            replica.wake()
            self.uncertain_lead.notify(replica)
            return
        if leads and (role.leader is None or role.leader.leader_epoch != partition.leader_epoch):
            replica.keep_back_deleted()
        was_leader = replica.is_leader
        change = role.on_partition(partition, replica.log, leads=leads, rules=rules)
        replica.is_leader = role.leader is not None
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
