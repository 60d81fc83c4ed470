"""Admin calls for share groups (KIP-932) and their start offsets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

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
from kio.schema.share_group_describe.v1.request import ShareGroupDescribeRequest
from tidelog_core.model import TopicPartition
from tidelog_core.wire_messages import build

from tidelog.administering.calls import failures_in, raise_failures
from tidelog.administering.groups import GroupCalls, assigned_partitions
from tidelog.administering.results import GroupDescription, GroupMember, PartitionLag
from tidelog.consuming.coordinator import Coordinator
from tidelog.consuming.group_protocol import topic_entries
from tidelog.consuming.locating import check_offset
from tidelog.errors import GroupIdNotFound, UnsupportedVersion
from tidelog.given_values import mapping, partition_of, partitions_of, several
from tidelog.wire.answers import find_entries, find_within
from tidelog.wire.requests import (
    ALTER_SHARE_GROUP_OFFSETS,
    DELETE_SHARE_GROUP_OFFSETS,
    DESCRIBE_SHARE_GROUP_OFFSETS,
    SHARE_GROUP_DESCRIBE,
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
        wanted, topics = None, None
        if partitions is not None:
            wanted = partitions_of(partitions)
            topics = topic_entries(
                DescribeShareGroupOffsetsRequestTopic,
                wanted,
                lambda p: p.partition,
                name="topic_name",
            )
        group = build(DescribeShareGroupOffsetsRequestGroup, group_id=group_id, topics=topics)
        request = build(DescribeShareGroupOffsetsRequest, groups=(group,))
        api, coordinator = DESCRIBE_SHARE_GROUP_OFFSETS, Coordinator(self._cluster, group_id)
        described = await self._ask_coordinator_for_entry(coordinator, api, request)
        if wanted is None:
            wanted = [
                TopicPartition(topic.topic_name, int(answer.partition_index))
                for topic in described.topics
                for answer in topic.partitions
            ]
        entries = find_within(api, described, wanted)
        raise_failures(failures_in(entries, f"group {group_id!r},"))
        return {
            partition: None if entry.start_offset < 0 else int(entry.start_offset)
            for partition, entry in entries.items()
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
        given = mapping(offsets, "offsets", "a partition: an offset")
        wanted = {partition_of(one): check_offset(offset) for one, offset in given.items()}
        request = build(
            AlterShareGroupOffsetsRequest,
            group_id=group_id,
            topics=topic_entries(
                AlterShareGroupOffsetsRequestTopic,
                wanted,
                lambda p: build(
                    AlterShareGroupOffsetsRequestPartition,
                    partition_index=p.partition,
                    start_offset=wanted[p],
                ),
                name="topic_name",
            ),
        )
        coordinator = Coordinator(self._cluster, group_id)
        response = await self._ask_coordinator(coordinator, ALTER_SHARE_GROUP_OFFSETS, request)
        # Not retried: an unknown topic could only be one that is being created right now.
        entries = find_entries(ALTER_SHARE_GROUP_OFFSETS, response, wanted)
        raise_failures(failures_in(entries, f"group {group_id!r},"))

    async def delete_share_group_offsets(self, group_id: str, topics: Iterable[str]) -> None:
        """Delete the start offsets of these topics from a group without members.

        It starts again by its ``share.auto.offset.reset``. Raises ``NonEmptyGroup``,
        ``GroupIdNotFound``, and ``UnknownTopicOrPartition`` for a topic it has not read.
        """
        wanted = list(dict.fromkeys(several(topics, "topics")))
        request = build(
            DeleteShareGroupOffsetsRequest,
            group_id=group_id,
            topics=tuple(
                build(DeleteShareGroupOffsetsRequestTopic, topic_name=topic) for topic in wanted
            ),
        )
        coordinator = Coordinator(self._cluster, group_id)
        response = await self._ask_coordinator(coordinator, DELETE_SHARE_GROUP_OFFSETS, request)
        entries = find_entries(DELETE_SHARE_GROUP_OFFSETS, response, wanted)
        raise_failures(failures_in(entries, f"group {group_id!r},"))

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
        group = await self._description(coordinator, SHARE_GROUP_DESCRIBE, request)
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
