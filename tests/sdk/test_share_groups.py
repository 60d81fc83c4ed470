"""The admin's calls about share groups, against a real node."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from tidelog import Admin, GroupListing, PartitionLag, Producer, TopicPartition
from tidelog.errors import (
    GroupIdNotFound,
    GroupNotEmpty,
    InvalidRequest,
    SeveralFailed,
    UnknownTopicOrPartition,
)

from tests.support.node_process import NodeProcess
from tests.support.peer import Peer


@pytest.fixture
def peer(node: NodeProcess) -> Iterator[Peer]:
    """A connection on which to be a member."""
    connection = Peer("tidelog", node.port)
    yield connection
    connection.close()


def beat(peer: Peer, group: str, member: str, epoch: int, *topics: str) -> None:
    """Send the heartbeat of a member of the group."""
    peer.await_coordinator(group)
    answer = peer.call(
        "share_group_heartbeat",
        1,
        group_id=group,
        member_id=member,
        member_epoch=epoch,
        subscribed_topic_names=list(topics) or None,
    )
    assert answer["error_code"] == "none"


async def write(node: NodeProcess, topic: str, count: int) -> None:
    async with Producer(node.address) as producer:
        for number in range(count):
            await producer.send(topic, b"%d" % number, partition=0)
        await producer.flush()


async def test_share_groups_are_listed_described_and_deleted(
    node: NodeProcess, peer: Peer, name: str, new_topic: Callable[..., str]
) -> None:
    topic = new_topic(2)

    async with Admin(node.address) as admin:
        for member in ("a", "b", "c"):
            beat(peer, name, member, 0, topic)
        listed = [g for g in await admin.list_groups(types=["share"]) if g.group_id == name]
        assert listed == [GroupListing(name, "share", "Stable", "share")]
        group = (await admin.describe_groups([name]))[name]
        assert (group.type, group.state, group.assignor) == ("share", "Stable", "simple")
        assert (group.epoch, group.assignment_epoch) == (3, 3)
        assert (group.coordinator, group.protocol_type) == (node.broker_id, "share")
        assert [(m.member_id, m.epoch) for m in group.members] == [("a", 1), ("b", 2), ("c", 3)]
        assert group.members[0].assignment == tuple(TopicPartition(topic, n) for n in (0, 1))
        assert not any(member.is_classic for member in group.members)
        with pytest.raises(GroupNotEmpty):
            await admin.delete_groups([name])
        for member in ("a", "b", "c"):
            beat(peer, name, member, -1)
        assert (await admin.describe_groups([name]))[name].state == "Empty"
        await admin.delete_groups([name])
        with pytest.raises(GroupIdNotFound):
            await admin.describe_groups([name])


async def test_a_share_group_without_members_is_moved_and_made_to_forget(
    node: NodeProcess, peer: Peer, name: str, new_topic: Callable[..., str]
) -> None:
    topic = new_topic(2)
    first, second = TopicPartition(topic, 0), TopicPartition(topic, 1)

    await write(node, topic, 5)
    async with Admin(node.address) as admin:
        beat(peer, name, "a", 0, topic)
        assert await admin.list_share_group_offsets(name) == {first: None, second: None}
        with pytest.raises(GroupNotEmpty):
            await admin.alter_share_group_offsets(name, {first: 2})
        with pytest.raises(GroupNotEmpty):
            await admin.delete_share_group_offsets(name, [topic])
        beat(peer, name, "a", -1)
        await admin.alter_share_group_offsets(name, {first: 2, (topic, 1): 0})
        assert await admin.list_share_group_offsets(name) == {first: 2, second: 0}
        some = await admin.list_share_group_offsets(name, [first, ("nowhere", 0)])
        assert some == {first: 2, TopicPartition("nowhere", 0): None}
        lag = await admin.share_group_lag(name, [("nowhere", 0)])
        assert lag.keys() == {first, second, ("nowhere", 0)}
        assert (lag[first].committed_offset, lag[first].end_offset, lag[first].lag) == (2, 5, 3)
        assert (lag[first].lag_seconds or -1) >= 0
        assert lag[second] == PartitionLag(0, 0, 0, 0.0)
        await admin.delete_share_group_offsets(name, [topic])
        assert await admin.list_share_group_offsets(name) == {}


async def test_what_cannot_be_moved_is_named_without_waiting(
    node: NodeProcess, peer: Peer, name: str, topic: str
) -> None:
    async with Admin(node.address, timeout_ms=600_000) as admin:
        with pytest.raises(GroupIdNotFound):
            await admin.delete_share_group_offsets(name, [topic])
        assert await admin.list_share_group_offsets(name) == {}
        beat(peer, name, "a", 0, topic)
        beat(peer, name, "a", -1)
        with pytest.raises(SeveralFailed) as several:
            await admin.alter_share_group_offsets(
                name, {(topic, 0): 0, (topic, 9): 0, ("nowhere", 0): 0}
            )
        assert several.value.errors.keys() == {f"{topic}-9", "nowhere-0"}
        assert await admin.list_share_group_offsets(name) == {TopicPartition(topic, 0): 0}
        with pytest.raises(UnknownTopicOrPartition):
            await admin.delete_share_group_offsets(name, [topic, "nowhere"])
        with pytest.raises(UnknownTopicOrPartition, match="no offset information"):
            await admin.delete_share_group_offsets(name, [topic])
        with pytest.raises(InvalidRequest, match="offset"):
            await admin.alter_share_group_offsets(name, {(topic, 0): -1})


async def test_a_group_that_is_not_there_is_made_to_begin_where_it_is_told(
    node: NodeProcess, name: str, topic: str
) -> None:
    async with Admin(node.address) as admin:
        await admin.alter_share_group_offsets(name, {(topic, 0): 0})
        assert await admin.list_share_group_offsets(name) == {TopicPartition(topic, 0): 0}


def test_the_plain_face_has_the_same_calls(
    node: NodeProcess, peer: Peer, name: str, topic: str
) -> None:
    beat(peer, name, "a", 0, topic)
    beat(peer, name, "a", -1)
    partition = TopicPartition(topic, 0)
    with Admin(node.address).sync() as admin:
        admin.alter_share_group_offsets(name, {partition: 0})
        assert admin.list_share_group_offsets(name) == {partition: 0}
        assert admin.share_group_lag(name) == {partition: PartitionLag(0, 0, 0, 0.0)}
        admin.delete_share_group_offsets(name, [topic])
        assert admin.list_share_group_offsets(name) == {}
