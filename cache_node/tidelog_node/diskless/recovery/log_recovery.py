"""Recovers the logs of partitions from the tier and their chains, before they are led.

The chains are listed first, then the tier is read: an object that a listing lacks was collected, so
the tier has its records by then. A log that ends below the tier's end starts again there, with the
producers and leader epochs of the last tiered segment; later records come from the chains. If the
log start is beyond the tier, the log begins with some of the deleted records, because the tier
lacks their producers.

A log that lacks all of a long tail starts at the tail's end, is led, and filled later
(``deferred_fills``). The others are recovered in groups, short tails first, so that a long tail
does not delay the others (``waves``). Each group is led before the next one is read.

Unless the chains' objects prove where a partition ends, its end is compared with the bucket: the
metadata store may have been set back (``bucket_check``).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Collection,
    Iterable,
    Mapping,
    Sequence,
)
from typing import NamedTuple

from tidelog_core.diskless.chain.store import ChainStore, ListedChain
from tidelog_core.diskless.wal.epoch_chains import PartitionName, current_chain
from tidelog_core.errors import (
    CorruptObject,
    MetadataSetBack,
    StorageError,
    TidelogError,
    is_out_of_resources,
)
from tidelog_core.metadata.epoch_chains import ChainName, cut_tiered
from tidelog_core.metadata.records import Partition
from tidelog_core.objects.store import ObjectStore
from tidelog_core.subscribers import Subscribers
from tidelog_core.tier.tiered_segments import TieredSegments

from tidelog_node.diskless.recovery.bucket_check import BucketCheck
from tidelog_node.diskless.recovery.chain_slices import (
    ReadChains,
    WantedSlices,
    find_slices,
    log_of,
)
from tidelog_node.diskless.recovery.deferred_fills import DeferredFills, may_defer_fill
from tidelog_node.diskless.recovery.deleted_slices import (
    DELETED_BYTES_MAX,
    RECOVERED_BYTES_MAX,
    begin_with_deleted,
    lacks_deleted,
    slices_below,
    stored_objects,
    wanted_below,
)
from tidelog_node.diskless.recovery.listing_cache import ListingCache
from tidelog_node.diskless.recovery.log_refill import LogRefill
from tidelog_node.diskless.recovery.log_tail import LogTail
from tidelog_node.diskless.recovery.object_reads import waves
from tidelog_node.diskless.recovery.tail_fills import TailFills
from tidelog_node.follower.catch_up import CatchUp
from tidelog_node.node_context import NodeContext
from tidelog_node.replicas.replica import Replica
from tidelog_node.tier.history import TierHistory, tier_end

logger = logging.getLogger(__name__)

PARTITIONS_AT_ONCE_MAX = 16


class TierEnds(NamedTuple):
    """Where the tier of a partition ends for an heir."""

    start_offset: int  # the tier has everything below, or the log begins there
    copied_end: int  # the tier has, or has had, every record below; -1: nobody knows of any


class RecoveredLog(NamedTuple):
    """A log that ends with the last committed record, and may be led."""

    tier: TierEnds
    end_offset: int
    slice_count: int  # of the records between them


class Recovery(NamedTuple):
    """The outcome for some partitions; those that another try may recover are left out."""

    logs: Mapping[PartitionName, RecoveredLog]
    refused: Mapping[PartitionName, MetadataSetBack]


class _Tails(NamedTuple):
    """The tails of the partitions that are recovered together."""

    replicas: Mapping[PartitionName, Replica]
    records: Mapping[PartitionName, Partition]
    tiers: Mapping[PartitionName, TierEnds]
    tails: Mapping[PartitionName, LogTail]
    found: ReadChains
    deleted: Sequence[PartitionName]  # that begin with deleted records, for their producers

    def recovered(self, names: Iterable[PartitionName]) -> dict[PartitionName, RecoveredLog]:
        """Return the logs of partitions that may be led now."""
        return {
            name: RecoveredLog(
                self.tiers[name], self.tails[name].end_offset, len(self.tails[name].slices)
            )
            for name in names
        }


class LogRecovery:
    """Recovers logs. For the tasks of one event loop."""

    def __init__(
        self,
        node: NodeContext,
        *,
        objects: ObjectStore,
        chains: ChainStore,
        refill: LogRefill,
        history: TierHistory,
        catch_up: CatchUp,
        fills: TailFills,
        listings: ListingCache | None = None,
    ) -> None:
        self._node = node
        self.listings = listings or ListingCache()
        self._deferred_fills = DeferredFills(chains, node.executor)
        self._fills = fills
        self._bucket_check = BucketCheck(node, objects)
        self._chains = chains
        self._refill = refill
        self._history = history
        self._catch_up = catch_up
        self._slots = asyncio.Semaphore(PARTITIONS_AT_ONCE_MAX)
        # Their last refill failed at a damaged or missing object: perhaps one of deleted records.
        self._without_deleted: set[PartitionName] = set()
        # Its records are damaged or missing in the bucket, or this disk does not take them.
        self.damaged = Subscribers[[PartitionName, Exception]]()
        self.begun = Subscribers[[frozenset[int]]]()  # the brokers whose chains are read now

    async def recover(
        self,
        replicas: Mapping[PartitionName, Replica],
        records: Mapping[PartitionName, Partition],
        seals: Mapping[ChainName, int],
        *,
        is_doubtful: bool = False,
    ) -> AsyncGenerator[Recovery]:
        """Recover the logs of ``records``; yield the recovered ones and those that never can be.

        ``seals`` has where the last chains end. ``is_doubtful`` says that later chains may have
        had records. Raises the store's errors.
        """
        with self._refill.urgent():
            recovering = self._recover(replicas, records, seals, is_doubtful=is_doubtful)
            async with contextlib.aclosing(recovering) as parts:
                async for part in parts:
                    yield part

    async def _recover(
        self,
        replicas: Mapping[PartitionName, Replica],
        records: Mapping[PartitionName, Partition],
        seals: Mapping[ChainName, int],
        *,
        is_doubtful: bool,
    ) -> AsyncGenerator[Recovery]:
        # In this order: an object that a listing lacks was collected, so the tier has its records.
        names = sorted({entry.chain for record in records.values() for entry in record.wal})
        self.begun.notify(frozenset(name.broker_id for name in names))
        listings = await self.listings.list(self._chains, names)
        tiers: dict[PartitionName, TierEnds] = {}
        starts: dict[PartitionName, int] = {}
        tails: dict[PartitionName, LogTail] = {}
        refused: dict[PartitionName, MetadataSetBack] = {}

        async def begin_log(name: PartitionName) -> None:
            tiers[name] = await self._begin(replicas[name], records[name])
            starts[name] = tiers[name].start_offset

        async def find_tail(name: PartitionName) -> None:
            try:
                tails[name] = await self._tail(
                    replicas[name], records[name], starts[name], found, is_doubtful=is_doubtful
                )
            except MetadataSetBack as error:
                refused[name] = error

        await self._each(replicas, records, begin_log)
        wanted = {
            name: WantedSlices(cut_tiered(records[name].wal, start), start)
            for name, start in starts.items()
        }
        deleted = [
            name
            for name in starts
            if name not in self._without_deleted
            and lacks_deleted(
                replicas[name].log,
                log_start_offset=records[name].log_start_offset,
                start_offset=starts[name],
            )
        ]
        wanted |= {name: wanted_below(records[name].wal, starts[name]) for name in deleted}
        found = await find_slices(self._chains, wanted, seals, listings)
        self._note_damaged(found)
        await self._each(replicas, starts, find_tail)
        await self._begin_with_deleted(records, tails, deleted, found, listings)
        yield Recovery({}, refused)
        work = _Tails(replicas, records, tiers, tails, found, deleted)
        async with contextlib.aclosing(self._recover_tails(work, listings)) as parts:
            async for part in parts:
                yield part

    async def _begin_with_deleted(
        self,
        records: Mapping[PartitionName, Partition],
        tails: dict[PartitionName, LogTail],
        deleted: Sequence[PartitionName],
        found: ReadChains,
        listings: Mapping[ChainName, ListedChain],
    ) -> None:
        """Start logs with the last deleted records, if the chains still have them.

        Raises the store's errors.
        """
        names = [name for name in deleted if name in tails]
        if not names:
            return
        slices_of = (found.slices[name] for name in names)
        stored = await stored_objects(self._chains, listings, slices_of)
        left_bytes = RECOVERED_BYTES_MAX
        for name in names:
            if left_bytes <= 0:
                break
            replica, slices, end_offset = tails[name]
            below = slices_below(
                records[name].wal,
                found.slices[name],
                stored,
                end_offset=slices[0].base_offset if slices else end_offset,
                bytes_max=min(left_bytes, DELETED_BYTES_MAX),
            )
            if below and not (replica.is_leader or replica.is_follower):
                begin_with_deleted(replica.log, below)
                tails[name] = LogTail(replica, [*below, *slices], end_offset)
                left_bytes -= sum(one.size_bytes for one in below)

    async def _recover_tails(
        self, work: _Tails, listings: Mapping[ChainName, ListedChain]
    ) -> AsyncGenerator[Recovery]:
        """Recover the logs up to the ends of their tails; yield those first that need no refill."""
        tails = work.tails
        first = {
            name: tail
            for name, tail in tails.items()
            if name not in work.deleted and may_defer_fill(tail, work.tiers[name].start_offset)
        }
        sizes = {name: tail.unproven_bytes for name, tail in tails.items() if name not in first}
        whole = [name for name, size_bytes in sizes.items() if not size_bytes]
        if whole:
            yield await self._refill_wave(work, whole)
        fills = await self._deferred_fills.begin(work.replicas, first, listings, work.found)
        try:
            if fills:
                yield Recovery(work.recovered(fills), {})
            left = {
                name: tail.unproven_bytes
                for name, tail in tails.items()
                if name not in fills and name not in whole
            }
            for wave in waves(left):
                yield await self._refill_wave(work, wave)
        finally:
            self._fills.add(fills)  # After the others: their producers wait.

    async def _refill_wave(self, work: _Tails, wave: Collection[PartitionName]) -> Recovery:
        """Refill the logs, and refuse partitions that can never be led."""
        refused: dict[PartitionName, MetadataSetBack] = {}
        failures = await self._refill.refill({name: work.tails[name] for name in wave})
        self._without_deleted.difference_update(wave)
        self._without_deleted |= {
            name for name in work.deleted if isinstance(failures.get(name), CorruptObject)
        }

        async def explain(name: PartitionName) -> None:
            try:
                await self._bucket_check.explain(
                    work.replicas[name].partition,
                    work.records[name],
                    work.tiers[name].start_offset,
                    failures[name],
                )
            except MetadataSetBack as error:
                refused[name] = error

        await self._each(work.replicas, failures, explain)
        return Recovery(work.recovered(name for name in wave if name not in failures), refused)

    async def tier_ends(
        self, records: Mapping[PartitionName, Partition]
    ) -> dict[PartitionName, TierEnds]:
        """Return the tier ends of the partitions whose tiers can be read.

        The recovery of the others reports the error, and delays no other partition.
        """
        ends: dict[PartitionName, TierEnds] = {}

        async def find(name: PartitionName, record: Partition) -> None:
            async with self._slots:
                with contextlib.suppress(TidelogError):
                    ends[name] = await self._tier_end(record)

        await asyncio.gather(*(find(*one) for one in records.items()))
        return ends

    async def _tier_end(self, record: Partition) -> TierEnds:
        return _ends_of(await self._history.segments(record.topic_id, record.partition), record)

    async def _each(
        self,
        replicas: Mapping[PartitionName, Replica],
        names: Iterable[PartitionName],
        work: Callable[[PartitionName], Awaitable[None]],
    ) -> None:
        """Do ``work`` for all partitions, some at once; log the failure of one."""

        async def guarded(name: PartitionName) -> None:
            async with self._slots:
                try:
                    await work(name)
                except (TidelogError, OSError) as error:
                    if replicas[name].is_dropped:
                        return  # This node has left the partition.
                    # Another node may have the records, or a disk that works.
                    if isinstance(error, CorruptObject | StorageError | OSError):
                        self.damaged.notify(name, error)
                    logger.error(
                        "diskless partition cannot be recovered, will retry",
                        extra={
                            "partition": str(replicas[name].partition),
                            "reason": str(error),
                            "hint": _hint_of(error),
                        },
                    )

        async with asyncio.TaskGroup() as group:
            for name in names:
                group.create_task(guarded(name))

    async def _begin(self, replica: Replica, record: Partition) -> TierEnds:
        """Start the log at or below the tier's end, or at the log start; return both ends."""
        if replica.opened_log is None:  # A new one waits for the disk, and there may be hundreds.
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(self._node.executor, replica.open)
        return _ends_of(await self._catch_up.before_leading(replica), record)

    async def _tail(
        self,
        replica: Replica,
        record: Partition,
        start_offset: int,
        found: ReadChains,
        *,
        is_doubtful: bool,
    ) -> LogTail:
        """Return the tail that the log needs. Raises ``CorruptObject`` if offsets are missing."""
        name = PartitionName(record.topic_id, record.partition)
        wanted = WantedSlices(record.wal, start_offset)
        cluster_id = self._node.view.image.cluster_id
        try:
            slices, end_offset = log_of(name, wanted, found.slices[name], cluster_id=cluster_id)
        except CorruptObject as error:
            await self._bucket_check.explain(replica.partition, record, start_offset, error)
        last = current_chain(record.wal)
        damage = None if last is None else found.damage_of(name, last.chain)
        if damage is not None:
            await self._bucket_check.explain(replica.partition, record, end_offset, damage)
        if last is not None and (is_doubtful or not found.is_end_certain(name, last.chain)):
            await self._bucket_check.require_end(replica.partition, record, end_offset)
        return LogTail(replica, slices, end_offset)

    def _note_damaged(self, found: ReadChains) -> None:
        """Log the damaged objects: perhaps no partition needs them, and nothing else names them."""
        for damaged in found.damaged.values():
            for error in damaged.values():
                self._node.counters.chain.damaged_count += 1
                logger.error("object of a chain is damaged", extra={"reason": str(error)})


def _ends_of(segments: TieredSegments, record: Partition) -> TierEnds:
    start = record.log_start_offset
    tier = tier_end(segments, start)
    if tier is not None:
        return TierEnds(tier.offset, tier.offset)
    before = segments.before(start)
    return TierEnds(start, -1 if before is None else min(before.end_offset, start))


def _hint_of(error: Exception) -> str:
    if is_out_of_resources(error):
        return "raise the node's limit of open files, or see what uses up the machine's memory"
    return getattr(error, "hint", "")
