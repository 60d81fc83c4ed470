"""Metadata, DescribeTopicPartitions, DescribeCluster and FindCoordinator."""

from __future__ import annotations

import asyncio
import dataclasses
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from tidelog_core.config import NodeConfig
from tidelog_core.errors import ErrorCode, InvalidConfig
from tidelog_core.metadata import records
from tidelog_core.metadata.coordination.groups import shard_of_group
from tidelog_core.metadata.epoch_chains import ChainName, EpochChain
from tidelog_core.model import (
    CONSUMER_OFFSETS_TOPIC,
    NO_LEADER,
    TRANSACTION_STATE_TOPIC,
    TopicPartition,
)
from tidelog_node.handlers.cluster.metadata import MetadataHandlers

from tests.node.handlers.control_plane import CLUSTER_ID, Node, cluster

METADATA, DESCRIBE_PARTITIONS, DESCRIBE_CLUSTER, FIND_COORDINATOR, CREATE = 3, 75, 60, 10, 19
NOT_REQUESTED = -2147483648


async def create(node: Node, name: str, partitions: int = 1, factor: int = 1) -> Any:
    wanted = {"name": name, "num_partitions": partitions, "replication_factor": factor}
    answer = await node.ask(CREATE, 7, topics=[wanted])
    assert answer.topics[0].error_code is ErrorCode.none
    return answer.topics[0].topic_id


def named(*names: str) -> dict[str, object]:
    return {"topics": [{"name": name} for name in names]}


async def elect(node: Node, partition: TopicPartition, leader: int) -> None:
    """Change the partition's leader behind the handlers' backs."""
    before = node.view.image.partition(partition)
    assert before is not None
    after = dataclasses.replace(before, leader=leader, leader_epoch=before.leader_epoch + 1)
    if after.awaits_first_leader:
        chain = EpochChain(after.leader_epoch, ChainName(leader, UUID(int=1)), 0)
        after = dataclasses.replace(after, wal=(chain,))
    await node.view._store.commit([records.put(after)])
    await node.view.refresh()


@pytest.mark.parametrize("version", range(14))
async def test_metadata_in_every_version(tmp_path: Path, version: int) -> None:
    async with cluster(tmp_path, nodes=2, racks=True) as (node, _):
        topic_id = await create(node, "a", 2, 2)
        for _ in range(2):  # The second answer comes from the cache.
            answer = await node.ask(METADATA, version, **named("a"))
            assert [(b.node_id, b.host, b.port) for b in answer.brokers] == [
                (1, "host-1", 9001),
                (2, "host-2", 9002),
            ]
            (topic,) = answer.topics
            assert (topic.error_code, topic.name) == (ErrorCode.none, "a")
            assert [p.partition_index for p in topic.partitions] == [0, 1]
            assert {p.leader_id for p in topic.partitions} == {1, 2}
            assert {tuple(sorted(p.isr_nodes)) for p in topic.partitions} == {(1, 2)}
        if version >= 1:
            assert answer.controller_id == 1
            assert [broker.rack for broker in answer.brokers] == ["rack-1", "rack-0"]
            assert topic.is_internal is False
        if version >= 2:
            assert answer.cluster_id == CLUSTER_ID
        if version >= 7:
            assert {p.leader_epoch for p in topic.partitions} == {0}
        if version >= 8:
            assert topic.topic_authorized_operations == NOT_REQUESTED
        if 8 <= version <= 10:
            assert answer.cluster_authorized_operations == NOT_REQUESTED
        if version >= 10:
            assert topic.topic_id == topic_id


@pytest.mark.parametrize("version", range(14))
async def test_all_topics_and_no_topics(tmp_path: Path, version: int) -> None:
    """Version 0 cannot say null: an empty list is all topics there, none later."""
    async with cluster(tmp_path) as (node,):
        await create(node, "b")
        await create(node, "a")
        everything: dict[str, object] = {"topics": [] if version == 0 else None}
        answer = await node.ask(METADATA, version, **everything)
        assert [topic.name for topic in answer.topics] == ["a", "b"]
        if version > 0:
            answer = await node.ask(METADATA, version, topics=[])
            assert answer.topics == ()
            assert len(answer.brokers) == 1


