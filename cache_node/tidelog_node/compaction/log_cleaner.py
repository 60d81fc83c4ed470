"""Compacts the logs of topics with ``cleanup.policy=compact``, the dirtiest one first.

Each of ``log.cleaner.threads`` tasks selects a log, has a process rewrite segments (``rewriter``),
and swaps in each result as soon as it is complete. Every replica of a partition does so for
itself. A run stops if the partition changes hands, is deleted or truncated, or is not to be
compacted any more. Results swapped in before that stay, because every part of a compaction leaves
a valid log.

Why this is safe together with the tier:

- A segment is not replaced while it is being copied (``TierService.holding_copies``). So an object
  in the bucket holds the bytes of one segment, as it was then; later compaction of the local log
  does not change it. Local and tiered segments hold different amounts of old records, but each has
  the newest record of every key below its end, or a reader finds a newer one behind it.
- A reader may continue from the tier into the local log. So a tombstone or marker must stay in the
  local log while the tier has records that it deletes. The tier is compacted up to
  ``SegmentMeta.compacted_up_to``: below that offset no key has an older record in the tier.
  Tombstones below it are removed from the local log too, with delete horizons of its own; they
  have been copied, and are not copied again. Tombstones above it stay, and so do all markers,
  whose transaction may begin in the tier. Local retention removes those.
- Segments are not joined across the end of the tier: the copier would copy records twice. Replicas
  may have other segment boundaries than the leader before them; the copier copies a whole segment
  even if the tier has its beginning.

Logs are checked when they have changed, and when time alone may make them due:
``min.compaction.lag.ms`` and ``max.compaction.lag.ms`` are measured on the wall clock.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Collection
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol

from tidelog_core.compaction.cleaner import CleaningTask, plan_cleaning
from tidelog_core.compaction.rewrite import DeleteRule
from tidelog_core.compaction.sealed_files import CleanedGroup
from tidelog_core.compaction.selection import Cleanable, find_cleanable, next_check_ms
from tidelog_core.due_queue import DueQueue
from tidelog_core.errors import CorruptRecordBatch, StorageError, TidelogError
from tidelog_core.log.cleaned_segments import SegmentsChanged
from tidelog_core.log.cleaning import CleaningSource
from tidelog_core.log.local_log import LocalLog
from tidelog_core.model import TopicPartition

from tidelog_node.compaction.messages import RewriteEnd, RewriterJob
from tidelog_node.compaction.rewriter_process import put_in_place, rewrite
from tidelog_node.node_context import NodeContext
from tidelog_node.processes.worker_version import VersionWatch
from tidelog_node.replicas.replica import Replica

logger = logging.getLogger(__name__)

FAILURE_BACKOFF_MS = 60_000  # before a failed compaction is retried
DAMAGE_BACKOFF_MS = 600_000  # the same for a damaged log: each try checks all of it


class ReplicaSource(Protocol):
    """The node's replicas; ``ReplicaManager``."""

    def get(self, partition: TopicPartition) -> Replica | None:
        """Return this node's replica, as leader or follower."""


class Tier(Protocol):
    """The tier as compaction uses it."""

    async def compacted_up_to(self, replica: Replica) -> int | None:
        """Return the offset below which no key has two records in the tier; ``None``: no tier."""

    def holding_copies(self, replica: Replica) -> AbstractAsyncContextManager[None]:
        """Prevent copies of the partition's segments to the tier while held."""


@dataclass(frozen=True, slots=True)
class _Run:
    """One compaction of one log."""

    replica: Replica
    log: LocalLog
    leader_epoch: int
    source: CleaningSource
    task: CleaningTask


