"""The parts of a consumer, from its start to its end, and how its calls wait."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from types import TracebackType
from typing import Any

from tidelog.client import Client
from tidelog.cluster import Cluster
from tidelog.consuming.committing import Commits
from tidelog.consuming.coordinator import Coordinator
from tidelog.consuming.fetcher import Fetcher
from tidelog.consuming.group_life import GroupLife
from tidelog.consuming.locating import Locator
from tidelog.consuming.membership import Membership
from tidelog.consuming.positions import UNKNOWN, PartitionState, Positions
from tidelog.consuming.subscription import Subscription
from tidelog.errors import ClientClosed, InvalidRequest, TidelogError
from tidelog.given_values import partition_of
from tidelog.options import ConsumerOptions

logger = logging.getLogger(__name__)


class ConsumerParts(Client):
    """The parts of one consumer. Calls of the program are in the classes that extend this one."""

    def __init__(self, cluster: Cluster, options: ConsumerOptions) -> None:
        self._cluster = cluster
        self._options = options
        self._positions = Positions()
        self._subscription = Subscription()
        self._changed = asyncio.Event()
        group_id = options.group_id
        coordinator = None if group_id is None else Coordinator(cluster, group_id)
        self._coordinator = coordinator
        self._commits = None
        if coordinator is not None:
            self._commits = Commits(cluster, self._positions, coordinator, options)
        self._life = GroupLife(
            cluster,
            self._positions,
            self._subscription,
            self._commits,
            options=options,
            notify=self._changed.set,
        )
        self._locator = Locator(cluster, self._positions, coordinator, options, self._on_located)
        self._fetcher = Fetcher(cluster, self._positions, options, self._changed.set)
        self._membership: Membership | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._failure: BaseException | None = None
        # The refusal of a subscribed topic, raised once after each answer that has it.
        self._refusal: TidelogError | None = None
        self._starting = asyncio.Lock()
        self._is_closed = False

    # -- starting and closing --

    async def start(self) -> None:
        """Connect. Idempotent; reading starts the consumer if needed.

        Raises ``ConnectionFailed`` if no node answers within ``bootstrap_timeout_ms``.
        """
        async with self._starting:
            self._check_open()
            if self._tasks:
                return
            await self._cluster.start(auto_create_topics=self._options.allow_auto_create_topics)
            self._spawn(self._fetcher.run())
            self._spawn(self._watch())
            if self._commits is not None and self._options.enable_auto_commit:
                self._spawn(self._commits.run())

    async def close(self, *, has_failed: bool = False) -> None:
        """Commit (if automatic), leave the group and close the connections. Idempotent.

        With ``has_failed`` the current records do not count as processed. Raises ``InvalidRequest``
        in a rebalance listener.
        """
        if self._is_closed:
            return
        self._check_caller()
        self._is_closed = True
        if self._cluster.is_elsewhere:
            await self._cluster.close()
            return
        self._changed.set()
        try:
            if self._tasks:
                self._life.begin_poll(are_records_processed=not has_failed)
                await self._leave()
        finally:
            try:
                await self._end_tasks()
            finally:  # Also if the call is cancelled just then.
                self._positions.replace(())
                await self._cluster.close()

    async def _end_tasks(self) -> None:
        for task in self._tasks:
            task.cancel()
        await self._locator.close()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._fetcher.close()

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close; after an exception, the current record is not committed."""
        await self.close(has_failed=exc is not None)

    # -- waiting --

    async def _begin(self) -> None:
        """Start if needed. Listeners may call the consumer even while it is closed."""
        if not self._tasks:
            await self.start()

    async def _wait_for_change(self, deadline_s: float | None) -> bool:
        loop = asyncio.get_running_loop()
        self._changed.clear()
        timer = None
        if deadline_s is not None:
            if deadline_s <= loop.time():
                return False
            timer = loop.call_at(deadline_s, self._changed.set)
        try:
            await self._changed.wait()
        finally:
            if timer is not None:
                timer.cancel()
        self._check_open()
        return deadline_s is None or loop.time() < deadline_s

    def _check_open(self) -> None:
        if self._is_closed:
            raise ClientClosed("the consumer is closed")

    # -- internals --

    def _state(self, partition: tuple[str, int]) -> PartitionState:
        return self._positions.state(partition_of(partition))

    def _on_located(self) -> None:
        self._compare_topic_ids()
        self._changed.set()
        self._fetcher.wake()

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.append(task)
        task.add_done_callback(self._on_task_done)

    def _on_task_done(self, task: asyncio.Task[None]) -> None:
        if task.cancelled():
            # The program has cancelled every task, or its event loop ends.
            failure: BaseException | None = ClientClosed("the consumer's tasks were cancelled")
        else:
            failure = task.exception()
        if failure is not None and not self._is_closed:
            self._failure = failure
            self._changed.set()

    def _compare_topic_ids(self) -> None:
        """Look up positions again that are of a deleted topic, whose name another one has now.

        The consumer would miss records: those of the new log below its position.
        """
        topics = self._cluster.topics()
        for state in self._positions:
            topic = topics.get(state.partition.topic)
            if topic is None or topic.topic_id is None:
                continue
            known, state.topic_id = state.topic_id, topic.topic_id
            if known not in (None, topic.topic_id) and state.position != UNKNOWN:
                logger.warning(
                    "topic was deleted and created again, will look up the position",
                    extra={"partition": str(state.partition), "offset": state.position},
                )
                state.forget(None)
                if self._commits is not None:
                    self._commits.forget(frozenset({state.partition}))
                self._changed.set()

    async def _watch(self) -> None:
        """Keep the metadata of our topics current and pass changes to the membership."""
        while True:
            await self._cluster.wait_for_news()
            self._compare_topic_ids()
            self._cluster.want({state.partition.topic for state in self._positions})
            if self._membership is not None:
                self._refusal = self._subscription.refusal(self._cluster)
                if self._refusal is not None:
                    self._changed.set()
                await self._membership.on_metadata()

    def _check_caller(self) -> None:
        """Raise ``InvalidRequest`` in a listener's call: leaving would wait for its end."""
        if self._membership is not None and self._membership.is_rebalanced_by_caller:
            raise InvalidRequest(
                "a rebalance listener cannot close or unsubscribe its consumer: do so behind the"
                " poll, or in another task"
            )

    async def _leave(self) -> None:
        membership, self._membership = self._membership, None
        if membership is not None:
            try:
                await membership.stop()
                await self._life.revoke(self._life.owned(), is_lost=membership.is_lost)
            finally:
                assert self._commits is not None
                self._commits.membership = None
                self._subscription.clear()
                await membership.leave("the consumer leaves")
        elif self._commits is not None and self._options.enable_auto_commit:
            await self._commits.commit_safely(list(self._positions))
