"""CreateTopics, DeleteTopics and CreatePartitions, over every version."""

from __future__ import annotations

import asyncio
from pathlib import Path
from uuid import UUID, uuid4

import pytest
from tidelog_core.config import NodeConfig
from tidelog_core.errors import ErrorCode
from tidelog_core.metadata import records
from tidelog_core.objects.memory import MemoryObjectStore
from tidelog_core.retention.deleted_topics import clean_deleted_topic

from tests.node.handlers.control_plane import Node, cluster

CREATE, DELETE, PARTITIONS = 19, 20, 37


def topic(name: str, partitions: int = 1, factor: int = 1, **more: object) -> dict[str, object]:
    return {"name": name, "num_partitions": partitions, "replication_factor": factor, **more}


async def create(node: Node, *topics: dict[str, object], version: int = 7, **more: object) -> dict:
    answer = await node.ask(CREATE, version, topics=list(topics), **more)
    return {result.name: result for result in answer.topics}


@pytest.mark.parametrize("version", range(2, 8))
async def test_create_topics_answers_and_creates_in_every_version(
    tmp_path: Path, version: int
) -> None:
    async with cluster(tmp_path) as (node,):
        configs = [{"name": "retention.ms", "value": "1000"}]
        results = await create(node, topic("a", 3, configs=configs), version=version)
        assert results["a"].error_code is ErrorCode.none
        created = node.view.image.topic("a")
        assert created is not None
        assert created.configs == {"retention.ms": "1000"}
        assert created.partition_count == len(node.view.image.partitions("a")) == 3
        if version >= 5:
            assert (results["a"].num_partitions, results["a"].replication_factor) == (3, 1)
            shown = {config.name: config for config in results["a"].configs}
            assert (shown["retention.ms"].value, shown["retention.ms"].config_source) == (
                "1000",
                1,
            )
            assert shown["segment.bytes"].config_source == 5
        if version >= 7:
            assert results["a"].topic_id == created.topic_id


@pytest.mark.parametrize(
    ("wanted", "code", "message"),
    [
        (topic(""), ErrorCode.invalid_topic_exception, "the empty string is not allowed"),
        (topic(".."), ErrorCode.invalid_topic_exception, "'..' is not allowed"),
        (topic("a b"), ErrorCode.invalid_topic_exception, "other than ASCII alphanumerics"),
        (topic("x" * 250), ErrorCode.invalid_topic_exception, "max allowed length 249"),
        (topic("there"), ErrorCode.topic_already_exists, "Topic 'there' already exists."),
        (topic("th_ere.1"), ErrorCode.invalid_topic_exception, "collides with existing topic"),
        (topic("n", 0), ErrorCode.invalid_partitions, "non-positive"),
        (topic("n", -2), ErrorCode.invalid_partitions, "non-positive"),
        (topic("n", 10_001), ErrorCode.policy_violation, "Excessively large number"),
        (topic("n", 1, 0), ErrorCode.invalid_replication_factor, "larger than 0"),
        (topic("n", 1, 4), ErrorCode.invalid_replication_factor, "only 2 broker(s)"),
        (
            topic("n", configs=[{"name": "no.such", "value": "1"}]),
            ErrorCode.invalid_config,
            "unknown setting 'no.such'",
        ),
        (
            topic("n", configs=[{"name": "retention.ms", "value": "soon"}]),
            ErrorCode.invalid_config,
            "must be a whole number",
        ),
        (
            topic("n", configs=[{"name": "retention.ms", "value": None}]),
            ErrorCode.invalid_config,
            "Null value not supported",
        ),
        (
            topic("n", 1, -1, assignments=[{"partition_index": 0, "broker_ids": [1]}]),
            ErrorCode.invalid_request,
            "numPartitions was not set to -1",
        ),
        (
            topic("n", -1, 1, assignments=[{"partition_index": 0, "broker_ids": [1]}]),
            ErrorCode.invalid_request,
            "replication factor was not set to -1",
        ),
        (
            topic("n", -1, -1, assignments=[{"partition_index": 1, "broker_ids": [1]}]),
            ErrorCode.invalid_replica_assignment,
            "consecutive 0-based",
        ),
        (
            topic("n", -1, -1, assignments=[{"partition_index": 0, "broker_ids": [9]}]),
            ErrorCode.invalid_replica_assignment,
            "broker 9",
        ),
        (
            topic("n", -1, -1, assignments=[{"partition_index": 0, "broker_ids": [1, 1]}]),
            ErrorCode.invalid_replica_assignment,
            "more than once",
        ),
        (
            topic("n", -1, -1, assignments=[{"partition_index": 0, "broker_ids": []}]),
            ErrorCode.invalid_replica_assignment,
            "empty replica list",
        ),
        (
            topic(
                "n",
                -1,
                -1,
                assignments=[
                    {"partition_index": 0, "broker_ids": [1]},
                    {"partition_index": 1, "broker_ids": [1, 2]},
                ],
            ),
            ErrorCode.invalid_replica_assignment,
            "not consistent with previous",
        ),
        (topic("__cluster_metadata"), ErrorCode.invalid_request, "is prohibited"),
    ],
)
async def test_a_topic_that_cannot_be_is_refused_and_nothing_is_stored(
    tmp_path: Path, wanted: dict[str, object], code: ErrorCode, message: str
) -> None:
    async with cluster(tmp_path, nodes=2) as (node, _):
        await create(node, topic("there"), topic("th.ere_1"))
        version = node.view.image.version
        (result,) = (await create(node, wanted)).values()
        assert result.error_code is code
        assert message in result.error_message
        assert (await node.view.refresh()).version == version


