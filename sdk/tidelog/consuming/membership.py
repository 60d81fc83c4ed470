"""The parts of group membership that Kafka's two group protocols share.

A rebalance runs in its own task, so a caller that stops waiting for it does not break
it. But partitions are revoked only while the application polls: then every returned record
has been processed, its offset is committed first, and the next owner continues right after
it. An application that does not poll again within ``max_poll_interval_ms`` loses the
partitions: the member leaves the group.

``ClassicMembership`` and ``ConsumerMembership`` define the join, the heartbeat and the
rebalance of their protocols.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping
from typing import Protocol

from kio.schema.errors import ErrorCode
from tidelog_core.model import TopicPartition
from tidelog_core.waiting import wait_and_clear

from tidelog.cluster import Cluster
from tidelog.consuming.coordinator import Coordinator
from tidelog.consuming.group_protocol import NO_GENERATION
from tidelog.errors import FencedInstanceId, TidelogError
from tidelog.options import ConsumerOptions
from tidelog.wire.requests import Api

logger = logging.getLogger(__name__)

LEAVE_TIMEOUT_S = 5.0


class Member(Protocol):
    """The consumer, as its membership uses it."""

    def owned(self) -> frozenset[TopicPartition]:
        """Return the assigned partitions."""

    async def topics(self) -> frozenset[str]:
        """Return the subscribed topics; none if the coordinator matches a pattern."""

    def server_pattern(self) -> str | None:
        """Return the pattern that the coordinator matches, or None."""

    def hold(self) -> None:
        """Hand out no more records: no partition is certainly ours."""

    async def revoke(self, partitions: Collection[TopicPartition], *, is_lost: bool) -> None:
        """Wait until the application polls, then commit, call the listener and drop these."""

    async def assign_partitions(
        self, partitions: Iterable[TopicPartition], added: Collection[TopicPartition]
    ) -> None:
        """Make these partitions the assignment, and call the listener with the new ones."""

    async def partition_counts(self, topics: Collection[str]) -> Mapping[str, int]:
        """Return the partition count of each topic that exists."""

    def progress(self) -> object:
        """Return a value that changes whenever the user has processed more records."""

    def notify(self) -> None:
        """Wake a poll to start a rebalance or raise an error."""


class Membership(ABC):
    """A consumer's membership in its group."""

    def __init__(
        self,
        cluster: Cluster,
        coordinator: Coordinator,
        options: ConsumerOptions,
        member: Member,
        *,
        interval_s: float,
    ) -> None:
        self._cluster = cluster
        self._coordinator = coordinator
        self._options = options
        self._member = member
        self.member_id = ""
        self.generation = NO_GENERATION  # or the member's epoch
        self.is_lost = False  # The group removed this member, perhaps while it held partitions.
        self._is_stable = False  # Heartbeats are sent.
        self._is_rebalance_due = True
        self._is_stopped = False
        self._rebalancing: asyncio.Task[None] | None = None
        self._heartbeats: asyncio.Task[None] | None = None
        self._interval_s = interval_s  # until the next heartbeat
        self._beat_now = asyncio.Event()  # set: send the next heartbeat now
        self._error: BaseException | None = None
        self._polled_s: float | None = (
            None  # when the last poll ended, in loop time; None during a poll
        )
        # A program may poll on after every error: the group is not asked as fast as it does.
        self._failures = cluster.backoff()
        self._may_start_s = 0.0  # loop time before which no rebalance starts

    # -- called by the consumer --

    def on_poll(self) -> None:
        """Note that the application polls; start a rebalance if one is due.

        Raises the error that ended the last rebalance. It is raised once, as the next poll tries
        again; but every time if another consumer uses our ``group_instance_id``, because the two
        would fence each other forever.
        """
        self._polled_s = None
        if self._error is not None:
            error = self._error
            if not isinstance(error, FencedInstanceId):
                self._error = None
            raise error
        if self._heartbeats is None:
            self._heartbeats = asyncio.get_running_loop().create_task(self._beat())
            self._heartbeats.add_done_callback(self._on_heartbeats_ended)
        if self._is_rebalance_due:
            self._start_rebalance()

    @property
    def is_rebalanced_by_caller(self) -> bool:
        """Whether the running task is the rebalance, in which listeners are called."""
        return self._rebalancing is not None and self._rebalancing is asyncio.current_task()

    def on_poll_end(self) -> None:
        """Note that the application is processing records."""
        self._polled_s = asyncio.get_running_loop().time()

    @abstractmethod
    def on_subscription(self) -> None:
        """Note that the application has changed its subscription."""

    @abstractmethod
    async def on_metadata(self) -> None:
        """Note that topics may have been added, removed or extended."""

    @abstractmethod
    def note_commit_error(self, code: ErrorCode) -> None:
        """Handle the coordinator's error for a commit."""

    async def has_moved_on(self, generation: int, *, timeout_s: float) -> bool:  # noqa: ARG002
        """Wait until this member, if still one, is past the generation; return whether it is."""
        return False

    async def stop(self) -> None:
        """Stop the rebalance and the heartbeats for good."""
        self._is_stopped = True
        tasks = [task for task in (self._rebalancing, self._heartbeats) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._rebalancing = self._heartbeats = None

    @abstractmethod
    async def leave(self, reason: str) -> None:
        """Leave the group; a static member's place is kept for it, for a while."""

    # -- heartbeats --

    @abstractmethod
    async def _beat_once(self) -> None:
        """Send a heartbeat and handle the answer."""

    async def _beat(self) -> None:
        poll_interval_s = self._options.max_poll_interval_ms / 1000
        loop = asyncio.get_running_loop()
        progress = self._member.progress()
        while True:
            wait_s = self._interval_s
            if self._polled_s is not None:
                wait_s = min(wait_s, max(0.01, self._polled_s + poll_interval_s - loop.time()))
            await wait_and_clear(self._beat_now, wait_s)
            if not self._is_stable:
                continue
            if progress != (progress := self._member.progress()) and self._polled_s is not None:
                self._polled_s = loop.time()
            if self._polled_s is not None and loop.time() - self._polled_s > poll_interval_s:
                await self._give_up()
                continue
            try:
                await self._beat_once()
            except TidelogError as error:
                logger.info(
                    "heartbeat failed",
                    extra={"group_id": self._coordinator.group_id, "reason": str(error)},
                )

    def _on_heartbeats_ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._heartbeats = None  # The next poll but one starts them again.
            self._fail(error)

    async def _give_up(self) -> None:
        """Leave the group because the application has not polled in time."""
        logger.warning(
            "poll was not called within max_poll_interval_ms, leaving the group",
            extra={
                "group_id": self._coordinator.group_id,
                "max_poll_interval_ms": self._options.max_poll_interval_ms,
            },
        )
        if self._rebalancing is not None:
            self._rebalancing.cancel()
        await self.leave("poll was not called in time")
        self._lose(ErrorCode.unknown_member_id)

    async def _send_leave(self, api: Api, request: object) -> None:
        try:
            # Also the search for the coordinator, and a connection to it, are within that time.
            async with asyncio.timeout(LEAVE_TIMEOUT_S):
                await self._coordinator.request(api, request)
        except (TidelogError, TimeoutError) as error:
            logger.info(
                "could not leave the group, the session will expire",
                extra={
                    "group_id": self._coordinator.group_id,
                    "reason": str(error) or f"no answer within {LEAVE_TIMEOUT_S:g} s",
                },
            )

    def _lose(self, code: ErrorCode) -> None:
        """Handle the loss of the membership: others may own our partitions already."""
        self._is_stable = False
        self.is_lost = True
        self._member.hold()
        self.generation = NO_GENERATION
        self._request_rebalance(code.name)

    def _fail(self, error: BaseException) -> None:
        self._put_off()
        # Without heartbeats the group gives our partitions to others: rejoin first.
        self._is_stable = False
        self._is_rebalance_due = True
        self._error = error
        self._member.notify()

    # -- the rebalance --

    @abstractmethod
    async def _rebalance(self) -> None:
        """Bring our partitions in line with the group's assignment."""

    def _request_rebalance(self, reason: str) -> None:
        """Make the next poll start a rebalance."""
        if not self._is_rebalance_due:
            logger.info(
                "will rejoin", extra={"group_id": self._coordinator.group_id, "reason": reason}
            )
        self._is_rebalance_due = True
        self._member.notify()

    def _put_off(self) -> None:
        """Have the next rebalance wait if this is not the first failure, and longer each time."""
        is_first, wait_s = self._failures.failure_count == 0, self._failures.next_s()
        self._may_start_s = asyncio.get_running_loop().time() + (0.0 if is_first else wait_s)

    def _start_rebalance(self) -> None:
        """Start it, unless one is under way."""
        if self._rebalancing is None and not self._is_stopped:
            self._is_rebalance_due = False
            self._rebalancing = asyncio.get_running_loop().create_task(self._rebalance_in_time())
            self._rebalancing.add_done_callback(self._on_rebalanced)

    async def _rebalance_in_time(self) -> None:
        wait_s = self._may_start_s - asyncio.get_running_loop().time()
        if wait_s > 0:
            await asyncio.sleep(wait_s)
        await self._rebalance()

    def _on_rebalanced(self, task: asyncio.Task[None]) -> None:
        self._rebalancing = None
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fail(error)
        self._member.notify()
