"""Operations on topics and partitions."""

from __future__ import annotations

from itertools import islice
from typing import Any

from tidelog_core.admin.settings.diskless_topics import with_diskless_default
from tidelog_core.admin.topics.topic_plans import USE_DEFAULT, NewTopic, WiderTopic
from tidelog_core.metadata.records import Partition, SegmentMeta, Topic
from tidelog_core.model import NO_LEADER, TopicPartition
from tidelog_core.security.acl import ResourceType
from tidelog_core.tier.planning import finished_segments, tiered_end_offset

from tidelog_functions.admin.chain_store import require_chains
from tidelog_functions.admin.cluster import AdminCluster
from tidelog_functions.admin.contract import Call
from tidelog_functions.admin.http import HttpAnswer


async def list_topics(cluster: AdminCluster, call: Call) -> HttpAnswer:
    """Return a page of topics by name."""
    image = await cluster.view.refresh()
    after, limit = call.parameters.get("after", ""), call.parameters["limit"]
    found = (
        topic
        for name, topic in image.topics.items()
        if name > after
        and (call.parameters["internal"] or not topic.is_internal)
        and call.caller.sees(ResourceType.TOPIC, name)
    )
    page = list(islice(found, limit + 1))
    return HttpAnswer(
        {
            "topics": [_topic(topic) for topic in page[:limit]],
            "next_after": page[limit - 1].name if len(page) > limit else None,
        }
    )


async def create_topic(cluster: AdminCluster, call: Call) -> HttpAnswer:
    """Create a topic, or only validate the request."""
    body = call.body
    is_applied = not body.get("validate_only", False)
    configs = body.get("configs", {})
    await cluster.view.refresh()
    await require_chains(
        cluster, with_diskless_default(configs, cluster.node_config(), is_own=False)
    )
    plan = await cluster.topic_admin.create_topic(
        NewTopic(
            name=body["name"],
            partition_count=body.get("partition_count", USE_DEFAULT),
            replication_factor=body.get("replication_factor", USE_DEFAULT),
            assignments=tuple(enumerate(body.get("assignments", ()))),
            configs=configs,
        ),
        validate_only=not is_applied,
    )
    created = {
        "name": plan.topic.name,
        "topic_id": str(plan.topic.topic_id) if is_applied else None,
        "partition_count": plan.topic.partition_count,
        "replication_factor": plan.replication_factor,
        "is_applied": is_applied,
    }
    return HttpAnswer(created, status=201 if is_applied else 200)


async def describe_topic(cluster: AdminCluster, call: Call) -> HttpAnswer:
    """Return one topic."""
    return HttpAnswer(_topic(await cluster.topic(call.parameters["topic"])))


async def delete_topic(cluster: AdminCluster, call: Call) -> HttpAnswer:
    """Delete a topic and return its last state."""
    topic = await cluster.topic(call.parameters["topic"])
    return HttpAnswer(_topic(await cluster.topic_admin.delete_topic(topic.topic_id)))


async def create_partitions(cluster: AdminCluster, call: Call) -> HttpAnswer:
    """Add partitions to a topic."""
    is_applied = not call.body.get("validate_only", False)
    wider = WiderTopic(
        call.parameters["topic"], call.body["partition_count"], call.body.get("assignments")
    )
    plan = await cluster.topic_admin.widen_topic(wider, validate_only=not is_applied)
    return HttpAnswer(
        {
            "name": plan.topic.name,
            "topic_id": str(plan.topic.topic_id),
            "partition_count": plan.topic.partition_count,
            "is_applied": is_applied,
        }
    )


async def list_partitions(cluster: AdminCluster, call: Call) -> HttpAnswer:
    """Return all partitions of a topic."""
    topic = await cluster.topic(call.parameters["topic"])
    partitions = cluster.view.image.partitions(topic.name)
    return HttpAnswer(
        {"topic": topic.name, "partitions": [_partition(partition) for partition in partitions]}
    )


async def describe_partition(cluster: AdminCluster, call: Call) -> HttpAnswer:
    """Return one partition with a page of its tiered segments."""
    name = TopicPartition(call.parameters["topic"], call.parameters["partition"])
    partition = await cluster.partition(name)
    segments = await cluster.segments(partition)
    finished = finished_segments(segments)
    after, limit = call.parameters.get("after", -1), call.parameters["limit"]
    left = [segment for segment in segments if segment.base_offset > after]
    page = left[:limit]
    # Two copies of one segment have the same base offset, and must be on the same page.
    page += [s for s in left[limit:] if page and s.base_offset == page[-1].base_offset]
    return HttpAnswer(
        {
            "topic": name.topic,
            "partition": _partition(partition),
            "tiered": {
                "segment_count": len(finished),
                "size_bytes": sum(segment.size_bytes for segment in finished),
                "end_offset": tiered_end_offset(finished, partition.log_start_offset),
            },
            "segments": [_segment(segment) for segment in page],
            "next_after": page[-1].base_offset if len(left) > len(page) else None,
        }
    )


def _topic(topic: Topic) -> dict[str, Any]:
    return {
        "name": topic.name,
        "topic_id": str(topic.topic_id),
        "partition_count": topic.partition_count,
        "is_internal": topic.is_internal,
        "created_ms": topic.created_ms,
    }


def _partition(partition: Partition) -> dict[str, Any]:
    return {
        "partition": partition.partition,
        "leader": None if partition.leader == NO_LEADER else partition.leader,
        "leader_epoch": partition.leader_epoch,
        "replicas": list(partition.replicas),
        "isr": list(partition.isr),
        "adding": list(partition.adding),
        "removing": list(partition.removing),
        "log_start_offset": partition.log_start_offset,
    }


def _segment(segment: SegmentMeta) -> dict[str, Any]:
    return {
        "segment_id": str(segment.segment_id),
        "base_offset": segment.base_offset,
        "end_offset": segment.end_offset,
        "size_bytes": segment.size_bytes,
        "max_timestamp_ms": segment.max_timestamp_ms,
        "leader_epoch": segment.leader_epoch,
        "state": segment.state.value,
    }
