"""The current topics of a group's subscriptions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tidelog_core.metadata.coordination.consumer_groups import SubscribedTopic
from tidelog_core.metadata.records import Topic

TopicsByName = Mapping[str, Topic]
"""The cluster's topics. An unchanged cluster has the same object."""


def find_topics(names: Iterable[str], topics: TopicsByName) -> dict[str, SubscribedTopic]:
    """Return the existing topics with the given names, by name and in their order."""
    return {
        name: SubscribedTopic(topic_id=topic.topic_id, partition_count=topic.partition_count)
        for name in sorted(names)
        if (topic := topics.get(name)) is not None
    }
