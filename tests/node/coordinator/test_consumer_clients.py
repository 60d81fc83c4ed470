"""Groups of KIP-848 with librdkafka's consumers, on real nodes that are killed."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import ConsumerGroupState, ConsumerGroupType
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from tests.node.coordinator.group_process import PARTITIONS, Member, wait_for_shares
from tests.support.node_process import NodeProcess
from tests.support.replicated_cluster import replicated_cluster

NEW = "group.protocol=consumer"
CONFIG = {
    "group.consumer.heartbeat.interval.ms": "300",
    "group.consumer.session.timeout.ms": "20000",
    "offsets.topic.num.partitions": "4",
}


@dataclass(frozen=True, slots=True)
class Group:
    """A group and a topic of the same name, which no other test has."""

    bootstrap: str
    name: str

    def member(self, *settings: str) -> Member:
        return Member(self.bootstrap, *settings, group=self.name, topic=self.name)

    def described(self) -> Any:
        return describe(self.bootstrap, self.name)


@pytest.fixture(scope="module")
def quick_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    """A node that asks for heartbeats often, so that nobody waits long for a partition."""
    with NodeProcess(tmp_path_factory.mktemp("consumers") / "node", config=CONFIG) as node:
        yield node


@pytest.fixture
def group(quick_node: NodeProcess) -> Group:
    name = f"g-{uuid.uuid4().hex[:8]}"
    create(quick_node.address, name)
    return Group(quick_node.address, name)


def create(bootstrap: str, topic: str, partitions: int = len(PARTITIONS)) -> AdminClient:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result(60)
    return admin


def describe(bootstrap: str, group: str) -> Any:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    return admin.describe_consumer_groups([group])[group].result(60)


def lost(member: Member) -> list[int]:
    """Return every partition that was ever taken from it."""
    return [p for what, some in member.told if what in ("revoked", "lost") for p in some]


def check_that_nothing_happens(*members: Member, offset: int) -> None:
    """Have the members commit, and see that this is all that they tell of."""
    before = [list(member.told) for member in members]
    assert [member.commit(offset) for member in members] == ["committed"] * len(members)
    for member in members:
        member.hear(1.5)
    for told, member in zip(before, members, strict=True):
        assert member.told == [*told, member.told[-1]]


def test_partitions_move_to_a_new_member_and_back_and_no_others(group: Group) -> None:
    with group.member(NEW) as first:
        wait_for_shares(first)
        with group.member(NEW) as second:
            wait_for_shares(first, second)
            assert sorted(lost(first)) == second.partitions
            assert len(second.partitions) == 2
            assert first.commit(5) == second.commit(5) == "committed"
            found = group.described()
            assert found.state is ConsumerGroupState.STABLE
            assert found.type is ConsumerGroupType.CONSUMER
            shares = [m.assignment.topic_partitions for m in found.members]
            assert sorted(p.partition for share in shares for p in share) == PARTITIONS
        wait_for_shares(first)
        assert len(lost(first)) == 2


@pytest.mark.slow
def test_members_notice_nothing_of_a_node_that_was_killed_and_comes_back(
    quick_node: NodeProcess, group: Group
) -> None:
    with group.member(NEW) as first, group.member(NEW) as second:
        wait_for_shares(first, second)
        quick_node.kill()
        quick_node.start()
        check_that_nothing_happens(first, second, offset=4)


def test_a_static_member_keeps_its_partitions_over_its_restart(group: Group) -> None:
    with group.member(NEW, "group.instance.id=one") as first:
        with group.member(NEW, "group.instance.id=two") as second:
            wait_for_shares(first, second)
            share = second.partitions
        first.hear(1)
        told = list(first.told)
        with group.member(NEW, "group.instance.id=two") as second:
            wait_for_shares(first, second)
            assert second.partitions == share
            first.hear(1)
            assert first.told == told


@pytest.mark.parametrize(
    "strategy", [pytest.param("range", marks=pytest.mark.slow), "cooperative-sticky"]
)
def test_a_classic_group_moves_to_the_new_protocol_and_back_member_by_member(
    group: Group, strategy: str
) -> None:
    classic = f"partition.assignment.strategy={strategy}"
    with group.member(classic) as old:
        wait_for_shares(old)
        assert group.described().type is ConsumerGroupType.CLASSIC
        with group.member(NEW) as new:
            wait_for_shares(old, new)
            assert group.described().type is ConsumerGroupType.CONSUMER
            assert old.commit(1) == new.commit(1) == "committed"
            with group.member(classic) as late:
                wait_for_shares(old, new, late)
            wait_for_shares(old, new)
        wait_for_shares(old)
        assert group.described().type is ConsumerGroupType.CLASSIC
        assert old.commit(2) == "committed"
        with group.member(NEW) as new:
            wait_for_shares(old, new)
            old.leave()
            wait_for_shares(new)
            assert new.commit(3) == "committed"


def test_a_pattern_takes_in_topics_that_come_and_partitions_that_are_added(
    quick_node: NodeProcess,
) -> None:
    with Member(quick_node.address, NEW, group="patterns", topic="^p-.*") as member:
        member.hear(1)
        assert member.partitions == []
        admin = create(quick_node.address, "p-one", 2)
        create(quick_node.address, "q-one", 9)
        wait_until(member, [0, 1])
        admin.create_partitions([NewPartitions("p-one", 4)])["p-one"].result(60)
        wait_until(member, PARTITIONS)


def wait_until(member: Member, partitions: list[int]) -> None:
    deadline = time.monotonic() + 30
    while member.partitions != partitions:
        assert time.monotonic() < deadline, member.told
        member.hear(0.2)


def test_members_notice_nothing_of_a_coordinator_that_is_killed(tmp_path: Path) -> None:
    with replicated_cluster(tmp_path, config=CONFIG) as cluster:
        cluster.create("t", partitions=len(PARTITIONS))
        with Member(cluster.addresses, NEW) as first, Member(cluster.addresses, NEW) as second:
            wait_for_shares(first, second)
            before = describe(cluster.addresses, "g")
            cluster.nodes[before.coordinator.id].kill()
            check_that_nothing_happens(first, second, offset=4)
            after = describe(cluster.running[0].address, "g")
            assert after.coordinator.id != before.coordinator.id
            assert after.state is ConsumerGroupState.STABLE
            assert {m.member_id for m in after.members} == {m.member_id for m in before.members}
