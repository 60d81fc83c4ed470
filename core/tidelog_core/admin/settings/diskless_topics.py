"""Which topics may be diskless, by their settings and the node's.

Whether a topic is to be diskless is stored with the topic when it is created, so a later change of
the node's default changes no topic. It may be altered: then the leaders convert the partitions, and
each partition says what it is (``Partition.is_diskless``). Source: KIP-1150 and KIP-1163.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from tidelog_core.config import NodeConfig, TopicConfig
from tidelog_core.errors import InvalidConfig
from tidelog_core.metadata.records import Partition

ENABLE = "diskless.enable"
_TIERING = "remote.storage.enable"
_KMS_KEY = "tier.kms.key.id"


def with_diskless_default(
    configs: Mapping[str, str], node: NodeConfig, *, is_own: bool
) -> dict[str, str]:
    """Return a new topic's overrides, with the node's default if it makes the topic diskless.

    ``is_own``: the topic is one of the cluster's own, which have no records.
    """
    if not node.log_diskless_enable or is_own or ENABLE in configs:
        return dict(configs)
    return {**configs, ENABLE: "true"}


def problems_of_new_diskless(config: TopicConfig, node: NodeConfig, *, is_own: bool) -> list[str]:
    """Return why the topic cannot be created, besides ``problems_of_diskless``."""
    if not config.diskless_enable:
        return []
    problems = []
    if is_own:
        problems.append(f"{ENABLE}=true: the cluster's own topics are not diskless")
    if not node.diskless_storage_system_enable:
        problems.append(
            f"{ENABLE}=true is not possible: diskless.storage.system.enable is false on this node;"
            f" set it to true and start the node again, or create the topic with {ENABLE}=false"
        )
    return problems


def problems_of_diskless(config: TopicConfig, overrides: Mapping[str, str]) -> list[str]:
    """Return which settings of the topic cannot go with being diskless."""
    if not config.diskless_enable:
        return []
    problems = []
    if not config.remote_storage_enable:
        problems.append(
            f"{ENABLE}=true needs {_TIERING}=true: objects with the records of many topics are"
            " deleted once all of their records are tiered"
        )
    if overrides.get(_KMS_KEY):
        problems.append(
            f"{ENABLE}=true cannot go with {_KMS_KEY}: until they are tiered, records are in"
            " objects that several topics share, and one key cannot be the key of them all;"
            " encrypt the bucket with a key of its own, or use a topic that is not diskless"
        )
    return problems


def kept_setting(
    current: Mapping[str, str], altered: Mapping[str, str], node: NodeConfig
) -> dict[str, str]:
    """Return the topic's overrides with its own ``diskless.enable``, if it ever had one.

    One that was deleted gets the node's default. Readers of the bucket and the scrub know by it
    that chains may have records of the topic.
    """
    if ENABLE in altered or ENABLE not in current:
        return dict(altered)
    return {**altered, ENABLE: "true" if node.log_diskless_enable else "false"}


def replaced_setting(
    current: Mapping[str, str], before: TopicConfig, new: Mapping[str, str], node: NodeConfig
) -> dict[str, str]:
    """Return the overrides ``new``, with ``diskless.enable`` as it was if they leave it out.

    Raises ``InvalidConfig`` if a topic is diskless and the node's default is not.
    """
    if ENABLE in new or ENABLE not in current:
        return dict(new)
    if before.diskless_enable and not node.log_diskless_enable:
        raise InvalidConfig(
            [
                f"the topic is diskless: a request that replaces all settings must say"
                f" {ENABLE}=true, or {ENABLE}=false to convert it; or change single settings"
            ]
        )
    return {**new, ENABLE: current[ENABLE]}


def check_conversion(
    before: TopicConfig,
    after: TopicConfig,
    overrides: Mapping[str, str],
    node: NodeConfig,
    partitions: Sequence[Partition],
    *,
    is_own: bool,
) -> None:
    """Raise ``InvalidConfig`` if the topic's partitions cannot be converted to ``after``.

    ``before`` is what the settings said. A conversion may not have ended yet: the partitions say
    what they are.
    """
    problems: list[str] = []
    if after.diskless_enable and not before.diskless_enable:
        problems += problems_of_new_diskless(after, node, is_own=is_own)
    elif before.diskless_enable and not after.diskless_enable:
        problems += _problems_of_return(after, node, partitions)
    if not after.diskless_enable and any(one.wal or one.is_diskless for one in partitions):
        problems += [
            f"{problem}. The topic is still becoming replicated: try again when its log says so"
            for problem in problems_of_diskless(replace(after, diskless_enable=True), overrides)
        ]
    if problems:
        raise InvalidConfig(problems)


def _problems_of_return(
    after: TopicConfig, node: NodeConfig, partitions: Sequence[Partition]
) -> list[str]:
    """Return why replicas cannot have the records of some partitions: they are too few."""
    least = after.min_insync_replicas
    if node.default_replication_factor > 1:
        least = max(least, 2)
    few = [one for one in partitions if len(one.replicas) < least]
    if not few:
        return []
    numbers = ", ".join(str(one.partition) for one in few[:5]) + (", …" if len(few) > 5 else "")
    return [
        f"{ENABLE}=false needs at least {least} replicas of every partition, and partitions"
        f" {numbers} have {min(len(one.replicas) for one in few)}: a record would be on too few"
        " disks. Add replicas first, with kafka-reassign-partitions or tidelog topic"
        " reassign: they fill themselves from the bucket"
    ]
