"""The messages between members of a group: subscriptions and assignments.

Both start with a version (int16); each version only appends fields, so a newer version
is read as the newest known one, and an older one lacks the last fields.
Source: ConsumerProtocolSubscription and ConsumerProtocolAssignment of the Kafka protocol.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from kio.index import load_entity_schema
from kio.schema.consumer_protocol_assignment.v3 import data as assignment_schema
from kio.schema.consumer_protocol_subscription.v3 import data as subscription_schema
from kio.static.constants import EntityType
from tidelog_core.errors import MalformedMessage
from tidelog_core.message_reader import read_message
from tidelog_core.model import TopicPartition
from tidelog_core.wire_messages import build, write_message

from tidelog.errors import MalformedResponse

PROTOCOL_TYPE = "consumer"
NO_GENERATION = -1
_VERSION = 3
_PREFIX = struct.Struct(">h")


@dataclass(frozen=True, slots=True)
class MemberSubscription:
    """A member's subscription and its current partitions."""

    member_id: str
    topics: tuple[str, ...]
    group_instance_id: str | None = None
    owned: tuple[TopicPartition, ...] = ()  # partitions that it keeps while it joins
    generation: int = NO_GENERATION  # the generation that assigned them
    user_data: bytes | None = None  # for the assignor
    rack: str | None = None

    @property
    def sort_key(self) -> tuple[bool, str]:
        """Return the key that orders members in assignments: static ones first, by name."""
        is_dynamic = self.group_instance_id is None
        return is_dynamic, self.group_instance_id or self.member_id


def encode_subscription(subscription: MemberSubscription) -> bytes:
    """Return the subscription as members send it when they join."""
    message = build(
        subscription_schema.ConsumerProtocolSubscription,
        topics=tuple(sorted(subscription.topics)),
        user_data=subscription.user_data,
        owned_partitions=_by_topic(subscription_schema.TopicPartition, subscription.owned),
        generation_id=subscription.generation,
        rack_id=subscription.rack,
    )
    return _encode("consumer_protocol_subscription", message)


def decode_subscription(
    member_id: str, group_instance_id: str | None, data: bytes
) -> MemberSubscription:
    """Return a member's subscription. Raises ``MalformedResponse``."""
    message = _decode(
        "consumer_protocol_subscription", subscription_schema.ConsumerProtocolSubscription, data
    )
    return MemberSubscription(
        member_id,
        tuple(message.topics),
        group_instance_id,
        tuple(_partitions(message.owned_partitions)),
        int(message.generation_id),
        message.user_data,
        message.rack_id,
    )


def encode_assignment(partitions: Iterable[TopicPartition]) -> bytes:
    """Return a member's assignment as the leader sends it."""
    message = build(
        assignment_schema.ConsumerProtocolAssignment,
        assigned_partitions=_by_topic(assignment_schema.TopicPartition, partitions),
        user_data=None,
    )
    return _encode("consumer_protocol_assignment", message)


def decode_assignment(data: bytes) -> list[TopicPartition]:
    """Return an assignment's partitions; empty bytes mean none. Raises ``MalformedResponse``."""
    if not data:
        return []
    message = _decode(
        "consumer_protocol_assignment", assignment_schema.ConsumerProtocolAssignment, data
    )
    return _partitions(message.assigned_partitions)


def group_by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    """Return partition numbers by topic, both in order."""
    grouped: dict[str, list[int]] = {}
    for topic, number in sorted(partitions):
        grouped.setdefault(topic, []).append(number)
    return grouped


def topic_entries(
    topic_class: type[Any],
    partitions: Iterable[TopicPartition],
    entry: Callable[[TopicPartition], object],
    *,
    name: str = "name",
) -> tuple[Any, ...]:
    """Return a request's topics, with an entry for each partition, both in order.

    ``name`` is the field that the API has the topic's name in.
    """
    return tuple(
        build(
            topic_class,
            **{name: topic},
            partitions=tuple(entry(TopicPartition(topic, number)) for number in numbers),
        )
        for topic, numbers in group_by_topic(partitions).items()
    )


def _encode(name: str, message: object) -> bytes:
    schema: Any = load_entity_schema(name, _VERSION, EntityType.data)
    return _PREFIX.pack(_VERSION) + write_message(schema, message)


def _decode(name: str, newest: type[Any], data: bytes) -> Any:
    try:
        (version,) = _PREFIX.unpack_from(data)
        schema: Any = load_entity_schema(name, max(0, min(version, _VERSION)), EntityType.data)
        return read_message(schema, data, _PREFIX.size, newest=newest)
    except (MalformedMessage, struct.error) as problem:
        raise MalformedResponse(f"{name} of {len(data)} bytes does not parse: {problem}") from None


def _by_topic(cls: type[Any], partitions: Iterable[TopicPartition]) -> tuple[Any, ...]:
    return topic_entries(cls, partitions, lambda p: p.partition, name="topic")


def _partitions(topics: Sequence[Any]) -> list[TopicPartition]:
    found = [
        TopicPartition(topic.topic, int(number)) for topic in topics for number in topic.partitions
    ]
    for partition in found:
        if partition.partition < 0:
            raise MalformedResponse(f"there is no partition {partition}")
    return found
