"""The logs of many new partitions are opened while the loop goes on."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest
from tidelog_core.admin.topics.topic_admin import TopicAdmin
from tidelog_core.admin.topics.topic_plans import NewTopic
from tidelog_core.model import TopicPartition
from tidelog_node.logs.log_opener import OPEN_HERE_MAX
from tidelog_node.replicas.replica import Replica
from tidelog_node.replicas.replica_manager import NEW_AT_ONCE

from tests.node.replication.led_node import LedNode, led_node
from tests.support.waiting import eventually_async

SECONDS_MAX = 30.0


def admin_of(node: LedNode) -> TopicAdmin:
    return TopicAdmin(store=node.store, view=node.view, node_config=lambda: node.config)


def replicas_of(node: LedNode, topic: str) -> list[Replica]:
    return [replica for replica in node.replicas.replicas() if replica.partition.topic == topic]


def takes_part(replica: Replica) -> bool:
    return replica.is_leader or replica.is_follower


async def test_partitions_are_led_and_followed_once_their_logs_are_open(tmp_path: Path) -> None:
    async with led_node(tmp_path) as node:
        new = NewTopic(name="wide", partition_count=60, replication_factor=3)
        await admin_of(node).create_topic(new)
        held = replicas_of(node, "wide")
        assert len(held) == 60
        # A few are there when the topic is; of the others nobody leads what cannot be led.
        assert sum(map(takes_part, held)) == OPEN_HERE_MAX
        assert sum(replica.opened_log is not None for replica in held) == OPEN_HERE_MAX
        await eventually_async(lambda: all(map(takes_part, held)))
        led = node.replicas.led_by_name[b"wide"]
        assert led is node.replicas.led_by_id[held[0].topic_id.bytes]
        followed = node.replicas.followed_by_name[b"wide"]
        assert followed is node.replicas.followed_by_id[held[0].topic_id.bytes]
        assert led.keys() | followed.keys() == set(range(60))
        assert len(led) == 20


async def test_a_topic_of_more_partitions_than_one_turn_takes_up_is_held_as_a_whole(
    tmp_path: Path,
) -> None:
    async with led_node(tmp_path) as node:
        count = 2 * NEW_AT_ONCE + 1
        assignments = [(number, (1,)) for number in range(count)]
        new = NewTopic(name="wide", assignments=assignments)
        await admin_of(node).create_topic(new)
        assert len(node.replicas.led_by_name[b"wide"]) == NEW_AT_ONCE
        await eventually_async(lambda: len(node.replicas.led_by_name[b"wide"]) == count)
        assert len(replicas_of(node, "wide")) == count


async def test_a_topic_deleted_while_its_logs_wait_leaves_nothing_behind(tmp_path: Path) -> None:
    async with led_node(tmp_path) as node:
        admin = admin_of(node)
        plan = await admin.create_topic(
            NewTopic(name="wide", partition_count=100, replication_factor=3)
        )
        waiting = [replica for replica in replicas_of(node, "wide") if not takes_part(replica)]
        assert waiting
        await admin.delete_topic(plan.topic.topic_id)
        assert not replicas_of(node, "wide")
        again = NewTopic(name="wide", partition_count=30, replication_factor=3)
        await admin.create_topic(again)
        held = replicas_of(node, "wide")
        await eventually_async(lambda: all(map(takes_part, held)))
        assert len(held) == 30
        await eventually_async(lambda: len(list((tmp_path / "data").glob("wide-*"))) == 30)


async def test_a_log_that_cannot_be_opened_keeps_no_other_from_it_and_is_tried_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidelog_node.replicas.replica_manager.OPEN_RETRY_SECONDS", 0.1)

    async with led_node(tmp_path) as node:
        in_the_way = tmp_path / "data" / "wide-20"
        in_the_way.write_text("not a directory")
        new = NewTopic(name="wide", partition_count=30, replication_factor=3)
        await admin_of(node).create_topic(new)
        held = replicas_of(node, "wide")
        await eventually_async(lambda: sum(map(takes_part, held)) == 29)
        broken = node.replicas.get(TopicPartition("wide", 20))
        assert broken is not None
        assert not takes_part(broken)
        assert "its partition is offline" in caplog.text
        in_the_way.unlink()
        await eventually_async(lambda: takes_part(broken))


async def test_logs_of_a_wide_deleted_topic_go_in_turns_and_before_their_successors_come(
    tmp_path: Path,
) -> None:
    async with led_node(tmp_path) as node:
        admin = admin_of(node)
        count = 60
        new = NewTopic(name="wide", partition_count=count, replication_factor=3)
        old = (await admin.create_topic(new)).topic.topic_id
        await eventually_async(lambda: all(map(takes_part, replicas_of(node, "wide"))))
        logs = [replica.log for replica in replicas_of(node, "wide")]
        await admin.delete_topic(old)
        assert sum(log.is_offline for log in logs) < count  # The loop has other work, too.
        plan = await admin.create_topic(new)
        held = replicas_of(node, "wide")
        await eventually_async(lambda: all(map(takes_part, held)))
        assert all(log.is_offline for log in logs)
        # Not of those that are being removed at this moment.
        kept = [one for one in (tmp_path / "data").glob("wide-*") if not one.suffix]
        labels = {path.name for folder in kept for path in folder.glob("topic-*")}
        assert f"topic-{plan.topic.topic_id}" in labels
        assert not list((tmp_path / "data").glob("*-stray"))
        await eventually_async(lambda: not list((tmp_path / "data").glob("*-delete")))
        await admin.delete_topic(plan.topic.topic_id)
        await eventually_async(lambda: not list((tmp_path / "data").glob("wide*")))


async def test_nothing_of_deleted_partitions_is_left_to_collections_of_garbage(
    tmp_path: Path,
) -> None:
    """Those that look at what is old come seldom, and topics may come and go all the time."""

    def replicas_alive() -> int:
        return sum(type(one) is Replica for one in gc.get_objects())

    gc.collect()
    gc.disable()
    try:
        async with led_node(tmp_path) as node:
            admin = admin_of(node)
            count = 30
            new = NewTopic(name="wide", partition_count=count, replication_factor=3)
            plan = await admin.create_topic(new)
            await eventually_async(lambda: all(map(takes_part, replicas_of(node, "wide"))))
            before = replicas_alive()
            await admin.delete_topic(plan.topic.topic_id)
            await eventually_async(lambda: not list((tmp_path / "data").glob("wide*")))
            # As those do that a node has, and this one has not: they look every second.
            node.replicas.take_changed()
            assert not node.replicas.in_trouble()
            assert replicas_alive() <= before - count
    finally:
        gc.enable()


async def test_a_node_that_stops_takes_all_deleted_logs_away(tmp_path: Path) -> None:
    async with led_node(tmp_path) as node:
        admin = admin_of(node)
        new = NewTopic(name="wide", partition_count=60, replication_factor=3)
        plan = await admin.create_topic(new)
        await eventually_async(lambda: all(map(takes_part, replicas_of(node, "wide"))))
        await admin.delete_topic(plan.topic.topic_id)
    assert not list((tmp_path / "data").glob("wide-*/topic-*"))
