"""Reads this node's sealed segments slowly and continuously, and reports damaged ones.

A disk can lose bytes without an error. Without scrubbing the damage is found only by a reader, or
when this is the last copy. The scrubber checks the segments of one partition after the other, and
then begins again; a restart begins a new round. It reads on its own thread in steps, at
``log.scrub.bytes.per.second`` and with at most a twentieth of a core. Index files are not scrubbed:
their CRCs are checked at every use, and a damaged one is rebuilt.

The number of logs visited in a second is limited too, so with more logs a round takes longer and
does not cost more per second. Small segments count for more bytes than they have.

An error of one log is reported like any error of the disk, and the round continues with the next.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from threading import Event
from typing import Protocol

from tidelog_core.config import NodeConfig
from tidelog_core.errors import StorageError
from tidelog_core.log.segments.segment_check import SegmentDamage, check_segment
from tidelog_core.log.values import SealedSegment
from tidelog_core.model import TopicPartition
from tidelog_core.turns import Turn

from tidelog_node.counters import NodeCounters
from tidelog_node.replicas.replica import Replica
from tidelog_node.replicas.replica_manager import ReplicaManager

logger = logging.getLogger(__name__)

IDLE_SECONDS = 5.0  # between one round and the next
CORE_SHARE_MAX = 20  # of a core: the wait per second of work, in seconds
STEP_BYTES = 262_144  # after which the thread waits
SEGMENT_BYTES_MIN = 131_072  # counted at least, since opening the file costs too
LOGS_PER_SECOND_MAX = 100


class DamageReports(Protocol):
    """Receives reports of damage; ``SegmentRepair``."""

    def suspect(self, partition: TopicPartition, base_offset: int) -> None:
        """Request a check of a sealed segment."""


class _Stopped(Exception):
    """The node is being stopped."""


class Scrubber:
    """Checks the segments. For the node's event loop; ``run`` is one task."""

    def __init__(
        self,
        *,
        replicas: ReplicaManager,
        node_config: Callable[[], NodeConfig],
        repair: DamageReports,
        counters: NodeCounters | None = None,
    ) -> None:
        self._replicas = replicas
        self._node_config = node_config
        self._repair = repair
        self._counters = counters or NodeCounters()
        self._stop = Event()
        # Of the scrubber's thread, since its last wait.
        self._due_bytes = 0
        self._worked_s = 0.0
        self.checked_bytes = 0

    async def run(self) -> None:
        """Check until cancelled."""
        # Its own thread: it waits most of the time, and the shared threads are for work.
        with ThreadPoolExecutor(1, "tidelog-scrub") as executor:
            try:
                while True:
                    await self.check_all(executor)
                    await asyncio.sleep(IDLE_SECONDS)
            finally:
                self._stop.set()

    async def check_all(self, executor: Executor) -> None:
        """Check every sealed segment once, also those sealed during the round."""
        turn = Turn()
        held = sorted(self._replicas.replicas(), key=lambda one: one.partition)
        for index, replica in enumerate(held, start=1):
            await turn.step()
            if index % LOGS_PER_SECOND_MAX == 0:
                await asyncio.sleep(1.0)
            try:
                await self._check_log(replica, executor)
            except (StorageError, OSError) as error:
                replica.note_failure(error)
            except Exception:
                # A failure of one log must not prevent the checks of the others.
                logger.exception(
                    "scrubbing of a log broke, the next round tries it again",
                    extra={"partition": str(replica.partition)},
                )

    async def _check_log(self, replica: Replica, executor: Executor) -> None:
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
        self._counters.scrubbed_bytes += sealed.size_bytes
        if damage is not None:
            self._repair.suspect(replica.partition, sealed.base_offset)

    def _check(self, sealed: SealedSegment, rate: int) -> SegmentDamage | None:
        """Read the segment on the scrubber's thread. Raises ``_Stopped``."""
        worked_from = time.monotonic()

        def throttle(size_bytes: int) -> None:
            nonlocal worked_from
            self._due_bytes += size_bytes
            self._worked_s += time.monotonic() - worked_from
            if self._due_bytes >= STEP_BYTES:
                wait_s = max(self._due_bytes / rate, CORE_SHARE_MAX * self._worked_s)
                self._due_bytes, self._worked_s = 0, 0.0
                if self._stop.wait(wait_s):
                    raise _Stopped
            worked_from = time.monotonic()

        damage = check_segment(
            sealed.path,
            base_offset=sealed.base_offset,
            end_offset=sealed.end_offset,
            size_bytes=sealed.size_bytes,
            leader_epochs=sealed.leader_epochs,
            throttle=throttle,
        )
        throttle(max(0, SEGMENT_BYTES_MIN - sealed.size_bytes))
        return damage


def _next_sealed(replica: Replica, after: int) -> SealedSegment | None:
    """Return the first sealed segment past a base offset, ``None`` if there is none.

    What a diskless leader has not committed may lack the records of gateways' batches.
    """
    log = replica.opened_log
    if log is None or log.is_offline:
        return None
    found = next((s for s in log.sealed_above(after) if s.base_offset > after), None)
    is_whole = found is not None and found.end_offset <= log.high_watermark
    return found if is_whole or not replica.is_diskless else None
