"""Describes settings for clients: the effective value, and every place that sets one.

A setting's synonyms are those places, the strongest first; the first one's value is
effective. Source: KIP-226, and ``ConfigHelper`` of Kafka.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import IntEnum

from tidelog_core.config import (
    TOPIC_DEFAULT_FROM_NODE,
    ClientMetricsConfig,
    GroupConfig,
    NodeConfig,
    TopicConfig,
    group_config,
    parse_config,
    settings_of,
)
from tidelog_core.metadata.image.cluster_image import ClusterImage
from tidelog_core.metadata.records import Broker
from tidelog_core.setting import Setting, SettingType


class ConfigSource(IntEnum):
    """The source of a value. The numbers are those of the protocol."""

    TOPIC = 1
    DYNAMIC_BROKER = 2
    DYNAMIC_DEFAULT_BROKER = 3
    STATIC_BROKER = 4
    DEFAULT = 5
    CLIENT_METRICS = 7
    GROUP = 8


# The protocol's numbers of the types. Short and class are not used here.
CONFIG_TYPE_NUMBERS: Mapping[SettingType, int] = {
    "boolean": 1,
    "string": 2,
    "int": 3,
    "long": 5,
    "double": 6,
    "list": 7,
    "password": 9,
}


@dataclass(frozen=True, slots=True)
class ConfigSynonym:
    """One place that sets a value."""

    name: str
    value: str | None  # None: a secret
    source: ConfigSource


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """One setting with its effective value."""

    setting: Setting
    value: str | None  # None: a secret
    source: ConfigSource
    is_read_only: bool
    synonyms: tuple[ConfigSynonym, ...]


@dataclass(frozen=True, slots=True)
class NodeLayers:
    """A node's settings by source."""

    static: NodeConfig  # as the node was started
    every_node: Mapping[str, str]  # changed while running, for all
    this_node: Mapping[str, str]  # changed while running, for this one

    @classmethod
    def of(cls, static: NodeConfig, image: ClusterImage, broker_id: int) -> NodeLayers:
        """Return the layers of the broker as the image has them."""
        default, own = image.node_configs.get(None), image.node_configs.get(broker_id)
        return cls(
            static,
            {} if default is None else default.configs,
            {} if own is None else own.configs,
        )


def describe_topic(configs: Mapping[str, str], layers: NodeLayers) -> list[ConfigEntry]:
    """Return every setting of a topic with these overrides, by name."""
    entries = []
    for name, setting in sorted(settings_of(TopicConfig).items()):
        synonyms: list[ConfigSynonym] = []
        if name in configs:
            value = setting.format(setting.parse(configs[name]))
            synonyms.append(ConfigSynonym(name, value, ConfigSource.TOPIC))
        node_name = TOPIC_DEFAULT_FROM_NODE.get(name)
        if node_name is None:
            default = setting.format(setting.default)
            synonyms.append(ConfigSynonym(name, default, ConfigSource.DEFAULT))
        else:
            synonyms += _node_synonyms(settings_of(NodeConfig)[node_name], layers)
        entries.append(_entry(setting, synonyms, is_read_only=False))
    return entries


def describe_group(configs: Mapping[str, str], node: NodeConfig) -> list[ConfigEntry]:
    """Return every setting of a group with these overrides, by name.

    The node's value for all groups is shown as the default, as Kafka does.
    """
    config = group_config(configs, node)
    entries = []
    for name, setting in sorted(settings_of(GroupConfig).items()):
        source = ConfigSource.GROUP if name in configs else ConfigSource.DEFAULT
        value = setting.format(getattr(config, setting.field))
        entries.append(_entry(setting, [ConfigSynonym(name, value, source)], is_read_only=False))
    return entries


def describe_client_metrics(configs: Mapping[str, str]) -> list[ConfigEntry]:
    """Return every setting of a subscription to client metrics with these overrides, by name.

    A default has no synonyms, as in Kafka.
    """
    config = parse_config(ClientMetricsConfig, configs)
    entries = []
    for name, setting in sorted(settings_of(ClientMetricsConfig).items()):
        value = setting.format(getattr(config, setting.field))
        source = ConfigSource.CLIENT_METRICS if name in configs else ConfigSource.DEFAULT
        own = (ConfigSynonym(name, value, source),) if name in configs else ()
        entries.append(ConfigEntry(setting, value, source, is_read_only=False, synonyms=own))
    return entries


def describe_node(layers: NodeLayers, broker: Broker | None) -> list[ConfigEntry]:
    """Return every setting of a node, by name; for a registered node also its listeners."""
    entries = []
    for name, setting in sorted(settings_of(NodeConfig).items()):
        synonyms = _node_synonyms(setting, layers)
        if name == "advertised.listeners" and broker is not None:
            listeners = ",".join(f"{e.listener}://{e}" for e in broker.endpoints)
            synonyms = [ConfigSynonym(name, listeners, ConfigSource.STATIC_BROKER)]
        entries.append(_entry(setting, synonyms, is_read_only=setting.is_read_only))
    return entries


def describe_every_node(layers: NodeLayers) -> list[ConfigEntry]:
    """Return the settings that were changed for all nodes, by name."""
    declared = settings_of(NodeConfig)
    return [
        _entry(
            declared[name],
            [ConfigSynonym(name, value, ConfigSource.DYNAMIC_DEFAULT_BROKER)],
            is_read_only=False,
        )
        for name, value in sorted(layers.every_node.items())
        if name in declared
    ]


def _node_synonyms(setting: Setting, layers: NodeLayers) -> list[ConfigSynonym]:
    synonyms = [
        ConfigSynonym(setting.name, overrides[setting.name], source)
        for overrides, source in (
            (layers.this_node, ConfigSource.DYNAMIC_BROKER),
            (layers.every_node, ConfigSource.DYNAMIC_DEFAULT_BROKER),
        )
        if setting.name in overrides
    ]
    static = getattr(layers.static, setting.field)
    if static != setting.default:
        synonyms.append(
            ConfigSynonym(setting.name, setting.format(static), ConfigSource.STATIC_BROKER)
        )
    default = setting.format(setting.default)
    return [*synonyms, ConfigSynonym(setting.name, default, ConfigSource.DEFAULT)]


def _entry(setting: Setting, synonyms: list[ConfigSynonym], *, is_read_only: bool) -> ConfigEntry:
    if setting.is_sensitive:
        synonyms = [replace(synonym, value=None) for synonym in synonyms]
    first = synonyms[0]
    return ConfigEntry(setting, first.value, first.source, is_read_only, tuple(synonyms))
