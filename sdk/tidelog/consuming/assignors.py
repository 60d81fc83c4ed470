"""The assignors of the classic protocol, run by the group's leader. No I/O.

``range`` gives each member a range of every topic's partitions, ``roundrobin`` deals all
partitions out in turn, and the sticky assignors balance with as few moves as possible.
With ``cooperative-sticky`` members also keep reading the partitions they keep: a
partition that moves has no owner in the first round, and is assigned to its new owner in
the next, after the old owner has revoked it.
Source: Kafka's consumer assignors, KIP-54, KIP-341, KIP-429.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tidelog_core.model import TopicPartition

from tidelog.consuming.group_protocol import NO_GENERATION, MemberSubscription, group_by_topic

Assignment = dict[str, list[TopicPartition]]
_INT32 = struct.Struct(">i")
_INT16 = struct.Struct(">h")


@dataclass(frozen=True, slots=True)
class Assignor:
    """An assignor and the name that members agree on."""

    name: str
    is_cooperative: bool
    assign: Callable[[Sequence[MemberSubscription], Mapping[str, int]], Assignment]
    # A member's user data for its subscription, from its last assignment and generation.
    user_data: Callable[[Sequence[TopicPartition], int], bytes | None]


def assign_range(
    members: Sequence[MemberSubscription], partition_counts: Mapping[str, int]
) -> Assignment:
    """Assign each member a range of every topic; the first members get the remainder."""
    assignment: Assignment = {member.member_id: [] for member in members}
    ordered = sorted(members, key=lambda member: member.sort_key)
    for topic in sorted(partition_counts):
        takers = [member.member_id for member in ordered if topic in member.topics]
        if not takers:
            continue
        each, extra = divmod(partition_counts[topic], len(takers))
        start = 0
        for index, member_id in enumerate(takers):
            end = start + each + (index < extra)
            assignment[member_id] += [TopicPartition(topic, n) for n in range(start, end)]
            start = end
    return assignment


def assign_round_robin(
    members: Sequence[MemberSubscription], partition_counts: Mapping[str, int]
) -> Assignment:
    """Deal the partitions of all topics out in turn to the members subscribed to them."""
    assignment: Assignment = {member.member_id: [] for member in members}
    circle = deque(sorted(members, key=lambda member: member.sort_key))
    for partition in _all_partitions(members, partition_counts):
        while partition.topic not in circle[0].topics:
            circle.rotate(-1)
        assignment[circle[0].member_id].append(partition)
        circle.rotate(-1)
    return assignment


def assign_sticky(
    members: Sequence[MemberSubscription], partition_counts: Mapping[str, int]
) -> Assignment:
    """Balance with few moves; each member's user data holds its previous assignment."""
    return _balance(members, partition_counts, [_previous_of_sticky(m) for m in members])


def assign_cooperative_sticky(
    members: Sequence[MemberSubscription], partition_counts: Mapping[str, int]
) -> Assignment:
    """Balance with few moves; partitions that change owner stay unassigned this round."""
    previous = [(list(m.owned), _generation_of_cooperative(m)) for m in members]
    assignment = _balance(members, partition_counts, previous)
    owners = {partition: m.member_id for m in members for partition in m.owned}
    return {
        member_id: [p for p in partitions if owners.get(p, member_id) == member_id]
        for member_id, partitions in assignment.items()
    }


def _all_partitions(
    members: Sequence[MemberSubscription], partition_counts: Mapping[str, int]
) -> list[TopicPartition]:
    wanted = {topic for member in members for topic in member.topics}
    return [
        TopicPartition(topic, number)
        for topic in sorted(wanted & partition_counts.keys())
        for number in range(partition_counts[topic])
    ]


def _balance(
    members: Sequence[MemberSubscription],
    partition_counts: Mapping[str, int],
    previous: Sequence[tuple[list[TopicPartition], int]],
) -> Assignment:
    """Return the most even assignment that takes few moves from the previous one.

    ``previous`` holds each member's partitions and generation. If two members claim a
    partition, the later generation wins; in the same generation neither does.
    """
    partitions = _all_partitions(members, partition_counts)
    topics_of = {member.member_id: set(member.topics) for member in members}
    assignment = _keep(members, set(partitions), previous)
    kept = {partition for part in assignment.values() for partition in part}
    missing = deque(partition for partition in partitions if partition not in kept)
    if len({frozenset(topics) for topics in topics_of.values()}) == 1:
        missing.extendleft(reversed(_trim(assignment, len(partitions))))
    takers_of = {
        topic: [member_id for member_id in sorted(topics_of) if topic in topics_of[member_id]]
        for topic in partition_counts
    }
    # Partitions that few members can take go first: the others can still be balanced.
    for partition in sorted(missing, key=lambda p: len(takers_of[p.topic])):
        taker = min(takers_of[partition.topic], key=lambda m: len(assignment[m]))
        assignment[taker].append(partition)
    _even_out(assignment, takers_of)
    return {member_id: sorted(part) for member_id, part in assignment.items()}


