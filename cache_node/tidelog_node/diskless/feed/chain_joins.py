"""Brings replicas to the position of their feed, or to the end of what is known to be committed.

A replica whose log does not end at the feed's position *joins*: it is new or behind, or the object
was collected. Its log begins at the tier's end if that saves reads. Then all footers of its chains
are read, and its missing slices many at a time. If the log start is beyond the tier, the log begins
with the last deleted records: the replica may lead next, and only these records name the producers.

**Records above a log's own high watermark prove nothing.** This node may have appended them as a
leader that never committed them, or it has just started. So a replica that joins compares them with
the chains, and truncates its log where they differ. From then on its log ends at its high
watermark.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence, Set

from tidelog_core.batched import batched
from tidelog_core.diskless.chain.store import ChainStore
from tidelog_core.diskless.wal.epoch_chains import PartitionName
from tidelog_core.errors import CorruptObject, StoreUnavailable, TidelogError, TierUnavailable
from tidelog_core.metadata.epoch_chains import ChainName, cut_tiered

from tidelog_node.diskless.feed.fed_replicas import RETRY_SECONDS, FedReplica, FedReplicas
from tidelog_node.diskless.recovery.chain_slices import (
    MissingOffsets,
    ReadChains,
    StoredSlice,
    WantedSlices,
    find_slices,
    list_chains,
    log_of,
)
from tidelog_node.diskless.recovery.deleted_slices import (
    StoredObjects,
    begin_with_deleted,
    slices_below,
    stored_objects,
    wanted_below,
)
from tidelog_node.diskless.recovery.log_refill import LogRefill
from tidelog_node.diskless.recovery.log_tail import MissingSlice
from tidelog_node.diskless.recovery.slice_appends import append_slice
from tidelog_node.follower.catch_up import CatchUp

logger = logging.getLogger(__name__)

AWAY = (StoreUnavailable, TierUnavailable)
SLICES_AT_ONCE_MAX = 16
BROKEN_SECONDS = 5.0  # before a replica whose records are missing or damaged joins again


class ChainJoins:
    """Joins of one feed. Used by one task."""

    def __init__(
        self,
        chain: ChainName,
        replicas: FedReplicas,
        *,
        chains: ChainStore,
        cluster_id: str,
        refill: LogRefill,
        catch_up: CatchUp,
        slots: asyncio.Semaphore,
    ) -> None:
        """``slots`` limits how many feeds of the node read all footers of their chains at once."""
        self._chain = chain
        self._replicas = replicas
        self._chains = chains
        self._cluster_id = cluster_id
        self._refill = refill
        self._catch_up = catch_up
        self._slots = slots
        self._missed: set[PartitionName] = set()  # an object was gone when they joined last
        # An object was damaged or gone when they began with deleted records: perhaps one of those.
        self._without_deleted: set[PartitionName] = set()

    def forget_others(self, names: Set[PartitionName]) -> None:
        """Forget all replicas but these."""
        self._missed &= names
        self._without_deleted &= names

    async def join(self, names: Sequence[PartitionName]) -> None:
        """Bring the replicas to the feed's position, or to their known committed end.

        Those that cannot be filled are tried again later, and do not hold the others up.
        """
        joining = {name: fed for name in names if (fed := self._replicas.get(name)) is not None}
        starts: dict[PartitionName, int] = {}
        try:
            for name, fed in joining.items():
                try:
                    tier_end = await self._catch_up.begin_in_chain(fed.replica, fed.follower)
                except AWAY:
                    raise
                except (TidelogError, OSError) as error:
                    self._note_broken(name, fed, error)
                    continue
                if fed.is_current and fed.replica.log.log_end_offset >= tier_end:
                    starts[name] = max(tier_end, fed.replica.log.high_watermark)
                else:  # The replica has changed while its slices were read.
                    self._replicas.put_off([name], RETRY_SECONDS)
            await self._fill(joining, starts)
        except (TidelogError, OSError) as error:
            # A store is away, or nobody knows which replica needs what is damaged.
            self._replicas.put_off(
                names, RETRY_SECONDS if isinstance(error, AWAY) else BROKEN_SECONDS
            )
            logger.warning(
                "chain cannot be followed, will retry",
                extra={"chain": str(self._chain), "reason": str(error)},
            )

    def _note_broken(
        self, name: PartitionName, fed: FedReplica, error: TidelogError | OSError
    ) -> None:
        if not fed.is_current:  # Its topic was deleted, for example, and its log with it.
            self._replicas.put_off([name], RETRY_SECONDS)
            return
        if isinstance(error, MissingSlice | MissingOffsets) and name not in self._missed:
            self._missed.add(name)
            self._replicas.put_off([name], RETRY_SECONDS)
            logger.info(
                "objects were collected while a replica joined, it joins again",
                extra={"partition": str(fed.replica.partition), "reason": str(error)},
            )
            return
        self._replicas.put_off([name], BROKEN_SECONDS)
        logger.error(
            "diskless replica cannot be filled, will retry",
            extra={"partition": str(fed.replica.partition), "reason": str(error)},
        )

    async def _fill(
        self, joining: Mapping[PartitionName, FedReplica], starts: Mapping[PartitionName, int]
    ) -> None:
        """Append the records above ``starts`` from the chains; below, the logs are complete.

        Raises the store's errors, and ``CorruptObject``.
        """
        wanted = {
            name: WantedSlices(cut_tiered(joining[name].follower.partition.wal, start), start)
            for name, start in starts.items()
        }
        deleted = {
            name: wanted_below(joining[name].follower.partition.wal, start)
            for name, start in starts.items()
            if name not in self._without_deleted and joining[name].lacks_deleted(start)
        }
        async with self._slots:
            read, stored = await self._find(wanted, deleted)
        try:
            read.require_whole()
        except CorruptObject:
            self._without_deleted |= deleted.keys()
            raise
        found = read.slices
        next_sequence = self._next_sequence(joining, {name: found[name] for name in wanted})
        for name, needs in wanted.items():
            fed, mine = joining[name], dict(found[name])
            mine[self._chain] = [
                one for one in mine.get(self._chain, ()) if one.committed_sequence < next_sequence
            ]
            self._replicas.joined.add(name)
            try:
                slices, end_offset = log_of(name, needs, mine, cluster_id=self._cluster_id)
                if name in deleted:
                    slices = _with_deleted(fed, slices, end_offset, mine, stored)
                slices = await self._keep(fed, starts[name], slices, end_offset)
                await self._fetch(name, fed, slices)
                self._missed.discard(name)
                self._without_deleted.discard(name)
            except AWAY:
                self._replicas.joined.difference_update(wanted)
                raise
            except (TidelogError, OSError) as error:
                if name in deleted and isinstance(error, CorruptObject):
                    self._without_deleted.add(name)
                self._note_broken(name, fed, error)
        self._replicas.next_sequence = next_sequence

    def _next_sequence(
        self,
        joining: Mapping[PartitionName, FedReplica],
        found: Mapping[PartitionName, Mapping[ChainName, Sequence[StoredSlice]]],
    ) -> int:
        """Return the sequence from which on objects are followed, for replicas that join.

        Objects below the high watermark of each need not be followed, unless others follow them.
        """
        known, others = self._replicas.next_sequence, self._replicas.joined - found.keys()
        if any(self._replicas.follows(name) for name in others):
            return known
        committed = [
            one.committed_sequence + 1
            for name, slices in found.items()
            for one in slices.get(self._chain, ())
            if one.end_offset <= joining[name].high_watermark
        ]
        return max([known, *committed])

    async def _find(
        self,
        wanted: Mapping[PartitionName, WantedSlices],
        deleted: Mapping[PartitionName, WantedSlices],
    ) -> tuple[ReadChains, StoredObjects]:
        """Return the wanted slices, and the objects that are there if deleted ones are wanted.

        Raises the store's errors.
        """
        if not deleted:
            return await find_slices(self._chains, wanted, {}), {}
        wanted = {**wanted, **deleted}
        names = {entry.chain for one in wanted.values() for entry in one.chains}
        listings = await list_chains(self._chains, sorted(names))
        read = await find_slices(self._chains, wanted, {}, listings)
        of_deleted = (read.slices[name] for name in deleted)
        return read, await stored_objects(self._chains, listings, of_deleted)

    async def _keep(
        self, fed: FedReplica, start_offset: int, slices: list[StoredSlice], end_offset: int
    ) -> list[StoredSlice]:
        """Truncate the log behind its last matching slice; return the slices that it lacks."""
        log = fed.log
        if log.log_end_offset == log.high_watermark:
            return slices
        count = await self._refill.comparison.count(log, slices)
        if not fed.is_current:
            return []
        valid_end = slices[count].base_offset if count < len(slices) else end_offset
        valid_end = max(valid_end, start_offset, log.high_watermark)
        if log.log_end_offset > valid_end:
            logger.warning(
                "local log has other records than its chain, cut",
                extra={
                    "partition": str(fed.replica.partition),
                    "offset": valid_end,
                    "log_end_offset": log.log_end_offset,
                },
            )
            log.truncate_to(valid_end)
        self._replicas.prove(fed, valid_end)
        return slices[count:]

    async def _fetch(
        self, name: PartitionName, fed: FedReplica, slices: Sequence[StoredSlice]
    ) -> None:
        """Append the slices in order, some at a time."""
        for some in batched(slices, SLICES_AT_ONCE_MAX):
            parts = await asyncio.gather(*(self._refill.read_slice(name, one) for one in some))
            for one, data in zip(some, parts, strict=True):
                if not fed.is_current:
                    return
                log = fed.log
                if one.base_offset < log.log_end_offset < one.end_offset:
                    append_slice(fed.replica, data)
                    self._replicas.prove(fed, one.end_offset)
                elif one.end_offset > log.log_end_offset:
                    self._replicas.append(name, fed, memoryview(data), one)


def _with_deleted(
    fed: FedReplica,
    slices: Sequence[StoredSlice],
    end_offset: int,
    found: Mapping[ChainName, Sequence[StoredSlice]],
    stored: StoredObjects,
) -> list[StoredSlice]:
    """Have the replica's log begin with the last deleted records; return all that it lacks."""
    first = slices[0].base_offset if slices else end_offset
    below = slices_below(fed.follower.partition.wal, found, stored, end_offset=first)
    if below and fed.is_current:
        begin_with_deleted(fed.log, below)
        return [*below, *slices]
    return list(slices)