@pytest.mark.parametrize("version", [0, 3, 4, 9, 12, 13])
async def test_an_unknown_topic_is_created_on_first_use(tmp_path: Path, version: int) -> None:
    async with cluster(tmp_path, static=NodeConfig(num_partitions=3)) as (node,):
        flag = {"allow_auto_topic_creation": True} if version >= 4 else {}
        answer = await node.ask(METADATA, version, **named("new", "a b"), **flag)
        found = {topic.name: topic for topic in answer.topics}
        assert found["new"].error_code is ErrorCode.none
        assert [p.leader_id for p in found["new"].partitions] == [1, 1, 1]
        assert found["a b"].error_code is ErrorCode.invalid_topic_exception


@pytest.mark.parametrize("config", [{"auto_create_topics_enable": False}, {}])
async def test_an_unknown_topic_is_not_created_where_node_or_client_says_so(
    tmp_path: Path, config: dict[str, bool]
) -> None:
    async with cluster(tmp_path, static=NodeConfig(**config)) as (node,):  # type: ignore[arg-type]
        answer = await node.ask(
            METADATA, 12, **named("new"), allow_auto_topic_creation=bool(config)
        )
        (topic,) = answer.topics
        assert topic.error_code is ErrorCode.unknown_topic_or_partition
        assert (topic.name, topic.topic_id, topic.partitions) == ("new", None, ())
        assert not (await node.view.refresh()).topics


@pytest.mark.parametrize("is_diskless", [False, True], ids=["replicated", "diskless"])
async def test_first_use_creates_no_diskless_topic_that_the_store_cannot_have(
    tmp_path: Path, is_diskless: bool
) -> None:
    async def refuse() -> None:
        raise InvalidConfig(["file:///store: it replaces objects"])

    async with cluster(tmp_path, static=NodeConfig(log_diskless_enable=is_diskless)) as (node,):
        node.chain_store.check = refuse
        answer = await node.ask(METADATA, 12, **named("new"), allow_auto_topic_creation=True)
        (topic,) = answer.topics
        refused = ErrorCode.invalid_config if is_diskless else ErrorCode.none
        assert topic.error_code is refused
        assert bool((await node.view.refresh()).topics) is not is_diskless


async def test_many_first_uses_at_once_create_one_topic(tmp_path: Path) -> None:
    async with cluster(tmp_path, nodes=3) as nodes:
        answers = await asyncio.gather(
            *(
                node.ask(METADATA, 12, **named("new"), allow_auto_topic_creation=True)
                for node in nodes * 4
            )
        )
        assert {answer.topics[0].error_code for answer in answers} == {ErrorCode.none}
        assert len({answer.topics[0].topic_id for answer in answers}) == 1


async def test_a_topic_just_created_through_another_node_is_known_here(tmp_path: Path) -> None:
    async with cluster(tmp_path, nodes=2) as (one, other):
        topic_id = await create(one, "a", 2)
        assert other.view.image.topic("a") is None
        answer = await other.ask(METADATA, 12, **named("a"), allow_auto_topic_creation=False)
        assert answer.topics[0].error_code is ErrorCode.none
        topic_id = await create(one, "b", 2)
        answer = await other.ask(METADATA, 12, topics=[{"name": None, "topic_id": topic_id}])
        assert (answer.topics[0].name, answer.topics[0].error_code.name) == ("b", "none")
        await create(one, "c")
        answer = await other.ask(METADATA, 12, topics=None)
        assert [topic.name for topic in answer.topics] == ["a", "b", "c"]
        await create(one, "d")
        answer = await other.ask(DESCRIBE_PARTITIONS, 0, **named("d"))
        assert answer.topics[0].error_code is ErrorCode.none


@pytest.mark.parametrize("version", [12, 13])
async def test_topics_are_found_by_id(tmp_path: Path, version: int) -> None:
    async with cluster(tmp_path) as (node,):
        topic_id, unknown = await create(node, "a"), uuid4()
        topics = [{"name": None, "topic_id": topic_id}, {"name": None, "topic_id": unknown}]
        answer = await node.ask(METADATA, version, topics=topics)
        found = {topic.topic_id: (topic.name, topic.error_code) for topic in answer.topics}
        assert found == {
            topic_id: ("a", ErrorCode.none),
            unknown: (None, ErrorCode.unknown_topic_id),
        }


@pytest.mark.parametrize("version", [10, 11])
async def test_ids_are_refused_where_the_wire_has_them_but_the_version_does_not(
    tmp_path: Path, version: int
) -> None:
    async with cluster(tmp_path) as (node,):
        topic_id = await create(node, "a")
        answer = await node.ask(METADATA, version, topics=[{"name": "a", "topic_id": topic_id}])
        assert answer.topics[0].error_code is ErrorCode.invalid_request


