"""Applies alterations of settings, and validates the resulting settings as a whole.

Source: Kafka's ``ConfigurationControlManager`` and ``LogConfig.validateValues``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum

from tidelog_core.admin.settings.diskless_topics import (
    check_conversion,
    kept_setting,
    problems_of_diskless,
    problems_of_new_diskless,
    replaced_setting,
    with_diskless_default,
)
from tidelog_core.config import (
    LOCAL_AS_TOTAL,
    UNLIMITED,
    GroupConfig,
    NodeConfig,
    TopicConfig,
    group_config,
    settings_of,
    topic_config,
)
from tidelog_core.errors import InvalidConfig, InvalidRequest
from tidelog_core.metadata.records import Partition
from tidelog_core.setting import Setting

CONFIGS_PER_RESOURCE_MAX = 1000
# A group's setting, and the node's settings with its least and greatest value.
_BOUNDS_OF_GROUPS = {
    f"{kind}.{what}": (f"group.{kind}.min.{what}", f"group.{kind}.max.{what}")
    for kind, what in (
        ("consumer", "heartbeat.interval.ms"),
        ("consumer", "session.timeout.ms"),
        ("share", "heartbeat.interval.ms"),
        ("share", "session.timeout.ms"),
        ("share", "record.lock.duration.ms"),
    )
}


class AlterOperation(IntEnum):
    """The change of one setting. The numbers are those of the protocol."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


@dataclass(frozen=True, slots=True)
class Alteration:
    """One setting to change; ``value`` is ``None`` for ``DELETE`` only."""

    name: str
    operation: AlterOperation
    value: str | None


def check_names(names: Iterable[str]) -> None:
    """Raise ``InvalidRequest`` if a request names a setting twice."""
    if any(count > 1 for count in Counter(names).values()):
        raise InvalidRequest("Error due to duplicate config keys")


def new_topic_configs(
    configs: Mapping[str, str | None], node: NodeConfig, *, is_own: bool = False
) -> dict[str, str]:
    """Return the overrides of a topic that is being created. Raises ``InvalidConfig``.

    ``is_own``: it is one of the cluster's own topics.
    """
    missing = [name for name, value in configs.items() if value is None]
    if missing:
        raise InvalidConfig([f"Null value not supported for topic configs: {','.join(missing)}"])
    given = {name: value for name, value in configs.items() if value is not None}
    given = with_diskless_default(given, node, is_own=is_own)
    validate_topic_configs(given, node)
    problems = problems_of_new_diskless(topic_config(given, node), node, is_own=is_own)
    if problems:
        raise InvalidConfig(problems)
    return given


def alter_topic_configs(
    current: Mapping[str, str],
    alterations: Sequence[Alteration],
    node: NodeConfig,
    *,
    partitions: Sequence[Partition] = (),
    is_own: bool = False,
) -> dict[str, str]:
    """Return the topic's overrides after the alterations. Raises ``InvalidConfig``.

    ``partitions`` may have to be converted; ``is_own``: it is one of the cluster's own topics.
    """
    declared = settings_of(TopicConfig)
    effective = topic_config(current, node)
    defaults = {
        name: setting.format(getattr(effective, setting.field))
        for name, setting in declared.items()
    }
    altered = altered_configs(current, alterations, declared, defaults)
    altered = kept_setting(current, altered, node)
    validate_topic_configs(altered, node)
    after = topic_config(altered, node)
    check_conversion(effective, after, altered, node, partitions, is_own=is_own)
    return altered


def replace_topic_configs(
    current: Mapping[str, str],
    new: Mapping[str, str],
    node: NodeConfig,
    *,
    partitions: Sequence[Partition] = (),
    is_own: bool = False,
) -> dict[str, str]:
    """Return the topic's overrides where ``new`` are all of them, as ``alter_topic_configs``."""
    before = topic_config(current, node)
    kept = replaced_setting(current, before, new, node)
    validate_topic_configs(kept, node)
    after = topic_config(kept, node)
    check_conversion(before, after, kept, node, partitions, is_own=is_own)
    return kept


def alter_group_configs(
    current: Mapping[str, str], alterations: Sequence[Alteration], node: NodeConfig
) -> dict[str, str]:
    """Return a group's overrides after the alterations. Raises ``InvalidConfig``."""
    altered = altered_configs(current, alterations, settings_of(GroupConfig), {})
    validate_group_configs(altered, node)
    return altered


def alter_node_configs(
    current: Mapping[str, str],
    alterations: Sequence[Alteration],
    effective: NodeConfig,
) -> dict[str, str]:
    """Return the node overrides after the alterations.

    Raises ``InvalidRequest`` if a setting is unknown, fixed at start or out of
    bounds, as Kafka does for brokers, and ``InvalidConfig`` for list operations on
    a setting that is no list.
    """
    declared = settings_of(NodeConfig)
    defaults = {
        name: setting.format(getattr(effective, setting.field))
        for name, setting in declared.items()
    }
    altered = altered_configs(current, alterations, declared, defaults)
    validate_node_configs(altered)
    return altered


