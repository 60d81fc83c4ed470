"""Replaces damaged sealed segments while the node runs.

Theory of operation. The tier copier and the scrubber read sealed segments and report damaged ones
to ``suspect``. The segment is read again; if it is damaged, one ERROR names file and position. Then
the first possible one of these steps is taken:

- *A tiered segment* is evicted locally; readers get it from the tier.
- *The leader* of a partition hands over to a member of the ISR: readers immediately get undamaged
  records, and this node can fetch from the new leader. It stays in the ISR. It does not hand over
  to members whose copy was found damaged, too.
- *The leader of a diskless partition* gives its log up. Everything that was acknowledged is in the
  tier and in its chains: ``LogReopener`` sets the log aside, and the partition is entered again.
- *A follower* fetches the segment's offset range from the leader, checks every batch, and replaces
  the old file with the new one, as compaction does (``log.cleaned_segments``). Replicas have the
  same batches, but not the same segments.
- *A follower of a compacted log* gives the whole log up, and ``LogReopener`` makes it fetch again:
  each replica is compacted on its own, and a tombstone that the leader has already dropped may be
  what keeps an older value in this log from coming back. So does a follower whose leader has
  answered ``UNLIKE_ATTEMPTS_MAX`` times that it lacks these batches: one of the two logs has gaps,
  or the leader's begins later.
- *If no other copy* is undamaged, the undamaged batches are still served, and the ERROR names
  ``tidelog repair``. Other copies are tried again if the leader changes or is repaired.

A hard link keeps the damaged file in ``quarantine``; it is never removed.

Why no acknowledged record is lost: the log's end does not move, the replica's place in the ISR does
not change, and the damaged file is only replaced by an undamaged one or by the tier's. (A log that
is given up as a whole is fetched again only once the replica is out of the ISR.) No offset is
assigned twice: the new bytes are batches that the leader has committed at the same offsets.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from tidelog_core.back_off import back_off_seconds
from tidelog_core.compaction.sealed_files import seal_in_place_of
from tidelog_core.compaction.segment_writer import SegmentWriter
from tidelog_core.errors import (
    CorruptRecordBatch,
    ErrorCode,
    OffsetOutOfRange,
    TidelogError,
    UnsupportedMagic,
)
from tidelog_core.log.cleaned_segments import CleanedSegment, SegmentToClean, cleaned_directory
from tidelog_core.log.cleaning import CleaningSource
from tidelog_core.log.leader_epochs import EpochEntry
from tidelog_core.log.local_log import LocalLog
from tidelog_core.log.recovery.quarantine import keep_file
from tidelog_core.log.segments.segment_check import SegmentDamage, check_segment, require_epoch
from tidelog_core.log.segments.segment_indexes import SealRecord
from tidelog_core.log.values import CorruptLog, SealedSegment
from tidelog_core.metadata.records import Broker, Partition
from tidelog_core.model import NO_LEADER, TopicPartition
from tidelog_core.waiting import wait_and_clear

from tidelog_node.compaction.rewriter_process import put_in_place
from tidelog_node.follower.range_fetch import fetch_range
from tidelog_node.logs.directories import LogDirectories
from tidelog_node.node_context import NodeContext
from tidelog_node.replicas.replica import Replica
from tidelog_node.replicas.replica_manager import ReplicaManager

logger = logging.getLogger(__name__)

CHECK_SECONDS = 1.0
RETRY_SECONDS_MAX = 60.0
CONNECT_SECONDS_MAX = 5.0
UNLIKE_ATTEMPTS_MAX = 5  # then the logs are taken to differ permanently
DAMAGED = "segment-damaged"


class Tier(Protocol):
    """The part of ``TierService`` that stops copies while a segment is replaced."""

    def holding_copies(self, replica: Replica) -> AbstractAsyncContextManager[None]:
        """Prevent copies of the partition's segments within the context."""


