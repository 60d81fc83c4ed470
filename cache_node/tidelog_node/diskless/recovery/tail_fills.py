"""Fills the logs of partitions that are led already with the records before their start.

The records of a tail go into a second log, the fill log, whose segments move to the partition's log
once all are there. Until then consumers read the missing records from the fill log. Partitions that
were taken over together are filled in groups, short tails first, so that an object is read a few
times at most. Refills of partitions that are not led yet come first.

A fill that fails is retried less and less often, and goes on where it stopped: a damaged object
late in a tail does not cause the ones before it to be read again. While the disk is full nothing is
read, and the fill log is kept. A fill belongs to a log, not to a leader epoch: it goes on when the
partition gets another leader. It ends when the log is truncated, because the node begins to lead or
to follow again, and when the node leaves the partition. Then it writes nothing more: another fill,
or the partition's next replica here, may have files of the same names.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Container, Iterator, Mapping

from tidelog_core.batched import batched
from tidelog_core.diskless.wal.epoch_chains import PartitionName
from tidelog_core.errors import CorruptObject, StorageError, TidelogError
from tidelog_core.log.checkpoint import OUT_OF_ROOM
from tidelog_core.log.local_log import LocalLog
from tidelog_core.log.values import AppendInfo
from tidelog_core.model import TopicPartition

from tidelog_node.counters import ChainTraffic
from tidelog_node.diskless.recovery.deferred_fills import Fill
from tidelog_node.diskless.recovery.log_refill import LogRefill, RefillLimits
from tidelog_node.diskless.recovery.log_tail import LogTail
from tidelog_node.diskless.recovery.object_reads import waves
from tidelog_node.replicas.replica import UNCOUNTED_BYTES
from tidelog_node.tier.history import TierHistory, tier_end

logger = logging.getLogger(__name__)

RETRY_SECONDS = 1.0
RETRY_SECONDS_MAX = 30.0
# Of one takeover, also between two tries. Each has open files, which no limit of the node counts.
LOGS_AT_ONCE_MAX = 200
# A few reads go on while partitions without a leader are refilled: consumers wait for them too.
FILL_LIMITS = RefillLimits(reads_at_once=16, bytes_ahead=16 << 20, reads_behind_others=4)


class FillReplica:
    """A fill log, as ``LogRefill`` sees a replica."""

    is_leader = False
    is_follower = False
    is_dropped = False  # ``Fill.is_wanted`` says so

    def __init__(self, fill: Fill) -> None:
        """Raises ``StorageError``."""
        self._fill = fill
        self._replica = fill.replica
        self.log: LocalLog = fill.log.begin_filling(
            leader_epochs=fill.leader_epochs, producer_snapshot=fill.producer_snapshot
        )

    @property
    def partition(self) -> TopicPartition:
        """The partition's name."""
        return self._replica.partition

    def append_as_follower(self, batches: memoryview) -> AppendInfo:
        """Append the records. Raises as ``LocalLog.append_as_follower``."""
        if not self._fill.is_wanted:
            raise StorageError(f"the log of {self.partition} has begun again, this fill has ended")
        info = self._replica.append_to_fill(self.log, batches)
        # This process has seen it committed, and readers may have it.
        if self.log.advance_high_watermark(self.log.log_end_offset):
            self._replica.wake_readers(UNCOUNTED_BYTES)
        return info

    def note_changed(self) -> None:
        """Nothing of this log is flushed or tiered before it is whole."""

    def close(self) -> None:
        """Close the files without a flush: the segments were moved, or are thrown away."""
        self.log.take_offline()
        self.log.close()


