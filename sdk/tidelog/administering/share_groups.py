"""Admin calls for share groups (KIP-932) and their start offsets."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from kio.schema.alter_share_group_offsets.v0.request import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsRequestPartition,
    AlterShareGroupOffsetsRequestTopic,
)
from kio.schema.delete_share_group_offsets.v0.request import (
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsRequestTopic,
)
from kio.schema.describe_share_group_offsets.v0.request import (
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequestGroup,
    DescribeShareGroupOffsetsRequestTopic,
)
from kio.schema.errors import ErrorCode
from kio.schema.share_group_describe.v1.request import ShareGroupDescribeRequest
from tidelog_core.model import TopicPartition
from tidelog_core.wire_messages import build

from tidelog.administering.calls import raise_failures
from tidelog.administering.groups import GroupCalls, assigned_partitions, check_described
from tidelog.administering.results import GroupDescription, GroupMember, PartitionLag
from tidelog.consuming.coordinator import Coordinator
from tidelog.consuming.group_protocol import topic_entries
from tidelog.consuming.locating import check_offset
from tidelog.errors import GroupIdNotFound, UnsupportedVersion, error_for
from tidelog.wire.answers import first_entry
from tidelog.wire.requests import (
    ALTER_SHARE_GROUP_OFFSETS,
    DELETE_SHARE_GROUP_OFFSETS,
    DESCRIBE_SHARE_GROUP_OFFSETS,
    SHARE_GROUP_DESCRIBE,
    Api,
)

SHARE_PROTOCOL_TYPE = "share"


class ShareGroupCalls(GroupCalls):
    """Admin calls for share groups, in addition to those for groups of any type."""

    async def list_share_group_offsets(
        self, group_id: str, partitions: Iterable[tuple[str, int]] | None = None
    ) -> dict[TopicPartition, int | None]:
        """Return the group's start offsets; of all partitions that it reads by default.

        All records before a start offset are done. ``None``: the group has not read the
        partition yet.
        """
        topics = None
        if partitions is not None:
            topics = topic_entries(
                DescribeShareGroupOffsetsRequestTopic,
                (TopicPartition(*p) for p in partitions),
                lambda p: p.partition,
                name="topic_name",
            )
        group = build(DescribeShareGroupOffsetsRequestGroup, group_id=group_id, topics=topics)
        request = build(DescribeShareGroupOffsetsRequest, groups=(group,))
        response = await self._ask_coordinator(
            group_id, DESCRIBE_SHARE_GROUP_OFFSETS, request, _check_described_offsets
        )
        _raise_partition_errors(response.groups[0].topics, group_id)
        return {
            TopicPartition(topic.topic_name, int(answer.partition_index)): (
                None if answer.start_offset < 0 else int(answer.start_offset)
            )
            for topic in response.groups[0].topics
            for answer in topic.partitions
        }

    async def share_group_lag(
        self, group_id: str, partitions: Iterable[tuple[str, int]] = ()
    ) -> dict[TopicPartition, PartitionLag]:
        """Return the group's lag in all partitions that it reads and in ``partitions``.

        The cost is the same as for ``group_lag``.
        """
        known = await self.list_share_group_offsets(group_id)
        offsets = {partition: at for partition, at in known.items() if at is not None}
        return await self._lags(offsets, [*known, *partitions])

    async def alter_share_group_offsets(
        self, group_id: str, offsets: Mapping[tuple[str, int], int]
    ) -> None:
        """Set the start offsets of a group without members; all records from there are unread.

        Creates a group that does not exist, as Kafka does from 4.2 on. Raises ``NonEmptyGroup``,
        and ``GroupIdNotFound`` for a group of another type.
        """
        for offset in offsets.values():
            check_offset(offset)
        request = build(
            AlterShareGroupOffsetsRequest,
            group_id=group_id,
            topics=topic_entries(
                AlterShareGroupOffsetsRequestTopic,
                (TopicPartition(*p) for p in offsets),
                lambda p: build(
                    AlterShareGroupOffsetsRequestPartition,
                    partition_index=p.partition,
                    start_offset=offsets[p],
                ),
                name="topic_name",
            ),
        )
        response = await self._ask_coordinator(
            group_id, ALTER_SHARE_GROUP_OFFSETS, request, _check_answer
        )
        _raise_partition_errors(response.responses, group_id)

    async def delete_share_group_offsets(self, group_id: str, topics: Iterable[str]) -> None:
        """Delete the start offsets of these topics from a group without members.

        It starts again by its ``share.auto.offset.reset``. Raises ``NonEmptyGroup``,
        ``GroupIdNotFound``, and ``UnknownTopicOrPartition`` for a topic it has not read.
        """
        request = build(
            DeleteShareGroupOffsetsRequest,
            group_id=group_id,
            topics=tuple(
                build(DeleteShareGroupOffsetsRequestTopic, topic_name=topic)
                for topic in dict.fromkeys(topics)
            ),
        )
        response = await self._ask_coordinator(
            group_id, DELETE_SHARE_GROUP_OFFSETS, request, _check_answer
        )
        raise_failures(
            {
                topic.topic_name: (topic.error_code, topic.error_message)
                for topic in response.responses
            },
            what=f"group {group_id!r},",
        )

    async def _ask_coordinator(
        self, group_id: str, api: Api, request: object, check: Callable[[Any, str], None]
    ) -> Any:
        await self.start()
        coordinator = Coordinator(self._cluster, group_id)
        return await coordinator.retried(api, request, check, timeout_s=self._timeout_s)

    async def _describe_group(self, group_id: str) -> GroupDescription:
        try:
            return await super()._describe_group(group_id)
        except GroupIdNotFound as not_found:
            # It may be a share group; older nodes do not know that type.
            try:
                return await self._describe_sharers(group_id)
            except (GroupIdNotFound, UnsupportedVersion):
                raise not_found from None

    async def _describe_sharers(self, group_id: str) -> GroupDescription:
        coordinator = Coordinator(self._cluster, group_id)
        request = build(
            ShareGroupDescribeRequest, group_ids=(group_id,), include_authorized_operations=False
        )
        response = await coordinator.retried(
            SHARE_GROUP_DESCRIBE, request, check_described, timeout_s=self._timeout_s
        )
        group = response.groups[0]
        return GroupDescription(
            group.group_id,
            group.group_state,
            SHARE_PROTOCOL_TYPE,
            group.assignor_name,
            -1 if coordinator.node_id is None else coordinator.node_id,
            tuple(
                GroupMember(
                    m.member_id,
                    None,
                    m.client_id,
                    m.client_host,
                    assigned_partitions(m.assignment),
                    None,
                    int(m.member_epoch),
                    is_classic=False,
                )
                for m in sorted(group.members, key=lambda member: str(member.member_id))
            ),
            "share",
            int(group.group_epoch),
            int(group.assignment_epoch),
        )


def _check_described_offsets(response: Any, group_id: str) -> None:
    _check_answer(first_entry(response.groups, f"group {group_id!r}"), group_id)


def _check_answer(answer: Any, group_id: str) -> None:
    if answer.error_code is not ErrorCode.none:
        raise error_for(answer.error_code, answer.error_message, about=f"group {group_id!r}")


def _raise_partition_errors(topics: Any, group_id: str) -> None:
    # Not retried: an unknown topic could only be one that is being created right now.
    raise_failures(
        {
            TopicPartition(topic.topic_name, int(p.partition_index)): (
                p.error_code,
                p.error_message,
            )
            for topic in topics
            for p in topic.partitions
        },
        what=f"group {group_id!r},",
    )
