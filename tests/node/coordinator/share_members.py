"""Requests of a share group's members, with everything that a test does not care about."""

from __future__ import annotations

from typing import Any

from tidelog_core.metadata.coordination.consumer_groups import Partitions, TopicIdPartition
from tidelog_core.metadata.coordination.share_groups import ShareMember
from tidelog_core.metadata.records import Topic
from tidelog_node.groups.heartbeat_answer import HeartbeatAnswer
from tidelog_node.groups.share.heartbeat import ShareGroupSettings, ShareHeartbeat
from tidelog_node.groups.share.share_group import ShareGroup
from tidelog_node.groups.step import Step

from tests.support.coordinator_node import topic_id

SETTINGS = ShareGroupSettings(
    session_timeout_ms=45_000, heartbeat_interval_ms=5_000, members_max=200
)


def topics(**counts: int) -> dict[str, Topic]:
    return {
        name: Topic(name=name, topic_id=topic_id(name), partition_count=count)
        for name, count in counts.items()
    }


def partitions(*numbers: int, topic: str = "t") -> Partitions:
    return frozenset(TopicIdPartition(topic_id(topic), number) for number in numbers)


def heartbeat(member: str, epoch: int, **fields: Any) -> ShareHeartbeat:
    return ShareHeartbeat(
        **{
            "member_id": member,
            "member_epoch": epoch,
            "rack_id": None,
            "subscribed_topics": None,
            "client_id": "client",
            "client_host": "/127.0.0.1",
            **fields,
        }
    )


class Driver:
    """Feeds one group."""

    def __init__(self, **counts: int) -> None:
        self.group = ShareGroup("g", now_ms=0)
        self.topics = topics(**(counts or {"t": 2}))
        self.settings = SETTINGS
        self.now_ms = 0
        self.step = Step()

    def beat(self, member: str, epoch: int, **fields: Any) -> HeartbeatAnswer:
        answer, self.step = self.group.heartbeat(
            heartbeat(member, epoch, **fields),
            now_ms=self.now_ms,
            settings=self.settings,
            topics=self.topics,
        )
        return answer

    def enter(self, member: str, *names: str, **fields: Any) -> HeartbeatAnswer:
        return self.beat(member, 0, subscribed_topics=names or ("t",), **fields)

    def member(self, name: str) -> ShareMember:
        return next(member for member in self.group.members if member.member_id == name)

    def settle(self) -> None:
        """Have every member send a heartbeat in the epoch that it was last told."""
        for member in tuple(self.group.members):
            self.beat(member.member_id, member.epoch)
