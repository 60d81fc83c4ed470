"""Which topics may be diskless, and that they stay it."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from tidelog_core.admin.configs import (
    Alteration,
    AlterOperation,
    alter_topic_configs,
    new_topic_configs,
    replace_topic_configs,
)
from tidelog_core.config import NodeConfig, topic_config
from tidelog_core.errors import InvalidConfig

NODE = NodeConfig()
BY_DEFAULT = NodeConfig(log_diskless_enable=True)
NOT_HERE = NodeConfig(diskless_storage_system_enable=False)
DISKLESS = {"diskless.enable": "true"}


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


@pytest.mark.parametrize("before", ["true", "false"])
def test_a_topic_stays_as_it_was_created(before: str) -> None:
    after = "false" if before == "true" else "true"
    current = {"diskless.enable": before}
    with pytest.raises(InvalidConfig, match="conversion is not offered yet"):
        alter(current, "diskless.enable", after)
    with pytest.raises(InvalidConfig, match="conversion is not offered yet"):
        replace_topic_configs(current, {"diskless.enable": after}, NODE)
    assert alter(current, "diskless.enable", before) == current
    assert replace_topic_configs(current, current, NODE) == current


def test_a_diskless_topic_does_not_lose_that_with_its_other_settings() -> None:
    with pytest.raises(InvalidConfig, match="conversion is not offered yet"):
        alter(DISKLESS, "diskless.enable", None)
    with pytest.raises(InvalidConfig, match="a request that replaces all settings must say"):
        replace_topic_configs(DISKLESS, {"retention.ms": "5"}, NODE)
    assert replace_topic_configs({}, {"retention.ms": "5"}, BY_DEFAULT) == {"retention.ms": "5"}
