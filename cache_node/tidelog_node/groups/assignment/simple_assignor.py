"""The ``simple`` assignor of share groups: every partition has a member, every member a partition.

Members share a partition only if there are more members than partitions. First each partition goes
to one member, as in ``uniform``. Then a member without partitions gets, of its topics, the
partition with the fewest members, and keeps it while that is true. If all members subscribe to the
same topics, the numbers of members per partition differ by one at most, and no more members move
than necessary.

Source: KIP-932, which sets the goals of its ``simple`` assignor and leaves the method to the
coordinator. ``SimpleAssignor`` of Kafka 4.1 hashes members to partitions, and the earliest members
keep everything.
"""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Mapping
from uuid import UUID

from tidelog_core.metadata.coordination.consumer_groups import Partitions, TopicIdPartition

from tidelog_node.groups.assignment.subscriber import Subscriber
from tidelog_node.groups.assignment.uniform_assignor import assign_uniformly

SIMPLE_ASSIGNOR = "simple"


def assign_shared(
    members: Mapping[str, Subscriber], partition_counts: Mapping[UUID, int]
) -> dict[str, Partitions]:
    """Return the partitions of each member."""
    assigned = assign_uniformly(members, partition_counts)
    member_counts = Counter(p for partitions in assigned.values() for p in partitions)
    # The partitions to choose from, fewest members first, by the topics that a member subscribes
    # to.
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
    """Return a heap of the topics' partitions, each with a lower bound of its member count.

    The index in each entry prevents comparisons of partitions, which are slow.
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
    """Return the partition with fewest members; among equals one of the member's target."""
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
    """Return the members without partitions: the first of each old partition, then the second, …

    So no member that may keep its partition has to move for a later one.
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
