"""The current topics of a group's subscriptions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tidelog_core.metadata.consumer_groups import SubscribedTopic
from tidelog_core.metadata.records import Topic

TopicsByName = Mapping[str, Topic]
"""The cluster's topics. The same object means that nothing has changed."""


def find_topics(names: Iterable[str], topics: TopicsByName) -> dict[str, SubscribedTopic]:
    """Return those of the names that are topics, by name and in its order."""
    return {
        name: SubscribedTopic(topic_id=topic.topic_id, partition_count=topic.partition_count)
        for name in sorted(names)
        if (topic := topics.get(name)) is not None
    }
