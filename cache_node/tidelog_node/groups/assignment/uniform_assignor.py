"""The ``uniform`` assignor: balanced, with as few moved partitions as possible.

A member keeps its target up to its fair share; the remaining partitions go to the members with the
fewest. If all members subscribe to the same topics, their numbers differ by one at most. Otherwise
no partition is assigned to a member that has at least two more than another possible owner.

Source: KIP-848 and ``UniformAssignor`` of Kafka's group coordinator for the goals. The method
differs: the members with the most partitions get the shares that are larger by one, so that a
member that joins or leaves moves no more than necessary.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterator, Mapping
from itertools import islice
from uuid import UUID

from tidelog_core.metadata.coordination.consumer_groups import Partitions, TopicIdPartition

from tidelog_node.groups.assignment.subscriber import Subscriber

# Each pass over the topics lowers the sum of squares; a handful is usual. The limit only
# prevents unusual subscriptions from holding up the node.
BALANCING_PASSES_MAX = 100


def assign_uniformly(
    members: Mapping[str, Subscriber], partition_counts: Mapping[UUID, int]
) -> dict[str, Partitions]:
    """Return the partitions of each member."""
    if not members:
        return {}
    if len({member.topic_ids for member in members.values()}) == 1:
        return _assign_to_equals(members, partition_counts)
    return _assign_to_different(members, partition_counts)


def _assign_to_equals(
    members: Mapping[str, Subscriber], partition_counts: Mapping[UUID, int]
) -> dict[str, Partitions]:
    (topic_ids,) = {member.topic_ids for member in members.values()}
    counts = {t: count for t, count in partition_counts.items() if t in topic_ids}
    taken: dict[int, set[int]] = {topic_id.int: set() for topic_id in counts}
    kept = _kept(members, counts, taken)
    share, larger_count = divmod(sum(counts.values()), len(members))
    # Those with the most get the larger shares; among equals, the first by id.
    in_order = sorted(members, key=lambda member_id: (-len(kept[member_id]), member_id))
    quotas = {m: share + (rank < larger_count) for rank, m in enumerate(in_order)}
    for member_id in in_order:
        if len(kept[member_id]) > quotas[member_id]:
            some = sorted(kept[member_id], key=_by_topic)
            kept[member_id] = some[: quotas[member_id]]
            for topic_id, number in some[quotas[member_id] :]:
                taken[topic_id.int].remove(number)
    free = (p for p in _all_partitions(counts) if p.partition not in taken[p.topic_id.int])
    assigned: dict[str, Partitions] = {}
    for member_id in in_order:
        some, target = kept[member_id], members[member_id].target
        missing = quotas[member_id] - len(some)
        # Most members keep exactly their target. Building sets of thousands of partitions is slow.
        is_unchanged = not missing and len(some) == len(target)
        assigned[member_id] = target if is_unchanged else frozenset([*some, *islice(free, missing)])
    return {member_id: assigned[member_id] for member_id in members}


def _assign_to_different(
    members: Mapping[str, Subscriber], partition_counts: Mapping[UUID, int]
) -> dict[str, Partitions]:
    subscribers: dict[UUID, list[str]] = defaultdict(list)
    for member_id in sorted(members):
        for topic_id in members[member_id].topic_ids:
            subscribers[topic_id].append(member_id)
    counts = {t: count for t, count in partition_counts.items() if t in subscribers}
    assigned: dict[str, dict[UUID, set[int]]] = {m: defaultdict(set) for m in members}
    loads = dict.fromkeys(members, 0)
    taken: dict[int, set[int]] = {topic_id.int: set() for topic_id in counts}
    for member_id, some in _kept(members, counts, taken).items():
        loads[member_id] = len(some)
        for topic_id, number in some:
            assigned[member_id][topic_id].add(number)
    # Topics with few subscribers first: those with many can fill the gaps.
    in_order = sorted(counts, key=lambda topic_id: (len(subscribers[topic_id]), topic_id))
    for topic_id in in_order:
        free = [n for n in range(counts[topic_id]) if n not in taken[topic_id.int]]
        if free:
            _give_out(topic_id, free, subscribers[topic_id], assigned, loads)
    for _ in range(BALANCING_PASSES_MAX):
        if not sum(_level(t, subscribers[t], assigned, loads) for t in in_order):
            break
    return {
        member_id: frozenset(
            TopicIdPartition(topic_id, number)
            for topic_id, numbers in topics.items()
            for number in numbers
        )
        for member_id, topics in assigned.items()
    }


def _give_out(
    topic_id: UUID,
    free: list[int],
    subscribers: list[str],
    assigned: Mapping[str, Mapping[UUID, set[int]]],
    loads: dict[str, int],
) -> None:
    """Give each of the topic's partitions to the subscriber with the fewest."""
    by_load = [(loads[m], m) for m in subscribers]
    heapq.heapify(by_load)
    for number in free:
        load, least = by_load[0]
        assigned[least][topic_id].add(number)
        loads[least] = load + 1
        heapq.heapreplace(by_load, (load + 1, least))


