"""The ``simple`` assignor of share groups: every partition has a member, every member a partition.

Members share a partition only where there are more of them than partitions. First each
partition goes to one member, as ``uniform`` has it. Whoever then has nothing joins the
partition of its topics that has the fewest members, and stays there while that is so: where
all subscribe to the same, the partitions' members differ by one at most, and no more of them
move than have to.

Source: KIP-932, which says what is wanted of its ``simple`` assignor and leaves the rest to
the coordinator. ``SimpleAssignor`` of Kafka 4.1 hashes members to partitions, and whoever
came first keeps everything.
"""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Mapping
from uuid import UUID

from tidelog_core.metadata.consumer_groups import Partitions, TopicIdPartition

from tidelog_node.groups.assignment.subscriber import Subscriber
from tidelog_node.groups.assignment.uniform_assignor import assign_uniformly

SIMPLE_ASSIGNOR = "simple"


def assign_shared(
    members: Mapping[str, Subscriber], partition_counts: Mapping[UUID, int]
) -> dict[str, Partitions]:
    """Return the partitions of each member."""
    assigned = assign_uniformly(members, partition_counts)
    member_counts = Counter(p for partitions in assigned.values() for p in partitions)
    # By what a member subscribes to: the partitions that it may have, those with fewest first.
    by_count: dict[frozenset[UUID], list[tuple[int, int, TopicIdPartition]]] = {}
    for member_id in _idle(members, assigned, partition_counts):
        member = members[member_id]
        choices = by_count.get(member.topic_ids)
        if choices is None:
            choices = by_count[member.topic_ids] = _choices(member.topic_ids, partition_counts)
        if choices:
            best = _best(member, choices, member_counts, partition_counts)
            member_counts[best] += 1
            assigned[member_id] = frozenset({best})
    return assigned


def _choices(
    topic_ids: frozenset[UUID], partition_counts: Mapping[UUID, int]
) -> list[tuple[int, int, TopicIdPartition]]:
    """Return a heap of the topics' partitions, of each how many members are known to have it.

    The number in between has it that no partitions are compared, which takes long.
    """
    in_order = (
        TopicIdPartition(topic_id, number)
        for topic_id in sorted(topic_ids)
        for number in range(partition_counts.get(topic_id, 0))
    )
    return [(0, index, partition) for index, partition in enumerate(in_order)]


def _best(
    member: Subscriber,
    choices: list[tuple[int, int, TopicIdPartition]],
    member_counts: Mapping[TopicIdPartition, int],
    partition_counts: Mapping[UUID, int],
) -> TopicIdPartition:
    """Return the partition with fewest members; of equals one that the member has had."""
    while choices[0][0] < member_counts[choices[0][2]]:
        _, index, partition = choices[0]
        heapq.heapreplace(choices, (member_counts[partition], index, partition))
    fewest = choices[0][0]
    known = [
        p
        for p in member.target
        if p.topic_id in member.topic_ids
        and p.partition < partition_counts.get(p.topic_id, 0)
        and member_counts[p] == fewest
    ]
    return min(known, default=choices[0][2])


def _idle(
    members: Mapping[str, Subscriber],
    assigned: Mapping[str, Partitions],
    partition_counts: Mapping[UUID, int],
) -> list[str]:
    """Return who has nothing: of each partition's members the first, then the second, …

    So nobody who may stay has to move for those who come after it.
    """
    ranks: dict[TopicIdPartition, int] = defaultdict(int)
    in_order: list[tuple[bool, int, str]] = []
    for member_id in sorted(members):
        if assigned[member_id]:
            continue
        there = sorted(
            p
            for p in members[member_id].target
            if p.topic_id in members[member_id].topic_ids
            and p.partition < partition_counts.get(p.topic_id, 0)
        )
        rank = ranks[there[0]] if there else 0
        if there:
            ranks[there[0]] += 1
        in_order.append((not there, rank, member_id))
    return [member_id for _, _, member_id in sorted(in_order)]