def validate_topic_configs(configs: Mapping[str, str], node: NodeConfig) -> None:
    """Raise ``InvalidConfig`` with every problem, alone or together, of a topic's overrides."""
    config = topic_config(configs, node)
    problems = []
    if config.min_compaction_lag_ms > config.max_compaction_lag_ms:
        problems.append(
            f"conflict topic config setting min.compaction.lag.ms"
            f" ({config.min_compaction_lag_ms}) > max.compaction.lag.ms"
            f" ({config.max_compaction_lag_ms})"
        )
    for unit, local, total in (
        ("ms", config.local_retention_ms, config.retention_ms),
        ("bytes", config.local_retention_bytes, config.retention_bytes),
    ):
        if f"local.retention.{unit}" not in configs and f"retention.{unit}" not in configs:
            continue
        if local == LOCAL_AS_TOTAL or total == UNLIMITED:
            continue
        if local == UNLIMITED or local > total:
            problems.append(
                f"local.retention.{unit} ({local}) must not exceed retention.{unit} ({total})"
            )
    problems += problems_of_diskless(config, configs)
    if problems:
        raise InvalidConfig(problems)


def validate_group_configs(configs: Mapping[str, str], node: NodeConfig) -> None:
    """Raise ``InvalidConfig`` with every problem of a group's overrides.

    The bounds apply to overrides only, not to the node's own defaults.
    Source: ``GroupConfig.validate``.
    """
    config = group_config(configs, node)
    declared, node_declared = settings_of(GroupConfig), settings_of(NodeConfig)
    problems = []
    for name, (least, most) in _BOUNDS_OF_GROUPS.items():
        if name not in configs:
            continue
        value = getattr(config, declared[name].field)
        if value < getattr(node, node_declared[least].field):
            problems.append(f"{name} must be greater than or equal to {least}")
        if value > getattr(node, node_declared[most].field):
            problems.append(f"{name} must be less than or equal to {most}")
    for kind, session_ms, heartbeat_ms in (
        ("consumer", config.consumer_session_timeout_ms, config.consumer_heartbeat_interval_ms),
        ("share", config.share_session_timeout_ms, config.share_heartbeat_interval_ms),
    ):
        session, heartbeat = f"{kind}.session.timeout.ms", f"{kind}.heartbeat.interval.ms"
        if (session in configs or heartbeat in configs) and session_ms <= heartbeat_ms:
            problems.append(f"{session} must be greater than {heartbeat}")
    if problems:
        raise InvalidConfig(problems)


def validate_node_configs(configs: Mapping[str, str]) -> None:
    """Raise ``InvalidRequest`` with every problem of settings to change while running."""
    declared = settings_of(NodeConfig)
    problems = []
    for name, text in configs.items():
        setting = declared.get(name)
        if setting is None or setting.is_read_only:
            problems.append(f"Cannot update these configs dynamically: {name}")
            continue
        try:
            setting.parse(text)
        except ValueError as error:
            problems.append(f"Invalid value {text} for configuration {name}: {error}")
    if problems:
        raise InvalidRequest("; ".join(problems))


def altered_configs(
    current: Mapping[str, str],
    alterations: Sequence[Alteration],
    declared: Mapping[str, Setting],
    defaults: Mapping[str, str],
) -> dict[str, str]:
    """Return the overrides after the alterations, unchecked; ``defaults`` are those of lists.

    Raises ``InvalidConfig`` and ``InvalidRequest``.
    """
    altered = dict(current)
    for alteration in alterations:
        name, value = alteration.name, alteration.value
        if alteration.operation is AlterOperation.DELETE:
            altered.pop(name, None)
            continue
        if value is None:
            raise InvalidRequest(f"Null value not supported for : {name}")
        if alteration.operation is AlterOperation.SET:
            altered[name] = value
            continue
        setting = declared.get(name)
        if setting is None or setting.type != "list":
            raise InvalidConfig(
                [f"Can't {alteration.operation.name} to key {name} because its type is not LIST."]
            )
        before = _parts(altered.get(name, defaults[name]))
        altered[name] = ",".join(_alter_list(before, alteration.operation, _parts(value)))
    if len(altered) > CONFIGS_PER_RESOURCE_MAX:
        raise InvalidConfig([f"at most {CONFIGS_PER_RESOURCE_MAX} settings, not {len(altered)}"])
    return altered


def _alter_list(before: list[str], operation: AlterOperation, parts: list[str]) -> list[str]:
    if operation is AlterOperation.APPEND:
        return before + [part for part in dict.fromkeys(parts) if part not in before]
    return [part for part in before if part not in parts]


def _parts(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]