async def test_one_bad_topic_does_not_keep_the_others_from_being_created(tmp_path: Path) -> None:
    async with cluster(tmp_path) as (node,):
        results = await create(node, topic("a"), topic("b", 0), topic("c"))
        assert [results[n].error_code.name for n in "abc"] == [
            "none",
            "invalid_partitions",
            "none",
        ]
        assert list(node.view.image.topics) == ["a", "c"]


async def test_a_topic_named_twice_is_refused_once(tmp_path: Path) -> None:
    async with cluster(tmp_path) as (node,):
        answer = await node.ask(CREATE, 7, topics=[topic("a"), topic("b"), topic("a")])
        codes = [(result.name, result.error_code.name) for result in answer.topics]
        assert sorted(codes) == [("a", "invalid_request"), ("b", "none")]
        assert list(node.view.image.topics) == ["b"]


async def test_validate_only_checks_and_stores_nothing(tmp_path: Path) -> None:
    async with cluster(tmp_path) as (node,):
        results = await create(node, topic("a", 5), topic("b", 0), validate_only=True)
        assert results["a"].error_code is ErrorCode.none
        assert results["a"].num_partitions == 5
        assert results["b"].error_code is ErrorCode.invalid_partitions
        assert not (await node.view.refresh()).topics


async def test_defaults_come_from_the_node(tmp_path: Path) -> None:
    static = NodeConfig(num_partitions=4, default_replication_factor=2)

    async with cluster(tmp_path, nodes=2, static=static) as (node, _):
        results = await create(node, topic("a", -1, -1))
        assert (results["a"].num_partitions, results["a"].replication_factor) == (4, 2)


async def test_leaders_go_round_the_brokers_and_small_topics_spread_too(tmp_path: Path) -> None:
    async with cluster(tmp_path, nodes=3) as (node, *_):
        await create(node, topic("wide", 9))
        leaders = [partition.leader for partition in node.view.image.partitions("wide")]
        assert sorted(leaders) == [1, 1, 1, 2, 2, 2, 3, 3, 3]
        for name in "abc":
            await create(node, topic(name))
        assert {node.view.image.partitions(name)[0].leader for name in "abc"} == {1, 2, 3}


async def test_replicas_of_a_partition_are_in_different_racks_where_there_are(
    tmp_path: Path,
) -> None:
    async with cluster(tmp_path, nodes=4, racks=True) as (node, *_):
        await create(node, topic("a", 8, 2))
        for partition in node.view.image.partitions("a"):
            first, second = partition.replicas
            assert first % 2 != second % 2
            assert partition.isr == partition.replicas


async def test_a_manual_assignment_is_kept_as_given(tmp_path: Path) -> None:
    async with cluster(tmp_path, nodes=3) as (node, *_):
        given = [
            {"partition_index": 1, "broker_ids": [3, 1]},
            {"partition_index": 0, "broker_ids": [2, 3]},
        ]
        results = await create(node, topic("a", -1, -1, assignments=given))
        assert (results["a"].num_partitions, results["a"].replication_factor) == (2, 2)
        replicas = [partition.replicas for partition in node.view.image.partitions("a")]
        assert replicas == [(2, 3), (3, 1)]


