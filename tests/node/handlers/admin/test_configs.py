"""DescribeConfigs, AlterConfigs and IncrementalAlterConfigs, of topics and nodes.

Groups have a file of their own.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tidelog_core.config import NodeConfig, TopicConfig, settings_of
from tidelog_core.errors import ErrorCode

from tests.node.handlers.control_plane import Node, cluster

DESCRIBE, ALTER, INCREMENTAL, CREATE = 32, 33, 44, 19
TOPIC, BROKER = 2, 4
SET, DELETE, APPEND, SUBTRACT = range(4)
OF_TOPIC, OF_BROKER, OF_EVERY_BROKER, AT_START, BUILT_IN = range(1, 6)


async def create(node: Node, name: str, **configs: str) -> None:
    given = [{"name": key.replace("_", "."), "value": value} for key, value in configs.items()]
    wanted = {"name": name, "num_partitions": 1, "replication_factor": 1, "configs": given}
    answer = await node.ask(CREATE, 7, topics=[wanted])
    assert answer.topics[0].error_code is ErrorCode.none


async def describe(node: Node, type: int, name: str, version: int = 4, **more: Any) -> Any:
    keys = more.pop("keys", None)
    resource = {"resource_type": type, "resource_name": name, "configuration_keys": keys}
    answer = await node.ask(DESCRIBE, version, resources=[resource], **more)
    return answer.results[0]


async def shown(node: Node, type: int, name: str) -> dict[str, tuple[str, int]]:
    result = await describe(node, type, name)
    assert result.error_code is ErrorCode.none
    return {config.name: (config.value, config.config_source) for config in result.configs}


async def alter(
    node: Node, type: int, name: str, *changes: Any, version: int = 1, **more: Any
) -> Any:
    configs = [{"name": n, "config_operation": op, "value": value} for n, op, value in changes]
    resource = {"resource_type": type, "resource_name": name, "configs": configs}
    answer = await node.ask(INCREMENTAL, version, resources=[resource], **more)
    return answer.responses[0]


async def test_a_topic_is_created_diskless_shown_and_told_to_change(tmp_path: Path) -> None:
    async with cluster(tmp_path) as (node,):
        await create(node, "a", diskless_enable="true")
        await create(node, "b")
        assert (await shown(node, TOPIC, "a"))["diskless.enable"] == ("true", OF_TOPIC)
        assert (await shown(node, TOPIC, "b"))["diskless.enable"] == ("false", BUILT_IN)
        of_node = await shown(node, BROKER, "1")
        assert of_node["diskless.append.commit.interval.ms"] == ("100", BUILT_IN)
        for topic, change, shown_as in (
            ("a", ("diskless.enable", DELETE, None), "false"),
            ("b", ("diskless.enable", SET, "true"), "true"),
            ("b", ("diskless.enable", SET, "false"), "false"),
        ):
            answer = await alter(node, TOPIC, topic, change)
            assert answer.error_code is ErrorCode.none
            assert (await shown(node, TOPIC, topic))["diskless.enable"] == (shown_as, OF_TOPIC)
        untiered = ("remote.storage.enable", SET, "false")
        answer = await alter(node, TOPIC, "a", untiered, ("diskless.enable", SET, "true"))
        assert answer.error_code is ErrorCode.invalid_config
        assert "needs remote.storage.enable=true" in answer.error_message
        # The default is stored with the topic, so it may change later.
        await alter(node, BROKER, "", ("log.diskless.enable", SET, "true"))
        await create(node, "c")
        await alter(node, BROKER, "", ("log.diskless.enable", DELETE, None))
        assert (await shown(node, TOPIC, "c"))["diskless.enable"] == ("true", OF_TOPIC)
        assert (await shown(node, TOPIC, "b"))["diskless.enable"] == ("false", OF_TOPIC)


@pytest.mark.parametrize("version", range(1, 5))
async def test_every_topic_setting_is_described(tmp_path: Path, version: int) -> None:
    async with cluster(tmp_path) as (node,):
        await create(node, "a", retention_ms="5")
        flags = {"include_documentation": True} if version >= 3 else {}
        result = await describe(node, TOPIC, "a", version, include_synonyms=True, **flags)
        found = {config.name: config for config in result.configs}
        assert set(found) == set(settings_of(TopicConfig))
        retention = found["retention.ms"]
        assert (retention.value, retention.config_source) == ("5", OF_TOPIC)
        assert not retention.read_only
        assert not retention.is_sensitive
        assert [(s.name, s.value, s.source) for s in retention.synonyms] == [
            ("retention.ms", "5", OF_TOPIC),
            ("log.retention.ms", "604800000", BUILT_IN),
        ]
        assert found["cleanup.policy"].value == "delete"
        assert found["preallocate"].value == "false"
        if version >= 3:
            assert retention.documentation == settings_of(TopicConfig)["retention.ms"].doc
            types = {name: found[name].config_type for name in found}
            assert types["retention.ms"] == 5
            assert types["preallocate"] == 1
            assert types["cleanup.policy"] == 7
            assert types["compression.type"] == 2
            assert types["segment.bytes"] == 3
            assert types["min.cleanable.dirty.ratio"] == 6


async def test_synonyms_documentation_and_keys_come_as_asked_for(tmp_path: Path) -> None:
    async with cluster(tmp_path) as (node,):
        await create(node, "a")
        result = await describe(node, TOPIC, "a", keys=["retention.ms", "no.such"])
        (config,) = result.configs
        assert (config.name, config.synonyms, config.documentation) == (
            "retention.ms",
            (),
            None,
        )
        assert len((await describe(node, TOPIC, "a", keys=[])).configs) > 20


async def test_a_value_comes_from_the_strongest_place_that_sets_it(tmp_path: Path) -> None:
    name = "log.retention.ms"

    async with cluster(tmp_path, static=NodeConfig(log_retention_ms=4)) as (node,):
        await create(node, "a")
        assert (await shown(node, TOPIC, "a"))["retention.ms"] == ("4", AT_START)
        await alter(node, BROKER, "", (name, SET, "3"))
        assert (await shown(node, TOPIC, "a"))["retention.ms"] == ("3", OF_EVERY_BROKER)
        await alter(node, BROKER, "1", (name, SET, "2"))
        assert (await shown(node, TOPIC, "a"))["retention.ms"] == ("2", OF_BROKER)
        await alter(node, TOPIC, "a", ("retention.ms", SET, "1"))
        assert (await shown(node, TOPIC, "a"))["retention.ms"] == ("1", OF_TOPIC)
        assert (await shown(node, BROKER, "1"))[name] == ("2", OF_BROKER)
        assert await shown(node, BROKER, "") == {name: ("3", OF_EVERY_BROKER)}
        result = await describe(node, BROKER, "1", include_synonyms=True, keys=[name])
        assert [(s.value, s.source) for s in result.configs[0].synonyms] == [
            ("2", OF_BROKER),
            ("3", OF_EVERY_BROKER),
            ("4", AT_START),
            ("604800000", BUILT_IN),
        ]
        await alter(node, BROKER, "1", (name, DELETE, None))
        assert (await shown(node, BROKER, "1"))[name] == ("3", OF_EVERY_BROKER)


async def test_node_settings_fixed_at_start_are_read_only(tmp_path: Path) -> None:
    async with cluster(tmp_path) as (node,):
        result = await describe(node, BROKER, "1")
        found = {config.name: config.read_only for config in result.configs}
        assert set(found) == {*settings_of(NodeConfig), "advertised.listeners"}
        assert found["socket.request.max.bytes"] is True
        assert found["auto.create.topics.enable"] is False


@pytest.mark.parametrize(
    ("type", "name", "code", "message"),
    [
        (TOPIC, "none", ErrorCode.unknown_topic_or_partition, ""),
        (TOPIC, "a b", ErrorCode.invalid_topic_exception, "is invalid"),
        (BROKER, "2", ErrorCode.invalid_request, "Unexpected broker id, expected 1"),
        (BROKER, "one", ErrorCode.invalid_request, "must be an integer"),
        (8, "1", ErrorCode.invalid_request, "Unknown resource type 8"),
        (99, "1", ErrorCode.invalid_request, "Unknown resource type 99"),
    ],
)
async def test_what_does_not_exist_is_neither_described_nor_altered(
    tmp_path: Path, type: int, name: str, code: ErrorCode, message: str
) -> None:
    async with cluster(tmp_path) as (node,):
        result = await describe(node, type, name)
        assert result.error_code is code
        assert message in result.error_message
        assert result.configs == ()
        response = await alter(node, type, name, ("retention.ms", SET, "1"))
        assert response.error_code is code
        resource = {"resource_type": type, "resource_name": name, "configs": []}
        answer = await node.ask(ALTER, 2, resources=[resource])
        assert answer.responses[0].error_code is code


async def test_no_topic_without_a_name_is_described_or_altered(tmp_path: Path) -> None:
    """Kafka has one code for the one and another for the other."""
    async with cluster(tmp_path) as (node,):
        result = await describe(node, TOPIC, "")
        assert result.error_code is ErrorCode.invalid_topic_exception
        response = await alter(node, TOPIC, "", ("retention.ms", SET, "1"))
        assert response.error_code is ErrorCode.invalid_request


@pytest.mark.parametrize("text", ["1_000", "0x10", "１０", "", "1" * 30, "nan", "1.0"])
async def test_a_number_is_spelt_in_ascii_digits(tmp_path: Path, text: str) -> None:
    async with cluster(tmp_path) as (node,):
        await create(node, "a", retention_ms="5")
        response = await alter(node, TOPIC, "a", ("retention.ms", SET, text))
        assert response.error_code is ErrorCode.invalid_config
        assert (await shown(node, TOPIC, "a"))["retention.ms"][0] == "5"


async def test_values_are_shown_as_they_were_understood(tmp_path: Path) -> None:
    async with cluster(tmp_path) as (node,):
        await create(node, "a", retention_ms=" +5 ", cleanup_policy=" compact , delete")
        found = await shown(node, TOPIC, "a")
        assert found["retention.ms"][0] == "5"
        assert found["cleanup.policy"][0] == "compact,delete"


@pytest.mark.parametrize("version", range(2))
async def test_incremental_alterations_leave_the_rest_alone(tmp_path: Path, version: int) -> None:
    async with cluster(tmp_path) as (node,):
        await create(node, "a", retention_ms="5", segment_bytes="1000")
        changes = [("retention.ms", SET, "7"), ("segment.bytes", DELETE, None)]
        response = await alter(node, TOPIC, "a", *changes, version=version)
        assert response.error_code is ErrorCode.none
        assert (response.resource_type, response.resource_name) == (TOPIC, "a")
        topic = node.view.image.topic("a")
        assert topic is not None
        assert topic.configs == {"retention.ms": "7"}


async def test_lists_are_appended_to_and_subtracted_from(tmp_path: Path) -> None:
    async with cluster(tmp_path) as (node,):
        await create(node, "a")
        steps = [
            (APPEND, "compact", "delete,compact"),
            (APPEND, "compact,delete", "delete,compact"),
            (SUBTRACT, "delete", "compact"),
            (SUBTRACT, "delete", "compact"),
        ]
        for operation, value, after in steps:
            response = await alter(node, TOPIC, "a", ("cleanup.policy", operation, value))
            assert response.error_code is ErrorCode.none
            assert (await shown(node, TOPIC, "a"))["cleanup.policy"] == (after, OF_TOPIC)
        response = await alter(node, TOPIC, "a", ("retention.ms", APPEND, "1"))
        assert response.error_code is ErrorCode.invalid_config
        assert "its type is not LIST" in response.error_message
        response = await alter(node, TOPIC, "a", ("cleanup.policy", APPEND, "shred"))
        assert response.error_code is ErrorCode.invalid_config


@pytest.mark.parametrize(
    ("changes", "code", "message"),
    [
        ([("no.such", SET, "1")], ErrorCode.invalid_config, "no.such"),
        ([("retention.ms", SET, "-5")], ErrorCode.invalid_config, "at least -1"),
        ([("retention.ms", SET, None)], ErrorCode.invalid_request, "Null value not supported"),
        ([("retention.ms", 9, "1")], ErrorCode.invalid_request, "Unknown operations type 9"),
        (
            [("retention.ms", SET, "1"), ("retention.ms", SET, "2")],
            ErrorCode.invalid_request,
            "duplicate config keys",
        ),
        (
            [("min.compaction.lag.ms", SET, "9"), ("max.compaction.lag.ms", SET, "8")],
            ErrorCode.invalid_config,
            "min.compaction.lag.ms",
        ),
        (
            [("retention.ms", SET, "10"), ("local.retention.ms", SET, "11")],
            ErrorCode.invalid_config,
            "must not exceed retention.ms",
        ),
        (
            [("retention.bytes", SET, "10"), ("local.retention.bytes", SET, "-1")],
            ErrorCode.invalid_config,
            "must not exceed retention.bytes",
        ),
    ],
)
async def test_topic_alterations_that_cannot_be_change_nothing(
    tmp_path: Path, changes: list[Any], code: ErrorCode, message: str
) -> None:
    async with cluster(tmp_path) as (node,):
        await create(node, "a", segment_bytes="1000")
        version = node.view.image.version
        response = await alter(node, TOPIC, "a", *changes)
        assert response.error_code is code
        assert message in response.error_message
        assert (await node.view.refresh()).version == version


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("no.such", SET, "1"), "no.such"),
        (("socket.request.max.bytes", SET, "1"), "Cannot update these configs dynamically"),
        (("num.partitions", SET, "0"), "at least 1"),
    ],
)
async def test_node_alterations_that_cannot_be_are_invalid_requests(
    tmp_path: Path, change: Any, message: str
) -> None:
    async with cluster(tmp_path) as (node,):
        for name in ("1", ""):
            response = await alter(node, BROKER, name, change)
            assert response.error_code is ErrorCode.invalid_request
            assert message in response.error_message
        assert not (await node.view.refresh()).node_configs


async def test_node_settings_take_effect_on_every_node_they_are_for(tmp_path: Path) -> None:
    async with cluster(tmp_path, nodes=2) as (one, other):
        await alter(one, BROKER, "", ("num.partitions", SET, "5"))
        await alter(one, BROKER, "1", ("num.partitions", SET, "2"))
        await other.view.refresh()
        for node, name, width in ((one, "a", 2), (other, "b", 5)):
            await node.ask(3, 9, topics=[{"name": name}], allow_auto_topic_creation=True)
            assert len(node.view.image.partitions(name)) == width


@pytest.mark.parametrize("version", range(3))
async def test_legacy_alterations_replace_everything(tmp_path: Path, version: int) -> None:
    async with cluster(tmp_path) as (node,):
        await create(node, "a", retention_ms="5")

        async def replace(configs: list[tuple[str, str | None]], **more: Any) -> ErrorCode:
            given = [{"name": name, "value": value} for name, value in configs]
            resource = {"resource_type": TOPIC, "resource_name": "a", "configs": given}
            answer = await node.ask(ALTER, version, resources=[resource], **more)
            code: ErrorCode = answer.responses[0].error_code
            return code

        assert await replace([("segment.bytes", "100")], validate_only=True) is ErrorCode.none
        assert (await node.view.refresh()).topics["a"].configs == {"retention.ms": "5"}
        assert await replace([("segment.bytes", "100")]) is ErrorCode.none
        assert node.view.image.topics["a"].configs == {"segment.bytes": "100"}
        assert await replace([("segment.bytes", None)]) is ErrorCode.invalid_request
        assert await replace([("segment.bytes", "x")]) is ErrorCode.invalid_config
        assert node.view.image.topics["a"].configs == {"segment.bytes": "100"}


async def test_a_resource_named_twice_is_refused_both_times(tmp_path: Path) -> None:
    async with cluster(tmp_path) as (node,):
        await create(node, "a")
        await create(node, "b")
        configs = [{"name": "retention.ms", "config_operation": SET, "value": "1"}]
        resources = [
            {"resource_type": TOPIC, "resource_name": name, "configs": configs}
            for name in ("a", "b", "a")
        ]
        answer = await node.ask(INCREMENTAL, 1, resources=resources)
        assert [(r.resource_name, r.error_code.name) for r in answer.responses] == [
            ("a", "invalid_request"),
            ("b", "none"),
            ("a", "invalid_request"),
        ]
        assert node.view.image.topics["a"].configs == {}


async def test_validate_only_checks_and_stores_nothing(tmp_path: Path) -> None:
    async with cluster(tmp_path) as (node,):
        await create(node, "a")
        version = node.view.image.version
        good = await alter(node, TOPIC, "a", ("retention.ms", SET, "1"), validate_only=True)
        bad = await alter(node, TOPIC, "a", ("retention.ms", SET, "x"), validate_only=True)
        assert (good.error_code, bad.error_code) == (ErrorCode.none, ErrorCode.invalid_config)
        assert (await node.view.refresh()).version == version


async def test_alterations_of_one_topic_at_once_are_all_kept(tmp_path: Path) -> None:
    names = ["retention.ms", "segment.bytes", "segment.ms", "flush.ms", "max.message.bytes"]

    async with cluster(tmp_path, nodes=2) as nodes:
        await create(nodes[0], "a")
        responses = await asyncio.gather(
            *(
                alter(nodes[number % 2], TOPIC, "a", (name, SET, "100"))
                for number, name in enumerate(names)
            )
        )
        assert {response.error_code for response in responses} == {ErrorCode.none}
        image = await nodes[0].view.refresh()
        assert image.topics["a"].configs == dict.fromkeys(names, "100")


async def test_a_broker_shows_where_clients_are_told_to_find_it(tmp_path: Path) -> None:
    async with cluster(tmp_path, nodes=2) as (_, node):
        name = "advertised.listeners"
        assert (await shown(node, BROKER, "2"))[name] == ("PLAINTEXT://host-2:9002", AT_START)
        result = await describe(node, BROKER, "2", include_synonyms=True, keys=[name])
        (config,) = result.configs
        assert config.read_only
        assert [synonym.name for synonym in config.synonyms] == [name]
        assert name not in await shown(node, BROKER, "")
        response = await alter(node, BROKER, "2", (name, SET, "PLAINTEXT://other:1"))
        assert response.error_code is ErrorCode.invalid_request
