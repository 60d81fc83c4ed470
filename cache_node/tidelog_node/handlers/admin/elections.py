"""ElectLeaders: preferred or unclean elections. Source: KIP-183, KIP-460."""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum

from kio.schema.elect_leaders.v2 import request as elect_request
from kio.schema.elect_leaders.v2 import response as elect_response
from tidelog_core.admin.partitions.elections import elect_preferred, elect_unclean
from tidelog_core.admin.partitions.partition_changes import change_partitions
from tidelog_core.api_keys import ApiKey
from tidelog_core.errors import (
    ElectionNotNeeded,
    ErrorCode,
    TidelogError,
    UnknownTopicOrPartition,
)
from tidelog_core.metadata.records import Partition
from tidelog_core.model import TopicPartition
from tidelog_core.replication.change import PartitionChange
from tidelog_core.replication.leases.peer_leases import PeerLeases

from tidelog_node.fairness.request_turns import RequestTurn
from tidelog_node.handlers.administration import admin_outcome
from tidelog_node.node_context import NodeContext
from tidelog_node.requests.routes import RequestContext, Route
from tidelog_node.wire.messages import build


class ElectionType(IntEnum):
    """The kind of election. The numbers are the wire's."""

    PREFERRED = 0
    UNCLEAN = 1


_DECISIONS: dict[int, Callable[[Partition, PeerLeases], PartitionChange | None]] = {
    ElectionType.PREFERRED: elect_preferred,
    ElectionType.UNCLEAN: elect_unclean,
}


class ElectionHandlers:
    """Elects leaders on request."""

    def __init__(self, node: NodeContext) -> None:
        self._node = node

    def routes(self) -> list[Route]:
        """Return the routes served here."""
        return [Route(ApiKey.ELECT_LEADERS, 0, 2, self.elect_leaders)]

    async def elect_leaders(
        self, request: elect_request.ElectLeadersRequest, _: RequestContext
    ) -> elect_response.ElectLeadersResponse:
        """Answer ElectLeaders once the new leaders are in the store."""
        decide = _DECISIONS.get(request.election_type)
        if decide is None:
            return build(elect_response.ElectLeadersResponse, error_code=ErrorCode.invalid_request)
        turn = RequestTurn()
        is_all = request.topic_partitions is None
        wanted = [
            TopicPartition(topic.topic, partition)
            async for topic in turn.each(request.topic_partitions or ())
            async for partition in turn.each(topic.partitions)
        ]
        if is_all:
            image = self._node.view.image
            wanted = [
                TopicPartition(name, partition.partition)
                for name in image.topics
                for partition in image.partitions(name)
            ]

        def decide_one(partition: Partition) -> PartitionChange | None:
            return decide(partition, self._node.membership.peers)

        results = await change_partitions(
            self._node.store, self._node.view, dict.fromkeys(wanted, decide_one)
        )
        by_topic: dict[str, list[elect_response.PartitionResult]] = {}
        async for name in turn.each(dict.fromkeys(wanted)):
            error = results[name]
            # For a request for all partitions Kafka leaves out those that need no election.
            if is_all and isinstance(error, ElectionNotNeeded | UnknownTopicOrPartition):
                continue
            by_topic.setdefault(name.topic, []).append(_result(name.partition, error))
        return build(
            elect_response.ElectLeadersResponse,
            error_code=ErrorCode.none,
            replica_election_results=tuple(
                build(
                    elect_response.ReplicaElectionResult,
                    topic=topic,
                    partition_result=tuple(partitions),
                )
                for topic, partitions in by_topic.items()
            ),
        )


def _result(partition: int, error: TidelogError | None) -> elect_response.PartitionResult:
    return admin_outcome(elect_response.PartitionResult, error, partition_id=partition)
