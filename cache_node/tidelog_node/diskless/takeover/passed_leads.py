"""Gives partitions whose records this node cannot read to brokers that may have them.

Records that are damaged or missing in the bucket may be whole in the log of another broker: of a
replica that has followed further, or of a leader before, once its node is back. Any node may lead
without loss, because the chains say what is committed. So after some tries in vain this node names
the next of them that lives, first of all the last leader: it need not seal its own chain. It may be
no replica any more: its log stays until somebody leads the partition (``LeftLogs``), and on the
disk of a node that was down. Until somebody has led the partition, a node gives it to each process
once. So a partition that nobody can lead does not go round for ever, and a process that has just
started is one more chance.

A reassignment that is under way is taken back, as by any election: it would remove replicas, and
the target could not read the records either.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Iterable, Set
from typing import NamedTuple
from uuid import UUID

from tidelog_core.diskless.wal.epoch_chains import PartitionName, current_chain
from tidelog_core.metadata.epoch_chains import EpochChain
from tidelog_core.metadata.records import Broker, Partition
from tidelog_core.model import TopicPartition
from tidelog_core.replication.change import ChangeReason, PartitionChange
from tidelog_core.replication.lead_changes import move_lead
from tidelog_core.replication.partition_writer import write_changes
from tidelog_core.replication.placement.reassignment import is_reassigning, unasked

from tidelog_node.node_context import NodeContext

logger = logging.getLogger(__name__)

PARTITIONS_MAX = 10_000


class _Named(NamedTuple):
    current: EpochChain | None  # the partition's: another one if it was led since
    processes: Set[UUID]


class PassedLeads:
    """Names other brokers for damaged partitions. For the tasks of one event loop."""

    def __init__(self, node: NodeContext) -> None:
        self._node = node
        # The processes that were named since the partition was led last; the oldest first.
        self._named: OrderedDict[PartitionName, _Named] = OrderedDict()

    async def pass_on(
        self, damaged: Iterable[tuple[TopicPartition, Partition]]
    ) -> list[PartitionName]:
        """Name the next replica of each partition, which this node is to lead and does not.

        Return the partitions that were given away, or may have been.
        """
        named: dict[PartitionChange, tuple[TopicPartition, Broker]] = {}
        for where, partition in damaged:
            successor = self._next(partition)
            if successor is None:
                continue
            stays = unasked(partition) if is_reassigning(partition) else partition
            change = move_lead(stays, successor.broker_id, ChangeReason.HAND_OVER)
            named[change] = where, successor
        if not named:
            return []
        outcome = await write_changes(self._node.store, list(named))
        passed = [*outcome.written, *outcome.unknown]
        for change in passed:
            where, successor = named[change]
            self._note(change.after, successor)
            logger.warning(
                "diskless partition given to a broker that may have its damaged records",
                extra={"partition": str(where), "broker_id": successor.broker_id},
            )
        self._node.view.nudge()
        return [_name_of(change.after) for change in passed]

    def _note(self, partition: Partition, successor: Broker) -> None:
        name, processes = _name_of(partition), self._processes(partition)
        self._named[name] = _Named(
            current_chain(partition.wal), processes | {successor.incarnation}
        )
        self._named.move_to_end(name)
        if len(self._named) > PARTITIONS_MAX:
            self._named.popitem(last=False)

    def _processes(self, partition: Partition) -> Set[UUID]:
        """Return the processes that were named since the partition was led last."""
        named = self._named.get(_name_of(partition))
        is_of_now = named is not None and named.current == current_chain(partition.wal)
        return named.processes if named is not None and is_of_now else frozenset()

    def _next(self, partition: Partition) -> Broker | None:
        """Return the next live broker that may have the records and was not named yet."""
        own, replicas = self._node.broker_id, partition.replicas
        at = replicas.index(own) if own in replicas else -1
        leaders = [one.chain.broker_id for one in reversed(partition.wal)]  # the last one first
        live = self._node.membership.live_brokers(self._node.view.image)
        peers = self._node.membership.peers
        processes = self._processes(partition)
        for broker_id in (
            *leaders[:1],
            *replicas[at + 1 :],
            *replicas[: max(at, 0)],
            *leaders[1:],
        ):
            broker = live.get(broker_id)
            if broker is None or broker_id == own or peers.is_suspected(broker_id):
                continue
            if broker.incarnation not in processes and peers.may_lead_diskless(broker_id):
                return broker
        return None


def _name_of(partition: Partition) -> PartitionName:
    return PartitionName(partition.topic_id, partition.partition)
