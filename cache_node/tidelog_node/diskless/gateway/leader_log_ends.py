"""Asks leaders for their log ends, uncommitted records included, by OffsetForLeaderEpoch.

The answer is the end of the leader epoch that the partition's item names. A process that leads in
another epoch, or does not lead yet, refuses.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Collection, Mapping
from typing import Any, Protocol

from kio.schema.offset_for_leader_epoch.v4 import request as epoch_request
from tidelog.wire.requests import Api
from tidelog_core.batched import batched
from tidelog_core.errors import TidelogError
from tidelog_core.metadata.records import Partition
from tidelog_core.model import INT64_MAX, NO_LEADER
from tidelog_core.wire_messages import build

from tidelog_node.node_context import NodeContext
from tidelog_node.replicas.replica import Replica
from tidelog_node.replicas.replica_manager import ReplicaManager

logger = logging.getLogger(__name__)

API = Api(23, 4, 4)
ANSWER_SECONDS_MAX = 20.0
PARTITIONS_MAX = 1_000  # of one request


class BrokerRequests(Protocol):
    """Sends requests to other brokers; ``Peers``."""

    async def request(self, broker_id: int, api: Api, message: object, *, timeout_s: float) -> Any:
        """Return the broker's answer. Raises ``TidelogError`` and ``OSError``."""


class LeaderLogEnds:
    """Asks leaders for log ends. For the tasks of the node's event loop."""

    def __init__(self, node: NodeContext, peers: BrokerRequests, replicas: ReplicaManager) -> None:
        self._node = node
        self._peers = peers
        self._replicas = replicas

    async def of(self, replicas: Collection[Replica]) -> dict[Replica, int]:
        """Return the log ends of the partitions whose leaders answer.

        Replicas may be dropped, because other nodes have the partition now. A partition of a
        deleted topic has no end: its objects stay until the deletion is known.
        """
        ends: dict[Replica, int] = {}
        by_leader: dict[int, list[tuple[Replica, Partition]]] = defaultdict(list)
        for replica in replicas:
            stored = self._node.view.image.partition(replica.partition)
            if stored is None or stored.topic_id != replica.topic_id:
                ends[replica] = INT64_MAX
            elif stored.leader == self._node.broker_id:
                led = self._replicas.led_by_id.get(replica.topic_id.bytes, {})
                log = None if (one := led.get(stored.partition)) is None else one.opened_log
                if log is not None:
                    ends[replica] = log.log_end_offset
            elif stored.leader != NO_LEADER:
                by_leader[stored.leader].append((replica, stored))
        for leader, some in by_leader.items():
            for asked in batched(some, PARTITIONS_MAX):
                ends |= await self._ask(leader, asked)
        return ends

    async def _ask(
        self, leader: int, some: Collection[tuple[Replica, Partition]]
    ) -> Mapping[Replica, int]:
        topics: dict[str, list[epoch_request.OffsetForLeaderPartition]] = defaultdict(list)
        for replica, stored in some:
            wanted = build(
                epoch_request.OffsetForLeaderPartition,
                partition=replica.partition.partition,
                current_leader_epoch=stored.leader_epoch,
                leader_epoch=stored.leader_epoch,
            )
            topics[replica.partition.topic].append(wanted)
        request = build(
            epoch_request.OffsetForLeaderEpochRequest,
            replica_id=self._node.broker_id,
            topics=tuple(
                build(epoch_request.OffsetForLeaderTopic, topic=name, partitions=tuple(wanted))
                for name, wanted in topics.items()
            ),
        )
        try:
            answer = await self._peers.request(leader, API, request, timeout_s=ANSWER_SECONDS_MAX)
        except (TidelogError, OSError) as error:
            logger.warning(
                "a leader does not say where its logs end, is asked again later",
                extra={"broker_id": leader, "reason": str(error)},
            )
            return {}
        found = {
            (topic.topic, one.partition): one.end_offset
            for topic in answer.topics
            for one in topic.partitions
            if not one.error_code and one.end_offset >= 0
        }
        return {
            replica: found[where]
            for replica, _ in some
            if (where := (replica.partition.topic, replica.partition.partition)) in found
        }