@pytest.mark.parametrize("version", [0, 5, 12])
async def test_a_new_diskless_partition_has_no_leader_before_that_has_a_chain(
    tmp_path: Path, version: int
) -> None:
    """The leader begins epoch 1 then: who knew epoch 0 would be fenced."""
    async with cluster(tmp_path) as (node,):
        name = "a"
        wanted = {"name": name, "num_partitions": 1, "replication_factor": 1}
        configs = [{"name": "diskless.enable", "value": "true"}]
        answer = await node.ask(CREATE, 7, topics=[wanted | {"configs": configs}])
        assert answer.topics[0].error_code is ErrorCode.none
        (partition,) = (await node.ask(METADATA, version, **named(name))).topics[0].partitions
        assert (partition.leader_id, partition.error_code) == (
            NO_LEADER,
            ErrorCode.leader_not_available,
        )
        described = await node.ask(DESCRIBE_PARTITIONS, 0, topics=[{"name": name}])
        assert described.topics[0].partitions[0].leader_id == NO_LEADER
        before = node.view.image.partition(TopicPartition(name, 0))
        assert before is not None
        wal = (EpochChain(1, ChainName(1, UUID(int=1)), 0),)
        led = dataclasses.replace(before, leader_epoch=1, wal=wal)
        await node.store.commit([records.put(led)])
        await node.view.refresh()
        (partition,) = (await node.ask(METADATA, version, **named(name))).topics[0].partitions
        assert (partition.leader_id, partition.error_code) == (1, ErrorCode.none)
        described = await node.ask(DESCRIBE_PARTITIONS, 0, topics=[{"name": name}])
        assert described.topics[0].partitions[0].leader_id == 1


async def test_nobody_is_sent_to_a_leader_of_diskless_partitions_that_has_vanished(
    tmp_path: Path,
) -> None:
    """Clients that are told so ask again; they would only try its port."""
    static = NodeConfig(diskless_gateways_enable=True)
    async with cluster(tmp_path, nodes=3, racks=True, static=static) as nodes:
        node, racks = nodes[0], [nodes[0].view.image.brokers[n].rack for n in (1, 2, 3)]
        for name, configs in (("d", {"diskless.enable": "true"}), ("r", {})):
            await create(node, name, 1, 3)
            (partition,) = node.view.image.partitions(name)
            acked_by = records.AckedBy.CHAIN if configs else None
            topic = dataclasses.replace(node.view.image.topics[name], configs=configs)
            await node.store.commit(
                [
                    records.put(topic),
                    records.put(dataclasses.replace(partition, acked_by=acked_by)),
                ]
            )
            await node.view.refresh()
            await elect(node, TopicPartition(name, 0), 2)

        async def leaders(zone: str = "") -> list[tuple[int, ErrorCode]]:
            node.client_id = f"client,diskless_az={zone}".encode() if zone else b"client"
            answer = await node.ask(METADATA, 12, **named("d", "r"))
            assert len(answer.brokers) == 3
            found = [topic.partitions[0] for topic in answer.topics]
            return [(one.leader_id, one.error_code) for one in found]

        async def described() -> list[int]:
            answer = await node.ask(DESCRIBE_PARTITIONS, 0, topics=[{"name": "d"}, {"name": "r"}])
            return [topic.partitions[0].leader_id for topic in answer.topics]

        here, nobody = (2, ErrorCode.none), (NO_LEADER, ErrorCode.leader_not_available)
        for _ in range(2):  # What was encoded before is of no use later.
            node.membership.vanished = frozenset()
            for _ in range(2):  # The second answers come from the cache.
                assert await leaders() == [here, here]
            assert await leaders(racks[0] or "") == [(1, ErrorCode.none), here]
            assert await described() == [2, 2]
            node.membership.vanished = frozenset((2,))
            for _ in range(2):
                assert await leaders() == [nobody, here]
            # A gateway takes records until there is another leader.
            assert await leaders(racks[0] or "") == [(1, ErrorCode.none), here]
            assert await described() == [NO_LEADER, 2]
            node.membership.vanished = frozenset((1, 3))
            assert await leaders(racks[0] or "") == [here, here]  # No gateway: the real leader.
            node.membership.vanished = frozenset()
            node.membership.unfit = frozenset((1,))  # Records would wait there for nothing.
            for _ in range(2):
                assert await leaders(racks[0] or "") == [(3, ErrorCode.none), here]
            node.membership.unfit = frozenset((1, 3))
            for _ in range(2):
                assert await leaders(racks[0] or "") == [here, here]
            node.membership.unfit = frozenset((1, 2, 3))  # As in an outage of the object store.
            for _ in range(2):
                assert await leaders(racks[0] or "") == [(1, ErrorCode.none), here]
            node.membership.unfit = frozenset((2,))
            for _ in range(2):
                assert await leaders() == [here, here]  # It leads until there is another leader.
            node.membership.unfit = frozenset()