class LogCleaner:
    """Compacts this node's logs. For the node's event loop."""

    def __init__(
        self,
        node: NodeContext,
        *,
        replicas: ReplicaSource,
        tier: Tier,
        holds_files: Callable[[Replica], bool],
        suspect: Callable[[TopicPartition, int], None],
        busy: set[Replica],
    ) -> None:
        """``holds_files`` says whether a replica's log, not open, is worth opening.

        ``busy`` are the replicas whose segments are being replaced, by this or other services.
        ``suspect`` has a sealed segment checked for damage; the int is its base offset.
        """
        self._node = node
        self._versions = VersionWatch(node.health, "rewriter")
        self._replicas = replicas
        self._tier = tier
        self._holds_files = holds_files
        self._suspect = suspect
        self._busy = busy
        self._changed: set[Replica] = set()  # to check: changed, or due by the clock
        self._later: DueQueue[Replica] = DueQueue()  # by the wall clock
        self._not_before_ms: dict[Replica, int] = {}
        self.run_count = 0

    def on_changed(self, replicas: Collection[Replica]) -> None:
        """Note which logs to check."""
        for replica in replicas:
            if replica.is_dropped or not _is_compacted(replica):
                self._forget(replica)
                self._not_before_ms.pop(replica, None)
            else:
                self._changed.add(replica)

    async def run(self) -> None:
        """Compact the logs that are due, until cancelled."""
        async with asyncio.TaskGroup() as group:
            for _ in range(self._node.config().log_cleaner_threads):
                group.create_task(self._work())

    async def _work(self) -> None:
        while True:
            found = self._dirtiest()
            if found is None:
                await asyncio.sleep(self._node.config().log_cleaner_backoff_ms / 1000)
                continue
            replica, cleanable = found
            self._busy.add(replica)
            try:
                await self._attempt(replica, cleanable)
            finally:
                self._busy.discard(replica)

    def _dirtiest(self) -> tuple[Replica, Cleanable] | None:
        """Return the due log with the greatest dirty ratio, ``None`` if no log is due."""
        now_ms = self._node.clock_ms()
        self._changed.update(self._later.take(now_ms))
        found: tuple[Replica, Cleanable] | None = None
        for replica in tuple(self._changed):
            if replica in self._busy or self._not_before_ms.get(replica, 0) > now_ms:
                continue
            try:
                cleanable = self._check(replica, now_ms)
            except (TidelogError, OSError) as error:
                self._note_failure(replica, error)
                continue
            except Exception:
                # One log must not keep the others from being compacted.
                self._put_off(replica, FAILURE_BACKOFF_MS)
                what = {"partition": str(replica.partition)}
                logger.exception("check of a log for compaction broke, will retry", extra=what)
                continue
            if cleanable is None:
                continue
            if found is None or cleanable.dirty_ratio > found[1].dirty_ratio:
                found = replica, cleanable
        return found

    def _check(self, replica: Replica, now_ms: int) -> Cleanable | None:
        """Return the log's segments to compact if they are due; else note the next check."""
        is_open = replica.opened_log is not None
        has_log = is_open or (not replica.is_in_trouble and self._holds_files(replica))
        if not has_log or replica.log.is_offline:
            self._forget(replica)
            return None
        log = replica.log
        segments = log.segments_to_clean()
        cleanable = find_cleanable(
            segments, replica.config, dirty_from=log.cleaned_up_to, now_ms=now_ms
        )
        if cleanable.is_due(replica.config):
            return cleanable
        self._forget(replica)
        later_ms = next_check_ms(segments, cleanable, replica.config)
        if later_ms is not None:
            self._later.put(replica, later_ms)
        return None

    def _forget(self, replica: Replica) -> None:
        """Do not check the log again before it changes."""
        self._changed.discard(replica)
        self._later.discard(replica)

    async def _attempt(self, replica: Replica, cleanable: Cleanable) -> None:
        what = {"partition": str(replica.partition)}
        try:
            await self._compact(replica, cleanable)
        except SegmentsChanged as error:
            logger.info("compaction given up", extra={**what, "reason": str(error)})
        except CorruptRecordBatch as error:
            self._put_off(replica, DAMAGE_BACKOFF_MS)
            logger.warning(
                "log is damaged, it is compacted once it is repaired",
                extra={**what, "reason": str(error)},
            )
            for segment in cleanable.segments:
                self._suspect(replica.partition, segment.base_offset)
        except (TidelogError, OSError) as error:
            self._note_failure(replica, error)
        except Exception:
            self._put_off(replica, FAILURE_BACKOFF_MS)
            logger.exception("compaction broke, will retry", extra=what)

    def _note_failure(self, replica: Replica, error: Exception) -> None:
        if self._replicas.get(replica.partition) is not replica:
            return  # It was deleted during the compaction.
        self._node.counters.compaction_failure_count += 1
        self._put_off(replica, FAILURE_BACKOFF_MS)
        if isinstance(error, OSError | StorageError) and replica.note_failure(error):
            return  # The disk is full, which the node reports.
        logger.warning(
            "compaction failed, will retry",
            extra={"partition": str(replica.partition), "reason": str(error)},
        )

    def _put_off(self, replica: Replica, delay_ms: int) -> None:
        if not replica.is_dropped:  # No event would remove the entry.
            self._not_before_ms[replica] = self._node.clock_ms() + delay_ms

    async def _compact(self, replica: Replica, cleanable: Cleanable) -> None:
        leader_epoch = replica.leader_epoch
        tombstones_below = await self._tier.compacted_up_to(replica)
        if not self._node.may_expire():
            tombstones_below = 0  # They expire by the clock, which is in doubt: keep all.
        log, config = replica.log, self._node.config()
        source = log.begin_cleaning(cleanable.segments)
        task = plan_cleaning(
            source,
            replica.config,
            deletes=DeleteRule(
                self._node.clock_ms(), replica.config.delete_retention_ms, tombstones_below
            ),
            map_bytes_max=config.log_cleaner_dedupe_buffer_size // config.log_cleaner_threads,
            apart_at=log.tiered_up_to,
        )
        run = _Run(replica, log, leader_epoch, source, task)
        rate = config.log_cleaner_io_max_bytes_per_second // config.log_cleaner_threads
        try:
            bytes_read, bytes_written = await self._rewrite(run, RewriterJob(task, max(1, rate)))
        except FileNotFoundError as error:
            if log.is_offline or log.local_log_start_offset > cleanable.segments[0].base_offset:
                raise SegmentsChanged(f"segments of {log.partition} were removed") from error
            raise
        self.run_count += 1
        counters = self._node.counters
        counters.compaction_count += 1
        counters.compaction_read_bytes += bytes_read
        counters.compaction_written_bytes += bytes_written
        logger.info(
            "log compacted",
            extra={
                "partition": str(replica.partition),
                "cleaned_up_to": log.cleaned_up_to,
                "bytes_read": bytes_read,
                "bytes_written": bytes_written,
            },
        )

    async def _rewrite(self, run: _Run, job: RewriterJob) -> tuple[int, int]:
        """Run the process and swap in its results; return the bytes read and written."""
        bytes_read = bytes_written = 0
        async with contextlib.aclosing(rewrite(job, self._versions)) as results:
            async for result in results:
                if isinstance(result, RewriteEnd):
                    self._require_current(run)
                    run.log.end_cleaning(run.source, result.end_offset)
                    break
                bytes_read += result.bytes_read
                bytes_written += result.bytes_written
                await self._put_in_place(run, result)
        return bytes_read, bytes_written

    async def _put_in_place(self, run: _Run, group: CleanedGroup) -> None:
        async with self._tier.holding_copies(run.replica):
            self._require_current(run)
            if group.cleaned is not None:
                await put_in_place(run.log, run.source, group.cleaned, self._node.executor)
                run.replica.note_changed()

    def _require_current(self, run: _Run) -> None:
        """Raise ``SegmentsChanged`` if the replica has changed so that the run must stop."""
        replica = run.replica
        is_same = (
            self._replicas.get(replica.partition) is replica
            and replica.opened_log is run.log
            and not run.log.is_offline
            and replica.leader_epoch == run.leader_epoch
        )
        # The tier may get records from now on that a tombstone removed by this run deletes.
        deletes = run.task.deletes
        walks_over_all = deletes is not None and deletes.tombstones_below is None
        has_begun_tier = walks_over_all and replica.config.remote_storage_enable
        if not is_same or has_begun_tier or not _is_compacted(replica):
            raise SegmentsChanged(f"{replica.partition} has changed while it was compacted")


def _is_compacted(replica: Replica) -> bool:
    return "compact" in replica.config.cleanup_policy
