"""The partitions that this node is to lead and does not lead yet, and when each is tried.

noted → taken, by the chain that their items name last → led
                                                       → failed: noted again after a while
                                                       → refused: until another election
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from tidelog_core.diskless.wal.epoch_chains import PartitionName, current_chain
from tidelog_core.metadata.epoch_chains import ChainName, is_handed_over
from tidelog_core.metadata.records import Partition

from tidelog_node.diskless.takeover.damaged_partitions import DamagedPartitions
from tidelog_node.node_context import NodeContext
from tidelog_node.replicas.replica import Replica
from tidelog_node.replicas.replica_manager import ReplicaManager

RETRY_SECONDS = 1.0
DAMAGED_SECONDS_MAX = 30.0  # before a partition whose records are damaged is tried again


class FormerChain(NamedTuple):
    """The chain that the items of a group of partitions name last; ``None`` for new partitions."""

    chain: ChainName | None
    is_handed_over: bool = False  # its leader has ended their epochs in the items


class _Failed(NamedTuple):
    """A partition that was not led, and when it is tried again."""

    due_s: float  # the loop's time
    replica: Replica
    version: int  # of the item, as this node knew it

    def is_of(self, replica: Replica, partition: Partition) -> bool:
        """Whether the partition has not changed since it failed."""
        return replica is self.replica and partition.version == self.version


class PendingTakeovers:
    """The partitions to lead, and when to try them. For the tasks of one event loop."""

    def __init__(self, node: NodeContext, replicas: ReplicaManager) -> None:
        self._node = node
        self._replicas = replicas
        self._waiting: dict[PartitionName, Replica] = {}
        self._entering: set[PartitionName] = set()
        self._failed: dict[PartitionName, _Failed] = {}  # they are tried again
        self._refused: dict[PartitionName, int] = {}  # the leader epoch in which each one was
        self.damaged = DamagedPartitions()
        self.changed = asyncio.Event()  # there may be some to take

    @property
    def has_any(self) -> bool:
        """Whether this node is to lead any partition that it has not entered yet."""
        return bool(self._waiting or self._entering or self._failed)

    def note(self, replica: Replica) -> None:
        """Note that this node is to lead the partition."""
        self._waiting[replica.name] = replica
        self.changed.set()

    def take(self) -> dict[FormerChain, dict[PartitionName, Replica]]:
        """Return the partitions to enter now, by the chain that their items name last.

        Each one is in no other group until ``end`` is called with it.
        """
        groups: dict[FormerChain, dict[PartitionName, Replica]] = {}
        for name, replica in tuple(self._waiting.items()):
            if name in self._entering:
                continue  # Noted again when that has ended.
            del self._waiting[name]
            partition = self.unentered(replica)
            failed = self._failed.get(name)
            if partition is not None and failed is not None and failed.is_of(replica, partition):
                continue  # Noted again when it is due.
            self._failed.pop(name, None)
            if partition is None:
                self.damaged.forget([name])
            else:
                groups.setdefault(_former_chain(partition), {})[name] = replica
                self._entering.add(name)
        return groups

    def unentered(self, replica: Replica) -> Partition | None:
        """Return the partition's record, if this node is to lead it and does not yet."""
        if replica.is_leader or self._replicas.get(replica.partition) is not replica:
            return None
        image = self._node.view.image
        partitions = image.partitions(replica.partition.topic)
        index = replica.partition.partition
        if index >= len(partitions) or partitions[index].topic_id != replica.topic_id:
            return None
        partition = partitions[index]
        if not partition.is_diskless:
            return None  # It has become replicated, and replicas have what the chains have.
        if self._refused.get(replica.name) == partition.leader_epoch:
            return None
        return partition if self._node.membership.leads(partition) else None

    def refuse(self, name: PartitionName, leader_epoch: int) -> None:
        """Leave the partition without a leader until another election."""
        self._refused[name] = leader_epoch

    def end(self, group: Mapping[PartitionName, Replica], *, is_urgent: bool) -> None:
        """Note that a group was tried; retry those that are not led, at once if ``is_urgent``."""
        self._entering -= group.keys()
        self._count_refused()
        left = {name: one for name, one in group.items() if self.unentered(one) is not None}
        self.damaged.forget(group.keys() - left.keys())
        delays = self.damaged.delays(left, RETRY_SECONDS, DAMAGED_SECONDS_MAX)
        for seconds, names in delays.items():
            self._try_again([left[name] for name in names], 0.0 if is_urgent else seconds)
        self.changed.set()

    def _try_again(self, replicas: Sequence[Replica], seconds: float) -> None:
        """Note the replicas again after this time, or sooner if their items change.

        A change of any partition of a topic notes all of the topic's replicas. Without the delay,
        damaged partitions of a large topic would be tried all the time.
        """
        loop = asyncio.get_running_loop()
        due_s = loop.time() + seconds
        for replica in replicas:
            partition = self.unentered(replica)
            if partition is not None:
                self._failed[replica.name] = _Failed(due_s, replica, partition.version)
        loop.call_at(due_s, self._note_due, replicas, due_s)

    def _note_due(self, replicas: Iterable[Replica], due_s: float) -> None:
        for replica in replicas:
            failed = self._failed.get(replica.name)
            if failed is not None and failed.due_s == due_s:
                del self._failed[replica.name]
                self.note(replica)

    def _count_refused(self) -> None:
        """Count the partitions that are refused now, and forget the others."""
        image = self._node.view.image
        for name, epoch in tuple(self._refused.items()):
            topic = image.topic_by_id(name.topic_id)
            partitions = () if topic is None else image.partitions(topic.name)
            there = partitions[name.partition] if name.partition < len(partitions) else None
            if there is None or there.leader_epoch > epoch:
                del self._refused[name]
        self._node.counters.chain.refused_count = len(self._refused)


def _former_chain(partition: Partition) -> FormerChain:
    last = current_chain(partition.wal)
    return FormerChain(
        None if last is None else last.chain,
        is_handed_over(partition.wal, leader=partition.leader, leader_epoch=partition.leader_epoch),
    )