async def test_authorized_operations_are_told_where_asked_for(tmp_path: Path) -> None:
    async with cluster(tmp_path) as (node,):
        await create(node, "a")
        flags = {
            "include_topic_authorized_operations": True,
            "include_cluster_authorized_operations": True,
        }
        answer = await node.ask(METADATA, 8, **named("a"), **flags)
        assert answer.topics[0].topic_authorized_operations == 3576
        assert answer.cluster_authorized_operations == 8096
        plain = await node.ask(METADATA, 8, **named("a"))
        assert plain.topics[0].topic_authorized_operations == NOT_REQUESTED


@pytest.mark.parametrize("version", [0, 5, 12])
async def test_a_partition_without_a_live_leader_says_so(tmp_path: Path, version: int) -> None:
    async with cluster(tmp_path, nodes=2) as (node, _):
        await create(node, "a", 1, 2)
        await node.ask(METADATA, version, **named("a"))  # fills the cache
        await elect(node, TopicPartition("a", 0), NO_LEADER)
        (partition,) = (await node.ask(METADATA, version, **named("a"))).topics[0].partitions
        assert partition.error_code is ErrorCode.leader_not_available
        # Also in the second answer, whose bytes are the first one's.
        await node.ask(METADATA, version, **named("a"))
        assert node.counters.errors == {(METADATA, ErrorCode.leader_not_available): 2}
        assert partition.leader_id == NO_LEADER
        # A broker that has left: its replicas are offline, version 0 leaves them out.
        await elect(node, TopicPartition("a", 0), 1)
        await node.view._store.commit([records.delete(node.view.image.brokers[2])])
        await node.view.refresh()
        answer = await node.ask(METADATA, version, **named("a"))
        (partition,) = answer.topics[0].partitions
        assert [broker.node_id for broker in answer.brokers] == [1]
        if version == 0:
            assert partition.error_code is ErrorCode.replica_not_available
            assert partition.replica_nodes == (1,)
        else:
            assert partition.error_code is ErrorCode.none
            assert sorted(partition.replica_nodes) == [1, 2]
        if version >= 5:
            assert partition.offline_replicas == (2,)


async def test_encoded_answers_are_shared_until_the_image_changes(tmp_path: Path) -> None:
    async with cluster(tmp_path) as (node,):
        await create(node, "a", 100)
        (route,) = {
            id(r.handle.__self__): r
            for key, r in node._routes.items()
            if key == (3, 12)  # type: ignore[attr-defined]
        }.values()
        handlers = route.handle.__self__  # type: ignore[attr-defined]
        assert isinstance(handlers, MetadataHandlers)
        await node.ask(METADATA, 12, **named("a"))
        (first,) = handlers._cache._encoded.values()
        await node.ask(METADATA, 12, **named("a"))
        assert list(handlers._cache._encoded.values()) == [first]
        await create(node, "b")
        answer = await node.ask(METADATA, 12, **named("a", "b"))
        assert [len(topic.partitions) for topic in answer.topics] == [100, 1]
        assert first not in handlers._cache._encoded.values()


# -- DescribeTopicPartitions -------------------------------------------------------------


async def test_topic_partitions_are_paged_by_cursor(tmp_path: Path) -> None:
    async with cluster(tmp_path) as (node,):
        for name, count in (("a", 3), ("b", 1), ("c", 4)):
            await create(node, name, count)
        seen: list[tuple[str, int]] = []
        cursor: dict[str, object] | None = None
        pages = 0
        while True:
            answer = await node.ask(
                DESCRIBE_PARTITIONS, 0, topics=[], response_partition_limit=2, cursor=cursor
            )
            page = [(t.name, p.partition_index) for t in answer.topics for p in t.partitions]
            assert 1 <= len(page) <= 2
            seen += page
            pages += 1
            if answer.next_cursor is None:
                break
            cursor = {
                "topic_name": answer.next_cursor.topic_name,
                "partition_index": answer.next_cursor.partition_index,
            }
        assert seen == [("a", 0), ("a", 1), ("a", 2), ("b", 0)] + [("c", n) for n in range(4)]
        assert pages == 4


