"""Positions in the logs of many partitions, and the JSON that they are kept as.

    {"orders":{"0":23,"1":70},"@topicIds":{"orders":"0d5f…"}}

By topic and partition the form is that of Spark's Kafka source. Ids tell a topic from one
that has its name later: the name of no topic holds an ``@``. Positions without ids are
taken too, and then any topic of that name will do. The same positions are always the
same text, for Spark compares the texts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from uuid import UUID

from tidelog_core.config import INT32_MAX, INT64_MAX
from tidelog_core.model import TopicPartition

TOPIC_IDS = "@topicIds"


@dataclass(frozen=True, slots=True)
class Positions:
    """An offset for each partition, and the ids of their topics as far as they are known."""

    offsets: Mapping[TopicPartition, int]
    topic_ids: Mapping[str, UUID] = field(default_factory=dict)

    def to_json(self) -> dict[str, object]:
        """Return what ``json.dumps`` takes."""
        found: dict[str, dict[str, int]] = {}
        for (topic, partition), offset in sorted(self.offsets.items()):
            found.setdefault(topic, {})[str(partition)] = offset
        ids = {topic: str(self.topic_ids[topic]) for topic in found if topic in self.topic_ids}
        return {**found, TOPIC_IDS: ids} if ids else {**found}

    @classmethod
    def from_json(cls, value: Mapping[str, object]) -> Positions:
        """Return the positions; other keys that begin with ``@`` are passed over.

        Raises ``ValueError`` for another shape. Offsets may be negative.
        """
        topic_ids: dict[str, UUID] = {}
        for topic, text in _mapping(value.get(TOPIC_IDS, {})).items():
            if not isinstance(text, str):
                raise ValueError(f"the id of topic {topic!r} is no text")
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
        raise ValueError(f"{value!r} is no JSON object")
    return value


def _partition(text: str) -> int:
    if not text.isdecimal() or int(text) > INT32_MAX:
        raise ValueError(f"{text!r} is no partition")
    return int(text)


def _offset(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError(f"{value!r} is no offset")
    if not -INT64_MAX <= value <= INT64_MAX:
        raise ValueError(f"{value} is no offset of 64 bits")
    return value
