"""Administration: decide on the newest image, commit, and decide again where that lost.

The same calls serve the node's handlers and the Lambda functions. After each of them
the view's image shows the change, unless the store has gone away in between.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence, Set
from typing import TypeVar
from uuid import UUID, uuid4

from tidelog_core.admin.commit import commit_deletion, commit_topic
from tidelog_core.admin.configs import (
    Alteration,
    alter_group_configs,
    alter_node_configs,
    alter_topic_configs,
    replace_topic_configs,
    validate_group_configs,
    validate_node_configs,
)
from tidelog_core.admin.groups import validate_group_id
from tidelog_core.admin.topics import (
    NewTopic,
    TopicPlan,
    default_topic,
    plan_deletion,
    plan_more_partitions,
    plan_topic,
)
from tidelog_core.clock import wall_clock_ms
from tidelog_core.config import NodeConfig
from tidelog_core.errors import (
    StoreUnavailable,
    TopicAlreadyExists,
    TopicDeletionDisabled,
    UnknownTopicId,
    UnknownTopicOrPartition,
    VersionConflict,
)
from tidelog_core.metadata import records
from tidelog_core.metadata.group_configs import GroupConfigOverrides
from tidelog_core.metadata.image import ClusterImage, ClusterView
from tidelog_core.metadata.node_config import effective_node_config
from tidelog_core.metadata.records import NodeConfigOverrides, Topic
from tidelog_core.metadata.store import ABSENT, MetadataStore

T = TypeVar("T")

ATTEMPTS_MAX = 10
RETRY_DELAY_MAX = 0.05  # seconds


class ClusterAdmin:
    """Changes topics and settings. Any number of nodes may do so at once."""

    def __init__(
        self,
        *,
        store: MetadataStore,
        view: ClusterView,
        node_config: Callable[[], NodeConfig],
        clock_ms: Callable[[], int] = wall_clock_ms,
        new_topic_id: Callable[[], UUID] = uuid4,
        live: Callable[[ClusterImage], Set[int]] = lambda image: image.brokers.keys(),
        see_peers: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """``live`` returns the brokers that can serve; ``see_peers`` brings it up to the view."""
        self._store = store
        self._view = view
        self._node_config = node_config
        self._clock_ms = clock_ms
        self._new_topic_id = new_topic_id
        self._live = live
        self._see_peers = see_peers

    async def create_topic(self, new: NewTopic, *, validate_only: bool = False) -> TopicPlan:
        """Create the topic and return it. Raises what ``plan_topic`` raises."""

        def decide(image: ClusterImage) -> TopicPlan:
            return plan_topic(
                image,
                new,
                node=self._node_config(),
                topic_id=self._new_topic_id(),
                now_ms=self._clock_ms(),
                live=self._live(image),
            )

        return await self._change(
            decide, lambda plan: commit_topic(self._store, plan), validate_only
        )

    async def ensure_topic(self, name: str) -> Topic:
        """Return the topic, created with the cluster's defaults where it is not there.

        Raises what ``plan_topic`` raises, but not ``TopicAlreadyExists``.
        """
        topic = self._view.image.topic(name)
        if topic is not None:
            return topic
        try:
            live_count = len(self._live(await self._newest()))
            plan = await self.create_topic(
                default_topic(name, self._node_config(), live_count=live_count)
            )
        except TopicAlreadyExists:
            topic = self._view.image.topic(name)
            if topic is None:
                raise  # Created and deleted while we looked: the caller asks again.
            return topic
        return plan.topic

    async def create_partitions(
        self,
        name: str,
        count: int,
        *,
        assignments: Sequence[Sequence[int]] | None = None,
        validate_only: bool = False,
    ) -> TopicPlan:
        """Widen the topic to ``count`` partitions. Raises what ``plan_more_partitions`` raises."""
        return await self._change(
            lambda image: plan_more_partitions(
                image, name, count, assignments=assignments, live=self._live(image)
            ),
            lambda plan: commit_topic(self._store, plan),
            validate_only,
        )

    def check_deletion_enabled(self) -> None:
        """Raise ``TopicDeletionDisabled`` where no topic may be deleted."""
        if not self._node_config().delete_topic_enable:
            raise TopicDeletionDisabled("Topic deletion is disabled.")

    async def delete_topic(self, topic_id: UUID) -> Topic:
        """Delete the topic and return it as it was.

        Raises ``UnknownTopicId`` or ``TopicDeletionDisabled``.
        """
        self.check_deletion_enabled()

        def decide(image: ClusterImage) -> Topic:
            topic = image.topic_by_id(topic_id)
            if topic is None:
                raise UnknownTopicId("This server does not host this topic ID.")
            return topic

        async def commit(topic: Topic) -> None:
            tombstone = plan_deletion(topic, now_ms=self._clock_ms())
            await commit_deletion(self._store, topic, tombstone)

        return await self._change(decide, commit)

    async def alter_topic(
        self, name: str, alterations: Sequence[Alteration], *, validate_only: bool = False
    ) -> None:
        """Change some of the topic's settings.

        Raises ``UnknownTopicOrPartition``, ``InvalidConfig`` or ``InvalidRequest``.
        """
        await self._alter_topic(
            name,
            lambda configs: alter_topic_configs(configs, alterations, self._node_config()),
            validate_only,
        )

    async def replace_topic(
        self, name: str, configs: Mapping[str, str], *, validate_only: bool = False
    ) -> None:
        """Make ``configs`` all of the topic's settings; raises as ``alter_topic``."""
        await self._alter_topic(
            name, lambda _: replace_topic_configs(configs, self._node_config()), validate_only
        )

    async def alter_group(
        self, group_id: str, alterations: Sequence[Alteration], *, validate_only: bool = False
    ) -> None:
        """Change some of a group's own settings; there need be no such group yet.

        Raises ``InvalidGroupId``, ``InvalidConfig`` or ``InvalidRequest``.
        """

        def alter(configs: Mapping[str, str]) -> dict[str, str]:
            return alter_group_configs(configs, alterations, self._node_config())

        await self._alter_group(group_id, alter, validate_only)

    async def replace_group(
        self, group_id: str, configs: Mapping[str, str], *, validate_only: bool = False
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
        validate_only: bool = False,
    ) -> None:
        """Change some settings of one node, or with ``None`` of every node.

        Raises ``InvalidRequest`` or ``InvalidConfig``.
        """

        def alter(image: ClusterImage, configs: Mapping[str, str]) -> dict[str, str]:
            effective = effective_node_config(self._node_config(), image, broker_id)
            return alter_node_configs(configs, alterations, effective)

        await self._alter_node(broker_id, alter, validate_only)

    async def replace_node(
        self, broker_id: int | None, configs: Mapping[str, str], *, validate_only: bool = False
    ) -> None:
        """Make ``configs`` all overrides of one or every node. Raises ``InvalidRequest``."""

        def replace(_: ClusterImage, __: Mapping[str, str]) -> dict[str, str]:
            validate_node_configs(configs)
            return dict(configs)

        await self._alter_node(broker_id, replace, validate_only)

    async def _alter_topic(
        self,
        name: str,
        alter: Callable[[Mapping[str, str]], dict[str, str]],
        validate_only: bool,
    ) -> None:
        def decide(image: ClusterImage) -> Topic:
            topic = image.topic(name)
            if topic is None:
                raise UnknownTopicOrPartition(f"The topic '{name}' does not exist.")
            return dataclasses.replace(topic, configs=alter(topic.configs))

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

    async def _put(self, record: records.Record) -> None:
        await self._store.commit([records.put(record)])

    async def _change(
        self,
        decide: Callable[[ClusterImage], T],
        commit: Callable[[T], Awaitable[None]],
        validate_only: bool = False,
    ) -> T:
        """Decide and commit; where someone else was first, look again and decide anew."""
        image = await self._newest()
        for attempt in range(1, ATTEMPTS_MAX + 1):
            decision = decide(image)
            if validate_only:
                return decision
            try:
                await commit(decision)
            except VersionConflict:
                if attempt == ATTEMPTS_MAX:
                    raise
                await asyncio.sleep(random.uniform(0, RETRY_DELAY_MAX))
                image = await self._newest()
                continue
            # What was committed is done, even if the store has gone away just now.
            with contextlib.suppress(StoreUnavailable):
                await self._view.refresh()
            break
        return decision

    async def _newest(self) -> ClusterImage:
        image = await self._view.refresh()
        if self._see_peers is not None:
            await self._see_peers()
        return image
