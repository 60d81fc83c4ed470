"""ElectLeaders and the reassignments, over every version."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from tidelog_core.errors import ErrorCode
from tidelog_core.metadata.records import BrokerLease, put
from tidelog_core.model import NO_LEADER, TopicPartition
from tidelog_core.replication.leases.own_lease import RELEASED

from tests.node.handlers.control_plane import Node, cluster

CREATE, ELECT, ALTER, LIST = 19, 43, 45, 46
PREFERRED, UNCLEAN = 0, 1


async def create(node: Node, name: str, *replicas: Sequence[int]) -> None:
    given = [
        {"partition_index": number, "broker_ids": list(brokers)}
        for number, brokers in enumerate(replicas)
    ]
    topic = {"name": name, "num_partitions": -1, "replication_factor": -1, "assignments": given}
    answer = await node.ask(CREATE, 7, topics=[topic])
    assert answer.topics[0].error_code is ErrorCode.none


async def change(node: Node, partition: int, **fields: Any) -> None:
    """Write a partition of «t» as somebody else would."""
    found = node.view.image.partition(TopicPartition("t", partition))
    assert found is not None
    await node.view._store.commit([put(dataclasses.replace(found, **fields))])
    await node.view.refresh()


async def see(node: Node, live: Sequence[int], dead: Sequence[int] = ()) -> None:
    """Have the node seen these leases, and write them."""
    for broker_id in (*live, *dead):
        lease = BrokerLease(
            broker_id=broker_id,
            incarnation=UUID(int=broker_id),
            counter=RELEASED if broker_id in dead else 7,
        )
        await node.view._store.commit([put(lease, is_logged=False)])
        node.peers.observe([dataclasses.replace(lease, version=1)], started_ms=0, now_ms=0)


def partition(node: Node, number: int = 0) -> Any:
    return node.view.image.partition(TopicPartition("t", number))


async def elect(node: Node, version: int, numbers: Sequence[int] | None, kind: int = 0) -> Any:
    wanted = None if numbers is None else [{"topic": "t", "partitions": list(numbers)}]
    fields: dict[str, Any] = {"topic_partitions": wanted}
    if version >= 1:
        fields["election_type"] = kind
    answer = await node.ask(ELECT, version, **fields)
    if version >= 1:
        assert answer.error_code is ErrorCode.none
    await node.view.refresh()
    return {
        (topic.topic, result.partition_id): result.error_code
        for topic in answer.replica_election_results
        for result in topic.partition_result
    }


@pytest.mark.parametrize("version", range(3))
async def test_preferred_leaders_are_elected_in_every_version(tmp_path: Path, version: int) -> None:
    async with cluster(tmp_path, nodes=3) as (node, *_):
        await create(node, "t", (1, 2), (2, 1), (3, 1), (2, 3))
        await see(node, live=(1, 2), dead=(3,))
        await change(node, 0, leader=2, leader_epoch=4)
        await change(node, 2, leader=1, leader_epoch=4)
        await change(node, 3, leader=3, isr=(3,))
        assert await elect(node, version, [0, 1, 2, 3, 9]) == {
            ("t", 0): ErrorCode.none,
            ("t", 1): ErrorCode.election_not_needed,
            ("t", 2): ErrorCode.preferred_leader_not_available,
            ("t", 3): ErrorCode.preferred_leader_not_available,
            ("t", 9): ErrorCode.unknown_topic_or_partition,
        }
        assert (partition(node).leader, partition(node).leader_epoch) == (1, 5)
        assert partition(node).isr == (1, 2)


async def test_asked_for_everything_it_leaves_out_what_is_led_well(tmp_path: Path) -> None:
    async with cluster(tmp_path, nodes=2) as (node, *_):
        await create(node, "t", (1, 2), (2, 1), (2, 1))
        await see(node, live=(1, 2))
        await change(node, 2, leader=1)
        assert await elect(node, 2, None) == {("t", 2): ErrorCode.none}
        assert await elect(node, 2, None) == {}


@pytest.mark.parametrize("version", [1, 2])
async def test_an_unclean_election_takes_who_lives_and_only_where_nobody_leads(
    tmp_path: Path, version: int
) -> None:
    async with cluster(tmp_path, nodes=3) as (node, *_):
        await create(node, "t", (3, 2, 1), (3, 2, 1), (1, 3, 2), (3, 2, 1))
        await see(node, live=(1, 2), dead=(3,))
        await change(node, 0, isr=(3,))
        await change(node, 1, isr=(3, 1), leader=NO_LEADER)
        await change(node, 3, replicas=(3,), isr=(3,))
        assert await elect(node, version, [0, 1, 2, 3], UNCLEAN) == {
            ("t", 0): ErrorCode.none,
            ("t", 1): ErrorCode.none,
            ("t", 2): ErrorCode.election_not_needed,
            ("t", 3): ErrorCode.eligible_leaders_not_available,
        }
        assert (partition(node, 0).leader, partition(node, 0).isr) == (2, (2,))
        assert (partition(node, 1).leader, partition(node, 1).isr) == (1, (1,))


async def test_an_unclean_election_does_not_win_against_a_leader_that_came_back(
    tmp_path: Path,
) -> None:
    async with cluster(tmp_path, nodes=2) as (node, *_):
        await create(node, "t", (2, 1))
        await see(node, live=(1,), dead=(2,))
        await change(node, 0, isr=(2,))
        back = BrokerLease(broker_id=2, incarnation=UUID(int=2), counter=8, version=1)
        await node.view._store.commit([put(back, is_logged=False)])
        assert await elect(node, 2, [0], UNCLEAN) == {("t", 0): ErrorCode.request_timed_out}
        assert partition(node).leader == 2


async def test_unknown_kinds_of_election_are_refused(tmp_path: Path) -> None:
    async with cluster(tmp_path) as (node,):
        answer = await node.ask(ELECT, 2, election_type=2, topic_partitions=None)
        assert answer.error_code is ErrorCode.invalid_request


@pytest.mark.parametrize("version", [0, 1])
async def test_reassignments_start_show_and_are_cancelled(tmp_path: Path, version: int) -> None:
    async with cluster(tmp_path, nodes=3) as (node, *_):
        await create(node, "t", (1, 2), (1, 2))

        async def alter(number: int, replicas: list[int] | None) -> ErrorCode:
            moved = {"partition_index": number, "replicas": replicas}
            topics = [{"name": "t", "partitions": [moved]}]
            answer = await node.ask(ALTER, version, topics=topics)
            assert answer.error_code is ErrorCode.none
            (topic,) = answer.responses
            (result,) = topic.partitions
            await node.view.refresh()
            return ErrorCode(result.error_code)

        async def shown(*wanted: int) -> dict[int, Any]:
            topics = [{"name": "t", "partition_indexes": list(wanted)}] if wanted else None
            answer = await node.ask(LIST, 0, topics=topics)
            return {
                p.partition_index: (p.replicas, p.adding_replicas, p.removing_replicas)
                for topic in answer.topics
                for p in topic.partitions
            }

        assert await alter(0, [3, 1]) is ErrorCode.none
        assert await alter(1, [2, 1]) is ErrorCode.none  # takes effect at once
        assert partition(node, 1).replicas == (2, 1)
        assert await shown() == await shown(0, 1) == {0: ((3, 1, 2), (3,), (2,))}
        assert await shown(1) == {}
        assert await alter(0, [9]) is ErrorCode.invalid_replica_assignment
        assert await alter(7, [1]) is ErrorCode.unknown_topic_or_partition
        assert await alter(0, None) is ErrorCode.none
        assert await alter(0, None) is ErrorCode.no_reassignment_in_progress
        assert partition(node).replicas == (1, 2)
        if version >= 1:
            resized = {"partition_index": 0, "replicas": [1]}
            answer = await node.ask(
                ALTER,
                version,
                allow_replication_factor_change=False,
                topics=[{"name": "t", "partitions": [resized]}],
            )
            (result,) = answer.responses[0].partitions
            assert result.error_code is ErrorCode.invalid_replication_factor
            assert answer.allow_replication_factor_change is False


async def test_a_partition_that_is_named_twice_is_refused_and_left_alone(tmp_path: Path) -> None:
    async with cluster(tmp_path, nodes=2) as (node, *_):
        await create(node, "t", (1,))
        moves = [{"partition_index": 0, "replicas": [b]} for b in (1, 2)]
        answer = await node.ask(ALTER, 1, topics=[{"name": "t", "partitions": moves}])
        codes = {result.error_code for result in answer.responses[0].partitions}
        assert codes == {ErrorCode.invalid_request}
        await node.view.refresh()
        assert partition(node).replicas == (1,)
