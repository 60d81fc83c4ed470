"""Which topics may be diskless, by their settings and the node's.

Whether a topic is diskless is stored with the topic when it is created. So a later change of the
node's default changes no topic. Source: KIP-1150 and KIP-1163.
"""

from __future__ import annotations

from collections.abc import Mapping

from tidelog_core.config import NodeConfig, TopicConfig
from tidelog_core.errors import InvalidConfig

ENABLE = "diskless.enable"
_TIERING = "remote.storage.enable"
_KMS_KEY = "tier.kms.key.id"


def with_diskless_default(
    given: Mapping[str, str], node: NodeConfig, *, is_own: bool
) -> dict[str, str]:
    """Return a new topic's overrides, with the node's default if it makes the topic diskless.

    ``is_own``: the topic is one of the cluster's own, which have no records.
    """
    if not node.log_diskless_enable or is_own or ENABLE in given:
        return dict(given)
    return {**given, ENABLE: "true"}


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


def check_unchanged(before: TopicConfig, after: TopicConfig) -> None:
    """Raise ``InvalidConfig`` if an alteration makes a topic diskless, or not diskless any more."""
    if before.diskless_enable == after.diskless_enable:
        return
    stays = "true" if before.diskless_enable else "false"
    raise InvalidConfig(
        [
            f"{ENABLE} cannot be changed after the topic was created: conversion is not offered"
            f" yet. Leave it {stays}, which a request that replaces all settings must say if it is"
            " true, or copy the records into a new topic"
        ]
    )