def _keep(
    members: Sequence[MemberSubscription],
    existing: set[TopicPartition],
    previous: Sequence[tuple[list[TopicPartition], int]],
) -> Assignment:
    claims: dict[TopicPartition, tuple[int, str | None]] = {}
    for member, (partitions, generation) in zip(members, previous, strict=True):
        for partition in partitions:
            if partition not in existing or partition.topic not in member.topics:
                continue
            best, _ = claims.get(partition, (generation - 1, None))
            if generation > best:
                claims[partition] = (generation, member.member_id)
            elif generation == best:
                claims[partition] = (generation, None)
    assignment: Assignment = {member.member_id: [] for member in members}
    for partition, (_, owner) in claims.items():
        if owner is not None:
            assignment[owner].append(partition)
    return assignment


def _trim(assignment: Assignment, partition_count: int) -> list[TopicPartition]:
    """Remove the partitions beyond each member's even share; return them."""
    each, extra = divmod(partition_count, len(assignment))
    taken: list[TopicPartition] = []
    for member_id in sorted(assignment, key=lambda m: (-len(assignment[m]), m)):
        part = sorted(assignment[member_id])
        share = each
        if extra > 0 and len(part) > each:
            share, extra = each + 1, extra - 1
        assignment[member_id] = part[:share]
        taken += part[share:]
    return taken


def _even_out(assignment: Assignment, takers_of: Mapping[str, list[str]]) -> None:
    """Move partitions to members that have at least two fewer, while such members exist.

    Every move lowers the sum of squares of the members' counts, so this ends.
    """
    has_moved = True
    while has_moved:
        has_moved = False
        for owner in sorted(assignment, key=lambda m: -len(assignment[m])):
            for partition in sorted(assignment[owner]):
                taker = min(takers_of[partition.topic], key=lambda m: len(assignment[m]))
                if len(assignment[owner]) - len(assignment[taker]) >= 2:
                    assignment[owner].remove(partition)
                    assignment[taker].append(partition)
                    has_moved = True


def _sticky_user_data(partitions: Sequence[TopicPartition], generation: int) -> bytes | None:
    if not partitions:
        return None
    grouped = group_by_topic(partitions)
    parts = [_INT32.pack(len(grouped))]
    for topic, numbers in grouped.items():
        name = topic.encode()
        parts += [_INT16.pack(len(name)), name, _INT32.pack(len(numbers))]
        parts += [_INT32.pack(number) for number in numbers]
    parts.append(_INT32.pack(generation))
    return b"".join(parts)


def _previous_of_sticky(member: MemberSubscription) -> tuple[list[TopicPartition], int]:
    """Return the content of ``_sticky_user_data``; empty if another assignor wrote it."""
    data = member.user_data
    partitions: list[TopicPartition] = []
    if not data:
        return partitions, NO_GENERATION
    try:
        (topic_count,) = _INT32.unpack_from(data)
        position = _INT32.size
        for _ in range(topic_count):
            (size,) = _INT16.unpack_from(data, position)
            position += _INT16.size
            topic = data[position : position + size].decode()
            position += size
            (count,) = _INT32.unpack_from(data, position)
            numbers = struct.unpack_from(f">{count}i", data, position + _INT32.size)
            position += _INT32.size * (1 + count)
            partitions += [TopicPartition(topic, number) for number in numbers]
        generation = NO_GENERATION
        if position < len(data):  # The first version of the format has none.
            (generation,) = _INT32.unpack_from(data, position)
    except (struct.error, UnicodeDecodeError, OverflowError, MemoryError):
        return [], NO_GENERATION
    return partitions, generation


def _cooperative_user_data(partitions: Sequence[TopicPartition], generation: int) -> bytes | None:
    del partitions  # The subscription has a field for them.
    return _INT32.pack(generation)


def _generation_of_cooperative(member: MemberSubscription) -> int:
    if member.generation != NO_GENERATION:
        return member.generation
    # Subscriptions before version 2 carry it as user data.
    data = member.user_data
    return _INT32.unpack(data)[0] if data and len(data) == _INT32.size else NO_GENERATION


def _no_user_data(partitions: Sequence[TopicPartition], generation: int) -> bytes | None:
    del partitions, generation
    return None


ASSIGNORS_BY_NAME: Mapping[str, Assignor] = {
    assignor.name: assignor
    for assignor in (
        Assignor("range", False, assign_range, _no_user_data),
        Assignor("roundrobin", False, assign_round_robin, _no_user_data),
        Assignor("sticky", False, assign_sticky, _sticky_user_data),
        Assignor("cooperative-sticky", True, assign_cooperative_sticky, _cooperative_user_data),
    )
}
