"""OffsetDelete: removes committed offsets of topics that no member of the group consumes.

Source: KIP-496.
"""

from __future__ import annotations

from kio.schema.offset_delete.v0 import request as delete_request
from kio.schema.offset_delete.v0 import response as delete_response
from tidelog_core.api_keys import ApiKey
from tidelog_core.errors import ErrorCode, TidelogError

from tidelog_node.coordinator.coordinator import GroupCoordinator
from tidelog_node.coordinator.failures import offset_commit_error_code
from tidelog_node.fairness.request_turns import RequestTurn
from tidelog_node.node_context import NodeContext
from tidelog_node.requests.routes import RequestContext, Route
from tidelog_node.wire.messages import build


class OffsetDeletionHandler:
    """Serves OffsetDelete."""

    def __init__(self, node: NodeContext, *, coordinator: GroupCoordinator) -> None:
        self._node = node
        self._coordinator = coordinator

    def routes(self) -> list[Route]:
        """Return the routes."""
        return [Route(ApiKey.OFFSET_DELETE, 0, 0, self.delete)]

    async def delete(
        self, request: delete_request.OffsetDeleteRequest, _: RequestContext
    ) -> delete_response.OffsetDeleteResponse:
        """Remove offsets of topics that no member consumes."""
        wanted: dict[str, list[int]] = {}
        results: list[tuple[str, int, ErrorCode]] = []
        turn = RequestTurn()
        async for asked in turn.each(request.topics):
            topic = self._node.view.image.topic(asked.name)
            async for partition in turn.each(asked.partitions):
                index = partition.partition_index
                error = ErrorCode.unknown_topic_or_partition
                if topic is not None and 0 <= index < topic.partition_count:
                    wanted.setdefault(asked.name, []).append(index)
                    error = ErrorCode.none
                results.append((asked.name, index, error))
        try:
            failure, consumed = await self._coordinator.delete_offsets(request.group_id, wanted)
        except TidelogError as problem:
            failure, consumed = offset_commit_error_code(problem), frozenset()
        if failure is not ErrorCode.none:
            return build(delete_response.OffsetDeleteResponse, error_code=failure)
        topics: dict[str, list[delete_response.OffsetDeleteResponsePartition]] = {}
        async for name, partition_index, outcome in turn.each(results):
            is_consumed = outcome is ErrorCode.none and name in consumed
            topics.setdefault(name, []).append(
                build(
                    delete_response.OffsetDeleteResponsePartition,
                    partition_index=partition_index,
                    error_code=ErrorCode.group_subscribed_to_topic if is_consumed else outcome,
                )
            )
        return build(
            delete_response.OffsetDeleteResponse,
            topics=tuple(
                [
                    build(
                        delete_response.OffsetDeleteResponseTopic,
                        name=name,
                        partitions=tuple(partitions),
                    )
                    async for name, partitions in turn.each(topics.items())
                ]
            ),
        )
