"""Looks up the names of topics known only by id."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from uuid import UUID

from kio.schema.errors import ErrorCode
from kio.schema.metadata.v13.request import MetadataRequest, MetadataRequestTopic
from tidelog_core.wire_messages import build

from tidelog.cluster import Cluster
from tidelog.wire.requests import METADATA_BY_ID


async def names_of_topics(cluster: Cluster, topic_ids: Collection[UUID]) -> Mapping[UUID, str]:
    """Return the names of the topics that a node knows. Raises the node's error."""
    known = {
        topic.topic_id: name
        for name, topic in cluster.topics().items()
        if topic.topic_id is not None and not topic.error
    }
    found = {topic_id: known[topic_id] for topic_id in topic_ids if topic_id in known}
    missing = [topic_id for topic_id in topic_ids if topic_id not in found]
    if missing:
        topics = tuple(build(MetadataRequestTopic, topic_id=one, name=None) for one in missing)
        request = build(MetadataRequest, topics=topics, allow_auto_topic_creation=False)
        response = await cluster.request(METADATA_BY_ID, request)
        found |= {
            topic.topic_id: topic.name
            for topic in response.topics
            if topic.error_code is ErrorCode.none and topic.name
        }
    return found
