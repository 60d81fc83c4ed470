"""Members of consumer groups whose requests a test sends one by one."""

from __future__ import annotations

from typing import Any

from tidelog_node.groups.consumer.consumer_group import ConsumerGroup
from tidelog_node.groups.consumer.heartbeat import ConsumerHeartbeat
from tidelog_node.groups.heartbeat_answer import HeartbeatAnswer

from tests.support.coordinator_node import Node


def consumer_heartbeat(member: str, epoch: int, **fields: Any) -> ConsumerHeartbeat:
    """Return a heartbeat with only the given fields set."""
    return ConsumerHeartbeat(
        **{
            "member_id": member,
            "member_epoch": epoch,
            "instance_id": None,
            "rack_id": None,
            "rebalance_timeout_ms": None,
            "subscribed_topics": None,
            "subscribed_pattern": None,
            "assignor": None,
            "owned": None,
            "client_id": "client",
            "client_host": "/127.0.0.1",
            **fields,
        }
    )


async def beat(broker: Node, member: str, epoch: int, **fields: Any) -> HeartbeatAnswer:
    """Send a heartbeat to group "g" with only the given fields set."""
    heartbeat = consumer_heartbeat(member, epoch, **fields)
    return await broker.coordinator.consumer_heartbeat("g", heartbeat)


async def enter(
    broker: Node, member: str, topics: tuple[str, ...] = ("t",), **fields: Any
) -> HeartbeatAnswer:
    """Join group "g" as a member that owns nothing."""
    fields = {"rebalance_timeout_ms": 60_000, "owned": frozenset(), **fields}
    return await beat(broker, member, 0, subscribed_topics=topics, **fields)


async def consumer_group_of(broker: Node) -> ConsumerGroup:
    """Return group "g"."""
    group = await broker.coordinator.describe("g")
    assert isinstance(group, ConsumerGroup)
    return group