async def test_described_topics_are_in_order_and_unknown_ones_are_named(tmp_path: Path) -> None:
    async with cluster(tmp_path) as (node,):
        topic_id = await create(node, "b", 2)
        answer = await node.ask(DESCRIBE_PARTITIONS, 0, **named("z", "b", "a b"))
        assert [(t.name, t.error_code.name) for t in answer.topics] == [
            ("a b", "invalid_topic_exception"),
            ("b", "none"),
            ("z", "unknown_topic_or_partition"),
        ]
        assert answer.topics[1].topic_id == topic_id
        assert [p.leader_id for p in answer.topics[1].partitions] == [1, 1]
        assert answer.next_cursor is None
        # Unlike Metadata, asking never creates.
        assert list((await node.view.refresh()).topics) == ["b"]


@pytest.mark.parametrize(
    "cursor",
    [{"topic_name": "b", "partition_index": -1}, {"topic_name": "c", "partition_index": 0}],
)
async def test_a_cursor_that_cannot_be_is_refused(
    tmp_path: Path, cursor: dict[str, object]
) -> None:
    async with cluster(tmp_path) as (node,):
        await create(node, "b", 2)
        answer = await node.ask(DESCRIBE_PARTITIONS, 0, **named("b", "d"), cursor=cursor)
        assert {t.error_code for t in answer.topics} == {ErrorCode.invalid_request}


# -- DescribeCluster ---------------------------------------------------------------------


@pytest.mark.parametrize("version", range(3))
async def test_describe_cluster_lists_the_brokers(tmp_path: Path, version: int) -> None:
    async with cluster(tmp_path, nodes=3, racks=True) as (_, node, _):
        answer = await node.ask(
            DESCRIBE_CLUSTER, version, include_cluster_authorized_operations=True
        )
        assert (answer.error_code, answer.cluster_id) == (ErrorCode.none, CLUSTER_ID)
        assert answer.controller_id == 2
        assert [(b.broker_id, b.host, b.port, b.rack) for b in answer.brokers] == [
            (1, "host-1", 9001, "rack-1"),
            (2, "host-2", 9002, "rack-0"),
            (3, "host-3", 9003, "rack-1"),
        ]
        assert answer.cluster_authorized_operations == 8096
        plain = await node.ask(DESCRIBE_CLUSTER, version)
        assert plain.cluster_authorized_operations == NOT_REQUESTED
        if version >= 1:
            wrong = await node.ask(DESCRIBE_CLUSTER, version, endpoint_type=2)
            assert wrong.error_code is ErrorCode.mismatched_endpoint_type
            wrong = await node.ask(DESCRIBE_CLUSTER, version, endpoint_type=3)
            assert wrong.error_code is ErrorCode.unsupported_endpoint_type


# -- FindCoordinator ---------------------------------------------------------------------


@pytest.mark.parametrize("version", range(7))
async def test_the_coordinator_of_a_group_leads_its_shard(tmp_path: Path, version: int) -> None:
    static = NodeConfig(offsets_topic_num_partitions=7)

    async with cluster(tmp_path, nodes=3, static=static) as (node, *_):
        for group in ("g", "another group", ""):
            if version < 4:
                found = await node.ask(FIND_COORDINATOR, version, key=group)
            else:
                answer = await node.ask(FIND_COORDINATOR, version, coordinator_keys=[group])
                (found,) = answer.coordinators
                assert found.key == group
            assert found.error_code is ErrorCode.none
            shards = node.view.image.partitions(CONSUMER_OFFSETS_TOPIC)
            assert len(shards) == 7
            leader = shards[shard_of_group(group, 7)].leader
            assert (found.node_id, found.host) == (leader, f"host-{leader}")
        topic = node.view.image.topic(CONSUMER_OFFSETS_TOPIC)
        assert topic is not None
        assert topic.is_internal
        listed = await node.ask(METADATA, 12, topics=None)
        assert listed.topics[0].is_internal


async def test_first_questions_of_all_nodes_at_once_agree(tmp_path: Path) -> None:
    async with cluster(tmp_path, nodes=3) as nodes:
        answers = await asyncio.gather(
            *(node.ask(FIND_COORDINATOR, 4, coordinator_keys=["g", "h"]) for node in nodes * 3)
        )
        found = {tuple((c.key, c.node_id) for c in a.coordinators) for a in answers}
        assert len(found) == 1
        assert {c.error_code for a in answers for c in a.coordinators} == {ErrorCode.none}


