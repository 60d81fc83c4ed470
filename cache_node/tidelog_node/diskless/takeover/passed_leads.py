"""Gives partitions whose records this node cannot read to replicas that may have them.

Records that are damaged or missing in the bucket may be whole in the log of another replica: of one
that has followed further, or of the leader before, once its node is back. Any node may lead without
loss, because the chains say what is committed. So after some tries in vain this node names the next
replica that lives. Each process is named once by each other: they do not go round for ever, and a
process that has just started is one more chance.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Iterable
from uuid import UUID

from tidelog_core.diskless.wal.epoch_chains import PartitionName
from tidelog_core.metadata.records import Broker, Partition
from tidelog_core.model import TopicPartition
from tidelog_core.replication.change import ChangeReason, PartitionChange
from tidelog_core.replication.election import move_lead
from tidelog_core.replication.partition_writer import write_changes
from tidelog_core.replication.reassignment import is_reassigning

from tidelog_node.node_context import NodeContext

logger = logging.getLogger(__name__)

TRIES_MIN = 3  # in vain: objects that were collected meanwhile are tiered by then
PARTITIONS_MAX = 10_000


class PassedLeads:
    """Names other replicas of damaged partitions. For the tasks of one event loop."""

    def __init__(self, node: NodeContext) -> None:
        self._node = node
        # The processes that were named, by partition; the oldest first.
        self._named: OrderedDict[PartitionName, set[UUID]] = OrderedDict()

    async def pass_on(self, damaged: Iterable[tuple[TopicPartition, Partition]]) -> None:
        """Name the next replica of each partition, which this node is to lead and does not."""
        named: dict[PartitionChange, tuple[TopicPartition, Broker]] = {}
        for where, partition in damaged:
            successor = self._next(partition)
            if successor is None or is_reassigning(partition):
                continue
            change = move_lead(partition, successor.broker_id, ChangeReason.HAND_OVER)
            named[change] = where, successor
        if not named:
            return
        outcome = await write_changes(self._node.store, list(named))
        for change in (*outcome.written, *outcome.unknown):
            where, successor = named[change]
            self._note(change.after, successor)
            logger.warning(
                "diskless partition given to a replica that may have its damaged records",
                extra={"partition": str(where), "broker_id": successor.broker_id},
            )
        self._node.view.nudge()

    def _note(self, partition: Partition, successor: Broker) -> None:
        name = PartitionName(partition.topic_id, partition.partition)
        self._named.setdefault(name, set()).add(successor.incarnation)
        self._named.move_to_end(name)
        if len(self._named) > PARTITIONS_MAX:
            self._named.popitem(last=False)

    def _next(self, partition: Partition) -> Broker | None:
        """Return the next live replica whose process was not named yet."""
        own, replicas = self._node.broker_id, partition.replicas
        at = replicas.index(own) if own in replicas else 0
        live = self._node.membership.live_brokers(self._node.view.image)
        peers = self._node.membership.peers
        name = PartitionName(partition.topic_id, partition.partition)
        for broker_id in (*replicas[at + 1 :], *replicas[:at]):
            broker = live.get(broker_id)
            if broker is None or broker_id == own or peers.is_suspected(broker_id):
                continue
            is_new = broker.incarnation not in self._named.get(name, ())
            if is_new and peers.may_lead_diskless(broker_id):
                return broker
        return None