async def test_a_topic_wider_than_a_transaction_is_seen_whole_or_not_at_all(tmp_path: Path) -> None:
    async with cluster(tmp_path, nodes=2) as (node, other):
        creating = asyncio.create_task(create(node, topic("wide", 500)))
        while not creating.done():
            image = await other.view.refresh()
            assert len(image.partitions("wide")) in (0, 500)
        assert (await creating)["wide"].error_code is ErrorCode.none
        assert len((await other.view.refresh()).partitions("wide")) == 500


async def test_nodes_that_create_one_topic_at_once_agree_on_one(tmp_path: Path) -> None:
    async with cluster(tmp_path, nodes=2) as nodes:
        for name, width in (("narrow", 3), ("wide", 200)):
            results = await asyncio.gather(
                *(create(node, topic(name, width)) for node in nodes * 3)
            )
            codes = sorted(result[name].error_code.name for result in results)
            assert codes == ["none"] + ["topic_already_exists"] * 5
            images = [await node.view.refresh() for node in nodes]
            assert images[0].topic(name) == images[1].topic(name)
            assert len(images[0].partitions(name)) == width


# -- DeleteTopics ------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(1, 6))
async def test_delete_topics_by_name_in_the_versions_that_know_names_only(
    tmp_path: Path, version: int
) -> None:
    async with cluster(tmp_path) as (node,):
        await create(node, topic("a"), topic("b"))
        answer = await node.ask(DELETE, version, topic_names=["a", "gone"])
        codes = {result.name: result.error_code for result in answer.responses}
        assert codes == {"a": ErrorCode.none, "gone": ErrorCode.unknown_topic_or_partition}
        assert list(node.view.image.topics) == ["b"]


async def test_delete_topics_by_name_and_by_id(tmp_path: Path) -> None:
    unknown = uuid4()

    async with cluster(tmp_path) as (node,):
        results = await create(node, *(topic(name) for name in "abcdef"))
        ids: dict[str, UUID] = {name: result.topic_id for name, result in results.items()}
        topics: list[dict[str, object]] = [
            {"name": "a"},
            {"topic_id": ids["b"]},
            {"name": None, "topic_id": unknown},
            {"name": None, "topic_id": None},
            {"name": "c", "topic_id": ids["c"]},
            {"name": "d"},
            {"name": "d"},
            {"name": "e"},
            {"topic_id": ids["e"]},
            {"name": "nowhere"},
        ]
        answer = await node.ask(DELETE, 6, topics=topics)
        found = {(r.name, r.topic_id): r.error_code.name for r in answer.responses}
        assert found == {
            ("a", ids["a"]): "none",
            ("b", ids["b"]): "none",
            (None, unknown): "unknown_topic_id",
            (None, None): "invalid_request",
            ("c", ids["c"]): "invalid_request",
            ("d", None): "invalid_request",
            ("e", ids["e"]): "invalid_request",
            ("nowhere", None): "unknown_topic_or_partition",
        }
        assert list(node.view.image.topics) == ["c", "d", "e", "f"]
        assert set(node.view.image.deleted_topics) == {ids["a"], ids["b"]}


async def test_a_deleted_topic_leaves_a_tombstone_until_it_is_purged(tmp_path: Path) -> None:
    async with cluster(tmp_path) as (node,):
        results = await create(node, topic("a", 200))
        topic_id = results["a"].topic_id
        await node.ask(DELETE, 6, topics=[{"name": "a"}])
        tombstone = node.view.image.deleted_topics[topic_id]
        assert (tombstone.name, tombstone.partition_count) == ("a", 200)
        # The name is free at once, for a topic that shares nothing with the old one.
        again = await create(node, topic("a", 2))
        assert again["a"].error_code is ErrorCode.none
        assert again["a"].topic_id != topic_id
        store = node.view._store
        assert len(await store.list(records.partition_collection(topic_id))) == 200
        for _ in range(2):  # harmless when repeated
            await clean_deleted_topic(store, MemoryObjectStore(), tombstone, None, cluster_id="c")
        assert await store.list(records.partition_collection(topic_id)) == []
        image = await node.view.refresh()
        assert not image.deleted_topics
        assert len(image.partitions("a")) == 2


@pytest.mark.parametrize(
    ("version", "code"),
    [
        (1, ErrorCode.invalid_request),
        (2, ErrorCode.invalid_request),
        (3, ErrorCode.topic_deletion_disabled),
        (6, ErrorCode.topic_deletion_disabled),
    ],
)
async def test_deletion_can_be_disabled(tmp_path: Path, version: int, code: ErrorCode) -> None:
    async with cluster(tmp_path, static=NodeConfig(delete_topic_enable=False)) as (node,):
        await create(node, topic("a"))
        fields = {"topics": [{"name": "a"}]} if version == 6 else {"topic_names": ["a"]}
        answer = await node.ask(DELETE, version, **fields)
        assert [result.error_code for result in answer.responses] == [code]
        assert list((await node.view.refresh()).topics) == ["a"]