@dataclass(slots=True)
class _Case:
    """One segment that may be damaged."""

    not_before: float = 0.0  # the loop's time
    attempt_count: int = 0
    problem: TidelogError | None = None  # met by a reader of the segment
    damage: SegmentDamage | None = None  # None: not checked yet
    damaged_at: set[int] = field(default_factory=set)  # brokers whose copy is damaged, too
    unlike_count: int = 0  # of attempts for which the leader lacked these batches
    is_hopeless: bool = False  # no other copy is undamaged, and that was reported


class _Waits(Exception):
    """Another event has to happen first."""


class _Unlike(TidelogError):
    """The leader's log lacks the batches that the segment should have."""

    code = ErrorCode.kafka_storage_error


class SegmentRepair:
    """Checks and replaces segments. For the node's event loop; ``run`` is one task."""

    def __init__(
        self,
        node: NodeContext,
        *,
        replicas: ReplicaManager,
        tier: Tier,
        directories: LogDirectories,
        hand_over: Callable[[Partition], bool],
        busy: set[Replica],
    ) -> None:
        """``hand_over`` begins a hand-over; it returns False if no other replica is in sync.

        ``busy``: replicas whose segments are being replaced, here or by other tasks.
        """
        self._node = node
        self._replicas = replicas
        self._tier = tier
        self._directories = directories
        self._hand_over = hand_over
        self._busy = busy
        self._cases: dict[tuple[Replica, int], _Case] = {}  # by base offset
        self._stir = asyncio.Event()

    def suspect(
        self, partition: TopicPartition, base_offset: int, problem: TidelogError | None = None
    ) -> None:
        """Request a check of a sealed segment.

        ``problem`` kept the caller from using it: if the file is undamaged, an ERROR reports that.
        """
        replica = self._replicas.get(partition)
        if replica is None:
            return
        case = self._cases.setdefault((replica, base_offset), _Case())
        case.problem = problem or case.problem
        self._stir.set()

    async def run(self) -> None:
        """Repair segments until cancelled."""
        while True:
            await wait_and_clear(self._stir, CHECK_SECONDS if self._cases else None)
            await self.attempt_due()

    async def attempt_due(self) -> None:
        """Make the attempts that are due."""
        now = asyncio.get_running_loop().time()
        for (replica, base_offset), case in list(self._cases.items()):
            if case.not_before > now or replica in self._busy:
                continue
            self._busy.add(replica)
            try:
                is_replaced = await self._repair(replica, base_offset, case)
                self._close(replica, base_offset, case, is_replaced=is_replaced)
                continue
            except _Waits:
                pass
            except (TidelogError, OSError, TimeoutError) as error:
                logger.info(
                    "segment could not be replaced, will retry",
                    extra={"partition": str(replica.partition), "reason": str(error)},
                )
            except Exception:
                # A failure of one segment must not prevent the repair of others.
                logger.exception(
                    "replacing of a segment broke, will retry",
                    extra={"partition": str(replica.partition)},
                )
            finally:
                self._busy.discard(replica)
            case.attempt_count += 1
            wait_s = back_off_seconds(
                case.attempt_count, first=CHECK_SECONDS, longest=RETRY_SECONDS_MAX
            )
            case.not_before = asyncio.get_running_loop().time() + wait_s

    def _close(self, replica: Replica, base_offset: int, case: _Case, *, is_replaced: bool) -> None:
        del self._cases[replica, base_offset]
        if case.damage is None:
            return
        self._node.health.clear(DAMAGED, subject=str(case.damage.path))
        if replica.damage is None:
            logger.warning(
                "damaged segment replaced" if is_replaced else "damaged segment is gone",
                extra={"partition": str(replica.partition), "path": str(case.damage.path)},
            )

    async def _repair(self, replica: Replica, base_offset: int, case: _Case) -> bool:
        """Take the next step; return whether the segment was replaced, once no step is left.

        Raises ``_Waits`` and the errors of files, leader and log.
        """
        log = replica.opened_log
        if self._replicas.get(replica.partition) is not replica or log is None:
            return False
        if log.is_offline:
            raise _Waits
        sealed = next((s for s in log.sealed_segments() if s.base_offset == base_offset), None)
        if sealed is None or not await self._is_damaged(replica, sealed, case):
            return False  # Undamaged, or gone: retention, eviction or a truncation was faster.
        if sealed.end_offset <= log.tiered_up_to:
            await self._evict_tiered(replica, log, sealed)
            return True
        partition = self._node.view.image.partition(replica.partition)
        if partition is None:
            return False
        if replica.is_leader and replica.is_diskless:
            self._replicas.end_lead(replica)
            _give_up(replica, log, case)
            return False
        if replica.is_leader:
            self._hand_over_to_intact(replica, case, partition)
            raise _Waits
        if partition.leader in (NO_LEADER, self._node.broker_id):
            raise _Waits
        return await self._repair_follower(replica, sealed, case, partition)

    async def _evict_tiered(self, replica: Replica, log: LocalLog, sealed: SealedSegment) -> None:
        """Drop the local copy of a segment that the tier has. Raises ``_Waits``."""
        if log.is_held:
            raise _Waits  # It stays until the node's chain has its records.
        await self._quarantine(replica, sealed)
        async with self._tier.holding_copies(replica):
            log.evict_local(sealed.end_offset)

    def _hand_over_to_intact(self, replica: Replica, case: _Case, partition: Partition) -> None:
        """Hand over to an ISR member that may have the segment; report it if there is none."""
        others = tuple(member for member in partition.isr if member not in case.damaged_at)
        if not self._hand_over(replace(partition, isr=others)):
            self._report_hopeless(replica, case)

    async def _repair_follower(
        self, replica: Replica, sealed: SealedSegment, case: _Case, partition: Partition
    ) -> bool:
        """Fetch the segment, or the whole log, from the leader; as ``_repair``."""
        log = replica.log
        if "compact" in replica.config.cleanup_policy or log.may_have_gaps:
            _give_up(replica, log, case)
            return False
        try:
            await self._replace(replica, log, sealed, partition)
        except (CorruptRecordBatch, UnsupportedMagic):
            case.damaged_at.add(partition.leader)
            if case.damaged_at.issuperset(set(partition.isr) - {self._node.broker_id}):
                self._report_hopeless(replica, case)
            raise
        except _Unlike:
            case.unlike_count += 1
            if case.unlike_count < UNLIKE_ATTEMPTS_MAX or replica.opened_log is not log:
                raise
            _give_up(replica, log, case)
            return False
        return True

    async def _is_damaged(self, replica: Replica, sealed: SealedSegment, case: _Case) -> bool:
        """Check the segment unless that was done; report the result."""
        if case.damage is not None:
            return True
        case.damage = await asyncio.get_running_loop().run_in_executor(
            self._node.executor,
            lambda: check_segment(
                sealed.path,
                base_offset=sealed.base_offset,
                end_offset=sealed.end_offset,
                size_bytes=sealed.size_bytes,
                leader_epochs=sealed.leader_epochs,
            ),
        )
        if case.damage is None:
            self._report_undamaged(replica, sealed, case)
            return False
        self._report(replica, case.damage)
        return True

    def _report(self, replica: Replica, damage: SegmentDamage) -> None:
        is_new = self._node.health.report(DAMAGED, str(damage), subject=str(damage.path))
        self._node.counters.damaged_segment_count += is_new
        logger.error(
            "segment is damaged, it is replaced from another replica or the tier",
            extra={"partition": str(replica.partition), "reason": str(damage)},
        )

    def _report_undamaged(self, replica: Replica, sealed: SealedSegment, case: _Case) -> None:
        """Report the problem of a caller that the segment's file does not explain."""
        if case.problem is not None:
            logger.error(
                "segment could not be used though its file is whole, will retry:"
                " if this stays, restart the node and report the reason",
                extra={
                    "partition": str(replica.partition),
                    "path": str(sealed.path),
                    "reason": str(case.problem),
                },
            )

    def _report_hopeless(self, replica: Replica, case: _Case) -> None:
        if case.is_hopeless:
            return
        case.is_hopeless = True
        logger.error(
            "damaged segment is nowhere else, whole batches are served: to go on without it stop"
            f" the node and see `tidelog repair --partition {replica.partition} --dry-run`",
            extra={"partition": str(replica.partition), "reason": str(case.damage)},
        )

    async def _quarantine(self, replica: Replica, sealed: SealedSegment) -> None:
        """Keep the damaged file under another name."""
        directory = self._directories.quarantine(replica)
        await asyncio.get_running_loop().run_in_executor(
            self._node.executor, keep_file, sealed.path, directory
        )

    async def _replace(
        self, replica: Replica, log: LocalLog, sealed: SealedSegment, partition: Partition
    ) -> None:
        broker = self._node.view.image.brokers.get(partition.leader)
        known = log.segments_to_erase(sealed.end_offset)
        old = next((s for s in known or () if s.base_offset == sealed.base_offset), None)
        if broker is None or old is None:
            raise _Waits  # Not registered; or not flushed yet, or not known to be replicated.
        source = log.begin_cleaning((old,))
        epochs = sealed.leader_epochs
        writer = await self._fetch(replica, source, old, partition, broker, leader_epochs=epochs)
        loop = asyncio.get_running_loop()
        seal = await loop.run_in_executor(self._node.executor, _seal, old, writer, source)
        await self._quarantine(replica, sealed)
        async with self._tier.holding_copies(replica):
            if replica.opened_log is not log or log.is_offline:
                raise _Waits
            await put_in_place(log, source, CleanedSegment(seal, (old,)), self._node.executor)
            log.count_as_cut()  # The leader may have records that were erased here.
        replica.note_changed()

    async def _fetch(
        self,
        replica: Replica,
        source: CleaningSource,
        old: SegmentToClean,
        partition: Partition,
        leader: Broker,
        *,
        leader_epochs: Sequence[EpochEntry],
    ) -> SegmentWriter:
        """Write the leader's batches of the segment into the directory for cleaned ones."""
        folder = cleaned_directory(source.directory)
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._node.executor, _clear, folder)
        writer = SegmentWriter(
            folder,
            old.base_offset,
            index_interval_bytes=replica.config.index_interval_bytes,
        )
        next_offset = old.base_offset
        connection = await self._node.dialer.dial_leader(leader, timeout_s=CONNECT_SECONDS_MAX)
        fetching = fetch_range(
            replica,
            connection,
            start=old.base_offset,
            end=old.end_offset,
            leader_epoch=partition.leader_epoch,
        )
        try:
            async with aclosing(fetching):
                async for records, headers in fetching:
                    for position, header in headers:
                        if header.base_offset != next_offset or header.next_offset > old.end_offset:
                            raise _Unlike(f"the leader has no batch at offset {next_offset}")
                        require_epoch(header, leader_epochs)
                        writer.append(bytes(records[position : position + header.size_bytes]))
                        next_offset = header.next_offset
        except OffsetOutOfRange as error:
            raise _Unlike(str(error)) from error
        if next_offset != old.end_offset:
            raise _Unlike(f"the leader has no batch at offset {next_offset}")
        return writer


def _give_up(replica: Replica, log: LocalLog, case: _Case) -> None:
    """Give the log up, so that the whole log is fetched again."""
    log.take_offline()
    log.close()
    replica.give_up(CorruptLog(str(case.damage)))


def _seal(old: SegmentToClean, writer: SegmentWriter, source: CleaningSource) -> SealRecord:
    """Write the remaining bytes and the index files; all but the names is durable."""
    aborted = [one for one in source.aborted if old.base_offset <= one.last_offset < old.end_offset]
    return seal_in_place_of([old], writer, source.directory, aborted)


def _clear(folder: Path) -> None:
    with suppress(FileNotFoundError):
        shutil.rmtree(folder)
    folder.mkdir()
