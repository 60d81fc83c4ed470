"""Applies retention to partitions that are due, and cleans up deleted topics.

A partition that has changed is due ``log.retention.check.interval.ms`` after its last visit or
after this process got it; an unchanged one when a segment expires (``RetentionTimes``). Several are
visited at a time, each under its lock.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial

from tidelog_core.batched import batched
from tidelog_core.errors import TidelogError
from tidelog_core.waiting import wait_and_clear

from tidelog_node.node_context import NodeContext
from tidelog_node.tier.attempts import RETRY_DELAY_S_MAX, Attempts, trouble_of
from tidelog_node.tier.client import TierClient
from tidelog_node.tier.copier import Copier
from tidelog_node.tier.led_partition import (
    LedPartition,
    ReplicaSource,
    TieredReplica,
    has_sealed,
)
from tidelog_node.tier.partitions import TieredPartitions
from tidelog_node.tier.remote_log import OpenChunks
from tidelog_node.tier.retention import Retention
from tidelog_node.tier.retention_times import DELAY_SHARE, RetentionTimes

logger = logging.getLogger(__name__)

RETENTION_CONCURRENCY = 8
OPEN_AT_ONCE = 32  # logs that one call on another thread opens


class RetentionLoop:
    """Visits due partitions. For one event loop; ``run`` is one task."""

    def __init__(
        self,
        node: NodeContext,
        *,
        replicas: ReplicaSource,
        partitions: TieredPartitions,
        attempts: Attempts,
        copier: Copier,
        retention: Retention,
        client: TierClient,
        open_chunks: OpenChunks,
        holds_files: Callable[[TieredReplica], bool],
        interval_s: float,
    ) -> None:
        """``holds_files`` says whether a replica whose log is not open is worth opening."""
        self._node = node
        self._replicas = replicas
        self._partitions = partitions
        self._attempts = attempts
        self._copier = copier
        self._retention = retention
        self._client = client
        self._open_chunks = open_chunks
        self._holds_files = holds_files
        self._interval_s = interval_s
        self.times = RetentionTimes(
            interval_s=interval_s, now=asyncio.get_running_loop().time, clock_ms=node.clock_ms
        )
        self._now = asyncio.Event()

    def on_followed_changed(self, replica: TieredReplica) -> None:
        """Note that a followed log has changed."""
        if replica.config.remote_storage_enable and has_sealed(replica):
            self.times.put_regular(replica, asyncio.get_running_loop().time())

    def on_led_changed(self, replica: TieredReplica) -> None:
        """Note that a led log has changed."""
        led = self._partitions.known_led(replica)
        if replica.leader_epoch > 0 and (led is None or not led.was_visited):
            # Compare the log with the tier immediately: a log that is behind its tier must not
            # continue. In epoch 0 nothing is tiered.
            self.times.put_in(replica, 0.0)
        else:
            visited_at = replica.held_since if led is None else led.retained_at
            self.times.put_regular(replica, visited_at)

    def on_swapped(self, replica: TieredReplica) -> None:
        """Note that segments were replaced, so the deletion of the old ones is due soon."""
        self.times.put_in(replica, self._interval_s * DELAY_SHARE)
        self.wake()

    def wake(self) -> None:
        """Visit the due partitions now."""
        self._now.set()

    async def run(self) -> None:
        """Apply retention until cancelled."""
        while True:
            try:
                wait_s = await self.apply(only_due=True)
            except Exception:
                logger.exception("retention broke, will retry")
                wait_s = RETRY_DELAY_S_MAX
            await wait_and_clear(self._now, wait_s)

    async def apply(self, *, only_due: bool = False) -> float:
        """Apply retention now; return the seconds until the next visit may be due.

        With ``only_due`` only the due partitions are visited, and one expires nothing before its
        interval since the last time is over.
        """
        self._open_chunks.drop_unused()
        self._partitions.forget_others()
        slots, loop = asyncio.Semaphore(RETENTION_CONCURRENCY), asyncio.get_running_loop()

        async def visit(led: LedPartition) -> float:
            expires = not only_due or loop.time() >= self._expires_at(led)
            async with slots, led.lock:
                return await self._visit(led, expires=expires)

        replicas = self.times.take() if only_due else list(self._replicas.replicas())
        try:
            led_partitions = [
                self._partitions.lead(replica)
                for replica in replicas
                if self._partitions.leads(replica)
            ]
            await self._open_held(led_partitions)
            passes = (self._guarded(led, visit) for led in led_partitions)
            waits = await asyncio.gather(*passes)
            await self._evict_followed(r for r in replicas if r.is_follower and _is_open(r))
        except Exception:
            for replica in replicas:
                self.times.put_in(replica, RETRY_DELAY_S_MAX)
            raise
        others_in_s = self.times.wait_s if only_due else self._interval_s
        return max(0.0, min([*waits, others_in_s, await self._clean_deleted_topics()]))

    async def _visit(self, led: LedPartition, *, expires: bool) -> float:
        """Apply retention to the partition; return the seconds until the next visit."""
        loop = asyncio.get_running_loop()
        due: list[float | None] = []

        async def run() -> None:
            if led.replica.opened_log is None:
                # After a start no log is open. Opening blocks, so it runs on another thread.
                await loop.run_in_executor(self._node.executor, led.replica.open)
            due.append(await self._retention.apply(led, expires=expires))

        if led.not_before <= loop.time() and await self._is_worth_opening(led):
            await self._attempts.run(led, "retention", run)
        led.was_visited = True
        if expires and led.failure_count == 0:
            led.retained_at = loop.time()
        if led.not_before <= loop.time() and self._persists_manifests(led):
            write = partial(self._copier.write_manifests, led)
            await self._attempts.run(led, "manifests", write)
        return await self._schedule_next(led, due[0] if due else None, expires=expires)

    async def _guarded(
        self, led: LedPartition, visit: Callable[[LedPartition], Awaitable[float]]
    ) -> float:
        """Return the result of ``visit``; a failure does not affect the other partitions."""
        try:
            return await visit(led)
        except Exception as error:
            self._attempts.wait(led)
            logger.exception(
                "retention broke, will retry", extra=trouble_of(led, "retention", error)
            )
            wait_s = led.not_before - asyncio.get_running_loop().time()
            self.times.put_in(led.replica, wait_s)
            return wait_s

    async def _schedule_next(
        self, led: LedPartition, wait_s: float | None, *, expires: bool
    ) -> float:
        """Schedule the partition's next visit; return the seconds until then, at most the interval.

        ``wait_s``: the seconds until a deletion is due.
        """
        replica, now = led.replica, asyncio.get_running_loop().time()
        if led.not_before <= now and expires:
            await self._attempts.run(led, "retention", lambda: self._note_expiry(led))
        if led.not_before > now:  # Something failed and waits.
            self.times.put_in(replica, led.not_before - now)
            return led.not_before - now
        if not expires:
            self.times.put_regular(replica, led.retained_at)
        if wait_s is None:
            return self._interval_s
        self.times.put_in(replica, wait_s)
        return wait_s

    async def _note_expiry(self, led: LedPartition) -> None:
        self.times.expires_at(led.replica, await self._retention.next_expiry_ms(led))

    def _expires_at(self, led: LedPartition) -> float:
        return led.retained_at + self._interval_s

    async def _open_held(self, led: Sequence[LedPartition]) -> None:
        """Open the logs with files that nothing has used since the node's start.

        On another thread, several per call: a call costs as much as opening a log. The error of a
        log that cannot be opened is raised where it is used.
        """
        unopened = [one.replica for one in led if one.replica.opened_log is None]
        held = [replica for replica in unopened if self._may_hold_files(replica)]
        for some in batched(held, OPEN_AT_ONCE):
            await asyncio.get_running_loop().run_in_executor(self._node.executor, _open_each, some)

    def _may_hold_files(self, replica: TieredReplica) -> bool:
        try:
            return self._holds_files(replica)
        except OSError:
            return True  # Opening the log raises the error.

    def _persists_manifests(self, led: LedPartition) -> bool:
        """Whether this partition's leader persists its topic's settings in the bucket.

        So the bucket has topics that have tiered nothing yet, and later changes of settings.
        """
        is_first = led.leadership.partition == 0
        return is_first and led.replica.config.remote_storage_enable and self._client.may_answer

    async def _is_worth_opening(self, led: LedPartition) -> bool:
        if led.replica.opened_log is not None or self._may_hold_files(led.replica):
            return True
        found: list[bool] = []

        async def list_segments() -> None:
            found.append(bool(await led.remote.segments()))

        await self._attempts.run(led, "retention", list_segments)
        return any(found)

    async def _clean_deleted_topics(self) -> float:
        if self._node.view.image.deleted_topics and self._client.may_answer:
            wait_s = await self._retention.clean_deleted_topics()
            if wait_s is not None:
                return wait_s
        return self._interval_s

    async def _evict_followed(self, replicas: Iterable[TieredReplica]) -> None:
        """Evict local segments of followed partitions; retry the failed ones next time."""
        for replica in replicas:
            try:
                await self._copier.evict_followed(replica)
                self.times.expires_at(replica, self._copier.next_eviction_ms(replica))
            except (TidelogError, OSError) as error:
                self.times.put_regular(replica, asyncio.get_running_loop().time())
                logger.warning(
                    "segments of a followed partition not dropped, will retry",
                    extra={"partition": str(replica.partition), "reason": str(error)},
                )


def _open_each(replicas: Sequence[TieredReplica]) -> None:
    for replica in replicas:
        with contextlib.suppress(TidelogError, OSError):
            replica.open()


def _is_open(replica: TieredReplica) -> bool:
    log = replica.opened_log
    return log is not None and not log.is_offline
