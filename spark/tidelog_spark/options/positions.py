"""Positions in many partitions, and their JSON form.

    {"orders":{"0":23,"1":70},"@topicIds":{"orders":"0d5f…"}}

The form is that of Spark's Kafka source, with topic ids added: they distinguish a topic
from a later one of the same name (topic names never contain ``@``). Positions without ids
are accepted for any topic of that name. Equal positions have equal texts, because Spark
compares the texts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from uuid import UUID

from tidelog_core.model import INT32_MAX, INT64_MAX, TopicPartition

TOPIC_IDS = "@topicIds"


@dataclass(frozen=True, slots=True)
class Positions:
    """An offset for each partition, and the known ids of their topics."""

    offsets: Mapping[TopicPartition, int]
    topic_ids: Mapping[str, UUID] = field(default_factory=dict)

    def to_json(self) -> dict[str, object]:
        """Return a value for ``json.dumps``."""
        found: dict[str, dict[str, int]] = {}
        for (topic, partition), offset in sorted(self.offsets.items()):
            found.setdefault(topic, {})[str(partition)] = offset
        ids = {topic: str(self.topic_ids[topic]) for topic in found if topic in self.topic_ids}
        return {**found, TOPIC_IDS: ids} if ids else {**found}

    @classmethod
    def from_json(cls, value: Mapping[str, object]) -> Positions:
        """Parse positions; other keys that start with ``@`` are ignored.

        Raises ``ValueError`` for another form. Offsets may be negative.
        """
        topic_ids: dict[str, UUID] = {}
        for topic, text in _mapping(value.get(TOPIC_IDS, {})).items():
            if not isinstance(text, str):
                raise ValueError(f"the id of topic {topic!r} is not a text")
            topic_ids[topic] = UUID(text)
        return cls(
            {
                TopicPartition(topic, _partition(number)): _offset(offset)
                for topic, by_partition in value.items()
                if not topic.startswith("@")
                for number, offset in _mapping(by_partition).items()
            },
            topic_ids,
        )


def _mapping(value: object) -> Mapping[str, object]:
    if not isinstance(value, dict):
        raise ValueError(f"{value!r} is not a JSON object")
    return value


def _partition(text: str) -> int:
    if not text.isdecimal() or int(text) > INT32_MAX or str(int(text)) != text:
        raise ValueError(f"{text!r} is not a partition")
    return int(text)


def _offset(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError(f"{value!r} is not an offset")
    if not -INT64_MAX <= value <= INT64_MAX:
        raise ValueError(f"{value} is not an offset of 64 bits")
    return value
