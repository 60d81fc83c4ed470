"""The partitions that a consumer reads: subscribed, assigned by hand, paused."""

from __future__ import annotations

import re
from collections.abc import Iterable

from tidelog_core.model import INT32_MAX, TopicPartition

from tidelog.consuming.classic_membership import ClassicMembership
from tidelog.consuming.consumer_membership import ConsumerMembership
from tidelog.consuming.consumer_parts import ConsumerParts
from tidelog.consuming.subscription import RebalanceListener, SubscriptionPattern
from tidelog.encodable import check_topic
from tidelog.errors import InvalidRequest
from tidelog.given_values import partitions_of, several


class AssignmentCalls(ConsumerParts):
    """Calls that say what is read."""

    def subscribe(
        self,
        topics: str | Iterable[str] | None = None,
        *,
        pattern: str | re.Pattern[str] | SubscriptionPattern | None = None,
        listener: RebalanceListener | None = None,
    ) -> None:
        """Read these topics, or all that match, sharing them with the rest of the group.

        Replaces the last subscription; takes effect in the next poll. A Python pattern is
        matched by the client, from the start of each name; a ``SubscriptionPattern`` (RE2) is
        matched by the coordinator. Raises ``InvalidRequest`` without a ``group_id``, after
        ``assign``, and for a ``SubscriptionPattern`` in the classic protocol.
        """
        self._check_open()
        if self._coordinator is None:
            raise InvalidRequest("subscribe needs a group_id; without one, assign partitions")
        if self._membership is None and len(self._positions):
            raise InvalidRequest("partitions are assigned by hand; unsubscribe() first")
        is_classic = self._options.group_protocol == "classic"
        if is_classic and isinstance(pattern, SubscriptionPattern):
            raise InvalidRequest("a SubscriptionPattern needs group_protocol='consumer'")
        names = [topics] if isinstance(topics, str) else topics
        self._subscription.set(names, pattern, listener)
        if self._membership is None:
            join = ClassicMembership if is_classic else ConsumerMembership
            self._membership = join(self._cluster, self._coordinator, self._options, self._life)
            assert self._commits is not None
            self._commits.membership = self._membership
        else:
            self._membership.on_subscription()

    def assign(self, partitions: Iterable[tuple[str, int]]) -> None:
        """Read exactly these partitions, independently of any group.

        Partitions that stay keep their position. Raises ``InvalidRequest`` after
        ``subscribe``, and ``InvalidTopic`` for a name that no request can have.
        """
        self._check_open()
        if self._membership is not None:
            raise InvalidRequest("this consumer has subscribed; unsubscribe() first")
        wanted = partitions_of(partitions)
        for topic, number in wanted:
            if number > INT32_MAX:
                raise InvalidRequest(f"a partition's number must be below 2**31, not {number}")
            check_topic(topic)
        self._positions.replace(wanted)
        self._changed.set()
        self._fetcher.wake()

    async def unsubscribe(self) -> None:
        """Leave the group, or drop the partitions assigned by hand.

        Raises ``InvalidRequest`` in a rebalance listener.
        """
        self._check_caller()
        self._life.begin_poll()
        try:
            await self._leave()
        finally:
            # Also if it is cancelled: without the group they would be read as if assigned by hand.
            self._positions.replace(())

    def subscription(self) -> frozenset[str]:
        """Return the subscribed topics; for a ``SubscriptionPattern``, the assigned ones."""
        if self._subscription.server_pattern is not None:
            return frozenset(partition.topic for partition in self.assignment())
        return self._subscription.topics(self._cluster)

    def assignment(self) -> frozenset[TopicPartition]:
        """Return the partitions that this consumer reads now."""
        return self._positions.partitions()

    def pause(self, partitions: Iterable[tuple[str, int]]) -> None:
        """Return no records of these partitions until ``resume``. Raises ``NotAssigned``."""
        for state in [self._state(partition) for partition in several(partitions, "partitions")]:
            state.is_paused = True

    def resume(self, partitions: Iterable[tuple[str, int]]) -> None:
        """Undo ``pause``. Raises ``NotAssigned``."""
        for state in [self._state(partition) for partition in several(partitions, "partitions")]:
            state.is_paused = False
        self._changed.set()
        self._fetcher.wake()

    def paused(self) -> frozenset[TopicPartition]:
        """Return the partitions that are paused."""
        return frozenset(state.partition for state in self._positions if state.is_paused)