class TailFills:
    """The fills of one node. For the tasks of its event loop."""

    def __init__(
        self, refill: LogRefill, history: TierHistory, traffic: ChainTraffic | None = None
    ) -> None:
        """``traffic`` counts the logs that are not filled yet."""
        self._refill = refill
        self._history = history
        self._traffic = traffic or ChainTraffic()
        self._left: dict[PartitionName, tuple[Fill, float]] = {}  # and when it was added
        self._tasks: set[asyncio.Task[None]] = set()

    def add(self, fills: Mapping[PartitionName, Fill]) -> None:
        """Begin to fill these logs, except those that were truncated since."""
        wanted = _wanted(fills)
        if wanted:
            now_s = time.monotonic()
            self._left |= {name: (fill, now_s) for name, fill in wanted.items()}
            self._count()
            task = asyncio.create_task(self._fill_all(wanted), name="filling logs")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Stop filling."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _fill_all(self, fills: dict[PartitionName, Fill]) -> None:
        seconds = RETRY_SECONDS
        fill_replicas: dict[PartitionName, FillReplica] = {}
        try:
            while True:
                for names in _groups(fills):
                    try:
                        await self._fill({name: fills[name] for name in names}, fill_replicas)
                    except Exception:
                        # Any failure: consumers wait for these records.
                        logger.exception("filling logs broke, will retry")
                        for name in names:
                            _close(fill_replicas, name)
                    self._count()
                left = _wanted(fills)
                for name in fills.keys() - left.keys():
                    _close(fill_replicas, name)
                fills = left
                if not fills:
                    return
                await asyncio.sleep(seconds)
                seconds = min(2 * seconds, RETRY_SECONDS_MAX)
        finally:
            for name in tuple(fill_replicas):
                _close(fill_replicas, name)

    async def _fill(
        self, fills: Mapping[PartitionName, Fill], fill_replicas: dict[PartitionName, FillReplica]
    ) -> None:
        """Fill the logs, or go on; log failures, and keep the fill logs whose disk works."""
        fills = {name: fill for name, fill in fills.items() if not fill.replica.is_disk_full}
        failures = await self._open(fills, fill_replicas)
        tails = {
            name: LogTail(fill_replicas[name], fill.slices, fill.unfilled.end)
            for name, fill in fills.items()
            if name in fill_replicas and fill.is_wanted
        }
        failures |= await self._refill.refill(tails)
        for name in tails:
            fill, fill_replica = fills[name], fill_replicas[name]
            if name not in failures and fill.is_wanted:
                try:
                    await self._put_in(fill, fill_replica)
                    self._note_filled(fill)
                except (TidelogError, OSError) as error:
                    failures[name] = error
                    if isinstance(error, StorageError | OSError):
                        fill.replica.note_failure(error)
                _close(fill_replicas, name)
            elif fill_replica.log.is_offline or _has_disk_failed(failures.get(name)):
                _close(fill_replicas, name)
        for name, failure in failures.items():
            await self._note_failure(name, fills[name], failure)

    async def _put_in(self, fill: Fill, fill_replica: FillReplica) -> None:
        """Move the fill log's segments to the partition's log. Raises ``StorageError``."""
        loop, log = asyncio.get_running_loop(), fill.log
        pending = log.begin_fill(fill_replica.log)
        while not pending.is_done:
            await loop.run_in_executor(self._refill.executor, pending.run)
            log.go_on_filling(pending)

    async def _open(
        self, fills: Mapping[PartitionName, Fill], fill_replicas: dict[PartitionName, FillReplica]
    ) -> dict[PartitionName, TidelogError | OSError]:
        """Open a fill log for each of the fills; return the failures."""
        failures: dict[PartitionName, TidelogError | OSError] = {}
        for name, fill in fills.items():
            if name in fill_replicas or not fill.is_wanted:
                continue
            try:
                if fill.log.is_filled:
                    fill.log.forget_unfilled()
                    self._note_filled(fill)
                else:
                    _make_room(fill_replicas, fills)
                    fill_replicas[name] = FillReplica(fill)
            except (TidelogError, OSError) as error:
                failures[name] = error
            await asyncio.sleep(0)  # Each opening waits for the disk.
        return failures

    def _count(self) -> None:
        """Count the logs that are not filled yet."""
        self._left = {name: one for name, one in self._left.items() if one[0].is_wanted}
        traffic, since = self._traffic, [since_s for _, since_s in self._left.values()]
        traffic.unfilled_count, traffic.unfilled_since_s = len(since), min(since, default=0.0)

    def _note_filled(self, fill: Fill) -> None:
        fill.replica.note_changed()  # Its segments may be copied to the tier.
        fill.replica.wake_readers(UNCOUNTED_BYTES)
        logger.info(
            "log of a led partition filled",
            extra={
                "partition": str(fill.replica.partition),
                "offset": fill.unfilled.start,
                "log_end_offset": fill.unfilled.end,
            },
        )

    async def _note_failure(
        self, name: PartitionName, fill: Fill, error: TidelogError | OSError
    ) -> None:
        """Log the failure, unless the tier has the records by now: another leader copied them."""
        if not fill.is_wanted:
            return
        with contextlib.suppress(TidelogError, OSError):
            segments = await self._history.segments(*name)
            end = tier_end(segments, fill.log.log_start_offset)
            if end is not None and end.offset >= fill.unfilled.end and fill.is_wanted:
                fill.log.set_tiered_up_to(fill.unfilled.end)
                fill.log.forget_unfilled()
                fill.replica.wake_readers(UNCOUNTED_BYTES)
                return
        logger.error(
            "records of a led partition cannot be read from its chains, will retry",
            extra={
                "partition": str(fill.replica.partition),
                "reason": str(error),
                "hint": "consumers wait for them, and the partition is not tiered until they are"
                f" read; {_remedy(error)}",
            },
        )


def _groups(fills: Mapping[PartitionName, Fill]) -> Iterator[list[PartitionName]]:
    """Yield the partitions that are filled together, short tails first."""
    for wave in waves({name: fill.size_bytes for name, fill in fills.items()}):
        yield from batched(wave, LOGS_AT_ONCE_MAX)


def _make_room(
    fill_replicas: dict[PartitionName, FillReplica], fills: Container[PartitionName]
) -> None:
    """Close a fill log that waits for its next try if too many are open for another one."""
    if len(fill_replicas) >= LOGS_AT_ONCE_MAX:
        for name in tuple(fill_replicas):
            if name not in fills:
                _close(fill_replicas, name)
                return


def _close(fill_replicas: dict[PartitionName, FillReplica], name: PartitionName) -> None:
    fill_replica = fill_replicas.pop(name, None)
    if fill_replica is not None:
        fill_replica.close()


def _has_disk_failed(failure: TidelogError | OSError | None) -> bool:
    """Whether the disk failed, for another reason than a lack of space or descriptors."""
    return isinstance(failure, StorageError | OSError) and failure.errno not in OUT_OF_ROOM


def _remedy(error: TidelogError | OSError) -> str:
    if isinstance(error, CorruptObject):
        return "run `tidelog verify`, and restore the object that is named"
    return "see that the node can read the bucket, and that its disk has room"


def _wanted(fills: Mapping[PartitionName, Fill]) -> dict[PartitionName, Fill]:
    return {name: fill for name, fill in fills.items() if fill.is_wanted}
