"""Brings the diskless partitions that this node is to lead into its chain; then it leads them.

    elected → note in the chain before who may get its partitions, seal it
            → look at the chains that others have noted → read the items
            → find its slices; then for groups of partitions, short tails first: refill the logs
            → one conditional write: next epoch, own chain, end offset → enter → lead

An election only names the node that is to lead: after a start, after a leader's death, by a
handover. The chain that the item names may still be written, by an earlier leader that does not
know. So its end is made certain first, and the write that names this node's chain is what begins
the next epoch. A new partition has no chain: its first leader only writes.

**A leader that hands over has ended its epoch in the item.** Its chain has all of the partition up
to the end offset there, and gets nothing more of it. So it is neither sealed nor searched for
successors: the leader epoch of that write began after this process had read the cluster, so the
metadata store was not set back since. The chain goes on with its other partitions. After any later
election the item says nothing of the sort, and the chain is sealed.

**A partition whose item names this node's own chain** has left it, and nobody has led it elsewhere
since: a log was opened again, or the successor of a handover never entered. An epoch that has left
does not come back, so it enters the same chain in another one. Nothing of it is pending, so
what is committed is its end.

Partitions with the same chain before are taken together. A partition whose records cannot be read
stays without a leader and is tried again; the others go on.

**A metadata store that was set back names an old chain.** A partition whose acknowledged records it
does not know of is refused: in the next epoch their offsets would be given to others. It stays
without a leader until another one is elected, and then it is looked at again.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
from collections import OrderedDict
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

from tidelog_core.diskless.chain.store import ChainStore
from tidelog_core.diskless.takeover import takeover
from tidelog_core.diskless.takeover.chain_sealer import ChainSealer
from tidelog_core.diskless.takeover.successors import Successors, SuccessorSearch
from tidelog_core.diskless.takeover.takeover import StoredChains, Takeover, WriteOutcome
from tidelog_core.diskless.wal.epoch_chains import PartitionName, current_chain
from tidelog_core.diskless.wal.keys import Heir
from tidelog_core.errors import (
    CorruptItem,
    CorruptObject,
    MetadataSetBack,
    StorageError,
    StoreUnavailable,
    TidelogError,
)
from tidelog_core.metadata.epoch_chains import (
    ChainName,
    EpochChains,
    cut_history,
    cut_tiered,
    describe_epoch,
    is_handed_over,
)
from tidelog_core.metadata.records import Partition, partition_key
from tidelog_core.replication.change import ChangeReason, PartitionChange
from tidelog_core.replication.partition_writer import write_changes
from tidelog_core.waiting import wait_and_clear

from tidelog_node.diskless.entering.damaged_partitions import DamagedPartitions
from tidelog_node.diskless.recovery.deleted_slices import lacks_deleted
from tidelog_node.diskless.recovery.log_recovery import LogRecovery, TierEnds
from tidelog_node.diskless.recovery.sealing import seal_chain
from tidelog_node.node_context import NodeContext
from tidelog_node.replica import Replica
from tidelog_node.replicas import ReplicaManager
from tidelog_node.tier.manifests import BucketManifests

logger = logging.getLogger(__name__)

RETRY_SECONDS = 1.0
DAMAGED_SECONDS_MAX = 30.0  # before a partition whose records are damaged is tried again
WRITES_MAX = 10  # of partitions that are led together, before they begin again
CHAINS_AT_ONCE_MAX = 8
NOTE_SECONDS = 3_600.0  # for so long a note in a chain is not written again
NOTES_MAX = 256  # that are remembered
EPOCH_OBJECTS = 100  # as many objects cost the next heir as another chain that it has to list


class Before(NamedTuple):
    """The chain that some items name last; ``None`` for new partitions."""

    chain: ChainName | None
    is_handed_over: bool = False  # its leader has ended their epochs in the items


class _Failed(NamedTuple):
    """A partition that was not led, and when it is tried again."""

    due_s: float  # the loop's time
    replica: Replica
    version: int  # of the item, as this node knew it

    def is_of(self, replica: Replica, partition: Partition) -> bool:
        """Whether nothing has changed since."""
        return replica is self.replica and partition.version == self.version


class OwnChainEnded(StoreUnavailable):
    """This node's chain ended while partitions were about to enter it.

    They enter the next one at once: somebody's producers wait, and the store is not in trouble.
    """


class EntryChain(Protocol):
    """The chain of this node that takes partitions; ``OwnedChain``."""

    @property
    def name(self) -> ChainName:
        """Its name."""

    @property
    def is_deposed(self) -> bool:
        """Whether it takes nothing more, because somebody sealed it."""

    @property
    def next_sequence(self) -> int:
        """The sequence of its next object."""

    def has_uncommitted(self, replica: Replica) -> bool:
        """Whether something of the partition is not committed yet; then it takes it later."""

    def enter(
        self,
        replica: Replica,
        stored: EpochChains,
        *,
        end_offset: int,
        previous_sequence: int,
        tail_count: int,
    ) -> None:
        """Take the partition, of which the tier lacks what is in ``tail_count`` objects.

        Raises ``ValueError`` unless the last of ``stored`` names this chain.
        """


class LeadEntries:
    """Enters the partitions that ``RoleChanges.unentered_lead`` names. ``run`` is one task."""

    def __init__(
        self,
        node: NodeContext,
        *,
        replicas: ReplicaManager,
        own_chain: Callable[[], Awaitable[EntryChain]],
        chains: ChainStore,
        recovery: LogRecovery,
        manifests: BucketManifests,
        successors: SuccessorSearch | None = None,
    ) -> None:
        """``own_chain`` returns the chain that takes partitions now: after a deposal another.

        It raises the store's errors, and ``InvalidConfig`` if chains cannot be kept in this store.
        """
        self._node = node
        self._replicas = replicas
        self._own_chain = own_chain
        self._chains = chains
        self._recovery = recovery
        self._manifests = manifests
        self._waiting: dict[PartitionName, Replica] = {}
        self._entering: set[PartitionName] = set()
        self._failed: dict[PartitionName, _Failed] = {}  # they are tried again
        self._damaged = DamagedPartitions()
        recovery.damaged.subscribe(self._damaged.note)
        # By the chain before: groups whose items are not read yet. Elections come some at a time,
        # and each group lists its chain and reads its footers.
        self._open: dict[Before, dict[PartitionName, Replica]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._slots = asyncio.Semaphore(CHAINS_AT_ONCE_MAX)
        self._stir = asyncio.Event()
        self._successors = successors or SuccessorSearch(chains)
        self._refused: dict[PartitionName, int] = {}  # the leader epoch in which each one was
        # The chains that this node's own has a note in, and the loop's time of it.
        self._noted: OrderedDict[tuple[ChainName, ChainName], float] = OrderedDict()
        self._unsubscribe = replicas.roles.unentered_lead.subscribe(self._note)

    async def run(self) -> None:
        """Enter partitions until cancelled."""
        try:
            while True:
                await wait_and_clear(self._stir, None)
                for before, group in self._take_waiting().items():
                    self._entering |= group.keys()
                    if before in self._open:
                        self._open[before] |= group
                        continue
                    self._open[before] = group
                    task = asyncio.create_task(self._enter(before, group), name="entering leads")
                    self._tasks.add(task)
                    task.add_done_callback(self._tasks.discard)
        finally:
            self._unsubscribe()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def has_unentered(self) -> bool:
        """Whether this node is to lead any partition that it has not entered yet."""
        return bool(self._waiting or self._entering or self._failed)

    def _note(self, replica: Replica) -> None:
        self._waiting[replica.name] = replica
        self._stir.set()

    def _take_waiting(self) -> dict[Before, dict[PartitionName, Replica]]:
        """Return the partitions to enter now, by the chain that their items name last."""
        groups: dict[Before, dict[PartitionName, Replica]] = {}
        for name, replica in tuple(self._waiting.items()):
            if name in self._entering:
                continue  # Noted again when that has ended.
            del self._waiting[name]
            partition = self._unentered(replica)
            failed = self._failed.get(name)
            if partition is not None and failed is not None and failed.is_of(replica, partition):
                continue  # Noted again when it is due.
            self._failed.pop(name, None)
            if partition is not None:
                groups.setdefault(_before(partition), {})[name] = replica
        return groups

    def _unentered(self, replica: Replica) -> Partition | None:
        """Return the partition's record, if this node is to lead it and does not yet."""
        if replica.is_leader or self._replicas.get(replica.partition) is not replica:
            return None
        image = self._node.view.image
        partitions = image.partitions(replica.partition.topic)
        index = replica.partition.partition
        if index >= len(partitions) or partitions[index].topic_id != replica.topic_id:
            return None
        partition = partitions[index]
        if not partition.is_diskless:
            return None  # It has become replicated, and replicas have what the chains have.
        if self._refused.get(replica.name) == partition.leader_epoch:
            return None
        return partition if self._node.standing.leads(partition) else None

    async def _enter(self, before: Before, group: dict[PartitionName, Replica]) -> None:
        is_urgent = False
        try:
            async with self._slots:
                await self._take_over(before, group)
        except OwnChainEnded as error:
            logger.info(
                "diskless partitions enter another chain",
                extra={"count": len(group), "chain": str(before.chain), "reason": str(error)},
            )
            is_urgent = True
        except (TidelogError, OSError) as error:
            logger.warning(
                "diskless partitions not led yet, will retry",
                extra={"count": len(group), "chain": str(before.chain), "reason": str(error)},
            )
            if isinstance(error, CorruptObject):  # It does not say whose records it has.
                for name in group:
                    self._damaged.note(name)
        except Exception:
            # Any failure: the partitions have no leader until they are entered.
            logger.exception("diskless partitions not led yet, will retry")
        finally:
            self._close(before, group)
            self._entering -= group.keys()
            self._count_refused()
        left = {name: one for name, one in group.items() if self._unentered(one) is not None}
        self._damaged.forget(group.keys() - left.keys())
        for seconds, names in self._damaged.delays(
            left, RETRY_SECONDS, DAMAGED_SECONDS_MAX
        ).items():
            some = [left[name] for name in names]
            self._try_again(some, 0.0 if is_urgent else seconds)
        self._stir.set()

    def _close(self, before: Before, group: dict[PartitionName, Replica]) -> None:
        """Let no more partitions join the group."""
        if self._open.get(before) is group:
            del self._open[before]

    def _try_again(self, replicas: Sequence[Replica], seconds: float) -> None:
        """Note the replicas after this time, but for those whose items change before.

        Others note them, too: they are noted with all changes of other partitions of the topic.
        Damaged partitions of a large topic would be tried all the time.
        """
        loop = asyncio.get_running_loop()
        due_s = loop.time() + seconds
        for replica in replicas:
            partition = self._unentered(replica)
            if partition is not None:
                self._failed[replica.name] = _Failed(due_s, replica, partition.version)
        loop.call_at(due_s, self._note_due, replicas, due_s)

    def _note_due(self, replicas: Iterable[Replica], due_s: float) -> None:
        for replica in replicas:
            failed = self._failed.get(replica.name)
            if failed is not None and failed.due_s == due_s:
                del self._failed[replica.name]
                self._note(replica)

    async def _take_over(self, before: Before, group: dict[PartitionName, Replica]) -> None:
        """Take the group's partitions from the chain; those that fail are left out.

        Raises the stores' errors, and ``CorruptObject``.
        """
        own, sealer, sealed_at = await self._own_chain(), None, -1
        chain, successors = before.chain, Successors({}, is_whole=True)
        _require_committed(own, group)
        unsealed = chain if before.is_handed_over or chain == own.name else None
        if chain is not None and before.is_handed_over:
            await self._note_heir(chain, own)
        elif chain is not None and chain != own.name:
            sealer = ChainSealer(chain, now_ms=self._node.standing.now_ms())
            sealed_at = await self._seal(sealer, own)
            # Before the items are read: then a healthy store's have all epochs of the chains.
            successors = await self._successors.find(chain, sealed_at, own=own.name)
        self._close(before, group)
        _require_committed(own, group)
        # Who restores from the bucket alone must know the topic of every acknowledged record.
        await self._manifests.ensure({name.topic_id for name in group})
        taken = _Taken(dict(group), own, sealed_at, successors)
        steps = Takeover(sealer, own.name, unsealed=unsealed)
        await self._decide(taken, steps, steps.begin())

    async def _seal(self, sealer: ChainSealer, own: EntryChain) -> int:
        """Note in the chain who may get its partitions, and seal it; return the seal's sequence."""
        noting = asyncio.create_task(self._note_heir(sealer.chain, own))
        try:
            sealed_at = await seal_chain(self._node, self._chains, sealer, heir=own.name)
            await noting
        finally:
            noting.cancel()
            await asyncio.gather(noting, return_exceptions=True)
        logger.info("chain sealed", extra={"chain": str(sealer.chain), "sequence": sealed_at})
        return sealed_at

    async def _note_heir(self, before: ChainName, own: EntryChain) -> None:
        """Note it, unless a note of before says so: then it has a lesser sequence.

        Partitions whose records are damaged are tried again every second, and notes stay for long.
        """
        now_s = asyncio.get_running_loop().time()
        noted_s = self._noted.get((before, own.name))
        if noted_s is not None and now_s - noted_s < NOTE_SECONDS:
            return
        await self._chains.note_heir(before, Heir(own.name, own.next_sequence))
        self._noted[before, own.name] = now_s
        while len(self._noted) > NOTES_MAX:
            self._noted.popitem(last=False)

    async def _decide(
        self, taken: _Taken, steps: Takeover, decisions: Sequence[takeover.TakeoverDecision]
    ) -> None:
        try:
            while decisions:
                decision, *rest = decisions
                if not isinstance(decision, takeover.Lead):
                    self._confirm(taken)  # An image that comes before would have them leave.
                match decision:
                    case takeover.ReadItems():
                        await self._read(taken)
                        decisions = [*rest, *steps.on_items(taken.stored())]
                    case takeover.Replay(items, end):
                        await self._replay(taken, steps, items, end)
                        decisions = rest
                    case takeover.WriteEpochs(items):
                        decisions = [*rest, *steps.on_written(await self._write(taken, items))]
                    case takeover.Lead(name, stored, end_offset):
                        self._lead(taken, name, stored, end_offset)
                        decisions = rest
                    case takeover.Finished():
                        decisions = rest
        finally:
            self._confirm(taken)

    async def _replay(
        self,
        taken: _Taken,
        steps: Takeover,
        items: Mapping[PartitionName, StoredChains],
        end: int | None,
    ) -> None:
        """Recover the partitions in groups, and lead each group before the next is recovered."""
        before = steps.chain
        seals = {} if before is None or end is None else {before: end}
        async with contextlib.aclosing(self._recover(taken, items, seals)) as groups:
            async for ends in groups:
                left = {name: items[name] for name in ends}
                part = steps.part()
                await self._decide(taken.part(ends), part, part.on_replayed(left, ends))

    # -- the steps --

    async def _read(self, taken: _Taken) -> None:
        """Read the group's items. Raises the store's errors."""
        keys = {partition_key(name.topic_id, name.partition): name for name in taken.group}
        items = await self._node.store.get_many(keys)
        taken.records.clear()
        for key, item in items.items():
            with contextlib.suppress(CorruptItem):  # The image says so, and has no leader.
                record = Partition.from_item(item)
                if record.is_diskless and self._node.standing.leads(record):
                    taken.records[keys[key]] = record

    async def _recover(
        self,
        taken: _Taken,
        items: Mapping[PartitionName, StoredChains],
        seals: Mapping[ChainName, int],
    ) -> AsyncGenerator[dict[PartitionName, int]]:
        """Make the logs what tier and chains have; yield the ends of some partitions at a time.

        Raises the store's errors.
        """
        for name, stored in items.items():
            if (error := _later_epoch(taken, name, stored.chains)) is not None:
                self._refuse(taken, name, error)
        followed = await self._followed(taken, items)
        if followed:
            yield followed
        records = {
            name: taken.records[name]
            for name in items
            if name in taken.group and name not in followed
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

    async def _followed(
        self, taken: _Taken, items: Mapping[PartitionName, StoredChains]
    ) -> dict[PartitionName, int]:
        """Return the ends of what was handed over and is in the log already, all of it.

        This node has followed the leader to its end: what a process has seen committed is right.
        """
        ends: dict[PartitionName, int] = {}
        for name, stored in items.items():
            end_offset = stored.chains[-1].first_offset if stored.is_handed_over else -1
            if name not in taken.group or not _has_committed(taken.group[name], end_offset):
                continue
            start_offset = taken.records[name].log_start_offset
            log = taken.group[name].log
            if not lacks_deleted(log, log_start_offset=start_offset, start_offset=end_offset):
                ends[name] = end_offset
        tiered = await self._recovery.tier_ends({name: taken.records[name] for name in ends})
        taken.tier_ends |= tiered
        return {name: ends[name] for name in tiered}

    # -- metadata that were set back --

    def _refuse(self, taken: _Taken, name: PartitionName, error: MetadataSetBack) -> None:
        """Leave the partition without a leader, until another election."""
        self._refused[name] = taken.records[name].leader_epoch
        extra = {
            "partition": str(taken.group.pop(name).partition),
            "reason": str(error),
            "hint": error.hint,
        }
        logger.error("diskless partition refused, its records are not in the metadata", extra=extra)

    def _count_refused(self) -> None:
        """Count the partitions that are refused now, and forget the others."""
        image = self._node.view.image
        for name, epoch in tuple(self._refused.items()):
            topic = image.topic_by_id(name.topic_id)
            partitions = () if topic is None else image.partitions(topic.name)
            there = partitions[name.partition] if name.partition < len(partitions) else None
            if there is None or there.leader_epoch > epoch:
                del self._refused[name]
        self._node.counters.chain.refused_count = len(self._refused)

    async def _write(
        self, taken: _Taken, items: Mapping[PartitionName, StoredChains]
    ) -> WriteOutcome:
        """Write the next epochs, in several transactions if they are many."""
        _require_chain(taken.own)  # Else the next epoch would begin in an ended one.
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
            await asyncio.sleep(RETRY_SECONDS)
            return WriteOutcome.UNKNOWN
        return WriteOutcome.CONFLICT

    def _confirm(self, taken: _Taken) -> None:
        """Let the partitions that have just entered be led, a topic's together."""
        led, taken.led = taken.led, {}
        if led:
            self._replicas.confirm_leads(led)

    def _lead(
        self, taken: _Taken, name: PartitionName, stored: StoredChains, end_offset: int
    ) -> None:
        replica, epoch = taken.group[name], stored.chains[-1].leader_epoch
        if self._replicas.get(replica.partition) is not replica:
            return
        _require_chain(taken.own)
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


@dataclasses.dataclass(slots=True)
class _Taken:
    """Partitions that are taken together from one chain."""

    group: dict[PartitionName, Replica]
    own: EntryChain
    sealed_at: int  # the sequence of the seal; -1: there was no chain
    successors: Successors
    records: dict[PartitionName, Partition] = dataclasses.field(default_factory=dict)
    tier_ends: dict[PartitionName, TierEnds] = dataclasses.field(default_factory=dict)
    slice_counts: dict[PartitionName, int] = dataclasses.field(default_factory=dict)
    led: dict[Replica, int] = dataclasses.field(default_factory=dict)  # entered; their epochs
    write_count: int = 0

    def part(self, names: Iterable[PartitionName]) -> _Taken:
        """Return some of the partitions, to be written and led on their own."""
        return dataclasses.replace(
            self,
            group={name: self.group[name] for name in names},
            records={name: self.records[name] for name in names},
            tier_ends={name: self.tier_ends[name] for name in names},
            led={},
        )

    def stored(self) -> dict[PartitionName, StoredChains]:
        """Return what the items say of chains, as last read."""
        return {
            name: StoredChains(
                record.version, record.wal, record.leader_epoch, leader=record.leader
            )
            for name, record in self.records.items()
            if name in self.group
        }


def _before(partition: Partition) -> Before:
    last = current_chain(partition.wal)
    return Before(
        None if last is None else last.chain,
        is_handed_over(partition.wal, leader=partition.leader, leader_epoch=partition.leader_epoch),
    )


def _has_committed(replica: Replica, end_offset: int) -> bool:
    """Return whether the log ends there, lacks nothing, and is known to be committed up to there.

    A log that was not filled to its end in another process ends there too.
    """
    log = replica.opened_log
    if log is None or log.unfilled is not None:
        return False
    return log.high_watermark == log.log_end_offset == end_offset


def _later_epoch(taken: _Taken, name: PartitionName, chains: EpochChains) -> MetadataSetBack | None:
    """Return the error if a chain has records of a later epoch than the item knows."""
    later, last = taken.successors.epochs.get(name), current_chain(chains)
    if later is None or last is None or later.leader_epoch <= last.leader_epoch:
        return None
    found = f"records of epoch {later.leader_epoch} in the chain {later.chain}"
    partition = taken.group[name].partition
    return MetadataSetBack(partition, known=describe_epoch(chains), found=found)


def _require_committed(own: EntryChain, group: Mapping[PartitionName, Replica]) -> None:
    if any(map(own.has_uncommitted, group.values())):
        raise StoreUnavailable("records of an earlier epoch are still pending in the own chain")


def _require_chain(own: EntryChain) -> None:
    if own.is_deposed:
        raise OwnChainEnded(f"the chain {own.name} has ended in the meantime")