# -- CreatePartitions --------------------------------------------------------------------


@pytest.mark.parametrize("version", range(4))
async def test_create_partitions_widens_and_leaves_the_old_ones_alone(
    tmp_path: Path, version: int
) -> None:
    async with cluster(tmp_path, nodes=2) as (node, other):
        await create(node, topic("a", 2))
        before = node.view.image.partitions("a")
        answer = await node.ask(
            PARTITIONS, version, topics=[{"name": "a", "count": 150, "assignments": None}]
        )
        assert [result.error_code for result in answer.results] == [ErrorCode.none]
        assert node.view.image.partitions("a")[:2] == before
        after = (await other.view.refresh()).partitions("a")
        assert [partition.partition for partition in after] == list(range(150))
        assert {partition.leader_epoch for partition in after} == {0}


@pytest.mark.parametrize(
    ("wanted", "code", "message"),
    [
        ({"name": "no", "count": 3}, ErrorCode.unknown_topic_or_partition, "does not host"),
        ({"name": "a", "count": 2}, ErrorCode.invalid_partitions, "already has 2 partition(s)"),
        ({"name": "a", "count": 1}, ErrorCode.invalid_partitions, "would not be an increase"),
        ({"name": "a", "count": 99_999}, ErrorCode.invalid_partitions, "at most 10000"),
        (
            {"name": "a", "count": 4, "assignments": [{"broker_ids": [1]}]},
            ErrorCode.invalid_replica_assignment,
            "only 1 assignment(s)",
        ),
        (
            {"name": "a", "count": 3, "assignments": [{"broker_ids": [7]}]},
            ErrorCode.invalid_replica_assignment,
            "broker 7",
        ),
        (
            {"name": "a", "count": 3, "assignments": [{"broker_ids": [1, 2]}]},
            ErrorCode.invalid_replica_assignment,
            "not consistent with previous",
        ),
    ],
)
async def test_an_increase_that_cannot_be_is_refused(
    tmp_path: Path, wanted: dict[str, object], code: ErrorCode, message: str
) -> None:
    async with cluster(tmp_path, nodes=2) as (node, _):
        await create(node, topic("a", 2))
        version = node.view.image.version
        answer = await node.ask(PARTITIONS, 3, topics=[{"assignments": None, **wanted}])
        assert answer.results[0].error_code is code
        assert message in answer.results[0].error_message
        assert (await node.view.refresh()).version == version


async def test_partitions_can_be_assigned_by_hand_and_validated_only(tmp_path: Path) -> None:
    async with cluster(tmp_path, nodes=3) as (node, *_):
        await create(node, topic("a", 1))
        wanted = {
            "name": "a",
            "count": 3,
            "assignments": [{"broker_ids": [3]}, {"broker_ids": [2]}],
        }
        answer = await node.ask(PARTITIONS, 3, topics=[wanted], validate_only=True)
        assert answer.results[0].error_code is ErrorCode.none
        assert len((await node.view.refresh()).partitions("a")) == 1
        await node.ask(PARTITIONS, 3, topics=[wanted])
        replicas = [partition.replicas for partition in node.view.image.partitions("a")]
        assert replicas[1:] == [(3,), (2,)]
        twice = await node.ask(PARTITIONS, 3, topics=[wanted, wanted])
        assert [r.error_code for r in twice.results] == [ErrorCode.invalid_request]


async def test_what_a_broken_increase_left_behind_is_overwritten(tmp_path: Path) -> None:
    async with cluster(tmp_path, nodes=2) as (node, _):
        results = await create(node, topic("a", 1))
        stray = records.Partition(
            topic_id=results["a"].topic_id,
            partition=1,
            replicas=(99,),
            leader=99,
            leader_epoch=4,
            isr=(99,),
        )
        await node.view._store.commit([records.put(stray, is_logged=False)])
        assert len((await node.view.refresh()).partitions("a")) == 1
        await node.ask(PARTITIONS, 3, topics=[{"name": "a", "count": 2, "assignments": None}])
        assert node.view.image.partitions("a")[1].leader in (1, 2)
        assert node.view.image.partitions("a")[1].leader_epoch == 0
