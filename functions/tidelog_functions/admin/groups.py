"""Operations on groups and their committed offsets."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from functools import partial
from itertools import islice
from typing import Any
from uuid import UUID

from tidelog_core.admin.groups.share_offsets import RecordOrCorruptItem
from tidelog_core.errors import CorruptItem, InvalidRequest
from tidelog_core.metadata.coordination.consumer_groups import ConsumerMember
from tidelog_core.metadata.coordination.groups import CommittedOffset, GroupMember, GroupRecord
from tidelog_core.metadata.coordination.share_groups import ShareMember
from tidelog_core.model import TopicPartition
from tidelog_core.security.acl import ResourceType

from tidelog_functions.admin.cluster import AdminCluster
from tidelog_functions.admin.contract import Call
from tidelog_functions.admin.http import HttpAnswer
from tidelog_functions.admin.offset_targets import FoundOffset, Target, find_offset, parse_target
from tidelog_functions.admin.rights import require_visible

PARTITIONS_PER_RESET_MAX = 1_000  # each may need a listing and some reads of objects
PARTITIONS_AT_ONCE_MAX = 16
CONSUMERS = "consumer"  # the protocol type of groups whose members consume


async def list_groups(cluster: AdminCluster, call: Call) -> HttpAnswer:
    """Return a page of groups by id."""
    after, limit = call.parameters.get("after", ""), call.parameters["limit"]
    state = call.parameters.get("state")
    sees_all = call.caller.sees_all()
    found = (
        group
        for group in await cluster.groups.list_groups()
        if group.group_id > after
        and state in (None, group.phase)
        and (sees_all or call.caller.sees(ResourceType.GROUP, group.group_id))
    )
    page = list(islice(found, limit + 1))
    return HttpAnswer(
        {
            "groups": [
                {
                    "group_id": group.group_id,
                    "state": group.phase,
                    "protocol_type": group.protocol_type,
                    "member_count": group.member_count,
                    "generation": group.generation,
                }
                for group in page[:limit]
            ],
            "next_after": page[limit - 1].group_id if len(page) > limit else None,
        }
    )


async def describe_group(cluster: AdminCluster, call: Call) -> HttpAnswer:
    """Return a group at its last durable generation, with its offsets.

    Offsets of topics that the caller may not describe are left out. A member of a newer group with
    such a topic hides the group, as in nodes.
    """
    group = await cluster.groups.describe(call.parameters["group_id"])
    offsets: Mapping[TopicPartition, CommittedOffset] = {}
    starts: Mapping[TopicPartition, RecordOrCorruptItem] = {}
    if group.share is None:
        offsets = await cluster.groups.offsets(group.group_id)
    else:
        starts = await cluster.groups.start_offsets(group.group_id)
    is_seen = partial(call.caller.sees, ResourceType.TOPIC)
    members = _members(group, cluster.view.image.topic_names)
    if group.share is not None or group.consumer is not None:
        require_visible(
            call.caller, [one["topic"] for member in members for one in member["assignment"]]
        )
    return HttpAnswer(
        {
            "group_id": group.group_id,
            "state": group.phase,
            "state_since_ms": group.phase_since_ms,
            "generation": group.generation,
            "protocol_type": group.protocol_type,
            "protocol_name": group.protocol_name,
            "members": members,
            "offsets": [
                _offset_row(name, committed)
                for name, committed in sorted(offsets.items())
                if is_seen(name.topic)
            ],
            "start_offsets": [
                _start_offset_row(name, share_partition)
                for name, share_partition in sorted(starts.items())
                if is_seen(name.topic)
            ],
        }
    )


def _members(group: GroupRecord, topic_names: Mapping[UUID, str]) -> list[dict[str, Any]]:
    """Return the members of a group of any kind."""
    if group.share is not None:
        return [_assigned_member(one, None, topic_names) for one in group.share.members]
    if group.consumer is not None:
        members = group.consumer.members
        return [_assigned_member(one, one.instance_id, topic_names) for one in members]
    is_consumer = group.protocol_type == CONSUMERS
    return [_member(one, is_consumer=is_consumer) for one in group.members]


def _offset_row(name: TopicPartition, committed: CommittedOffset) -> dict[str, Any]:
    return {
        "topic": name.topic,
        "partition": name.partition,
        "offset": committed.offset,
        "leader_epoch": committed.leader_epoch,
        "metadata": committed.metadata,
        "committed_ms": committed.committed_ms,
    }


def _start_offset_row(name: TopicPartition, share_partition: RecordOrCorruptItem) -> dict[str, Any]:
    """Return a share group's start offset; ``None`` stands for one that cannot be read."""
    start_offset = (
        None if isinstance(share_partition, CorruptItem) else share_partition.start_offset
    )
    return {"topic": name.topic, "partition": name.partition, "start_offset": start_offset}


