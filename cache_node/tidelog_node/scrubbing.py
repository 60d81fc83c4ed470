"""Reads this node's sealed segments slowly, over and over, and tells of those that are damaged.

A disk loses bytes in silence; who finds out otherwise is a reader, or a node that needs its
copy as the last one. One partition after the other, one segment after the other, and then from
the beginning; nothing is remembered over a restart. The reading is done by a
thread of the executor, in steps, at ``log.scrub.bytes.per.second`` and never with more than
a twentieth of a core. Index files need no reading: their CRCs are checked when they are used, and
what is not right is made anew.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from threading import Event
from typing import Protocol

from tidelog_core.config import NodeConfig
from tidelog_core.log.segment_check import SegmentDamage, check_segment
from tidelog_core.log.values import SealedSegment
from tidelog_core.model import TopicPartition
from tidelog_core.turns import Turn

from tidelog_node.replicas import Replica, ReplicaManager

IDLE_SECONDS = 5.0  # between one round and the next
CORE_SHARE_MAX = 20  # of a core: for a second of work as many of waiting
STEP_BYTES = 262_144  # after which the thread waits


class Mender(Protocol):
    """Who is told; ``SegmentMender``."""

    def suspect(self, partition: TopicPartition, base_offset: int) -> None:
        """Have a sealed segment looked at."""


class _Stopped(Exception):
    """The node does not want to know any more."""


class Scrubber:
    """For the node's event loop; ``run`` is one task."""

    def __init__(
        self,
        *,
        replicas: ReplicaManager,
        node_config: Callable[[], NodeConfig],
        mender: Mender,
    ) -> None:
        self._replicas = replicas
        self._node_config = node_config
        self._mender = mender
        self._stop = Event()
        self.checked_bytes = 0

    async def run(self) -> None:
        """Check until cancelled."""
        # Of its own: it waits most of the time, and others want theirs for work.
        with ThreadPoolExecutor(1, "tidelog-scrub") as executor:
            try:
                while True:
                    await self.check_all(executor)
                    await asyncio.sleep(IDLE_SECONDS)
            finally:
                self._stop.set()

    async def check_all(self, executor: Executor) -> None:
        """Check every sealed segment once; those that are sealed meanwhile, too."""
        turn = Turn()
        for replica in sorted(self._replicas.replicas(), key=lambda one: one.partition):
            await turn.step()
            after = -1
            while (sealed := _next_sealed(replica, after)) is not None:
                rate = self._node_config().log_scrub_bytes_per_second
                if not rate:
                    return
                await self._check_one(replica, sealed, rate, executor)
                after = sealed.base_offset

    async def _check_one(
        self, replica: Replica, sealed: SealedSegment, rate: int, executor: Executor
    ) -> None:
        loop = asyncio.get_running_loop()
        damage = await loop.run_in_executor(executor, self._check, sealed, rate)
        self.checked_bytes += sealed.size_bytes
        if damage is not None:
            self._mender.suspect(replica.partition, sealed.base_offset)

    def _check(self, sealed: SealedSegment, rate: int) -> SegmentDamage | None:
        """Read the segment, in the scrubber's thread. Raises ``_Stopped``."""
        due_bytes, worked_from = 0, time.monotonic()

        def throttle(size_bytes: int) -> None:
            nonlocal due_bytes, worked_from
            due_bytes += size_bytes
            if due_bytes < STEP_BYTES:
                return
            worked_s = time.monotonic() - worked_from
            if self._stop.wait(max(due_bytes / rate, CORE_SHARE_MAX * worked_s)):
                raise _Stopped
            due_bytes, worked_from = 0, time.monotonic()

        return check_segment(
            sealed.path,
            base_offset=sealed.base_offset,
            end_offset=sealed.end_offset,
            size_bytes=sealed.size_bytes,
            throttle=throttle,
        )


def _next_sealed(replica: Replica, after: int) -> SealedSegment | None:
    """Return the first sealed segment past a base offset, ``None`` where the log has no more."""
    log = replica.opened_log
    if log is None or log.is_offline:
        return None
    return next((s for s in log.sealed_segments() if s.base_offset > after), None)
