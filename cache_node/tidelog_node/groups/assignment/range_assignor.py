"""The ``range`` assignor: neighbouring partitions, the same numbers of every topic.

The members that subscribe to a topic get ranges of it in the order of their ids, static members
first. If the division leaves a remainder, the first members get one more. So members with the same
subscription get the same range of all topics with equally many partitions, and can join these
topics by key. Source: ``RangeAssignor`` of Kafka's group coordinator.
"""

from __future__ import annotations

from collections.abc import Mapping
from uuid import UUID

from tidelog_core.metadata.coordination.consumer_groups import Partitions, TopicIdPartition

from tidelog_node.groups.assignment.subscriber import Subscriber


def assign_ranges(
    members: Mapping[str, Subscriber], partition_counts: Mapping[UUID, int]
) -> dict[str, Partitions]:
    """Return the partitions of each member."""
    assigned: dict[str, list[TopicIdPartition]] = {member_id: [] for member_id in members}
    in_order = sorted(members, key=lambda member_id: _order(member_id, members[member_id]))
    for topic_id, partition_count in partition_counts.items():
        subscribers = [m for m in in_order if topic_id in members[m].topic_ids]
        if not subscribers:
            continue
        smallest, larger_count = divmod(partition_count, len(subscribers))
        start = 0
        for index, member_id in enumerate(subscribers):
            end = start + smallest + (index < larger_count)
            assigned[member_id] += (TopicIdPartition(topic_id, p) for p in range(start, end))
            start = end
    return {member_id: frozenset(some) for member_id, some in assigned.items()}


def _order(member_id: str, member: Subscriber) -> tuple[bool, str]:
    if member.instance_id is None:
        return True, member_id
    return False, member.instance_id
