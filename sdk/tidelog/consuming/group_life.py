"""The consumer's side of its membership: polling, revoking and adding partitions.

The application polls while it is inside ``poll`` (or waits in ``async for``). Its records are
processed then, so partitions are revoked only while it polls. A partition to be revoked is held:
none of its records is returned after its offsets were committed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping

from tidelog_core.model import TopicPartition

from tidelog.cluster import Cluster
from tidelog.consuming.committing import Commits
from tidelog.consuming.positions import PartitionState, Positions
from tidelog.consuming.subscription import Subscription, call
from tidelog.options import ConsumerOptions

_LOOKUPS_MAX = 2  # A topic unknown to two answers in a row is taken not to exist.


class GroupLife:
    """Implements the protocol ``Member`` for ``Membership``."""

    def __init__(
        self,
        cluster: Cluster,
        positions: Positions,
        subscription: Subscription,
        commits: Commits | None,
        *,
        options: ConsumerOptions,
        notify: Callable[[], None],
    ) -> None:
        self._cluster = cluster
        self._positions = positions
        self._subscription = subscription
        self._commits = commits
        self._options = options
        self._notify = notify
        self._is_polling = False
        self._waiting: list[tuple[list[PartitionState], asyncio.Future[None]]] = []
        self._in_hand: list[PartitionState] = []
        self.is_poll_wanted = False  # an iteration polls before its next record

    # -- called by the consumer --

    def begin_poll(self, *, are_records_processed: bool = True) -> None:
        """Note that the application polls, and whether it has processed its last records."""
        self._is_polling = True
        self.is_poll_wanted = False
        if are_records_processed:
            for state in self._in_hand:
                state.safe_position = state.position
        self._in_hand = []
        waiting, self._waiting = self._waiting, []
        for states, future in waiting:
            _hold(states)
            if not future.done():
                future.set_result(None)

    def end_poll(self, states: list[PartitionState]) -> None:
        """Note that the application gets records of these partitions."""
        self._is_polling = False
        self._in_hand = states

    # -- called by the membership --

    def owned(self) -> frozenset[TopicPartition]:
        """Return the assigned partitions."""
        return self._positions.partitions()

    async def topics(self) -> frozenset[str]:
        """Return the subscribed topics; none if the coordinator matches a pattern."""
        self._subscription.want(self._cluster)
        return self._subscription.topics(self._cluster)

    def server_pattern(self) -> str | None:
        """Return the pattern that the coordinator matches, or None."""
        return self._subscription.server_pattern

    def hold(self) -> None:
        """Return no more records: another member may have any of the partitions."""
        _hold(self._positions)

    async def revoke(self, partitions: Collection[TopicPartition], *, is_lost: bool) -> None:
        """Wait until the application polls, then commit, call the listener and drop these."""
        states = [s for p in partitions if (s := self._positions.get(p)) is not None]
        if not states:
            return
        await self._hold_during_poll(states)
        listener = self._subscription.listener
        dropped = frozenset(state.partition for state in states)
        if not is_lost and self._commits is not None and self._options.enable_auto_commit:
            # If cancelled, the next call starts over: the listener was not called yet.
            await self._commits.commit_safely(states)
        try:
            await call(
                listener.on_partitions_lost if is_lost else listener.on_partitions_revoked, dropped
            )
        finally:
            # Drop them even if the listener raises: the group has revoked them.
            self._positions.replace(p for p in self.owned() if p not in dropped)
            if self._commits is not None:
                self._commits.forget(dropped)

    async def assign_partitions(
        self, partitions: Iterable[TopicPartition], added: Collection[TopicPartition]
    ) -> None:
        """Make these partitions the assignment, and call the listener with the new ones."""
        self._positions.replace(partitions)
        self._cluster.want({partition.topic for partition in added})
        states = [s for p in added if (s := self._positions.get(p)) is not None]
        _hold(states)
        try:
            await call(self._subscription.listener.on_partitions_assigned, added)
        finally:
            for state in states:
                state.is_held = False
        self._notify()

    async def partition_counts(self, topics: Collection[str]) -> Mapping[str, int]:
        """Return the partition count of each topic that exists."""
        self._cluster.want(topics)
        for _ in range(_LOOKUPS_MAX):
            if all(self._cluster.topic(name) is not None for name in topics):
                break
            await self._cluster.refresh()
        known = {name: self._cluster.topic(name) for name in topics}
        return {
            name: topic.partition_count
            for name, topic in known.items()
            if topic is not None and not topic.error
        }

    def progress(self) -> object:
        """Return a value that changes whenever the application has processed more records."""
        return [(state.partition, state.position) for state in self._in_hand]

    def notify(self) -> None:
        """Wake a poll to start a rebalance or raise an error."""
        self.is_poll_wanted = True
        self._notify()

    async def _hold_during_poll(self, states: list[PartitionState]) -> None:
        if self._is_polling:
            _hold(states)
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((states, future))
        self.is_poll_wanted = True
        await future


def _hold(states: Iterable[PartitionState]) -> None:
    for state in states:
        state.is_held = True
