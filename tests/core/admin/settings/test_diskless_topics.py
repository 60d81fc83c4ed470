"""Which topics may be diskless, and which may become so, or replicated again."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from uuid import UUID

import pytest
from tidelog_core.admin.partitions.reassignments import reassignment
from tidelog_core.admin.settings.configs import (
    Alteration,
    AlterOperation,
    alter_topic_configs,
    new_topic_configs,
    replace_topic_configs,
)
from tidelog_core.admin.topics.topic_plans import NewTopic, TopicPlan, TopicPlanner
from tidelog_core.config import NodeConfig, topic_config
from tidelog_core.errors import InvalidConfig
from tidelog_core.metadata.endpoints import plaintext_endpoints
from tidelog_core.metadata.image.cluster_image import ClusterImage
from tidelog_core.metadata.image.cluster_view import ClusterView
from tidelog_core.metadata.records import AckedBy, Broker, Partition, put
from tidelog_core.model import NO_LEADER
from tidelog_core.replication.change import ChangeReason
from tidelog_core.replication.lead_changes import move_lead

from tests.support.memory_store import MemoryMetadataStore

NODE = NodeConfig()
BY_DEFAULT = NodeConfig(log_diskless_enable=True)
NOT_HERE = NodeConfig(diskless_storage_system_enable=False)
DISKLESS = {"diskless.enable": "true"}
TOPIC_ID = UUID(int=7)


def brokers(count: int) -> dict[int, Broker]:
    return {
        n: Broker(broker_id=n, incarnation=UUID(int=n), endpoints=plaintext_endpoints("h", n))
        for n in range(count)
    }


def alter(
    current: Mapping[str, str], name: str, value: str | None, node: NodeConfig = NODE
) -> object:
    operation = AlterOperation.DELETE if value is None else AlterOperation.SET
    return alter_topic_configs(current, [Alteration(name, operation, value)], node)


def test_a_topic_is_diskless_if_it_or_the_node_says_so() -> None:
    assert new_topic_configs({}, NODE) == {}
    assert new_topic_configs(DISKLESS, NODE) == DISKLESS
    assert new_topic_configs({}, BY_DEFAULT) == DISKLESS
    refused = {"diskless.enable": "false"}
    assert new_topic_configs(refused, BY_DEFAULT) == refused


def test_a_later_default_of_the_node_changes_no_topic() -> None:
    assert topic_config(new_topic_configs({}, BY_DEFAULT), NODE).diskless_enable
    assert not topic_config(new_topic_configs({}, NODE), BY_DEFAULT).diskless_enable


def test_the_clusters_own_topics_are_not_diskless() -> None:
    assert new_topic_configs({}, BY_DEFAULT, is_own=True) == {}
    with pytest.raises(InvalidConfig, match="own topics are not diskless"):
        new_topic_configs(DISKLESS, NODE, is_own=True)


def test_no_topic_is_diskless_where_the_node_has_it_off() -> None:
    with pytest.raises(InvalidConfig, match=r"diskless\.storage\.system\.enable is false"):
        new_topic_configs(DISKLESS, NOT_HERE)
    assert new_topic_configs({}, NOT_HERE) == {}
    # One that exists can still be altered there.
    assert alter(DISKLESS, "retention.ms", "5", NOT_HERE) == {**DISKLESS, "retention.ms": "5"}


@pytest.mark.parametrize(
    ("name", "value"), [("remote.storage.enable", "false"), ("tier.kms.key.id", "alias/mine")]
)
def test_settings_that_cannot_go_with_diskless_are_refused_with_the_reason(
    name: str, value: str
) -> None:
    with pytest.raises(InvalidConfig, match=f"diskless.enable=true .*{name}"):
        new_topic_configs({**DISKLESS, name: value}, NODE)
    with pytest.raises(InvalidConfig, match=name):
        new_topic_configs({name: value}, BY_DEFAULT)
    with pytest.raises(InvalidConfig, match=name):
        alter(DISKLESS, name, value)
    assert alter({}, name, value) == {name: value}


@pytest.mark.parametrize("policy", ["delete", "compact", "compact,delete"])
def test_every_cleanup_policy_goes_with_diskless(policy: str) -> None:
    configs = {**DISKLESS, "cleanup.policy": policy, "min.insync.replicas": "3"}
    assert new_topic_configs(configs, NODE) == configs


def partitions(*replicas: tuple[int, ...], is_diskless: bool) -> tuple[Partition, ...]:
    return tuple(
        Partition(
            topic_id=TOPIC_ID,
            partition=number,
            replicas=some,
            leader=some[0],
            leader_epoch=0,
            isr=some,
            acked_by=AckedBy.CHAIN if is_diskless else None,
        )
        for number, some in enumerate(replicas)
    )


def set_to(
    current: Mapping[str, str],
    some: tuple[Partition, ...],
    *,
    node: NodeConfig = NODE,
    is_own: bool = False,
    **configs: str,
) -> dict[str, str]:
    alterations = [
        Alteration(name.replace("_", "."), AlterOperation.SET, value)
        for name, value in configs.items()
    ]
    return alter_topic_configs(current, alterations, node, partitions=some, is_own=is_own)


def test_a_topic_may_become_diskless() -> None:
    some = partitions((1, 2, 3), (2, 3, 1), is_diskless=False)
    assert set_to({}, some, diskless_enable="true") == DISKLESS
    assert replace_topic_configs({}, DISKLESS, NODE, partitions=some) == DISKLESS
    with pytest.raises(InvalidConfig, match="own topics are not diskless"):
        set_to({}, some, is_own=True, diskless_enable="true")
    with pytest.raises(InvalidConfig, match=r"diskless\.storage\.system\.enable is false"):
        set_to({}, some, node=NOT_HERE, diskless_enable="true")
    for name, value in (("remote.storage.enable", "false"), ("tier.kms.key.id", "alias/mine")):
        with pytest.raises(InvalidConfig, match=f"diskless.enable=true .*{name}"):
            set_to({name: value}, some, diskless_enable="true")


def test_a_topic_becomes_replicated_if_its_replicas_are_enough() -> None:
    three = NodeConfig(default_replication_factor=3)
    one, two = (partitions((1, 2), some, is_diskless=True) for some in ((2,), (2, 1)))
    assert set_to(DISKLESS, two, node=three, diskless_enable="false")["diskless.enable"] == "false"
    with pytest.raises(
        InvalidConfig, match=r"at least 2 replicas .* partitions 1 have 1.*reassign"
    ):
        set_to(DISKLESS, one, node=three, diskless_enable="false")
    with pytest.raises(InvalidConfig, match="at least 3 replicas"):
        set_to(DISKLESS, two, node=three, diskless_enable="false", min_insync_replicas="3")
    # On a cluster whose topics have one replica, one is enough.
    assert set_to(DISKLESS, one, diskless_enable="false")["diskless.enable"] == "false"


@pytest.mark.parametrize(
    ("name", "value"), [("remote.storage.enable", "false"), ("tier.kms.key.id", "alias/mine")]
)
def test_what_cannot_go_with_diskless_waits_for_the_conversion(name: str, value: str) -> None:
    still, done = (partitions((1,), is_diskless=is_it) for is_it in (True, False))
    now = {"diskless.enable": "false"}
    with pytest.raises(InvalidConfig, match=f"{name}.*still becoming replicated"):
        alter_topic_configs(
            now, [Alteration(name, AlterOperation.SET, value)], NODE, partitions=still
        )
    altered = alter_topic_configs(
        now, [Alteration(name, AlterOperation.SET, value)], NODE, partitions=done
    )
    assert altered == {**now, name: value}


def test_a_topic_that_was_diskless_keeps_the_setting_as_its_own() -> None:
    """Who reads the bucket alone looks for its chains."""
    assert alter(DISKLESS, "diskless.enable", None) == {"diskless.enable": "false"}
    was = {"diskless.enable": "false"}
    assert replace_topic_configs(was, {"retention.ms": "5"}, NODE) == {**was, "retention.ms": "5"}
    with pytest.raises(InvalidConfig, match="a request that replaces all settings must say"):
        replace_topic_configs(DISKLESS, {"retention.ms": "5"}, NODE)
    assert replace_topic_configs({}, {"retention.ms": "5"}, BY_DEFAULT) == {"retention.ms": "5"}


def test_a_setting_that_is_deleted_or_left_out_is_the_nodes_default_again() -> None:
    was = {"diskless.enable": "false"}
    assert alter(DISKLESS, "diskless.enable", None, BY_DEFAULT) == DISKLESS
    assert alter(was, "diskless.enable", None, BY_DEFAULT) == DISKLESS
    new = {"retention.ms": "5"}
    assert replace_topic_configs(DISKLESS, new, BY_DEFAULT) == {**DISKLESS, **new}
    # No topic is converted because a request says nothing.
    assert replace_topic_configs(was, new, BY_DEFAULT) == {**was, **new}


def planned(new: NewTopic, node: NodeConfig = NODE) -> TopicPlan:
    planner = TopicPlanner(ClusterImage(brokers=brokers(3)), node=node)
    return planner.plan_new(new, topic_id=TOPIC_ID, now_ms=0)


@pytest.mark.parametrize("factor", [-1, 1])
def test_a_partition_has_one_replica_whatever_the_nodes_default(factor: int) -> None:
    node = NodeConfig(default_replication_factor=3, log_diskless_enable=True)
    plan = planned(NewTopic(name="t", partition_count=6, replication_factor=factor), node)
    assert [len(partition.replicas) for partition in plan.partitions] == [1] * 6
    assert {partition.leader for partition in plan.partitions} == {0, 1, 2}


@pytest.mark.parametrize(
    ("new", "count"),
    [
        (NewTopic(name="t", partition_count=1, replication_factor=3, configs=DISKLESS), 3),
        (NewTopic(name="t", assignments=((0, (0, 1)),), configs=DISKLESS), 2),
    ],
    ids=["factor", "assignment"],
)
def test_more_replicas_are_placed_as_of_any_topic(new: NewTopic, count: int) -> None:
    [partition] = planned(new).partitions
    assert len(partition.replicas) == len(partition.isr) == count
    assert partition.leader == partition.replicas[0]


async def test_a_reassignment_asks_the_leader_to_hand_over() -> None:
    store = MemoryMetadataStore()
    plan = planned(NewTopic(name="t", partition_count=1, configs=DISKLESS))
    await store.commit([put(plan.topic), *(put(partition) for partition in plan.partitions)])
    for broker in brokers(3).values():
        await store.commit([put(broker)])
    view = ClusterView(store)
    await view.refresh()
    [partition] = view.image.partitions("t")
    other = (partition.leader + 1) % 3
    change = reassignment([other], view=view, may_resize=True)(partition)
    assert change is not None
    first, asked = partition.leader, change.after
    assert asked == dataclasses.replace(
        partition, replicas=(other, first), adding=(other,), removing=(first,)
    )
    # Once more, or not at all: the leader's epoch goes on.
    assert reassignment([other], view=view, may_resize=True)(asked) is None
    change = reassignment(None, view=view, may_resize=True)(asked)
    assert change is not None
    assert change.after == partition
    # An election that comes first ends it with as many replicas as before.
    taken = move_lead(asked, other, ChangeReason.TAKEOVER).after
    assert (taken.replicas, taken.adding, taken.removing) == ((other,), (), ())
    # Without a leader nobody can be asked.
    vacant = dataclasses.replace(partition, leader=NO_LEADER)
    change = reassignment([other], view=view, may_resize=True)(vacant)
    assert change is not None
    assert change.after == dataclasses.replace(
        partition, leader=other, replicas=(other,), isr=(other,), leader_epoch=1
    )
    assert reassignment([partition.leader], view=view, may_resize=True)(partition) is None
    # More replicas fill themselves from the bucket, and are in sync then.
    target = [partition.leader, other]
    change = reassignment(target, view=view, may_resize=True)(partition)
    assert change is not None
    assert change.after == dataclasses.replace(partition, replicas=tuple(target))
