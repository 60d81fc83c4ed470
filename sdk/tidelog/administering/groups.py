"""Admin calls for groups and their committed offsets."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping
from typing import Any

from kio.schema.consumer_group_describe.v1.request import ConsumerGroupDescribeRequest
from kio.schema.delete_groups.v2.request import DeleteGroupsRequest
from kio.schema.describe_groups.v6.request import DescribeGroupsRequest
from kio.schema.errors import ErrorCode
from kio.schema.list_groups.v5.request import ListGroupsRequest
from kio.schema.offset_delete.v0.request import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from tidelog_core.model import TopicPartition
from tidelog_core.records.first_time import ONLY_MARKERS
from tidelog_core.wire_messages import build

from tidelog.administering.calls import failures_in, raise_failures
from tidelog.administering.results import (
    GroupDescription,
    GroupListing,
    GroupMember,
    OffsetSpec,
    PartitionLag,
)
from tidelog.administering.topics import TopicCalls
from tidelog.consuming.coordinator import Coordinator
from tidelog.consuming.group_protocol import PROTOCOL_TYPE, decode_assignment, topic_entries
from tidelog.consuming.locating import check_offsets
from tidelog.consuming.records import OffsetAndMetadata
from tidelog.errors import (
    GroupIdNotFound,
    NonEmptyGroup,
    TidelogError,
    UnsupportedVersion,
)
from tidelog.given_values import partitions_of, several
from tidelog.record_times import record_times
from tidelog.wire.answers import find_entries
from tidelog.wire.requests import (
    CONSUMER_GROUP_DESCRIBE,
    DELETE_GROUPS,
    DESCRIBE_GROUPS,
    LIST_GROUPS,
    LIST_GROUPS_BY_STATE,
    LIST_GROUPS_BY_TYPE,
    OFFSET_DELETE,
    Api,
)

CLASSIC_MEMBER = 0  # the member type in ConsumerGroupDescribe

_HAS_MEMBERS = frozenset(
    {
        ErrorCode.unknown_member_id,
        ErrorCode.illegal_generation,
        ErrorCode.rebalance_in_progress,
    }
)


class GroupCalls(TopicCalls):
    """Admin calls for groups; resets look offsets up through ``TopicCalls``."""

    async def list_groups(
        self, *, states: Iterable[str] = (), types: Iterable[str] = ()
    ) -> list[GroupListing]:
        """Return groups sorted by id; only those with the given states and types, if any.

        Raises ``UnsupportedVersion`` for a filter that a node does not have.
        """
        await self.start()
        request = build(
            ListGroupsRequest,
            states_filter=tuple(several(states, "states")),
            types_filter=tuple(several(types, "types")),
        )

        api = LIST_GROUPS
        if request.types_filter:
            api = LIST_GROUPS_BY_TYPE
        elif request.states_filter:
            api = LIST_GROUPS_BY_STATE  # An older version would leave the filter out.

        async def ask(node_id: int) -> Any:
            about = f"node {node_id}"
            return (await self._ask(api, request, about=about, node_id=node_id)).groups

        answers = await asyncio.gather(*(ask(node_id) for node_id in self._cluster.nodes))
        listed = {
            group.group_id: GroupListing(
                group.group_id, group.protocol_type, group.group_state, group.group_type
            )
            for part in answers
            for group in part
        }
        return [listed[group_id] for group_id in sorted(listed)]

    async def describe_groups(self, group_ids: Iterable[str]) -> dict[str, GroupDescription]:
        """Return groups with their members. Raises ``GroupIdNotFound``."""
        wanted = list(dict.fromkeys(several(group_ids, "ids of groups")))
        found = await asyncio.gather(*(self._describe_group(group_id) for group_id in wanted))
        return dict(zip(wanted, found, strict=True))

    async def delete_groups(self, group_ids: Iterable[str]) -> None:
        """Delete groups and their committed offsets.

        Raises ``NonEmptyGroup`` while a group has members, and ``GroupIdNotFound``.
        """
        wanted = list(dict.fromkeys(several(group_ids, "ids of groups")))
        outcomes = await asyncio.gather(
            *(self._delete_group(group_id) for group_id in wanted), return_exceptions=True
        )
        failures: dict[str, TidelogError] = {}
        for group_id, outcome in zip(wanted, outcomes, strict=True):
            if isinstance(outcome, TidelogError):
                failures[group_id] = outcome
            elif isinstance(outcome, BaseException):
                raise outcome
        raise_failures(failures)

    async def list_group_offsets(
        self, group_id: str, partitions: Iterable[tuple[str, int]] | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the group's committed offsets; of all its partitions by default."""
        await self.start()
        wanted = None if partitions is None else partitions_of(partitions)
        return await Coordinator(self._cluster, group_id).committed(
            wanted, timeout_s=self._timeout_s
        )

    async def group_lag(
        self, group_id: str, partitions: Iterable[tuple[str, int]] = ()
    ) -> dict[TopicPartition, PartitionLag]:
        """Return the group's lag in every committed partition and in ``partitions``.

        The cost is one fetch per node, with 4 KiB for each lagging partition, and one further
        batch for each partition whose next batch is larger. A deleted topic has no end offset.
        """
        committed = await self.list_group_offsets(group_id)
        offsets = {partition: at.offset for partition, at in committed.items()}
        return await self._lags(offsets, partitions)

    async def alter_group_offsets(
        self, group_id: str, offsets: Mapping[tuple[str, int], int | OffsetAndMetadata]
    ) -> None:
        """Commit these offsets for a group without members. Raises ``NonEmptyGroup``."""
        given = check_offsets(offsets)
        await self.start()
        try:
            await Coordinator(self._cluster, group_id).commit(given, timeout_s=self._timeout_s)
        except TidelogError as error:
            if error.code in _HAS_MEMBERS:
                raise NonEmptyGroup(
                    f"group {group_id!r} has members; stop them to change its offsets"
                ) from error
            raise

    async def reset_group_offsets(
        self,
        group_id: str,
        partitions: Iterable[tuple[str, int]],
        *,
        to: OffsetSpec,
        is_dry_run: bool = False,
    ) -> dict[TopicPartition, int]:
        """Commit the first, last or first offset after a time of each partition; return them.

        A time after the last record selects the end offset. A dry run commits nothing.
        """
        wanted = partitions_of(partitions)
        found = await self.list_offsets(dict.fromkeys(wanted, to))
        offsets = {partition: at.offset for partition, at in found.items() if at.offset >= 0}
        behind_end = [partition for partition in wanted if partition not in offsets]
        if behind_end:
            ends = await self.list_offsets(dict.fromkeys(behind_end, "latest"))
            offsets.update((partition, at.offset) for partition, at in ends.items())
        if not is_dry_run:
            await self.alter_group_offsets(
                group_id, {partition: OffsetAndMetadata(at) for partition, at in offsets.items()}
            )
        return offsets

    async def delete_group_offsets(
        self, group_id: str, partitions: Iterable[tuple[str, int]]
    ) -> None:
        """Delete the group's committed offsets of these partitions.

        Raises ``GroupSubscribedToTopic`` while members read the topic.
        """
        wanted = partitions_of(partitions)
        request = build(
            OffsetDeleteRequest,
            group_id=group_id,
            topics=topic_entries(
                OffsetDeleteRequestTopic,
                wanted,
                lambda p: build(OffsetDeleteRequestPartition, partition_index=p.partition),
            ),
        )
        coordinator = Coordinator(self._cluster, group_id)
        response = await self._ask_coordinator(coordinator, OFFSET_DELETE, request)
        entries = find_entries(OFFSET_DELETE, response, wanted)
        raise_failures(failures_in(entries, f"group {group_id!r},"))

    async def _lags(
        self, offsets: Mapping[TopicPartition, int], partitions: Iterable[tuple[str, int]]
    ) -> dict[TopicPartition, PartitionLag]:
        """Return the lag at these offsets, and for partitions without a committed offset."""
        wanted = {*offsets, *partitions_of(partitions)}
        counts = {
            topic.name: topic.partition_count
            for topic in await self.list_topics(include_internal=True)
        }
        there = [p for p in wanted if p.partition < counts.get(p.topic, 0)]
        ends = await self.list_offsets(dict.fromkeys(there, "latest"))
        behind = {p: offsets[p] for p in there if p in offsets and offsets[p] < ends[p].offset}
        times = await record_times(self._cluster, behind, timeout_s=self._timeout_s)
        now_ms = time.time_ns() // 1_000_000
        lags = {}
        for partition in sorted(wanted):
            offset = offsets.get(partition)
            end = ends[partition].offset if partition in ends else None
            made_ms = times.get(partition)
            lag = None if offset is None or end is None else max(0, end - offset)
            seconds = 0.0 if lag == 0 or made_ms == ONLY_MARKERS else None
            if made_ms is not None and made_ms != ONLY_MARKERS:
                seconds = max(0, now_ms - made_ms) / 1000
            lags[partition] = PartitionLag(offset, end, lag, seconds)
        return lags

    async def _describe_group(self, group_id: str) -> GroupDescription:
        await self.start()
        coordinator = Coordinator(self._cluster, group_id)
        try:
            return await self._describe_classic(coordinator)
        except GroupIdNotFound as not_found:
            # The group may have the other type; older nodes know only classic groups.
            try:
                return await self._describe_consumers(coordinator)
            except (GroupIdNotFound, UnsupportedVersion):
                raise not_found from None

    async def _describe_classic(self, coordinator: Coordinator) -> GroupDescription:
        request = build(
            DescribeGroupsRequest,
            groups=(coordinator.group_id,),
            include_authorized_operations=False,
        )
        group = await self._description(coordinator, DESCRIBE_GROUPS, request)
        is_consumer = group.protocol_type == PROTOCOL_TYPE
        return GroupDescription(
            group.group_id,
            group.group_state,
            group.protocol_type,
            group.protocol_data,
            -1 if coordinator.node_id is None else coordinator.node_id,
            tuple(
                GroupMember(
                    m.member_id,
                    m.group_instance_id,
                    m.client_id,
                    m.client_host,
                    tuple(decode_assignment(m.member_assignment)) if is_consumer else (),
                )
                for m in sorted(group.members, key=lambda member: str(member.member_id))
            ),
        )

    async def _describe_consumers(self, coordinator: Coordinator) -> GroupDescription:
        request = build(
            ConsumerGroupDescribeRequest,
            group_ids=(coordinator.group_id,),
            include_authorized_operations=False,
        )
        group = await self._description(coordinator, CONSUMER_GROUP_DESCRIBE, request)
        return GroupDescription(
            group.group_id,
            group.group_state,
            PROTOCOL_TYPE,
            group.assignor_name,
            -1 if coordinator.node_id is None else coordinator.node_id,
            tuple(
                GroupMember(
                    m.member_id,
                    m.instance_id,
                    m.client_id,
                    m.client_host,
                    assigned_partitions(m.assignment),
                    assigned_partitions(m.target_assignment),
                    int(m.member_epoch),
                    int(m.member_type) == CLASSIC_MEMBER,
                )
                for m in sorted(group.members, key=lambda member: str(member.member_id))
            ),
            "consumer",
            int(group.group_epoch),
            int(group.assignment_epoch),
        )

    async def _delete_group(self, group_id: str) -> None:
        await self.start()
        request = build(DeleteGroupsRequest, groups_names=(group_id,))
        coordinator = Coordinator(self._cluster, group_id)
        await self._ask_coordinator_for_entry(coordinator, DELETE_GROUPS, request)

    async def _description(self, coordinator: Coordinator, api: Api, request: object) -> Any:
        """Return the group of an answer that describes one. Raises ``GroupIdNotFound``."""
        group = await self._ask_coordinator_for_entry(coordinator, api, request)
        # Before version 6 only the state ``Dead`` shows that a group is unknown.
        if group.group_state == "Dead":
            raise GroupIdNotFound(f"group {coordinator.group_id!r} does not exist")
        return group


def assigned_partitions(assignment: Any) -> tuple[TopicPartition, ...]:
    """Return the partitions in a described member's assignment."""
    return tuple(
        TopicPartition(topic.topic_name, int(number))
        for topic in assignment.topic_partitions
        for number in topic.partitions
    )