def _level(
    topic_id: UUID,
    subscribers: list[str],
    assigned: Mapping[str, Mapping[UUID, set[int]]],
    loads: dict[str, int],
) -> int:
    """Move partitions of the topic from the most to the least loaded; return how many moved."""
    owners = [(-loads[m], m) for m in subscribers if assigned[m].get(topic_id)]
    if not owners:
        return 0
    others = [(loads[m], m) for m in subscribers]
    heapq.heapify(owners)
    heapq.heapify(others)
    moved_count = 0
    while True:
        # An entry with an outdated load has a newer one in the heap.
        while owners and (
            -owners[0][0] != loads[owners[0][1]] or not assigned[owners[0][1]].get(topic_id)
        ):
            heapq.heappop(owners)
        while others[0][0] != loads[others[0][1]]:
            heapq.heappop(others)
        if not owners or loads[owners[0][1]] - loads[others[0][1]] < 2:
            return moved_count
        most, least = heapq.heappop(owners)[1], heapq.heappop(others)[1]
        number = max(assigned[most][topic_id])
        assigned[most][topic_id].remove(number)
        assigned[least][topic_id].add(number)
        loads[most] -= 1
        loads[least] += 1
        moved_count += 1
        for member_id in (most, least):
            heapq.heappush(others, (loads[member_id], member_id))
            if assigned[member_id][topic_id]:
                heapq.heappush(owners, (-loads[member_id], member_id))


def _kept(
    members: Mapping[str, Subscriber], counts: Mapping[UUID, int], taken: dict[int, set[int]]
) -> dict[str, list[TopicIdPartition]]:
    """Return the partitions that each member may keep: existing, subscribed to, not taken.

    ``taken`` gets their numbers by topic. Topics are looked up by ``UUID.int``: hashing a UUID is
    a call of Python.
    """
    limits = {topic_id.int: count for topic_id, count in counts.items()}
    subscribed: dict[frozenset[UUID], frozenset[int]] = {}
    kept: dict[str, list[TopicIdPartition]] = {}
    for member_id in sorted(members):
        some = kept[member_id] = []
        member = members[member_id]
        if not member.target:
            continue
        topics = subscribed.get(member.topic_ids)
        if topics is None:
            topics = subscribed[member.topic_ids] = frozenset(t.int for t in member.topic_ids)
        for partition in member.target:
            topic, number = partition[0].int, partition[1]
            if topic in topics and number < limits.get(topic, 0) and number not in taken[topic]:
                taken[topic].add(number)
                some.append(partition)
    return kept


def _by_topic(partition: TopicIdPartition) -> tuple[int, int]:
    """Return a key that sorts as the partition does, and faster."""
    return partition.topic_id.int, partition.partition


def _all_partitions(counts: Mapping[UUID, int]) -> Iterator[TopicIdPartition]:
    for topic_id in sorted(counts):
        for number in range(counts[topic_id]):
            yield TopicIdPartition(topic_id, number)
