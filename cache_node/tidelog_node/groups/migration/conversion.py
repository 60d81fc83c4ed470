"""Converts a group from the classic protocol to KIP-848's and back, with its members.

Upgrade, when the first member of the new protocol joins: classic members keep their assignments,
and their generation becomes their epoch. Downgrade, when the last one has left: the epoch becomes
the generation, and a rebalance has the classic members join again.
Source: ``ConsumerGroup.fromClassicGroup``, ``ClassicGroup.fromConsumerGroup`` of Kafka.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from uuid import UUID

from tidelog_core.metadata.coordination.consumer_groups import (
    ClassicProtocols,
    ConsumerMember,
    Partitions,
    TopicIdPartition,
)
from tidelog_core.metadata.records import Topic
from tidelog_core.model import TopicPartition

from tidelog_node.groups.classic.classic_group import ClassicGroup
from tidelog_node.groups.classic.member import Member
from tidelog_node.groups.consumer.consumer_group import ConsumerGroup
from tidelog_node.groups.migration.consumer_protocol import (
    decode_assignment,
    decode_subscription,
    encode_assignment,
)


def upgraded(group: ClassicGroup, topics: Mapping[str, Topic]) -> list[ConsumerMember]:
    """Return the classic members as members of a consumer group.

    Raises ``MalformedProtocol`` if a subscription or an assignment cannot be read.
    """
    subscriptions = {
        member.member_id: decode_subscription(
            member.metadata(group.protocol_name) or member.protocols[0][1]
        )
        for member in group.roster
    }
    held: dict[str, Partitions] = {}
    taken: set[TopicIdPartition] = set()
    for member in group.roster:
        held[member.member_id] = with_ids(decode_assignment(member.assignment), topics) - taken
        taken |= held[member.member_id]
    # A member may still have partitions that it owned when it joined: it may not know yet that it
    # has to give them up. Its next join reports what it owns.
    for member in group.roster:
        kept = with_ids(subscriptions[member.member_id].owned, topics) - taken
        held[member.member_id] |= kept
        taken |= kept
    return [
        ConsumerMember(
            member_id=member.member_id,
            instance_id=member.group_instance_id,
            rack_id=subscriptions[member.member_id].rack_id,
            client_id=member.client_id,
            client_host=member.client_host,
            rebalance_timeout_ms=member.rebalance_timeout_ms,
            subscribed_topics=subscriptions[member.member_id].topics,
            epoch=group.generation,
            previous_epoch=group.generation,
            assigned=held[member.member_id],
            target=held[member.member_id],
            classic=ClassicProtocols(
                session_timeout_ms=member.session_timeout_ms, protocols=member.protocols
            ),
        )
        for member in group.roster
    ]


def as_classic_group(group: ConsumerGroup, *, must_rebalance: bool, now_ms: int) -> ClassicGroup:
    """Return the group of classic members only as a classic group."""
    names = {topic.topic_id: name for name, topic in group.topics.items()}
    found = downgraded(group.group_id, group.epoch, group.roster, topic_names=names, now_ms=now_ms)
    if must_rebalance:
        found.rebalance(now_ms)
    return found


def downgraded(
    group_id: str,
    generation: int,
    members: Iterable[ConsumerMember],
    *,
    topic_names: Mapping[UUID, str],
    now_ms: int,
) -> ClassicGroup:
    """Return the members, all classic, as a stable classic group."""
    some = []
    for member in members:
        assert member.classic is not None
        some.append(
            Member(
                member_id=member.member_id,
                group_instance_id=member.instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                session_timeout_ms=member.classic.session_timeout_ms,
                rebalance_timeout_ms=member.rebalance_timeout_ms,
                protocols=member.classic.protocols,
                assignment=assignment_of(member, member.target, topic_names),
            )
        )
    return ClassicGroup.of_consumers(group_id, some, generation=generation, now_ms=now_ms)


def assignment_of(
    member: ConsumerMember,
    partitions: Iterable[TopicIdPartition],
    topic_names: Mapping[UUID, str],
) -> bytes:
    """Return partitions as the classic member reads them, without those of unknown topics."""
    assert member.classic is not None
    named = (
        TopicPartition(topic_names[partition.topic_id], partition.partition)
        for partition in partitions
        if partition.topic_id in topic_names
    )
    version = decode_subscription(member.classic.protocols[0][1]).version
    return encode_assignment(named, version=version)


def with_ids(
    partitions: Iterable[TopicPartition], topics: Mapping[str, Topic]
) -> frozenset[TopicIdPartition]:
    """Return the partitions of existing topics, by id."""
    return frozenset(
        TopicIdPartition(topics[partition.topic].topic_id, partition.partition)
        for partition in partitions
        if partition.topic in topics
    )
