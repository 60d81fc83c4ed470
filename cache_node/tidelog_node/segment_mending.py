"""Replaces sealed segments whose files turn out damaged while the node runs.

Theory of operation. Copying to the tier and the scrubber read sealed segments and tell of those
that are not right (``suspect``). The segment is read again; if it is damaged, one ERROR names
file and position, and then, the first that can be done:

- *What is in the tier* is let go of here, and read there.
- *The leader* of a partition hands over to a member of the ISR: readers get whole records at
  once, and the new leader can be asked. It stays in the ISR.
- *A follower* fetches the range of the segment from the leader, checks every batch, and puts
  the new file in the place of the old one, as compaction does (``log.cleaned``). Replicas hold
  the same batches, but not the same segments.
- *A follower of a compacted log* gives all of it up, and ``LogReopener`` has it fetched again:
  replicas are compacted by themselves, and a tombstone that the leader has dropped already
  may be what keeps an older value in this log from coming back.
- *Nobody else* has it: what is whole is served on, and ``tidelog repair`` can be asked.

A hard link keeps the damaged file in ``quarantine``; it is never removed.

Why nothing acknowledged is lost: the log's end does not move, nor does what the replica is
counted for, and the damaged file goes from its place only for one that is whole, or for the
tier's. No offset is given again: the new bytes are batches that the leader holds as committed,
for the very same offsets.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
from collections.abc import Callable
from concurrent.futures import Executor
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from tidelog_core.compaction.sealed_files import seal_in_place_of
from tidelog_core.compaction.segment_writer import SegmentWriter
from tidelog_core.errors import CorruptRecordBatch, StorageError, TidelogError
from tidelog_core.log.checkpoint import sync_directory
from tidelog_core.log.cleaned import CleanedSegment, SegmentToClean, cleaned_directory
from tidelog_core.log.cleaning import CleaningSource
from tidelog_core.log.segment_check import SegmentDamage, check_segment
from tidelog_core.log.segment_indexes import SealRecord
from tidelog_core.log.unified_log import UnifiedLog
from tidelog_core.log.values import CorruptLog, SealedSegment
from tidelog_core.metadata.image import ClusterView
from tidelog_core.metadata.records import Partition
from tidelog_core.model import TopicPartition

from tidelog_node.compaction.rewriting import put_in_place
from tidelog_node.follower.range_fetch import fetch_range
from tidelog_node.log_directories import LogDirectories
from tidelog_node.node_health import NodeHealth
from tidelog_node.replicas import Replica, ReplicaManager

logger = logging.getLogger(__name__)

LOOK_SECONDS = 1.0
RETRY_SECONDS_MAX = 60.0
DAMAGED = "segment-damaged"


class Tier(Protocol):
    """What has to stop while a segment is replaced; ``TierService``."""

    def holding_copies(self, replica: Replica) -> AbstractAsyncContextManager[None]:
        """Keep segments of the partition from being copied meanwhile."""


@dataclass(slots=True)
class _Case:
    """One segment that may be damaged."""

    not_before: float = 0.0  # the loop's time
    attempt_count: int = 0
    damage: SegmentDamage | None = None  # None: not found out yet
    is_hopeless: bool = False  # and that was said


class _Waits(Exception):
    """Something else has to happen first."""


class SegmentMender:
    """For the node's event loop; ``run`` is one task."""

    def __init__(
        self,
        *,
        replicas: ReplicaManager,
        view: ClusterView,
        broker_id: int,
        tier: Tier,
        directories: LogDirectories,
        hand_over: Callable[[Partition], bool],
        busy: set[Replica],
        health: NodeHealth,
        executor: Executor,
    ) -> None:
        """``hand_over`` begins to; it returns False where nobody else is in sync.

        ``busy`` holds those whose segments are being replaced, also by others than this.
        """
        self._replicas = replicas
        self._view = view
        self._broker_id = broker_id
        self._tier = tier
        self._directories = directories
        self._hand_over = hand_over
        self._busy = busy
        self._health = health
        self._executor = executor
        self._cases: dict[tuple[Replica, int], _Case] = {}  # by base offset
        self._stir = asyncio.Event()

    def suspect(self, partition: TopicPartition, base_offset: int) -> None:
        """Have a sealed segment looked at."""
        replica = self._replicas.get(partition)
        if replica is None:
            return
        self._cases.setdefault((replica, base_offset), _Case())
        self._stir.set()

    async def run(self) -> None:
        """Work until cancelled."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_SECONDS if self._cases else None):
                    await self._stir.wait()
            self._stir.clear()
            await self.look()

    async def look(self) -> None:
        """Mend what can be mended now."""
        now = asyncio.get_running_loop().time()
        for (replica, base_offset), case in list(self._cases.items()):
            if case.not_before > now or replica in self._busy:
                continue
            self._busy.add(replica)
            try:
                if await self._mend(replica, base_offset, case):
                    self._close(replica, base_offset, case)
                    continue
            except _Waits:
                pass
            except (TidelogError, OSError, TimeoutError) as error:
                logger.info(
                    "segment could not be replaced, will retry",
                    extra={"partition": str(replica.partition), "reason": str(error)},
                )
            finally:
                self._busy.discard(replica)
            case.attempt_count += 1
            wait_s = min(LOOK_SECONDS * 2.0 ** min(case.attempt_count, 10), RETRY_SECONDS_MAX)
            case.not_before = asyncio.get_running_loop().time() + wait_s

    def _close(self, replica: Replica, base_offset: int, case: _Case) -> None:
        del self._cases[replica, base_offset]
        if case.damage is None:
            return
        self._health.clear(DAMAGED, subject=str(case.damage.path))
        if replica.damage is None:
            logger.warning(
                "damaged segment replaced",
                extra={"partition": str(replica.partition), "path": str(case.damage.path)},
            )

    async def _mend(self, replica: Replica, base_offset: int, case: _Case) -> bool:
        """Do the next step; return whether there is nothing more to do.

        Raises ``_Waits``, and what files, leader and log raise.
        """
        log = replica.opened_log
        if self._replicas.get(replica.partition) is not replica or log is None:
            return True
        if log.is_offline:
            raise _Waits
        sealed = next((s for s in log.sealed_segments() if s.base_offset == base_offset), None)
        if sealed is None:
            return True  # Retention or eviction was faster.
        if case.damage is None:
            case.damage = await self._check(sealed)
            if case.damage is None:
                return True
            self._report(replica, case.damage)
        if sealed.end_offset <= log.tiered_up_to:
            await self._quarantine(replica, sealed)
            async with self._tier.holding_copies(replica):
                log.evict_local(sealed.end_offset)
            return True
        partition = self._view.image.partition(replica.partition)
        if partition is None:
            return True
        if replica.is_leader:
            if not self._hand_over(partition):
                self._say_hopeless(replica, case)
            raise _Waits
        if partition.leader in (-1, self._broker_id):
            raise _Waits
        if "compact" in replica.config.cleanup_policy or log.may_have_gaps:
            log.take_offline()
            log.close()
            replica.give_up(CorruptLog(str(case.damage)))
        else:
            await self._replace(replica, log, sealed, partition)
        return True

    async def _check(self, sealed: SealedSegment) -> SegmentDamage | None:
        return await asyncio.get_running_loop().run_in_executor(
            self._executor,
            lambda: check_segment(
                sealed.path,
                base_offset=sealed.base_offset,
                end_offset=sealed.end_offset,
                size_bytes=sealed.size_bytes,
            ),
        )

    def _report(self, replica: Replica, damage: SegmentDamage) -> None:
        self._health.report(DAMAGED, str(damage), subject=str(damage.path))
        logger.error(
            "segment is damaged, it is replaced from another replica or the tier",
            extra={"partition": str(replica.partition), "reason": str(damage)},
        )

    def _say_hopeless(self, replica: Replica, case: _Case) -> None:
        if case.is_hopeless:
            return
        case.is_hopeless = True
        logger.error(
            "damaged segment is nowhere else, what is whole is served: to go on without it stop"
            f" the node and see `tidelog repair --partition {replica.partition} --dry-run`",
            extra={"partition": str(replica.partition), "reason": str(case.damage)},
        )

    async def _quarantine(self, replica: Replica, sealed: SealedSegment) -> None:
        """Keep the damaged file under another name."""
        directory = self._directories.quarantine(replica)
        await asyncio.get_running_loop().run_in_executor(
            self._executor, _keep, sealed.path, directory
        )

    async def _replace(
        self, replica: Replica, log: UnifiedLog, sealed: SealedSegment, partition: Partition
    ) -> None:
        broker = self._view.image.brokers.get(partition.leader)
        known = log.segments_to_erase(sealed.end_offset)
        old = next((s for s in known or () if s.base_offset == sealed.base_offset), None)
        if broker is None or old is None:
            raise _Waits  # Not registered; not flushed yet, or not known to be replicated.
        source = log.begin_cleaning((old,))
        writer = await self._fetch(replica, source, old, partition, (broker.host, broker.port))
        loop = asyncio.get_running_loop()
        seal = await loop.run_in_executor(self._executor, _seal, old, writer, source)
        await self._quarantine(replica, sealed)
        async with self._tier.holding_copies(replica):
            if replica.opened_log is not log or log.is_offline:
                raise _Waits
            await put_in_place(log, source, CleanedSegment(seal, (old,)), self._executor)
        replica.note_unflushed()

    async def _fetch(
        self,
        replica: Replica,
        source: CleaningSource,
        old: SegmentToClean,
        partition: Partition,
        endpoint: tuple[str, int],
    ) -> SegmentWriter:
        """Write the leader's batches of the segment into the directory for cleaned ones."""
        folder = cleaned_directory(source.directory)
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._executor, _clear, folder)
        writer = SegmentWriter(
            folder,
            old.base_offset,
            index_interval_bytes=replica.config.index_interval_bytes,
        )
        next_offset = old.base_offset
        fetching = fetch_range(
            replica,
            endpoint,
            start=old.base_offset,
            end=old.end_offset,
            leader_epoch=partition.leader_epoch,
        )
        async for records, headers in fetching:
            for position, header in headers:
                if header.base_offset != next_offset or header.next_offset > old.end_offset:
                    raise CorruptRecordBatch(
                        f"the leader has no batch at offset {next_offset} of {replica.partition}"
                    )
                writer.append(bytes(records[position : position + header.size_bytes]))
                next_offset = header.next_offset
        if next_offset != old.end_offset:
            raise StorageError(f"the leader has {replica.partition} only up to {next_offset}")
        return writer


def _seal(old: SegmentToClean, writer: SegmentWriter, source: CleaningSource) -> SealRecord:
    """Write the rest and the index files; all is durable but the names."""
    aborted = [one for one in source.aborted if old.base_offset <= one.last_offset < old.end_offset]
    return seal_in_place_of([old], writer, source.directory, aborted)


def _clear(folder: Path) -> None:
    with suppress(FileNotFoundError):
        shutil.rmtree(folder)
    folder.mkdir()


def _keep(path: Path, directory: Path) -> None:
    """Link the file into the directory, under a name that is free. Durable on return."""
    directory.mkdir(parents=True, exist_ok=True)
    count = len(list(directory.glob(f"{path.name}*")))
    with suppress(FileNotFoundError):
        os.link(path, directory / (f"{path.name}.{count}" if count else path.name))
    sync_directory(directory)