@pytest.mark.parametrize(
    ("key_type", "shards"), [(0, CONSUMER_OFFSETS_TOPIC), (1, TRANSACTION_STATE_TOPIC)]
)
async def test_there_is_no_coordinator_without_a_leader(
    tmp_path: Path, key_type: int, shards: str
) -> None:
    static = NodeConfig(offsets_topic_num_partitions=1, transaction_state_log_num_partitions=1)

    async with cluster(tmp_path, static=static) as (node,):
        given = {"key": "g", "key_type": key_type}
        found = await node.ask(FIND_COORDINATOR, 3, **given)
        assert (found.error_code, found.node_id) == (ErrorCode.none, 1)
        await elect(node, TopicPartition(shards, 0), NO_LEADER)
        answer = await node.ask(FIND_COORDINATOR, 3, **given)
        code = ErrorCode.coordinator_not_available
        assert (answer.error_code, answer.node_id) == (code, -1)
        assert answer.error_message


async def test_nothing_else_has_a_coordinator(tmp_path: Path) -> None:
    async with cluster(tmp_path) as (node,):
        answer = await node.ask(FIND_COORDINATOR, 3, key="t", key_type=5)
        assert (answer.error_code, answer.node_id) == (ErrorCode.invalid_request, -1)
        answer = await node.ask(FIND_COORDINATOR, 6, coordinator_keys=["s"], key_type=2)
        assert answer.coordinators[0].error_code is ErrorCode.invalid_request


async def test_a_cluster_without_brokers_has_no_coordinator_yet(tmp_path: Path) -> None:
    async with cluster(tmp_path) as (node,):
        await node.view._store.commit([records.delete(node.view.image.brokers[1])])
        answer = await node.ask(FIND_COORDINATOR, 3, key="g")
        assert answer.error_code is ErrorCode.coordinator_not_available
        assert (await node.ask(METADATA, 12, topics=[])).controller_id == NO_LEADER


async def test_a_client_is_told_the_replica_of_its_zone_if_nodes_are_gateways(
    tmp_path: Path,
) -> None:
    static = NodeConfig(diskless_gateways_enable=True)
    async with cluster(tmp_path, nodes=3, racks=True, static=static) as nodes:
        node, racks = nodes[0], [nodes[0].view.image.brokers[n].rack for n in (1, 2, 3)]
        for name, configs in (
            ("d", {"diskless.enable": "true"}),
            ("compacted", {"diskless.enable": "true", "cleanup.policy": "compact"}),
            ("replicated", {}),
        ):
            await create(node, name, 1, 3)
            topic = node.view.image.topics[name]
            acked_by = records.AckedBy.CHAIN if configs else None
            (partition,) = node.view.image.partitions(name)
            await node.store.commit(
                [
                    records.put(dataclasses.replace(topic, configs=configs)),
                    records.put(dataclasses.replace(partition, acked_by=acked_by)),
                ]
            )
        await node.view.refresh()
        for name in ("d", "compacted", "replicated"):
            await elect(node, TopicPartition(name, 0), 1)

        async def leaders(client_id: bytes, version: int = 12) -> list[int]:
            node.client_id = client_id
            answer = await node.ask(METADATA, version, **named("d", "compacted", "replicated"))
            return [topic.partitions[0].leader_id for topic in answer.topics]

        here, there = f"client,diskless_az={racks[0]}", f"client,diskless_az={racks[1]}"
        for version in (1, 8, 12):
            for _ in range(2):  # The second answers come from the cache.
                assert await leaders(b"client", version) == [1, 1, 1]
                assert await leaders(here.encode(), version) == [1, 1, 1]
                assert await leaders(there.encode(), version) == [2, 1, 1]
        assert await leaders(b"client,diskless_az=elsewhere") == [1, 1, 1]
        # Share groups are with the real leader, also if the answers are in the cache.
        node.session.is_sharing = True
        assert await leaders(there.encode()) == [1, 1, 1]
        node.session.is_sharing = False
        # Without a replica in the zone it is the leader.
        partition = node.view.image.partition(TopicPartition("d", 0))
        assert partition is not None
        moved = dataclasses.replace(partition, replicas=(1, 3), isr=(1, 3))
        await node.store.commit([records.put(moved)])
        await node.view.refresh()
        assert racks[2] == racks[0]
        assert await leaders(there.encode()) == [1, 1, 1]
        await elect(node, TopicPartition("d", 0), 3)
        assert await leaders(here.encode()) == [3, 1, 1]  # The leader itself is there.
