"""Copies sealed segments, every ``remote.task.interval.ms`` and on request.

Visits only partitions that have a sealed segment, several at a time.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import NamedTuple

from tidelog_core.config import NodeConfig
from tidelog_core.errors import StorageError
from tidelog_core.log.local_log import LocalLog
from tidelog_core.turns import Turn
from tidelog_core.waiting import wait_and_clear

from tidelog_node.tier.attempts import Attempts
from tidelog_node.tier.client import TierClient
from tidelog_node.tier.copier import Copier
from tidelog_node.tier.led_partition import (
    LedPartition,
    TieredReplica,
    has_sealed,
    known_tiered_end,
)
from tidelog_node.tier.partitions import PartitionKey, TieredPartitions

logger = logging.getLogger(__name__)


class Backlog(NamedTuple):
    """Segments that wait to be tiered."""

    size_bytes: int
    segment_count: int
    oldest_ms: int | None  # the last write to the oldest one, as Unix time; None: there is none


class CopyLoop:
    """Starts the copies. For one event loop; ``run`` is one task."""

    def __init__(
        self,
        *,
        partitions: TieredPartitions,
        attempts: Attempts,
        copier: Copier,
        client: TierClient,
        config: NodeConfig,
        honour_erasures: Callable[[], Awaitable[None]],
    ) -> None:
        self._partitions = partitions
        self._attempts = attempts
        self._copier = copier
        self._client = client
        self._honour_erasures = honour_erasures
        self._interval_s = config.remote_task_interval_ms / 1000
        self._slots = asyncio.Semaphore(config.remote_upload_concurrency)
        self._to_copy: set[TieredReplica] = set()  # all with segments to copy, maybe others
        self._copying: dict[PartitionKey, asyncio.Task[None]] = {}
        self._now = asyncio.Event()

    @property
    def copying_count(self) -> int:
        """The number of partitions with a copy in progress."""
        return len(self._copying)

    async def backlog(self) -> Backlog:
        """Return the sealed segments of led logs that are yet to be tiered."""
        turn = Turn()
        size_bytes = segment_count = 0
        oldest_ms: int | None = None
        for replica in tuple(self._to_copy):
            await turn.step()
            log = replica.opened_log
            if log is None or log.is_offline or not replica.config.remote_storage_enable:
                continue
            count, waiting_bytes = log.count_sealed_above(known_tiered_end(log))
            if not count:
                continue
            segment_count += count
            size_bytes += waiting_bytes
            written_ms = _last_write_ms(log)
            if written_ms is not None and (oldest_ms is None or written_ms < oldest_ms):
                oldest_ms = written_ms
        return Backlog(size_bytes, segment_count, oldest_ms)

    def on_led_changed(self, replica: TieredReplica) -> None:
        """Note that a led log has changed."""
        if has_sealed(replica):
            self._to_copy.add(replica)

    def forget(self, replica: TieredReplica) -> None:
        """Stop visiting the partition."""
        self._to_copy.discard(replica)

    def nudge(self) -> None:
        """Start copies now instead of at the next interval."""
        self._now.set()

    async def close(self) -> None:
        """Cancel the copies in progress. ``run`` must have been cancelled."""
        tasks = tuple(self._copying.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def run(self) -> None:
        """Copy sealed segments until cancelled."""
        while True:
            try:
                await self._honour_erasures()
                self._start()
            except Exception:
                logger.exception("search for segments to copy broke, will retry")
            await wait_and_clear(self._now, self._interval_s)

    def _start(self) -> None:
        if not self._client.may_answer:
            return
        now = asyncio.get_running_loop().time()
        for replica in tuple(self._to_copy):
            if not has_sealed(replica) or not self._partitions.leads(replica):
                self._to_copy.discard(replica)
                continue
            led = self._partitions.lead(replica)
            key = (led.leadership.topic_id, led.leadership.partition)
            if key in self._copying or led.not_before > now:
                continue
            if not led.needs_copying():
                self._to_copy.discard(replica)
                continue
            task = asyncio.create_task(self._copy(led), name=f"copy {led.replica.partition}")
            self._copying[key] = task
            task.add_done_callback(partial(self._end, key))

    def _end(self, key: PartitionKey, _: asyncio.Task[None]) -> None:
        del self._copying[key]

    async def _copy(self, led: LedPartition) -> None:
        async with self._slots, led.lock:
            await self._attempts.run(led, "copying", lambda: self._copier.copy(led))


def _last_write_ms(log: LocalLog) -> int | None:
    """Return the last write to the oldest segment that is yet to be tiered, ``None`` if unknown."""
    try:
        oldest = next(log.sealed_above(known_tiered_end(log)), None)
    except StorageError:
        return None  # Its disk fails, which the node reports.
    return None if oldest is None else oldest.last_modified_ms
