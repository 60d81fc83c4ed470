"""Reads and changes the start offsets of share groups, for administrators.

The coordinator changes them although they belong to the partitions' leaders, because it alone knows
that the group is empty. Source: ``describeShareGroupAllOffsets``, ``alterShareGroupOffsets`` and
``deleteShareGroupOffsets`` of Kafka's group coordinator.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from kio.schema.errors import ErrorCode
from tidelog_core.admin.groups.share_offsets import (
    RecordOrCorruptItem,
    begin_at,
    is_begun,
    read_share_partitions,
)
from tidelog_core.metadata.coordination.share_partitions import NO_START_OFFSET
from tidelog_core.metadata.store import Write
from tidelog_core.model import TopicPartition

from tidelog_node.coordinator.coordinator import GroupCoordinator
from tidelog_node.groups.share.share_group import ShareGroup
from tidelog_node.node_context import NodeContext

Outcome = tuple[ErrorCode, str | None]
DONE: Outcome = (ErrorCode.none, None)
NOT_HOSTED: Outcome = (
    ErrorCode.unknown_topic_or_partition,
    "This server does not host this topic-partition.",
)
NOTHING_TO_DELETE: Outcome = (
    ErrorCode.unknown_topic_or_partition,
    "There is no offset information to delete.",
)
NO_SUCH_OFFSET: Outcome = (ErrorCode.invalid_request, "A start offset is -1 or greater.")


class ShareOffsets:
    """Reads and changes the start offsets of this node's share groups."""

    def __init__(self, node: NodeContext, *, coordinator: GroupCoordinator) -> None:
        self._node = node
        self._coordinator = coordinator

    async def describe(
        self, group_id: str, wanted: Mapping[str, Collection[int]] | None
    ) -> dict[TopicPartition, RecordOrCorruptItem | None]:
        """Return the wanted share partitions, or with ``None`` all that are or may be read.

        The value is ``None`` for one that was never read, and the error for a damaged one. Raises
        ``NotCoordinator``, ``InvalidGroupId``.
        """
        group = await self._coordinator.describe(group_id)
        known = await read_share_partitions(self._node.store, group_id)
        image = self._node.view.image
        if wanted is None:
            begun: dict[TopicPartition, RecordOrCorruptItem | None] = {}
            if isinstance(group, ShareGroup) and not group.is_empty:
                begun = {
                    TopicPartition(name, partition): None
                    for name, topic in group.topics.items()
                    for partition in range(topic.partition_count)
                }
            begun |= {
                TopicPartition(image.topic_names[topic_id], partition): record
                for (topic_id, partition), record in known.items()
                if topic_id in image.topic_names and is_begun(record)
            }
            return begun
        found: dict[TopicPartition, RecordOrCorruptItem | None] = {}
        for name, partitions in wanted.items():
            topic = image.topic(name)
            for partition in partitions:
                record = None if topic is None else known.get((topic.topic_id, partition))
                found[TopicPartition(name, partition)] = record
        return found

    async def alter(
        self, group_id: str, offsets: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, Outcome]:
        """Set the start offsets of an empty group; a missing group is created. Durable on return.

        Raises ``GroupIdNotFound`` if the group is of another kind, ``NonEmptyGroup``, and as
        ``describe``.
        """

        async def change() -> tuple[dict[TopicPartition, Outcome], Sequence[Write]]:
            known = await read_share_partitions(self._node.store, group_id)
            image = self._node.view.image
            outcomes, writes = {}, []
            for name, offset in offsets.items():
                partition = image.partition(name)
                if partition is None:
                    outcomes[name] = NOT_HOSTED
                elif offset < NO_START_OFFSET:
                    outcomes[name] = NO_SUCH_OFFSET
                else:
                    outcomes[name] = DONE
                    writes.append(
                        begin_at(known, group_id, partition.topic_id, name.partition, offset)
                    )
            return outcomes, writes

        return await self._coordinator.change_empty_share_group(group_id, change, create=True)

    async def delete(self, group_id: str, topics: Collection[str]) -> dict[str, Outcome]:
        """Delete the start offsets of an empty group in the topics. Durable on return.

        Raises ``GroupIdNotFound``, ``NonEmptyGroup``, and as
        ``describe``.
        """

        async def change() -> tuple[dict[str, Outcome], Sequence[Write]]:
            known = await read_share_partitions(self._node.store, group_id)
            image = self._node.view.image
            outcomes, writes = {}, []
            for name in topics:
                topic = image.topic(name)
                begun = [
                    at
                    for at, record in known.items()
                    if topic is not None and at[0] == topic.topic_id and is_begun(record)
                ]
                if topic is None:
                    outcomes[name] = NOT_HOSTED
                else:
                    outcomes[name] = DONE if begun else NOTHING_TO_DELETE
                writes += [
                    begin_at(known, group_id, topic_id, partition, NO_START_OFFSET)
                    for topic_id, partition in begun
                ]
            return outcomes, writes

        return await self._coordinator.change_empty_share_group(group_id, change)
