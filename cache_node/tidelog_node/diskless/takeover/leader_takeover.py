"""Takes partitions that a chain had: recovers their logs, writes the next epochs, and leads them.

    read the items → find the slices; then for groups of partitions, short tails first: refill the
    logs → one conditional write: next epoch, own chain, end offset → enter → lead

``Takeover`` decides; this carries it out. A partition that fails is left out. When it begins, the
former leader's chain is sealed, or that leader has handed the partitions over.

**A metadata store that was set back names an old chain.** A partition whose acknowledged records it
does not know of is refused: in the next epoch their offsets would be given to others. It stays
without a leader until the next election, and is then tried again.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence

from tidelog_core.diskless.takeover.successors import Successors
from tidelog_core.diskless.takeover.takeover import (
    Finished,
    Lead,
    ReadItems,
    Replay,
    StoredChains,
    Takeover,
    TakeoverDecision,
    WriteEpochs,
    WriteOutcome,
)
from tidelog_core.diskless.wal.epoch_chains import PartitionName, current_chain
from tidelog_core.errors import CorruptItem, MetadataSetBack, StorageError, StoreUnavailable
from tidelog_core.metadata.epoch_chains import (
    ChainName,
    EpochChains,
    cut_history,
    cut_tiered,
    describe_epoch,
)
from tidelog_core.metadata.records import Partition, partition_key
from tidelog_core.replication.change import ChangeReason, PartitionChange
from tidelog_core.replication.partition_writer import write_changes

from tidelog_node.diskless.recovery.deleted_slices import lacks_deleted
from tidelog_node.diskless.recovery.log_recovery import LogRecovery, TierEnds
from tidelog_node.diskless.takeover.leader_chain import LeaderChain, require_chain
from tidelog_node.diskless.takeover.pending_takeovers import PendingTakeovers
from tidelog_node.node_context import NodeContext
from tidelog_node.replicas.replica import Replica
from tidelog_node.replicas.replica_manager import ReplicaManager

logger = logging.getLogger(__name__)

UNKNOWN_SECONDS = 1.0  # before the items of a write with an unknown outcome are read again
WRITES_MAX = 10  # attempts of one group; then its takeover starts from the beginning
# Listing one more chain costs the next heir about as much as reading so many objects.
EPOCH_OBJECTS = 100


@dataclasses.dataclass(slots=True)
class TakenPartitions:
    """Partitions that are taken together from one chain."""

    group: dict[PartitionName, Replica]
    own: LeaderChain
    sealed_at: int  # the sequence of the seal; -1: there was no chain
    successors: Successors
    records: dict[PartitionName, Partition] = dataclasses.field(default_factory=dict)
    tier_ends: dict[PartitionName, TierEnds] = dataclasses.field(default_factory=dict)
    slice_counts: dict[PartitionName, int] = dataclasses.field(default_factory=dict)
    led: dict[Replica, int] = dataclasses.field(default_factory=dict)  # entered; their epochs
    write_count: int = 0

    def part(self, names: Iterable[PartitionName]) -> TakenPartitions:
        """Return the named partitions as a group that is written and led on its own."""
        return dataclasses.replace(
            self,
            group={name: self.group[name] for name in names},
            records={name: self.records[name] for name in names},
            tier_ends={name: self.tier_ends[name] for name in names},
            led={},
        )

    def stored(self) -> dict[PartitionName, StoredChains]:
        """Return the chains that the items name, as last read."""
        return {
            name: StoredChains(
                record.version, record.wal, record.leader_epoch, leader=record.leader
            )
            for name, record in self.records.items()
            if name in self.group
        }


class LeaderTakeover:
    """Carries takeovers out. For the tasks of one event loop."""

    def __init__(
        self,
        node: NodeContext,
        *,
        replicas: ReplicaManager,
        recovery: LogRecovery,
        pending: PendingTakeovers,
    ) -> None:
        self._node = node
        self._replicas = replicas
        self._recovery = recovery
        self._pending = pending

    async def carry_out(
        self,
        taken: TakenPartitions,
        takeover: Takeover,
        decisions: Sequence[TakeoverDecision],
    ) -> None:
        """Carry out the decisions and those that follow from them. Raises the stores' errors."""
        try:
            while decisions:
                decision, *rest = decisions
                if not isinstance(decision, Lead):
                    self._confirm(taken)  # An image that comes before would have them leave.
                match decision:
                    case ReadItems():
                        await self._read(taken)
                        decisions = [*rest, *takeover.on_items(taken.stored())]
                    case Replay(items, end):
                        await self._replay(taken, takeover, items, end)
                        decisions = rest
                    case WriteEpochs(items):
                        decisions = [*rest, *takeover.on_written(await self._write(taken, items))]
                    case Lead(name, stored, end_offset):
                        self._lead(taken, name, stored, end_offset)
                        decisions = rest
                    case Finished():
                        decisions = rest
        finally:
            self._confirm(taken)

    async def _replay(
        self,
        taken: TakenPartitions,
        takeover: Takeover,
        items: Mapping[PartitionName, StoredChains],
        end: int | None,
    ) -> None:
        """Recover the partitions in groups, and lead each group before the next is recovered."""
        chain = takeover.sealed_chain
        seals = {} if chain is None or end is None else {chain: end}
        async with contextlib.aclosing(self._recover(taken, items, seals)) as groups:
            async for ends in groups:
                recovered = {name: items[name] for name in ends}
                part = takeover.part()
                await self.carry_out(taken.part(ends), part, part.on_replayed(recovered, ends))

    # -- the steps --

    async def _read(self, taken: TakenPartitions) -> None:
        """Read the group's items. Raises the store's errors."""
        keys = {partition_key(name.topic_id, name.partition): name for name in taken.group}
        items = await self._node.store.get_many(keys)
        taken.records.clear()
        for key, item in items.items():
            with contextlib.suppress(CorruptItem):  # The image says so, and has no leader.
                record = Partition.from_item(item)
                if record.is_diskless and self._node.membership.leads(record):
                    taken.records[keys[key]] = record

    async def _recover(
        self,
        taken: TakenPartitions,
        items: Mapping[PartitionName, StoredChains],
        seals: Mapping[ChainName, int],
    ) -> AsyncGenerator[dict[PartitionName, int]]:
        """Recover the logs from tier and chains; yield the log ends, some partitions at a time.

        Raises the store's errors.
        """
        for name, stored in items.items():
            if (error := _later_epoch(taken, name, stored.chains)) is not None:
                self._refuse(taken, name, error)
        complete = await self._already_complete(taken, items)
        if complete:
            yield complete
        records = {
            name: taken.records[name]
            for name in items
            if name in taken.group and name not in complete
        }
        if not records:
            return
        recovering = self._recovery.recover(
            taken.group, records, seals, is_doubtful=not taken.successors.is_whole
        )
        async with contextlib.aclosing(recovering) as parts:
            async for recovered, refused in parts:
                for name, error in refused.items():
                    self._refuse(taken, name, error)
                taken.tier_ends |= {name: one.tier for name, one in recovered.items()}
                taken.slice_counts |= {name: one.slice_count for name, one in recovered.items()}
                if recovered:
                    yield {name: one.end_offset for name, one in recovered.items()}

    async def _already_complete(
        self, taken: TakenPartitions, items: Mapping[PartitionName, StoredChains]
    ) -> dict[PartitionName, int]:
        """Return the log ends of handed-over partitions whose local logs need no recovery.

        As a follower this node has read all that the former leader committed in its epoch.
        """
        ends: dict[PartitionName, int] = {}
        for name, stored in items.items():
            end_offset = stored.chains[-1].first_offset if stored.is_handed_over else -1
            if name not in taken.group or not has_committed(taken.group[name], end_offset):
                continue
            start_offset = taken.records[name].log_start_offset
            log = taken.group[name].log
            if not lacks_deleted(log, log_start_offset=start_offset, start_offset=end_offset):
                ends[name] = end_offset
        tiered = await self._recovery.tier_ends({name: taken.records[name] for name in ends})
        taken.tier_ends |= tiered
        return {name: ends[name] for name in tiered}

    def _refuse(self, taken: TakenPartitions, name: PartitionName, error: MetadataSetBack) -> None:
        """Leave the partition without a leader, until another election."""
        self._pending.refuse(name, taken.records[name].leader_epoch)
        extra = {
            "partition": str(taken.group.pop(name).partition),
            "reason": str(error),
            "hint": error.hint,
        }
        logger.error("diskless partition refused, its records are not in the metadata", extra=extra)

    async def _write(
        self, taken: TakenPartitions, items: Mapping[PartitionName, StoredChains]
    ) -> WriteOutcome:
        """Write the next epochs, in several transactions if they are many."""
        require_chain(taken.own)  # Else the next epoch would begin in an ended one.
        taken.write_count += 1
        if taken.write_count > WRITES_MAX:
            raise StoreUnavailable(f"epochs are not written after {WRITES_MAX} tries")
        changes = [
            PartitionChange(
                dataclasses.replace(
                    taken.records[name],
                    version=stored.version,
                    leader_epoch=stored.chains[-1].leader_epoch,
                    wal=cut_history(
                        stored.chains,
                        copied_end=taken.tier_ends[name].copied_end,
                        log_start_offset=taken.records[name].log_start_offset,
                    ),
                ),
                ChangeReason.CHAIN_ENTERED,
            )
            for name, stored in items.items()
        ]
        outcome = await write_changes(self._node.store, changes)
        with contextlib.suppress(StoreUnavailable):
            await self._node.view.refresh()
        if len(outcome.written) == len(changes):
            return WriteOutcome.WRITTEN
        if outcome.unknown or outcome.refused:
            await asyncio.sleep(UNKNOWN_SECONDS)
            return WriteOutcome.UNKNOWN
        return WriteOutcome.CONFLICT

    def _confirm(self, taken: TakenPartitions) -> None:
        """Let the partitions that have just entered be led, a topic's together."""
        led, taken.led = taken.led, {}
        if led:
            self._replicas.confirm_leads(led)

    def _lead(
        self, taken: TakenPartitions, name: PartitionName, stored: StoredChains, end_offset: int
    ) -> None:
        replica, epoch = taken.group[name], stored.chains[-1].leader_epoch
        if self._replicas.get(replica.partition) is not replica:
            return
        require_chain(taken.own)
        if replica.log.log_end_offset != end_offset:  # Its disk has failed, for example.
            raise StorageError(f"the log of {replica.partition} does not end at {end_offset} now")
        before = cut_tiered(stored.chains, taken.tier_ends[name].start_offset)[:-1]
        taken.own.enter(
            replica,
            stored.chains,
            end_offset=end_offset,
            previous_sequence=taken.sealed_at,
            tail_count=taken.slice_counts.get(name, 0) + EPOCH_OBJECTS * len(before),
        )
        taken.led[replica] = epoch
        logger.info(
            "diskless partition led",
            extra={
                "partition": str(replica.partition),
                "leader_epoch": epoch,
                "offset": end_offset,
            },
        )


def has_committed(replica: Replica, end_offset: int) -> bool:
    """Return whether the log ends there, lacks nothing, and is known to be committed up to there.

    A log that another process has not filled yet (``unfilled``) may end there without its records.
    """
    log = replica.opened_log
    if log is None or log.unfilled is not None:
        return False
    return log.high_watermark == log.log_end_offset == end_offset


def _later_epoch(
    taken: TakenPartitions, name: PartitionName, chains: EpochChains
) -> MetadataSetBack | None:
    """Return the error if a chain has records of a later epoch than the item knows."""
    later, last = taken.successors.epochs.get(name), current_chain(chains)
    if later is None or last is None or later.leader_epoch <= last.leader_epoch:
        return None
    found = f"records of epoch {later.leader_epoch} in the chain {later.chain}"
    partition = taken.group[name].partition
    return MetadataSetBack(partition, known=describe_epoch(chains), found=found)
