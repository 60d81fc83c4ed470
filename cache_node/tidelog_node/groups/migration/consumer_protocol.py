"""The consumer protocol that classic members wrap into JoinGroup and SyncGroup.

A coordinator that mixes classic members with those of KIP-848 has to read their subscriptions and
owned partitions, and to write their assignments. Both messages open with a
version (int16). Every version only adds fields at the end, so a newer one is read as
the newest known. Source: ``ConsumerProtocolSubscription.json`` and
``ConsumerProtocolAssignment.json`` of Kafka.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from kio.index import load_entity_schema
from kio.schema.consumer_protocol_assignment.v3 import data as assignment_schema
from kio.schema.consumer_protocol_subscription.v3 import data as subscription_schema
from kio.static.constants import EntityType
from tidelog_core.errors import MalformedMessage, TooManyElements
from tidelog_core.message_reader import ElementBudget, read_message
from tidelog_core.model import TopicPartition
from tidelog_core.wire_messages import build, write_message

VERSION_MAX = 3
# Topics and partitions of one member; reading so many takes tens of milliseconds.
ELEMENTS_MAX = 100_000
_VERSION = struct.Struct(">h")


class MalformedProtocol(ValueError):
    """The bytes are not of the consumer protocol."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscription:
    """A classic consumer's subscription and owned partitions."""

    version: int
    topics: tuple[str, ...]  # sorted
    owned: frozenset[TopicPartition] = frozenset()
    rack_id: str | None = None


def decode_subscription(data: bytes) -> Subscription:
    """Return the subscription. Raises ``MalformedProtocol``."""
    version, message = _decode(
        "consumer_protocol_subscription", subscription_schema.ConsumerProtocolSubscription, data
    )
    return Subscription(
        version=version,
        topics=tuple(sorted(set(message.topics))),
        owned=_partitions(message.owned_partitions),
        rack_id=message.rack_id,
    )


def decode_assignment(data: bytes) -> frozenset[TopicPartition]:
    """Return the partitions; none for no bytes. Raises ``MalformedProtocol``."""
    if not data:
        return frozenset()
    _, message = _decode(
        "consumer_protocol_assignment", assignment_schema.ConsumerProtocolAssignment, data
    )
    return _partitions(message.assigned_partitions)


def encode_assignment(partitions: Iterable[TopicPartition], *, version: int) -> bytes:
    """Return the assignment encoded for a member that subscribed in the version."""
    topics: dict[str, list[int]] = {}
    for topic, number in sorted(partitions):
        topics.setdefault(topic, []).append(number)
    message = build(
        assignment_schema.ConsumerProtocolAssignment,
        assigned_partitions=tuple(
            build(assignment_schema.TopicPartition, topic=topic, partitions=tuple(numbers))
            for topic, numbers in topics.items()
        ),
        user_data=None,
    )
    return _VERSION.pack(version) + write_message(
        _schema("consumer_protocol_assignment", version), message
    )


def _decode(name: str, newest: type[Any], data: bytes) -> tuple[int, Any]:
    try:
        (version,) = _VERSION.unpack_from(data)
        known = max(0, min(version, VERSION_MAX))
        budget = ElementBudget(ELEMENTS_MAX)
        schema = _schema(name, known)
        return known, read_message(schema, data, _VERSION.size, newest=newest, budget=budget)
    except (MalformedMessage, TooManyElements, struct.error) as problem:
        raise MalformedProtocol(f"{name} does not parse: {problem}") from None


def _schema(name: str, version: int) -> Any:
    return load_entity_schema(name, version, EntityType.data)


def _partitions(topics: Iterable[Any]) -> frozenset[TopicPartition]:
    return frozenset(
        TopicPartition(topic.topic, int(number)) for topic in topics for number in topic.partitions
    )
