"""The ``uniform`` assignor: as even as it gets, and as little as possible changes hands.

A member keeps what it was to have, up to its fair share; the rest goes to whoever has
least. Where all members subscribe to the same topics, their numbers differ by one at
most. Where they do not, no partition lies with a member that has two or more above
another one that could have it.

Source: KIP-848 and ``UniformAssignor`` of Kafka's group coordinator, which says what is
wanted. How it is found differs: members that have most already get the shares that are
one larger, so that a member that comes or goes moves no more than it must.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from uuid import UUID

from tidelog_core.metadata.consumer_groups import Partitions, TopicIdPartition

from tidelog_node.coordinator.subscriber import Subscriber

# Each pass over the topics lowers the sum of squares; a handful is usual. The limit only
# keeps an odd mesh of subscriptions from holding up the node.
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
    kept = _kept(members, counts)
    share, larger_count = divmod(sum(counts.values()), len(members))
    # Whoever has most already may have one more; of equals, the first by id.
    in_order = sorted(members, key=lambda member_id: (-len(kept[member_id]), member_id))
    quotas = {m: share + (rank < larger_count) for rank, m in enumerate(in_order)}
    assigned = {m: sorted(kept[m])[: quotas[m]] for m in in_order}
    taken = {partition for some in assigned.values() for partition in some}
    free = (p for p in _all_partitions(counts) if p not in taken)
    for member_id in in_order:
        missing = quotas[member_id] - len(assigned[member_id])
        assigned[member_id] += [next(free) for _ in range(missing)]
    return {member_id: frozenset(assigned[member_id]) for member_id in members}


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
    for member_id, some in _kept(members, counts).items():
        loads[member_id] = len(some)
        for topic_id, number in some:
            assigned[member_id][topic_id].add(number)
    taken = {
        TopicIdPartition(topic_id, number)
        for topics in assigned.values()
        for topic_id, numbers in topics.items()
        for number in numbers
    }
    # Topics that few may have first: those that many may have can fill the gaps.
    in_order = sorted(counts, key=lambda topic_id: (len(subscribers[topic_id]), topic_id))
    for topic_id in in_order:
        for number in range(counts[topic_id]):
            if TopicIdPartition(topic_id, number) not in taken:
                least = min(subscribers[topic_id], key=lambda m: (loads[m], m))
                assigned[least][topic_id].add(number)
                loads[least] += 1
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


def _level(
    topic_id: UUID,
    subscribers: list[str],
    assigned: Mapping[str, Mapping[UUID, set[int]]],
    loads: dict[str, int],
) -> int:
    """Move the topic's partitions from who has most to who has least; return how many moved."""
    moved_count = 0
    while True:
        owners = [m for m in subscribers if assigned[m].get(topic_id)]
        if not owners:
            return moved_count
        most = max(owners, key=lambda m: (loads[m], m))
        least = min(subscribers, key=lambda m: (loads[m], m))
        if loads[most] - loads[least] < 2:
            return moved_count
        number = max(assigned[most][topic_id])
        assigned[most][topic_id].remove(number)
        assigned[least][topic_id].add(number)
        loads[most] -= 1
        loads[least] += 1
        moved_count += 1


def _kept(
    members: Mapping[str, Subscriber], counts: Mapping[UUID, int]
) -> dict[str, list[TopicIdPartition]]:
    """Return what each member may keep: it is there, subscribed to, and was nobody else's."""
    kept: dict[str, list[TopicIdPartition]] = {}
    taken: set[TopicIdPartition] = set()
    for member_id in sorted(members):
        member = members[member_id]
        kept[member_id] = [
            p
            for p in member.target
            if p.topic_id in member.topic_ids
            and p.partition < counts.get(p.topic_id, 0)
            and p not in taken
        ]
        taken.update(kept[member_id])
    return kept


def _all_partitions(counts: Mapping[UUID, int]) -> Iterator[TopicIdPartition]:
    for topic_id in sorted(counts):
        for number in range(counts[topic_id]):
            yield TopicIdPartition(topic_id, number)
