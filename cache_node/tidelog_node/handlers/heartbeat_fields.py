"""What the requests and answers of KIP-848 and KIP-932 have in common."""

from __future__ import annotations

from collections.abc import Iterable
from uuid import UUID

from tidelog_core.metadata.consumer_groups import TopicIdPartition


def is_blank(text: str) -> bool:
    """Return whether there is nothing in the text that can be seen."""
    return not text.strip()


def by_topic_id(
    partitions: Iterable[TopicIdPartition],
) -> Iterable[tuple[UUID, tuple[int, ...]]]:
    """Return each topic with its partitions, both in order."""
    topics: dict[UUID, list[int]] = {}
    for topic_id, partition in sorted(partitions):
        topics.setdefault(topic_id, []).append(partition)
    return ((topic_id, tuple(numbers)) for topic_id, numbers in topics.items())
