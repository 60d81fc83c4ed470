"""DescribeShareGroupOffsets, AlterShareGroupOffsets and DeleteShareGroupOffsets (KIP-932).

They only translate; ``coordinator.share_offsets`` decides.
"""

from __future__ import annotations

from collections.abc import Mapping
from uuid import UUID

from kio.schema.alter_share_group_offsets.v0 import request as alter_request
from kio.schema.alter_share_group_offsets.v0 import response as alter_response
from kio.schema.delete_share_group_offsets.v0 import request as delete_request
from kio.schema.delete_share_group_offsets.v0 import response as delete_response
from kio.schema.describe_share_group_offsets.v0 import request as describe_request
from kio.schema.describe_share_group_offsets.v0 import response as describe_response
from tidelog_core.admin.groups.share_offsets import RecordOrCorruptItem
from tidelog_core.api_keys import ApiKey
from tidelog_core.errors import CorruptItem, ErrorCode, TidelogError
from tidelog_core.metadata.coordination.share_partitions import NO_START_OFFSET
from tidelog_core.model import TopicPartition

from tidelog_node.coordinator.failures import error_code
from tidelog_node.coordinator.share_offsets import DONE, Outcome, ShareOffsets
from tidelog_node.fairness.request_turns import RequestTurn
from tidelog_node.node_context import NodeContext
from tidelog_node.requests.routes import RequestContext, Route
from tidelog_node.wire.messages import build


class ShareOffsetHandlers:
    """Serves administrators of share groups."""

    def __init__(self, node: NodeContext, *, offsets: ShareOffsets) -> None:
        self._node = node
        self._offsets = offsets

    def routes(self) -> list[Route]:
        """Return the routes served here."""
        return [
            Route(ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS, 0, 0, self.describe),
            Route(ApiKey.ALTER_SHARE_GROUP_OFFSETS, 0, 0, self.alter),
            Route(ApiKey.DELETE_SHARE_GROUP_OFFSETS, 0, 0, self.delete),
        ]

    async def describe(
        self, request: describe_request.DescribeShareGroupOffsetsRequest, _: RequestContext
    ) -> describe_response.DescribeShareGroupOffsetsResponse:
        """Return the start offset of each group; -1 for a partition that was never read."""
        groups = [await self._describe(group) async for group in RequestTurn().each(request.groups)]
        return build(describe_response.DescribeShareGroupOffsetsResponse, groups=tuple(groups))

    async def alter(
        self, request: alter_request.AlterShareGroupOffsetsRequest, _: RequestContext
    ) -> alter_response.AlterShareGroupOffsetsResponse:
        """Change the start offsets of an empty group."""
        turn = RequestTurn()
        offsets = {
            TopicPartition(topic.topic_name, partition.partition_index): partition.start_offset
            async for topic in turn.each(request.topics)
            async for partition in turn.each(topic.partitions)
        }
        outcomes: Mapping[TopicPartition, Outcome]
        refusal: Outcome = DONE
        try:
            outcomes = await self._offsets.alter(request.group_id, offsets)
        except TidelogError as error:
            refusal = (error_code(error), str(error))
            # Repeated for each partition: Java's client 4.1 reads no other place.
            outcomes = dict.fromkeys(offsets, refusal)
        answers: dict[str, list[alter_response.AlterShareGroupOffsetsResponsePartition]] = {}
        async for name, (code, message) in turn.each(outcomes.items()):
            answer = build(
                alter_response.AlterShareGroupOffsetsResponsePartition,
                partition_index=name.partition,
                error_code=code,
                error_message=message,
            )
            answers.setdefault(name.topic, []).append(answer)
        return build(
            alter_response.AlterShareGroupOffsetsResponse,
            error_code=refusal[0],
            error_message=refusal[1],
            responses=tuple(
                [
                    build(
                        alter_response.AlterShareGroupOffsetsResponseTopic,
                        topic_name=topic,
                        topic_id=self._topic_id(topic),
                        partitions=tuple(partitions),
                    )
                    async for topic, partitions in turn.each(answers.items())
                ]
            ),
        )

    async def delete(
        self, request: delete_request.DeleteShareGroupOffsetsRequest, _: RequestContext
    ) -> delete_response.DeleteShareGroupOffsetsResponse:
        """Delete the start offsets of an empty group."""
        topics = tuple(dict.fromkeys(topic.topic_name for topic in request.topics))
        try:
            outcomes = await self._offsets.delete(request.group_id, topics)
        except TidelogError as error:
            return build(
                delete_response.DeleteShareGroupOffsetsResponse,
                error_code=error_code(error),
                error_message=str(error),
            )
        return build(
            delete_response.DeleteShareGroupOffsetsResponse,
            responses=tuple(
                build(
                    delete_response.DeleteShareGroupOffsetsResponseTopic,
                    topic_name=topic,
                    # Kafka adds the topic id only to topics that were changed.
                    topic_id=self._topic_id(topic) if code is ErrorCode.none else None,
                    error_code=code,
                    error_message=message,
                )
                for topic, (code, message) in outcomes.items()
            ),
        )

    async def _describe(
        self, group: describe_request.DescribeShareGroupOffsetsRequestGroup
    ) -> describe_response.DescribeShareGroupOffsetsResponseGroup:
        wanted: Mapping[str, list[int]] | None = None
        if group.topics is not None:
            wanted = {topic.topic_name: list(topic.partitions) for topic in group.topics}
        try:
            found = await self._offsets.describe(group.group_id, wanted)
        except TidelogError as error:
            return build(
                describe_response.DescribeShareGroupOffsetsResponseGroup,
                group_id=group.group_id,
                error_code=error_code(error),
                error_message=str(error),
            )
        answers: dict[str, list[describe_response.DescribeShareGroupOffsetsResponsePartition]] = {}
        for name, record in found.items():
            answers.setdefault(name.topic, []).append(_described(name.partition, record))
        return build(
            describe_response.DescribeShareGroupOffsetsResponseGroup,
            group_id=group.group_id,
            topics=tuple(
                build(
                    describe_response.DescribeShareGroupOffsetsResponseTopic,
                    topic_name=topic,
                    topic_id=self._topic_id(topic),
                    partitions=tuple(partitions),
                )
                for topic, partitions in answers.items()
            ),
        )

    def _topic_id(self, name: str) -> UUID | None:
        topic = self._node.view.image.topic(name)
        return None if topic is None else topic.topic_id


def _described(
    partition: int, record: RecordOrCorruptItem | None
) -> describe_response.DescribeShareGroupOffsetsResponsePartition:
    if isinstance(record, CorruptItem):
        return build(
            describe_response.DescribeShareGroupOffsetsResponsePartition,
            partition_index=partition,
            start_offset=NO_START_OFFSET,
            error_code=record.code,
            error_message=str(record),
        )
    return build(
        describe_response.DescribeShareGroupOffsetsResponsePartition,
        partition_index=partition,
        start_offset=NO_START_OFFSET if record is None else record.start_offset,
        leader_epoch=0 if record is None else max(0, record.leader_epoch),
    )