async def delete_group(cluster: AdminCluster, call: Call) -> HttpAnswer:
    """Delete an empty group."""
    await cluster.groups.delete_group(call.parameters["group_id"])
    return HttpAnswer({"group_id": call.parameters["group_id"]})


async def reset_offsets(cluster: AdminCluster, call: Call) -> HttpAnswer:
    """Set the committed offsets of an empty group, or the start offsets of a share group."""
    group_id, body = call.parameters["group_id"], call.body
    target = parse_target(body)
    names = await _selected(cluster, body["topics"])
    await cluster.groups.require_empty(group_id)
    found = await _find_offsets(cluster, names, target)
    is_applied = not body.get("validate_only", False)
    if is_applied:
        await cluster.groups.reset_offsets(
            group_id, {name: one.offset for name, one in found.items()}
        )
    return HttpAnswer(
        {
            "group_id": group_id,
            "offsets": [
                {
                    "topic": name.topic,
                    "partition": name.partition,
                    "offset": one.offset,
                    "is_verified": one.is_verified,
                }
                for name, one in found.items()
            ],
            "is_applied": is_applied,
        }
    )


async def _selected(cluster: AdminCluster, topics: list[dict[str, Any]]) -> list[TopicPartition]:
    names: list[TopicPartition] = []
    for asked in topics:
        topic = await cluster.topic(asked["topic"])
        partitions = asked.get("partitions", range(topic.partition_count))
        names += [TopicPartition(topic.name, partition) for partition in partitions]
    if len(names) > PARTITIONS_PER_RESET_MAX:
        raise InvalidRequest(
            f"{len(names)} partitions are selected; at most {PARTITIONS_PER_RESET_MAX} can be."
        )
    twice, count = Counter(names).most_common(1)[0]
    if count > 1:
        raise InvalidRequest(f"Partition {twice} is selected more than once.")
    return names


async def _find_offsets(
    cluster: AdminCluster, names: list[TopicPartition], target: Target
) -> dict[TopicPartition, FoundOffset]:
    limit = asyncio.Semaphore(PARTITIONS_AT_ONCE_MAX)

    async def find(name: TopicPartition) -> FoundOffset:
        async with limit:
            return await find_offset(cluster, name, cluster.known_partition(name), target)

    return dict(zip(names, await asyncio.gather(*map(find, names)), strict=True))


def _assigned_member(
    member: ConsumerMember | ShareMember,
    instance_id: str | None,
    topic_names: Mapping[UUID, str],
) -> dict[str, Any]:
    topics: dict[str, list[int]] = {}
    for topic_id, partition in sorted(member.assigned):
        if topic_id in topic_names:
            topics.setdefault(topic_names[topic_id], []).append(partition)
    return {
        "member_id": member.member_id,
        "group_instance_id": instance_id,
        "client_id": member.client_id,
        "client_host": member.client_host,
        "assignment": [
            {"topic": topic, "partitions": partitions}
            for topic, partitions in sorted(topics.items())
        ],
    }


def _member(member: GroupMember, *, is_consumer: bool) -> dict[str, Any]:
    # Imported late: it loads the wire codecs, which no other request needs.
    from tidelog.consuming.group_protocol import decode_assignment, group_by_topic
    from tidelog.errors import MalformedResponse

    assignment = None
    if is_consumer:
        try:
            assigned = decode_assignment(member.assignment)
        except MalformedResponse:
            assigned = None  # The leader's own format of an assignment.
        if assigned is not None:
            assignment = [
                {"topic": topic, "partitions": partitions}
                for topic, partitions in group_by_topic(assigned).items()
            ]
    return {
        "member_id": member.member_id,
        "group_instance_id": member.group_instance_id,
        "client_id": member.client_id,
        "client_host": member.client_host,
        "assignment": assignment,
    }
