"""AlterPartitionReassignments and ListPartitionReassignments. Source: KIP-455, KIP-860."""

from __future__ import annotations

from collections.abc import Sequence

from kio.schema.alter_partition_reassignments.v1 import request as alter_request
from kio.schema.alter_partition_reassignments.v1 import response as alter_response
from kio.schema.list_partition_reassignments.v0 import request as list_request
from kio.schema.list_partition_reassignments.v0 import response as list_response
from tidelog_core.admin.failures import admin_error_code
from tidelog_core.admin.partitions.partition_changes import Decide, change_partitions
from tidelog_core.admin.partitions.reassignments import reassignment
from tidelog_core.api_keys import ApiKey
from tidelog_core.errors import (
    ErrorCode,
    InvalidRequest,
    StoreUnavailable,
    TidelogError,
)
from tidelog_core.metadata.records import Partition
from tidelog_core.model import TopicPartition
from tidelog_core.replication.placement.reassignment import (
    ongoing_reassignment,
)

from tidelog_node.fairness.request_turns import RequestTurn
from tidelog_node.handlers.administration import admin_outcome
from tidelog_node.node_context import NodeContext
from tidelog_node.requests.routes import RequestContext, Route
from tidelog_node.wire.messages import build


class ReassignmentHandlers:
    """Moves partitions to other replicas, and lists the moves."""

    def __init__(self, node: NodeContext) -> None:
        self._node = node

    def routes(self) -> list[Route]:
        """Return the routes served here."""
        return [
            Route(ApiKey.ALTER_PARTITION_REASSIGNMENTS, 0, 1, self.alter_reassignments),
            Route(ApiKey.LIST_PARTITION_REASSIGNMENTS, 0, 0, self.list_reassignments),
        ]

    async def alter_reassignments(
        self, request: alter_request.AlterPartitionReassignmentsRequest, _: RequestContext
    ) -> alter_response.AlterPartitionReassignmentsResponse:
        """Answer AlterPartitionReassignments once the moves have begun."""
        may_resize = request.allow_replication_factor_change
        wanted: dict[TopicPartition, Decide] = {}
        repeated: set[TopicPartition] = set()
        turn = RequestTurn()
        async for topic in turn.each(request.topics):
            async for partition in turn.each(topic.partitions):
                name = TopicPartition(topic.name, partition.partition_index)
                if name in wanted:
                    repeated.add(name)
                wanted[name] = reassignment(
                    partition.replicas, view=self._node.view, may_resize=may_resize
                )
        for name in repeated:
            del wanted[name]
        results = await change_partitions(self._node.store, self._node.view, wanted)
        for name in repeated:
            results[name] = InvalidRequest(f"Partition {name} is named more than once.")
        return build(
            alter_response.AlterPartitionReassignmentsResponse,
            allow_replication_factor_change=may_resize,
            error_code=ErrorCode.none,
            responses=tuple(
                [
                    build(
                        alter_response.ReassignableTopicResponse,
                        name=topic.name,
                        partitions=tuple(
                            [
                                _altered(
                                    partition.partition_index,
                                    results[TopicPartition(topic.name, partition.partition_index)],
                                )
                                async for partition in turn.each(topic.partitions)
                            ]
                        ),
                    )
                    async for topic in turn.each(request.topics)
                ]
            ),
        )

    async def list_reassignments(
        self, request: list_request.ListPartitionReassignmentsRequest, _: RequestContext
    ) -> list_response.ListPartitionReassignmentsResponse:
        """Answer ListPartitionReassignments."""
        try:
            image = await self._node.view.refresh()
        except StoreUnavailable as error:
            return build(
                list_response.ListPartitionReassignmentsResponse,
                error_code=admin_error_code(error),
                error_message=str(error),
            )
        turn = RequestTurn()
        wanted: list[tuple[str, Sequence[Partition]]]
        if request.topics is None:
            wanted = [(name, image.partitions(name)) for name in image.topics]
        else:
            wanted = [
                (
                    topic.name,
                    [
                        found
                        async for index in turn.each(topic.partition_indexes)
                        if (found := image.partition(TopicPartition(topic.name, index))) is not None
                    ],
                )
                async for topic in turn.each(request.topics)
            ]
        topics = []
        async for name, partitions in turn.each(wanted):
            ongoing = tuple(shown for p in partitions if (shown := _ongoing(p)) is not None)
            if ongoing:
                topics.append(
                    build(list_response.OngoingTopicReassignment, name=name, partitions=ongoing)
                )
        return build(
            list_response.ListPartitionReassignmentsResponse,
            error_code=ErrorCode.none,
            topics=tuple(topics),
        )


def _altered(
    partition: int, error: TidelogError | None
) -> alter_response.ReassignablePartitionResponse:
    return admin_outcome(
        alter_response.ReassignablePartitionResponse, error, partition_index=partition
    )


def _ongoing(partition: Partition) -> list_response.OngoingPartitionReassignment | None:
    ongoing = ongoing_reassignment(partition)
    if ongoing is None:
        return None
    return build(
        list_response.OngoingPartitionReassignment,
        partition_index=partition.partition,
        replicas=ongoing.replicas,
        adding_replicas=ongoing.adding,
        removing_replicas=ongoing.removing,
    )
