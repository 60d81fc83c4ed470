"""Changes the settings of topics, groups and nodes for an administrator.

The node's handlers and the Lambda functions make the same calls. Each decides on the newest image
and commits; after a conflict it decides again. On return the view's image shows the change, unless
the store has become unreachable.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import TypeVar

from tidelog_core.admin.batch_changes import RETRY_DELAY_MAX
from tidelog_core.admin.groups.group_admin import validate_group_id
from tidelog_core.admin.names import is_internal
from tidelog_core.admin.settings.configs import (
    Alteration,
    alter_group_configs,
    alter_node_configs,
    alter_topic_configs,
    replace_topic_configs,
    validate_group_configs,
    validate_node_configs,
)
from tidelog_core.config import NodeConfig
from tidelog_core.errors import StoreUnavailable, UnknownTopicOrPartition, VersionConflict
from tidelog_core.metadata import records
from tidelog_core.metadata.coordination.group_configs import GroupConfigOverrides
from tidelog_core.metadata.image.cluster_image import ClusterImage
from tidelog_core.metadata.image.cluster_view import ClusterView
from tidelog_core.metadata.node_config import effective_node_config
from tidelog_core.metadata.record import Record
from tidelog_core.metadata.records import NodeConfigOverrides, Topic
from tidelog_core.metadata.store import ABSENT, MetadataStore
from tidelog_core.metadata.update import retried

T = TypeVar("T")


class ConfigAdmin:
    """Changes settings. Any number of nodes may do so concurrently."""

    def __init__(
        self, *, store: MetadataStore, view: ClusterView, node_config: Callable[[], NodeConfig]
    ) -> None:
        self._store = store
        self._view = view
        self._node_config = node_config

    async def alter_topic(
        self, name: str, alterations: Sequence[Alteration], *, validate_only: bool
    ) -> None:
        """Change some of the topic's settings.

        Raises ``UnknownTopicOrPartition``, ``InvalidConfig`` or ``InvalidRequest``.
        """
        await self._alter_topic(
            name,
            partial(alter_topic_configs, alterations=alterations, node=self._node_config()),
            validate_only,
        )

    async def replace_topic(
        self, name: str, configs: Mapping[str, str], *, validate_only: bool
    ) -> None:
        """Make ``configs`` all of the topic's settings; raises as ``alter_topic``."""
        await self._alter_topic(
            name,
            partial(replace_topic_configs, new=configs, node=self._node_config()),
            validate_only,
        )

    async def alter_group(
        self, group_id: str, alterations: Sequence[Alteration], *, validate_only: bool
    ) -> None:
        """Change some of a group's own settings; there need be no such group yet.

        Raises ``InvalidGroupId``, ``InvalidConfig`` or ``InvalidRequest``.
        """

        def alter(configs: Mapping[str, str]) -> dict[str, str]:
            return alter_group_configs(configs, alterations, self._node_config())

        await self._alter_group(group_id, alter, validate_only)

    async def replace_group(
        self, group_id: str, configs: Mapping[str, str], *, validate_only: bool
    ) -> None:
        """Make ``configs`` all that is set for a group; raises as ``alter_group``."""

        def replace(_: Mapping[str, str]) -> dict[str, str]:
            validate_group_configs(configs, self._node_config())
            return dict(configs)

        await self._alter_group(group_id, replace, validate_only)

    async def alter_node(
        self,
        broker_id: int | None,
        alterations: Sequence[Alteration],
        *,
        validate_only: bool,
    ) -> None:
        """Change some settings of one node, or with ``None`` of every node.

        Raises ``InvalidRequest`` or ``InvalidConfig``.
        """

        def alter(image: ClusterImage, configs: Mapping[str, str]) -> dict[str, str]:
            effective = effective_node_config(self._node_config(), image, broker_id)
            return alter_node_configs(configs, alterations, effective)

        await self._alter_node(broker_id, alter, validate_only)

    async def replace_node(
        self, broker_id: int | None, configs: Mapping[str, str], *, validate_only: bool
    ) -> None:
        """Replace all overrides of one node or of every node. Raises ``InvalidRequest``."""

        def replace(_: ClusterImage, __: Mapping[str, str]) -> dict[str, str]:
            validate_node_configs(configs)
            return dict(configs)

        await self._alter_node(broker_id, replace, validate_only)

    async def _alter_topic(
        self,
        name: str,
        alter: Callable[..., dict[str, str]],
        validate_only: bool,
    ) -> None:
        def decide(image: ClusterImage) -> Topic:
            topic = image.topic(name)
            if topic is None:
                raise UnknownTopicOrPartition(f"The topic '{name}' does not exist.")
            configs = alter(
                topic.configs, partitions=image.partitions(name), is_own=is_internal(name)
            )
            return dataclasses.replace(topic, configs=configs)

        await self._change(decide, self._put, validate_only)

    async def _alter_group(
        self,
        group_id: str,
        alter: Callable[[Mapping[str, str]], dict[str, str]],
        validate_only: bool,
    ) -> None:
        validate_group_id(group_id)

        def decide(image: ClusterImage) -> GroupConfigOverrides:
            before = image.group_configs.get(group_id)
            if before is None:
                before = GroupConfigOverrides(group_id=group_id, configs={})
            return dataclasses.replace(before, configs=alter(before.configs))

        async def commit(overrides: GroupConfigOverrides) -> None:
            if overrides.configs:
                await self._put(overrides)
            elif overrides.version != ABSENT:
                await self._store.commit([records.delete(overrides)])

        await self._change(decide, commit, validate_only)

    async def _alter_node(
        self,
        broker_id: int | None,
        alter: Callable[[ClusterImage, Mapping[str, str]], dict[str, str]],
        validate_only: bool,
    ) -> None:
        def decide(image: ClusterImage) -> NodeConfigOverrides:
            before = image.node_configs.get(broker_id)
            if before is None:
                before = NodeConfigOverrides(broker_id=broker_id, configs={})
            return dataclasses.replace(before, configs=alter(image, before.configs))

        await self._change(decide, self._put, validate_only)

    async def _put(self, record: Record) -> None:
        await self._store.commit([records.put(record)])

    async def _change(
        self,
        decide: Callable[[ClusterImage], T],
        commit: Callable[[T], Awaitable[None]],
        validate_only: bool,
    ) -> T:
        """Decide and commit. After a conflict, read and decide again."""

        async def attempt() -> T:
            decision = decide(await self._view.refresh())
            if not validate_only:
                await commit(decision)
            return decision

        decision = await retried(attempt, on=(VersionConflict,), pause_seconds_max=RETRY_DELAY_MAX)
        if not validate_only:
            # The commit is valid, even if the store has become unreachable since.
            with contextlib.suppress(StoreUnavailable):
                await self._view.refresh()
        return decision
