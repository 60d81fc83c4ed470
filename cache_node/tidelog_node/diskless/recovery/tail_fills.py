"""Fills the logs of partitions that are led already with the records before their start.

The records of a tail go into a log beside the partition's, as any refill does, and that one gives
its segments away once it is whole. Nothing is read of it before. Partitions that were taken
together are filled in groups, short tails first, so that an object is read a few times at most. A
fill belongs to a log, not to a leader epoch: it goes on when the partition gets another leader, and
ends when the log is truncated, which a node does that leads or follows anew. From then on it writes
nothing: another fill of the log may have files of the same names.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Mapping

from tidelog_core.diskless.wal.epoch_chains import PartitionName
from tidelog_core.errors import CorruptObject, StorageError, TidelogError
from tidelog_core.log.local_log import LocalLog
from tidelog_core.log.values import AppendInfo
from tidelog_core.model import TopicPartition

from tidelog_node.diskless.recovery.lead_first import Fill
from tidelog_node.diskless.recovery.object_reads import waves
from tidelog_node.diskless.recovery.refilling import LogRefill, Tail
from tidelog_node.replica import UNCOUNTED_BYTES
from tidelog_node.tier.history import TierHistory, tier_end

logger = logging.getLogger(__name__)

RETRY_SECONDS = 1.0
RETRY_SECONDS_MAX = 30.0
LOGS_AT_ONCE_MAX = 200  # each has open files, which no limit of the node counts


class Beside:
    """A log beside a partition's, as ``LogRefill`` sees a replica."""

    is_leader = False
    is_follower = False

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
        return self._replica.append_beside(self.log, batches)

    def note_changed(self) -> None:
        """Nothing uses this log before it is whole."""

    def close(self) -> None:
        """Close the files without a flush: what was filled is thrown away, or was given away."""
        self.log.take_offline()
        self.log.close()


class TailFills:
    """The fills of one node. For the tasks of its event loop."""

    def __init__(self, refill: LogRefill, history: TierHistory) -> None:
        self._refill = refill
        self._history = history
        self._tasks: set[asyncio.Task[None]] = set()

    def add(self, fills: Mapping[PartitionName, Fill]) -> None:
        """Begin to fill these logs, but for those that have begun again since."""
        wanted = _wanted(fills)
        if wanted:
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
        while True:
            for wave in waves({name: fill.size_bytes for name, fill in fills.items()}):
                for at in range(0, len(wave), LOGS_AT_ONCE_MAX):
                    names = wave[at : at + LOGS_AT_ONCE_MAX]
                    try:
                        await self._fill({name: fills[name] for name in names})
                    except Exception:
                        # Any failure: consumers wait for these records.
                        logger.exception("filling logs broke, will retry")
            fills = _wanted(fills)
            if not fills:
                return
            await asyncio.sleep(seconds)
            seconds = min(2 * seconds, RETRY_SECONDS_MAX)

    async def _fill(self, fills: Mapping[PartitionName, Fill]) -> None:
        """Fill the logs once; what fails is logged."""
        besides: dict[PartitionName, Beside] = {}
        failures: dict[PartitionName, TidelogError | OSError] = {}
        try:
            for name, fill in fills.items():
                if fill.is_wanted:
                    try:
                        if fill.log.is_filled:
                            fill.log.forget_unfilled()
                            self._note_filled(fill)
                        else:
                            besides[name] = Beside(fill)
                    except (TidelogError, OSError) as error:
                        failures[name] = error
                    await asyncio.sleep(0)  # Each opening waits for the disk.
            tails = {
                name: Tail(beside, fills[name].slices, fills[name].unfilled.end)
                for name, beside in besides.items()
            }
            failures |= await self._refill.refill(tails)
            for name, beside in besides.items():
                fill = fills[name]
                if name in failures or not fill.is_wanted:
                    continue
                try:
                    fill.log.fill(beside.log)
                except (TidelogError, OSError) as error:
                    failures[name] = error
                else:
                    self._note_filled(fill)
                await asyncio.sleep(0)
        finally:
            for beside in besides.values():
                beside.close()
        for name, failure in failures.items():
            await self._note_failure(name, fills[name], failure)

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
                "hint": "consumers wait for them, and nothing of the partition is tiered meanwhile;"
                f" {_remedy(error)}",
            },
        )


def _remedy(error: TidelogError | OSError) -> str:
    if isinstance(error, CorruptObject):
        return "run `tidelog verify`, and restore the object that is named"
    return "see that the node can read the bucket, and that its disk has room"


def _wanted(fills: Mapping[PartitionName, Fill]) -> dict[PartitionName, Fill]:
    return {name: fill for name, fill in fills.items() if fill.is_wanted}
