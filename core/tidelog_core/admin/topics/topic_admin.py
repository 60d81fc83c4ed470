"""Creates, widens and deletes topics for an administrator.

The node's handlers and the Lambda functions make the same calls. Each decides on the newest image
and commits; after a conflict it decides again. On return the view's image shows the change, unless
the store has become unreachable.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate
from typing import TypeVar
from uuid import UUID, uuid4

from tidelog_core.admin.batch_changes import Commit, change_each
from tidelog_core.admin.topics.topic_commits import Deletion, commit_deletions, commit_topics
from tidelog_core.admin.topics.topic_plans import (
    NewTopic,
    TopicPlan,
    TopicPlanner,
    WiderTopic,
    check_new_partition_count,
    default_topic,
    plan_deletion,
    wanted_partition_count,
)
from tidelog_core.clock import wall_clock_ms
from tidelog_core.config import NodeConfig
from tidelog_core.errors import (
    PolicyViolation,
    StoreUnavailable,
    TidelogError,
    TopicAlreadyExists,
    TopicDeletionDisabled,
    UnknownTopicId,
)
from tidelog_core.metadata.image.cluster_image import ClusterImage
from tidelog_core.metadata.image.cluster_view import ClusterView
from tidelog_core.metadata.records import Topic
from tidelog_core.metadata.store import MetadataStore
from tidelog_core.turns import Turn

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")


PLANNED_HERE_MAX = 500  # partitions of a topic that the loop places by itself, in 5 ms


@dataclass(slots=True)
class _Ensured:
    """Topics to create if missing, for all callers that requested one of them."""

    names: dict[str, None] = field(default_factory=dict)  # in the order they were named
    failed: dict[str, TidelogError] | None = None  # None: not created yet


class TopicAdmin:
    """Changes topics. Any number of nodes may do so concurrently."""

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
        self._to_ensure = _Ensured()
        self._ensuring = asyncio.Lock()

    async def create_topic(self, new: NewTopic, *, validate_only: bool = False) -> TopicPlan:
        """Create the topic and return it. Raises the errors of ``TopicPlanner.plan_new``."""
        outcomes = await self.create_topics([new], validate_only=validate_only)
        return _only(outcomes)

    async def create_topics(
        self,
        topics: Sequence[NewTopic],
        *,
        validate_only: bool = False,
        seconds_max: float | None = None,
    ) -> dict[str, TopicPlan | TidelogError]:
        """Create the topics, of distinct names; return the result of each, by name.

        Results may be errors of ``TopicPlanner.plan_new``, or ``RequestTimedOut`` for topics that
        were not begun in time. Raises ``PolicyViolation`` if there are too many.
        """
        node = self._node_config()
        for total in accumulate(wanted_partition_count(new, node) for new in topics):
            check_new_partition_count(total)  # Fails early if there are very many.
        return await self._create(topics, validate_only=validate_only, seconds_max=seconds_max)

    async def ensure_topic(self, name: str) -> Topic:
        """Return the topic; create it with the cluster's defaults if it does not exist.

        Raises the errors of ``TopicPlanner.plan_new``, except ``TopicAlreadyExists``.
        """
        for error in (await self.ensure_topics([name])).values():
            raise error
        topic = self._view.image.topic(name)
        if topic is None:  # Created and deleted in between: the caller retries.
            raise TopicAlreadyExists(
                f"Topic '{name}' existed and was deleted at the same time: try again."
            )
        return topic

    async def ensure_topics(self, names: Iterable[str]) -> dict[str, TidelogError]:
        """Create missing topics with the cluster's defaults; return the failures.

        Topics requested while others are being created are created together. A call with too many
        partitions fails with ``PolicyViolation``.
        """
        missing, turn = [], Turn()
        for name in names:
            await turn.step()
            if self._view.image.topic(name) is None:
                missing.append(name)
        if not missing:
            return {}
        try:
            check_new_partition_count(len(missing) * self._node_config().num_partitions)
        except PolicyViolation as error:
            return dict.fromkeys(missing, error)
        ensured = self._to_ensure
        ensured.names.update(dict.fromkeys(missing))
        async with self._ensuring:
            if ensured.failed is None:  # No earlier caller has created them.
                if self._to_ensure is ensured:
                    self._to_ensure = _Ensured()
                ensured.failed = await self._create_defaults(list(ensured.names))
        failed = ensured.failed
        return {name: failed[name] for name in missing if name in failed}

    async def widen_topic(self, wider: WiderTopic, *, validate_only: bool = False) -> TopicPlan:
        """Widen a topic. Raises the errors of ``TopicPlanner.plan_wider``."""
        return _only(await self.widen_topics([wider], validate_only=validate_only))

    async def widen_topics(
        self,
        topics: Sequence[WiderTopic],
        *,
        validate_only: bool = False,
        seconds_max: float | None = None,
    ) -> dict[str, TopicPlan | TidelogError]:
        """Widen the topics, of distinct names; return the result of each, by name.

        Errors are those of ``TopicPlanner.plan_wider``, and otherwise as in ``create_topics``.
        """
        return await self._change_each(
            {wider.name: wider for wider in topics},
            lambda image: self._planner(image).plan_wider,
            partial(commit_topics, self._store),
            validate_only=validate_only,
            seconds_max=seconds_max,
            is_large=lambda wider: wider.count > PLANNED_HERE_MAX,
        )

    def check_deletion_enabled(self) -> None:
        """Raise ``TopicDeletionDisabled`` if the node forbids the deletion of topics."""
        if not self._node_config().delete_topic_enable:
            raise TopicDeletionDisabled("Topic deletion is disabled.")

    async def delete_topic(self, topic_id: UUID) -> Topic:
        """Delete the topic and return it as it was.

        Raises ``UnknownTopicId`` or ``TopicDeletionDisabled``.
        """
        return _only(await self.delete_topics([topic_id])).topic

    async def delete_topics(
        self, topic_ids: Iterable[UUID], *, seconds_max: float | None = None
    ) -> dict[UUID, Deletion | TidelogError]:
        """Delete the topics; return the result of each.

        Errors are ``UnknownTopicId``, and ``RequestTimedOut`` for those that were not begun
        in time. Raises ``TopicDeletionDisabled``.
        """
        self.check_deletion_enabled()

        def decide(image: ClusterImage) -> Callable[[UUID], Deletion]:
            now_ms = self._clock_ms()

            def decide_one(topic_id: UUID) -> Deletion:
                topic = image.topic_by_id(topic_id)
                if topic is None:
                    raise UnknownTopicId("This server does not host this topic ID.")
                return Deletion(topic, plan_deletion(topic, now_ms=now_ms))

            return decide_one

        return await self._change_each(
            {topic_id: topic_id for topic_id in topic_ids},
            decide,
            partial(commit_deletions, self._store),
            seconds_max=seconds_max,
        )

    async def _change_each(
        self,
        wanted: Mapping[K, V],
        decide: Callable[[ClusterImage], Callable[[V], T]],
        commit: Commit[K, T],
        *,
        validate_only: bool = False,
        seconds_max: float | None = None,
        is_large: Callable[[V], bool] = lambda _: False,
    ) -> dict[K, T | TidelogError]:
        """Call ``change_each``; on return the image shows the committed changes."""
        outcomes = await change_each(
            wanted,
            decide,
            commit,
            newest=self._newest,
            validate_only=validate_only,
            seconds_max=seconds_max,
            is_large=is_large,
        )
        if not validate_only and not all(isinstance(o, TidelogError) for o in outcomes.values()):
            # The commits are valid, even if the store has become unreachable since.
            with contextlib.suppress(StoreUnavailable):
                await self._view.refresh()
        return outcomes

    async def _create(
        self,
        wanted: Sequence[NewTopic],
        *,
        validate_only: bool = False,
        seconds_max: float | None = None,
    ) -> dict[str, TopicPlan | TidelogError]:
        def decide(image: ClusterImage) -> Callable[[NewTopic], TopicPlan]:
            planner = self._planner(image)
            now_ms = self._clock_ms()
            return lambda new: planner.plan_new(new, topic_id=self._new_topic_id(), now_ms=now_ms)

        return await self._change_each(
            {new.name: new for new in wanted},
            decide,
            partial(commit_topics, self._store),
            validate_only=validate_only,
            seconds_max=seconds_max,
            is_large=lambda new: new.partition_count > PLANNED_HERE_MAX,
        )

    async def _create_defaults(self, names: Sequence[str]) -> dict[str, TidelogError]:
        """Create the missing topics with the cluster's defaults; return the failures."""
        try:
            live_count = len(self._live(await self._newest()))
            wanted = [
                default_topic(name, self._node_config(), live_count=live_count) for name in names
            ]
            outcomes = await self._create(wanted)
        except TidelogError as error:
            return dict.fromkeys(names, error)
        image = self._view.image
        return {
            name: outcome
            for name, outcome in outcomes.items()
            if isinstance(outcome, TidelogError)
            and not (isinstance(outcome, TopicAlreadyExists) and image.topic(name) is not None)
        }

    def _planner(self, image: ClusterImage) -> TopicPlanner:
        return TopicPlanner(image, node=self._node_config(), live=self._live(image))

    async def _newest(self) -> ClusterImage:
        image = await self._view.refresh()
        if self._see_peers is not None:
            await self._see_peers()
        return image


def _only(outcomes: Mapping[K, T | TidelogError]) -> T:
    """Return the only outcome, or raise it if it is an error."""
    (outcome,) = outcomes.values()
    if isinstance(outcome, TidelogError):
        raise outcome
    return outcome
