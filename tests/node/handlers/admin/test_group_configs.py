"""Settings of groups (resource type 32), and ListConfigResources, which lists who has some."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tidelog_core.config import GroupConfig, NodeConfig, settings_of
from tidelog_core.errors import ErrorCode

from tests.node.handlers.admin.test_configs import (
    ALTER,
    BROKER,
    BUILT_IN,
    DELETE,
    SET,
    alter,
    create,
    describe,
    shown,
)
from tests.node.handlers.control_plane import Node, cluster

GROUP, CLIENT_METRICS, LIST = 32, 16, 74
OF_GROUP = 8
SESSION, HEARTBEAT = "consumer.session.timeout.ms", "consumer.heartbeat.interval.ms"


async def replace(node: Node, name: str, **configs: str) -> Any:
    given = [{"name": key.replace("_", "."), "value": value} for key, value in configs.items()]
    resource = {"resource_type": GROUP, "resource_name": name, "configs": given}
    answer = await node.ask(ALTER, 2, resources=[resource])
    return answer.responses[0]


async def resources(node: Node, *types: int) -> list[tuple[int, str]]:
    answer = await node.ask(LIST, 1, resource_types=list(types))
    assert answer.error_code is ErrorCode.none
    return [(one.resource_type, one.resource_name) for one in answer.config_resources]


async def test_every_setting_of_a_group_that_is_not_there_is_described(tmp_path: Path) -> None:
    static = NodeConfig(group_share_session_timeout_ms=50_000)
    async with cluster(tmp_path, static=static) as (node,):
        found = await shown(node, GROUP, "g")
        assert set(found) == set(settings_of(GroupConfig))
        assert found["share.auto.offset.reset"] == ("latest", BUILT_IN)
        assert found["share.isolation.level"] == ("read_uncommitted", BUILT_IN)
        assert found["share.session.timeout.ms"] == ("50000", BUILT_IN)
        result = await describe(
            node, GROUP, "g", keys=[SESSION], include_synonyms=True, include_documentation=True
        )
        (config,) = result.configs
        assert config.documentation == settings_of(GroupConfig)[SESSION].doc
        assert [(s.name, s.value, s.source) for s in config.synonyms] == [
            (SESSION, "45000", BUILT_IN)
        ]


async def test_what_is_set_for_a_group_is_seen_by_every_node_until_it_is_deleted(
    tmp_path: Path,
) -> None:
    async with cluster(tmp_path, nodes=2) as (one, other):
        await alter(one, GROUP, "g", (SESSION, SET, " 50000 "), (HEARTBEAT, SET, "7000"))
        for node in (one, other):
            found = await shown(node, GROUP, "g")
            assert found[SESSION] == ("50000", OF_GROUP)
            assert found[HEARTBEAT] == ("7000", OF_GROUP)
            assert (await shown(node, GROUP, "h"))[SESSION] == ("45000", BUILT_IN)
            config = node.view.image.group_config("g", NodeConfig())
            assert config.consumer_session_timeout_ms == 50_000
        await alter(other, GROUP, "g", (SESSION, DELETE, None))
        assert (await shown(one, GROUP, "g"))[SESSION] == ("45000", BUILT_IN)
        assert (await shown(one, GROUP, "g"))[HEARTBEAT] == ("7000", OF_GROUP)
        assert (await replace(one, "g", share_isolation_level="read_committed")).error_code is (
            ErrorCode.none
        )
        assert (await shown(other, GROUP, "g"))[HEARTBEAT] == ("5000", BUILT_IN)
        assert await resources(other, GROUP) == [(GROUP, "g")]
        await replace(one, "g")
        assert (await other.view.refresh()).group_configs == {}
        assert await resources(other, GROUP) == []


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        (SESSION, "44999", "greater than or equal to group.consumer.min.session.timeout.ms"),
        (SESSION, "60001", "less than or equal to group.consumer.max.session.timeout.ms"),
        (HEARTBEAT, "4999", "greater than or equal to group.consumer.min.heartbeat.interval.ms"),
        (HEARTBEAT, "15001", "less than or equal to group.consumer.max.heartbeat.interval.ms"),
        ("share.session.timeout.ms", "60001", "group.share.max.session.timeout.ms"),
        ("share.heartbeat.interval.ms", "4999", "group.share.min.heartbeat.interval.ms"),
        ("share.record.lock.duration.ms", "14999", "group.share.min.record.lock.duration.ms"),
        ("share.record.lock.duration.ms", "60001", "group.share.max.record.lock.duration.ms"),
        ("share.record.lock.duration.ms", "999", "at least 1000"),
        (SESSION, "0", "at least 1"),
        (SESSION, "1_0", "whole number"),
        ("share.isolation.level", "READ_COMMITTED", "must be one of"),
        ("share.auto.offset.reset", "none", "by_duration"),
        ("retention.ms", "5", "unknown setting"),
    ],
)
async def test_a_value_out_of_bounds_is_refused_and_changes_nothing(
    tmp_path: Path, name: str, value: str, message: str
) -> None:
    async with cluster(tmp_path) as (node,):
        good = ("share.isolation.level", SET, "read_committed")
        if name == good[0]:
            good = ("share.auto.offset.reset", SET, "earliest")
        response = await alter(node, GROUP, "g", good, (name, SET, value))
        assert response.error_code is ErrorCode.invalid_config
        assert message in response.error_message
        response = await replace(node, "g", **{name.replace(".", "_"): value})
        assert response.error_code is ErrorCode.invalid_config
        assert (await node.view.refresh()).group_configs == {}


async def test_the_bounds_are_the_nodes(tmp_path: Path) -> None:
    """And a node whose own default breaks its bounds still lets groups set something else."""
    static = NodeConfig(
        group_consumer_session_timeout_ms=1000,
        group_consumer_heartbeat_interval_ms=100,
        group_consumer_min_heartbeat_interval_ms=50,
        group_consumer_min_session_timeout_ms=2000,
    )
    async with cluster(tmp_path, static=static) as (node,):
        response = await alter(node, GROUP, "g", (HEARTBEAT, SET, "60"))
        assert response.error_code is ErrorCode.none
        response = await alter(node, GROUP, "g", (HEARTBEAT, SET, "1000"))
        assert response.error_code is ErrorCode.invalid_config
        assert f"{SESSION} must be greater than {HEARTBEAT}" in response.error_message
        response = await alter(node, GROUP, "g", (HEARTBEAT, SET, "1000"), (SESSION, SET, "2000"))
        assert response.error_code is ErrorCode.none


async def test_a_group_is_named(tmp_path: Path) -> None:
    async with cluster(tmp_path) as (node,):
        described = await describe(node, GROUP, "")
        altered = await alter(node, GROUP, "", (SESSION, SET, "50000"))
        replaced = await replace(node, "")
        for answer in (described, altered, replaced):
            assert answer.error_code is ErrorCode.invalid_request
        assert "must not be empty" in described.error_message
        assert altered.error_message == "Default group resources are not allowed."
        long = await alter(node, GROUP, "x" * 3000, (SESSION, SET, "50000"))
        assert long.error_code is ErrorCode.invalid_group_id


async def test_resources_that_have_settings_are_listed_by_their_type(tmp_path: Path) -> None:
    async with cluster(tmp_path) as (node,):
        await create(node, "a")
        await alter(node, GROUP, "g", (SESSION, SET, "50000"))
        assert await resources(node, GROUP) == [(GROUP, "g")]
        assert await resources(node, 2) == [(2, "a")]
        assert await resources(node, BROKER) == [(BROKER, "1")]
        assert await resources(node, CLIENT_METRICS, 8) == []
        assert sorted(await resources(node)) == [(2, "a"), (BROKER, "1"), (GROUP, "g")]
        answer = await node.ask(LIST, 1, resource_types=[GROUP, 99])
        assert answer.error_code is ErrorCode.unsupported_version
        assert answer.config_resources == ()
        oldest = await node.ask(LIST, 0)
        assert (oldest.error_code, oldest.config_resources) == (ErrorCode.none, ())
