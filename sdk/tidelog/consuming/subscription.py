"""A consumer's subscription and its rebalance listener."""

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import Awaitable, Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Any

from kio.schema.errors import ErrorCode
from tidelog_core.model import TopicPartition

from tidelog.cluster import Cluster
from tidelog.encodable import check_topic
from tidelog.errors import InvalidRequest, TidelogError, error_for


@dataclass(frozen=True, slots=True)
class SubscriptionPattern:
    """A pattern that the group's coordinator matches with whole topic names.

    In RE2 syntax; needs ``group_protocol="consumer"``. The coordinator also finds new topics,
    without metadata requests by the client.
    """

    pattern: str


class RebalanceListener:
    """Called when partitions are assigned or revoked. Methods to override may be async.

    They run inside the rebalance: the consumer returns no records of these partitions until
    they end, and may be called to commit or seek.
    """

    def on_partitions_assigned(
        self, partitions: Collection[TopicPartition]
    ) -> Awaitable[None] | None:
        """Called before the first record of newly assigned partitions."""

    def on_partitions_revoked(
        self, partitions: Collection[TopicPartition]
    ) -> Awaitable[None] | None:
        """Called while the partitions are still ours, after the automatic commit."""

    def on_partitions_lost(self, partitions: Collection[TopicPartition]) -> Awaitable[None] | None:
        """Called when others may own the partitions already; calls ``revoked`` by default."""
        return self.on_partitions_revoked(partitions)


class Subscription:
    """Subscribed topics by name or by pattern; or none."""

    def __init__(self) -> None:
        self._topics: frozenset[str] = frozenset()
        self._pattern: re.Pattern[str] | None = None  # matched here
        self.server_pattern: str | None = None  # matched by the coordinator
        self.listener = RebalanceListener()
        self.is_active = False

    def set(
        self,
        topics: Iterable[str] | None,
        pattern: str | re.Pattern[str] | SubscriptionPattern | None,
        listener: RebalanceListener | None,
    ) -> None:
        """Subscribe to topics or to a pattern. Raises ``InvalidRequest`` for both or neither.

        Raises ``InvalidTopic`` for a name that no request can have.
        """
        if (topics is None) == (pattern is None):
            raise InvalidRequest("subscribe to topics or to a pattern")
        if isinstance(topics, str):
            topics = [topics]
        names = frozenset(topics or ())
        if not all(isinstance(name, str) and name for name in names):
            raise InvalidRequest(f"topics must be names, got {sorted(map(repr, names))}")
        if topics is not None and not names:
            raise InvalidRequest("subscribe needs at least one topic; unsubscribe() ends it")
        for name in names:
            check_topic(name)
        self._topics = names
        self._pattern = self.server_pattern = None
        if isinstance(pattern, SubscriptionPattern):
            self.server_pattern = pattern.pattern
        elif pattern is not None:
            self._pattern = re.compile(pattern)
        self.listener = listener or RebalanceListener()
        self.is_active = True

    def clear(self) -> None:
        """Subscribe to nothing."""
        self._topics = frozenset()
        self._pattern = self.server_pattern = None
        self.is_active = False

    def want(self, cluster: Cluster) -> None:
        """Make the cluster fetch the metadata of the subscribed topics."""
        if self._pattern is not None:
            cluster.want_all()
        else:
            cluster.want(self._topics)

    def topics(self, cluster: Cluster) -> frozenset[str]:
        """Return the topics in the known metadata; internal ones only if named.

        Empty if the coordinator matches the pattern.
        """
        if self._pattern is None:
            return self._topics
        return frozenset(
            name
            for name, topic in cluster.topics().items()
            if self._pattern.match(name) and not topic.is_internal and not topic.error
        )

    def refusal(self, cluster: Cluster) -> TidelogError | None:
        """Return the error of a topic that is named and may not be described."""
        known = cluster.topics()
        for name in sorted(self._topics):
            topic = known.get(name)
            if topic is not None and topic.error is ErrorCode.topic_authorization_failed:
                return error_for(topic.error, None, about=name)
        return None


async def call(
    callback: Callable[[Collection[TopicPartition]], Any], partitions: Collection[TopicPartition]
) -> None:
    """Call a listener's method and await it if it is async.

    Raises ``InvalidRequest`` if it raises ``CancelledError`` and nobody has cancelled this task, as
    when it awaits a task of its own that it has cancelled. The rebalance would end in silence.
    """
    try:
        result = callback(frozenset(partitions))
        if inspect.isawaitable(result):
            await result
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        raise InvalidRequest(
            "the rebalance listener raised CancelledError: it awaits a task that was cancelled"
        ) from error
