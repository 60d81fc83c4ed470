"""Operations on settings of topics, of groups, of one broker and of all brokers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from tidelog_core.admin.groups.group_admin import validate_group_id
from tidelog_core.admin.settings.configs import Alteration, AlterOperation, check_names
from tidelog_core.admin.settings.describe import (
    ConfigEntry,
    ConfigSource,
    NodeLayers,
    describe_every_node,
    describe_group,
    describe_node,
    describe_topic,
)

from tidelog_functions.admin.chain_store import require_chains
from tidelog_functions.admin.cluster import AdminCluster
from tidelog_functions.admin.contract import Call
from tidelog_functions.admin.http import HttpAnswer

# Kafka's names, as shown by its admin client.
_SOURCES: Mapping[ConfigSource, str] = {
    ConfigSource.TOPIC: "DYNAMIC_TOPIC_CONFIG",
    ConfigSource.DYNAMIC_BROKER: "DYNAMIC_BROKER_CONFIG",
    ConfigSource.DYNAMIC_DEFAULT_BROKER: "DYNAMIC_DEFAULT_BROKER_CONFIG",
    ConfigSource.STATIC_BROKER: "STATIC_BROKER_CONFIG",
    ConfigSource.DEFAULT: "DEFAULT_CONFIG",
    ConfigSource.GROUP: "DYNAMIC_GROUP_CONFIG",
}
EVERY_BROKER = -1  # has no own settings


async def describe_topic_configs(cluster: AdminCluster, call: Call) -> HttpAnswer:
    """Return a topic's settings; inherited values come from all brokers' settings."""
    topic = await cluster.topic(call.parameters["topic"])
    return _described(describe_topic(topic.configs, _layers(cluster, EVERY_BROKER)))


async def describe_group_configs(cluster: AdminCluster, call: Call) -> HttpAnswer:
    """Return a group's settings; the group need not exist."""
    group_id = call.parameters["group_id"]
    validate_group_id(group_id)
    await cluster.view.refresh()
    return _described(describe_group(_set_for_group(cluster, group_id), cluster.node_config()))


async def describe_broker_configs(cluster: AdminCluster, call: Call) -> HttpAnswer:
    """Return a broker's settings."""
    broker_id = call.parameters["broker_id"]
    await cluster.require_broker(broker_id)
    broker = cluster.view.image.brokers.get(broker_id)
    return _described(describe_node(_layers(cluster, broker_id), broker))


async def describe_every_broker_configs(cluster: AdminCluster, _: Call) -> HttpAnswer:
    """Return the settings changed for all brokers."""
    await cluster.view.refresh()
    return _described(describe_every_node(_layers(cluster, EVERY_BROKER)))


async def alter_topic_configs(cluster: AdminCluster, call: Call) -> HttpAnswer:
    """Change settings of a topic."""
    name, is_applied = call.parameters["topic"], _is_applied(call)
    await cluster.topic(name)
    alterations = _alterations(call)
    await require_chains(cluster, {one.name: one.value for one in alterations})
    await cluster.config_admin.alter_topic(name, alterations, validate_only=not is_applied)
    topic = cluster.view.image.topic(name)
    return _altered({} if topic is None else topic.configs, is_applied=is_applied)


async def alter_group_configs(cluster: AdminCluster, call: Call) -> HttpAnswer:
    """Change settings of a group; the group need not exist yet."""
    group_id, is_applied = call.parameters["group_id"], _is_applied(call)
    await cluster.config_admin.alter_group(
        group_id, _alterations(call), validate_only=not is_applied
    )
    return _altered(_set_for_group(cluster, group_id), is_applied=is_applied)


async def alter_broker_configs(cluster: AdminCluster, call: Call) -> HttpAnswer:
    """Change settings of one broker."""
    await cluster.require_broker(call.parameters["broker_id"])
    return await _alter_brokers(cluster, call, call.parameters["broker_id"])


async def alter_every_broker_configs(cluster: AdminCluster, call: Call) -> HttpAnswer:
    """Change settings of all brokers."""
    return await _alter_brokers(cluster, call, None)


async def _alter_brokers(cluster: AdminCluster, call: Call, broker_id: int | None) -> HttpAnswer:
    is_applied = _is_applied(call)
    await cluster.config_admin.alter_node(
        broker_id, _alterations(call), validate_only=not is_applied
    )
    overrides = cluster.view.image.node_configs.get(broker_id)
    return _altered({} if overrides is None else overrides.configs, is_applied=is_applied)


def _set_for_group(cluster: AdminCluster, group_id: str) -> Mapping[str, str]:
    overrides = cluster.view.image.group_configs.get(group_id)
    return {} if overrides is None else overrides.configs


def _layers(cluster: AdminCluster, broker_id: int) -> NodeLayers:
    return NodeLayers.of(cluster.static_config, cluster.view.image, broker_id)


def _is_applied(call: Call) -> bool:
    return not call.body.get("validate_only", False)


def _alterations(call: Call) -> list[Alteration]:
    given = call.body["alterations"]
    check_names(one["name"] for one in given)
    return [
        Alteration(one["name"], AlterOperation[one["operation"].upper()], one.get("value"))
        for one in given
    ]


def _altered(configs: Mapping[str, str], *, is_applied: bool) -> HttpAnswer:
    return HttpAnswer({"configs": dict(sorted(configs.items())), "is_applied": is_applied})


def _described(entries: Iterable[ConfigEntry]) -> HttpAnswer:
    return HttpAnswer({"configs": [_entry(entry) for entry in entries]})


def _entry(entry: ConfigEntry) -> dict[str, Any]:
    return {
        "name": entry.setting.name,
        "value": entry.value,
        "type": entry.setting.type,
        "source": _SOURCES[entry.source],
        "is_read_only": entry.is_read_only,
        "documentation": entry.setting.doc,
        "synonyms": [
            {"name": one.name, "value": one.value, "source": _SOURCES[one.source]}
            for one in entry.synonyms
        ],
    }
