"""What a consumer does for its membership: resting, letting go, taking on.

The user is at rest while inside ``poll`` (or waiting in ``async for``). Partitions are
held back from then until they are dropped, so that no record of them is handed out
after their offsets were committed.
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

_LOOKUPS_MAX = 2  # A topic that two answers in a row do not know is taken not to exist.


class GroupLife:
    """The consumer's side of ``Membership``; see its protocol ``Member``."""

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
        self._is_at_rest = False
        self._waiting: list[tuple[list[PartitionState], asyncio.Future[None]]] = []
        self._in_hand: list[PartitionState] = []
        self.is_rest_wanted = False  # An iteration should come to rest at its next record.

    # --- the user's side ---

    def rest(self, *, has_dealt_with: bool = True) -> None:
        """Note that the user wants nothing now, and has dealt with what was handed out."""
        self._is_at_rest = True
        self.is_rest_wanted = False
        if has_dealt_with:
            for state in self._in_hand:
                state.safe_position = state.position
        self._in_hand = []
        waiting, self._waiting = self._waiting, []
        for states, future in waiting:
            _hold(states)
            if not future.done():
                future.set_result(None)

    def hand_out(self, states: list[PartitionState]) -> None:
        """Note that the user gets records of these partitions now."""
        self._is_at_rest = False
        self._in_hand = states

    # --- the membership's side ---

    def owned(self) -> frozenset[TopicPartition]:
        """Return the partitions held now."""
        return self._positions.partitions()

    async def topics(self) -> frozenset[str]:
        """Return the topics subscribed to now; none where the coordinator matches a pattern."""
        self._subscription.want(self._cluster)
        return self._subscription.topics(self._cluster)

    def server_pattern(self) -> str | None:
        """Return the pattern that the coordinator matches, if that is what is subscribed to."""
        return self._subscription.server_pattern

    def hold(self) -> None:
        """Hand out nothing more: no partition is certainly ours."""
        _hold(self._positions)

    async def let_go(self, partitions: Collection[TopicPartition], *, is_lost: bool) -> None:
        """Wait until the user is at rest, then commit, tell the listener and drop these."""
        states = [s for p in partitions if (s := self._positions.get(p)) is not None]
        if not states:
            return
        await self._hold_at_rest(states)
        listener = self._subscription.listener
        dropped = frozenset(state.partition for state in states)
        if not is_lost and self._commits is not None and self._options.enable_auto_commit:
            # Who ends the rebalance here has to let go of them anew: nobody was told yet.
            await self._commits.commit_safely(states)
        try:
            await call(
                listener.on_partitions_lost if is_lost else listener.on_partitions_revoked, dropped
            )
        finally:
            # Whatever the listener raises, the group has decided that they are not ours.
            self._positions.replace(p for p in self.owned() if p not in dropped)
            if self._commits is not None:
                self._commits.forget(dropped)

    async def take_on(
        self, partitions: Iterable[TopicPartition], added: Collection[TopicPartition]
    ) -> None:
        """Have exactly these partitions, and tell the listener which are new."""
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
        """Return something that differs whenever the user has dealt with more records."""
        return [(state.partition, state.position) for state in self._in_hand]

    def notify(self) -> None:
        """Wake a poll: a rebalance is wanted or an error is to be raised."""
        self.is_rest_wanted = True
        self._notify()

    async def _hold_at_rest(self, states: list[PartitionState]) -> None:
        if self._is_at_rest:
            _hold(states)
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((states, future))
        self.is_rest_wanted = True
        await future


def _hold(states: Iterable[PartitionState]) -> None:
    for state in states:
        state.is_held = True
