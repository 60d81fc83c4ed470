"""A simulated node: a chain, the partitions that it leads, and its work as an heir and collector.

The decisions are the product's. An ``Incarnation`` is what a process knows: it dies with it. It may
be paused, its clock may jump, and it may be cut from either store.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from random import Random
from typing import Any
from uuid import UUID

from tidelog_core.diskless.chain import chain_writer
from tidelog_core.diskless.chain.chain_writer import ChainWriter, PutOutcome, WriterLimits
from tidelog_core.diskless.chain.noted_ranges import ForeignRange, ObjectContent
from tidelog_core.diskless.chain.put_pace import PaceLimits
from tidelog_core.diskless.chain.rules import ChainRules
from tidelog_core.diskless.collection.collection import OwnedObjects, needs_of
from tidelog_core.diskless.takeover import takeover
from tidelog_core.diskless.takeover.takeover import StoredChains, WriteOutcome
from tidelog_core.diskless.wal.build import (
    BuiltObject,
    ForeignSlice,
    ObjectName,
    WalSlice,
)
from tidelog_core.diskless.wal.committed_slices import CommittedSlice, committed_slices
from tidelog_core.diskless.wal.epoch_chains import PartitionName
from tidelog_core.diskless.wal.header import HEADER_SIZE, parse_header
from tidelog_core.diskless.wal.keys import checkpoint_key, wal_key
from tidelog_core.diskless.wal.rows import BatchRow
from tidelog_core.errors import InvalidProducerEpoch, InvalidTxnState, OutOfOrderSequence
from tidelog_core.log.values import AppendOrigin
from tidelog_core.metadata.epoch_chains import ChainName
from tidelog_core.records.control import (
    ControlType,
    EndTransactionMarker,
    build_end_transaction_marker,
)

from tests.simulation.checker import Violation
from tests.simulation.diskless.checker import CLUSTER, DisklessChecker, entry_of, parsed
from tests.simulation.diskless.heir import CollectionTask, ReplayTask, TakeoverTask
from tests.simulation.diskless.items import SimItems
from tests.simulation.diskless.leader_log import (
    LeaderLog,
    Recovered,
    SimTier,
    apply_committed,
    copied,
    row_of,
)
from tests.simulation.diskless.objects import SimObjects
from tests.simulation.diskless.shell import Mutable
from tests.simulation.world import World
from tests.support.chain_model.checkpoint import Checkpoint, pack_checkpoint
from tests.support.chain_model.handover import Handover
from tests.support.chain_model.stored_checkpoints import CheckpointMark, StoredCheckpoints
from tests.support.data_objects import build_data_object

LIMITS = WriterLimits(
    flush_bytes=600,
    flush_ms=15.0,
    idle_flush_ms=3.0,
    pace=PaceLimits(
        in_flight_max=4,
        first_hedge_ms=25.0,
        hedge_ms_min=8.0,
        puts_per_second_max=0.0,
        retry_ms_first=5.0,
        retry_ms_max=60.0,
    ),
)
LEASE_MS = 150.0
WATCH_MS = 40.0


@dataclass
class Setup:
    """What the nodes share."""

    world: World
    objects: SimObjects
    items: SimItems
    checker: DisklessChecker
    tiers: dict[PartitionName, SimTier]
    rules: ChainRules
    shell: Mutable
    random: Random
    nodes: list[SimNode]
    tier_chance: float
    failed_builds: int = 0

    def leader_of(self, stored: StoredChains) -> Incarnation | None:
        """Return the incarnation that leads or is to lead, if it is alive: what leases tell."""
        if stored.is_handed_over:
            return self.nodes[stored.leader].current
        chain = stored.chains[-1].chain
        current = self.nodes[chain.broker_id].current
        return current if current is not None and current.chain == chain else None


class SimNode:
    """A machine: at most one incarnation at a time."""

    def __init__(self, broker_id: int, setup: Setup) -> None:
        self.broker_id = broker_id
        self.setup = setup
        self.current: Incarnation | None = None
        self.skew_ms = setup.random.random() * 10_000
        self.disk_fails_until_ms = 0.0  # reads of local logs
        self.start()

    def start(self) -> None:
        self.current = Incarnation(self)

    def kill(self) -> None:
        if self.current is not None:
            self.current.is_alive = False
            self.current = None

    def deliver(self, handler: str, args: tuple[Any, ...]) -> None:
        """Take a request of a client or another node, by the name of what handles it."""
        if self.current is not None:
            self.current.deliver(getattr(self.current, handler), args)


class Incarnation:
    """One process."""

    def __init__(self, node: SimNode) -> None:
        self.node = node
        self.broker_id = node.broker_id
        self.setup = node.setup
        self.world, self.objects, self.items = (
            node.setup.world,
            node.setup.objects,
            node.setup.items,
        )
        self.checker, self.rules = node.setup.checker, node.setup.rules
        self.is_alive = True
        self.is_paused = False
        self.heard_ms = self.world.now_ms
        self._backlog: list[tuple[Any, tuple[Any, ...]]] = []
        self.takeovers: dict[tuple[ChainName, bool], TakeoverTask] = {}
        self._versions: dict[PartitionName, int] = {}
        self._handovers: dict[PartitionName, Handover] = {}
        self._preparing: set[PartitionName] = set()
        self._open_chain()
        self._watch_later()

    def _open_chain(self) -> None:
        self.chain = ChainName(self.broker_id, UUID(int=self.setup.random.getrandbits(128)))
        self.writer = ChainWriter(self.chain, now_ms=self.now_ms(), limits=LIMITS, rules=self.rules)
        self.owned = OwnedObjects(self.rules)
        self.checkpoints = StoredCheckpoints()
        self._checkpointed = 0  # the last one that was tried, by its sequence
        self._is_checkpointing = False
        self.logs: dict[PartitionName, LeaderLog] = {}
        self.built: dict[int, BuiltObject] = {}
        self.contents: dict[int, ObjectContent] = {}
        self._foreign: dict[int, tuple[bytes, Any]] = {}
        self._foreign_number = 0
        self._tick_at: float | None = None
        self._handovers.clear()
        self._preparing.clear()

    def now_ms(self) -> float:
        """The node's clock, which may jump."""
        return self.world.now_ms + self.node.skew_ms

    # -- the process --

    def deliver(self, handler: Any, args: tuple[Any, ...]) -> None:
        if not self.is_alive:
            return
        if self.is_paused:
            self._backlog.append((handler, args))
            return
        handler(*args)

    def pause(self) -> None:
        self.is_paused = True

    def resume(self) -> None:
        self.is_paused = False
        backlog, self._backlog = self._backlog, []
        for handler, args in backlog:
            self.deliver(handler, args)

    def after(self, delay_ms: float, handler: Any, *args: Any) -> None:
        self.world.after(delay_ms, self.deliver, handler, args)

    # -- the chain --

    def decide(self, decisions: Iterable[chain_writer.Decision]) -> None:
        for decision in decisions:
            match decision:
                case chain_writer.BuildObject():
                    self._build(decision)
                case chain_writer.PutObject(sequence, attempt):
                    self._put(sequence, attempt)
                case chain_writer.ReadHeader(sequence):
                    key = wal_key(CLUSTER, self.chain, sequence)
                    self.objects.get(self, key, self._on_header, self.writer, sequence)
                case chain_writer.Committed():
                    self._on_committed(decision)
                case chain_writer.Deposed():
                    self._on_deposed()
                    return
        self._schedule_tick()

    def _schedule_tick(self) -> None:
        delay_ms = self.writer.delay_ms(self.now_ms())
        if delay_ms is None:
            return
        at = self.world.now_ms + delay_ms + 0.01
        if self._tick_at is None or at < self._tick_at or self._tick_at <= self.world.now_ms:
            self._tick_at = at
            self.after(delay_ms + 0.01, self._tick, self.writer, at)

    def _tick(self, writer: ChainWriter, at: float) -> None:
        if writer is self.writer and at == self._tick_at:
            self._tick_at = None
            decisions = writer.tick(self.now_ms())
            if not decisions and writer.delay_ms(self.now_ms()) == 0:
                raise Violation("a chain is ticked for nothing, and wants to be ticked again")
            self.decide(decisions)

    def build(self, order: chain_writer.BuildObject, content: ObjectContent) -> BuiltObject:
        """Return the object with this content at the order's place."""
        slices = [
            WalSlice(
                part.partition.topic_id,
                part.partition.partition,
                part.leader_epoch,
                self.logs[part.partition].bytes_of(part.base_offset, part.end_offset),
            )
            for part in content.ranges
        ]
        slices += [
            WalSlice(*part.partition, -1, self._foreign[part.number][0], is_foreign=True)
            for part in content.foreign
        ]
        name = ObjectName(
            CLUSTER, self.chain, order.sequence, order.committed_end, order.previous_crc, 0
        )
        return build_data_object(name, slices, references=content.references, epochs=content.epochs)

    def _build(self, order: chain_writer.BuildObject) -> None:
        fails = self.world.now_ms < self.node.disk_fails_until_ms
        if fails and order.content.ranges and self.setup.random.random() < 0.7:
            self.setup.failed_builds += 1
            if self.setup.shell.builds_again:
                self.after(1.0, self._on_build_failed, self.writer, order.sequence)
            return
        built = self.build(order, order.content)
        self.built[order.sequence] = built
        self.contents[order.sequence] = order.content
        # A leader refuses what it is told before the object is committed.
        self._forward(order.sequence, order.content)
        self.decide(self.writer.on_built(order.sequence, built.header, self.now_ms()))

    def _on_build_failed(self, writer: ChainWriter, sequence: int) -> None:
        if writer is self.writer:
            self.decide(writer.on_build_failed(sequence, self.now_ms()))

    def _put(self, sequence: int, attempt: int) -> None:
        data = self.built[sequence].data if attempt == 1 else self.setup.shell.hedge(self, sequence)
        self.objects.put(
            self,
            wal_key(CLUSTER, self.chain, sequence),
            data,
            self._on_put,
            self.writer,
            sequence,
            attempt,
            is_conditional=self.setup.shell.creates_conditionally,
        )

    def _on_put(self, outcome: Any, writer: ChainWriter, sequence: int, attempt: int) -> None:
        if writer is self.writer:
            self.decide(writer.on_put(sequence, attempt, outcome, self.now_ms()))

    def _on_header(
        self, is_known: bool, data: bytes | None, writer: ChainWriter, sequence: int
    ) -> None:
        if writer is not self.writer:
            return
        header = None if data is None else parse_header(data[:HEADER_SIZE], key="header")
        if is_known:
            self.decide(writer.on_header(sequence, header, self.now_ms()))
        else:
            self.decide(writer.on_header_unreadable(sequence, self.now_ms()))

    def _on_committed(self, committed: chain_writer.Committed) -> None:
        slices: list[CommittedSlice] = []
        for sequence, content in committed.contents:
            built = self.built[sequence]
            footer = parsed(built.data)
            slices += [one._replace(batches=()) for one in committed_slices(footer)]
            self.owned.add(built.header, needs_of(footer))
            self._forward(sequence, content)
            del self.built[sequence], self.contents[sequence]
        for partition, end in committed.ends.items():
            log = self.logs.get(partition)
            if log is not None and end > log.high_watermark:
                start = log.high_watermark
                self.checker.on_committed(partition, start, log.entries(start, end))
                log.commit(end, [one for one in slices if one.partition == partition])
                self.checker.on_stable(partition, self.setup.shell.stable_end(log), end)
                self._release(log)
        for partition in list(self.logs):
            self._hand_over_if_drained(partition)

    def _release(self, log: LeaderLog) -> None:
        log.acks.release(log.high_watermark, None)
        for (client, offset, entry), _ in log.acks.take():
            self.checker.on_ack(log.partition, offset, entry)
            self.world.after(3.0, client.on_ack, entry)

    def _on_deposed(self) -> None:
        old = self.chain
        self._open_chain()
        self.take_over(old)

    # -- producing --

    def produce(self, client: Any, partition: PartitionName, data: bytes) -> None:
        """Append a client's batch if this node leads, as a gateway if it does not."""
        log = self.logs.get(partition)
        row = row_of(data)
        if client.is_elsewhere and log is None:
            self._foreign_number += 1
            self._foreign[self._foreign_number] = (data, client)
            foreign = ForeignRange(partition, self._foreign_number, len(data))
            self.decide(self.writer.note_foreign(foreign, self.now_ms()))
        elif log is not None:
            self._append(client, log, data, row, AppendOrigin.CLIENT)

    def _append(
        self, client: Any, log: LeaderLog, data: bytes, row: BatchRow, origin: AppendOrigin
    ) -> None:
        if log.is_leaving or self._answer_duplicate(client, log, row):
            return
        try:
            noted = log.append(data, row, origin)
        except (OutOfOrderSequence, InvalidTxnState, InvalidProducerEpoch):
            return  # the client repeats what comes before
        log.acks.add(noted.end_offset, (client, noted.base_offset, entry_of(row)))
        self.decide(self.writer.note(noted, self.now_ms()))

    def _answer_duplicate(self, client: Any, log: LeaderLog, row: BatchRow) -> bool:
        known = log.state.entry(row.producer_id)
        if known is None or known.epoch != row.producer_epoch or row.marker >= 0:
            return False
        for batch in known.batches:
            if batch.last_sequence == row.base_sequence:
                log.acks.add(batch.last_offset + 1, (client, batch.last_offset, entry_of(row)))
                self._release(log)
                return True
        return False

    def end_transaction(
        self, client: Any, partition: PartitionName, producer: tuple[int, int], kind: ControlType
    ) -> None:
        """Write a marker, unless the transaction has ended already."""
        producer_id, epoch = producer
        log = self.logs.get(partition)
        if log is None or log.is_leaving:
            return
        if not log.state.has_ongoing_transaction(producer_id):
            if log.state.first_unstable_offset is None:
                self.world.after(3.0, client.on_ended)
            return
        data = build_end_transaction_marker(
            EndTransactionMarker(kind, 0),
            producer_id=producer_id,
            producer_epoch=epoch,
            timestamp_ms=1,
        )
        row = row_of(data)
        try:
            noted = log.append(data, row, AppendOrigin.COORDINATOR)
        except InvalidProducerEpoch:
            return  # asked for before the one that has ended it
        self.decide(self.writer.note(noted, self.now_ms()))

    # -- gateways --

    def _forward(self, sequence: int, content: ObjectContent) -> None:
        """Tell the leaders of the foreign slices in an object, once more when it is committed."""
        if not content.foreign:
            return
        footer = parsed(self.built[sequence].data)
        at = 0
        rows = list(footer.slices)
        for row in rows:
            batches = [footer.batches[n] for n in range(at, at + row.batch_count)]
            at += row.batch_count
            if not row.is_foreign:
                continue
            number = content.foreign[rows.index(row) - (len(rows) - len(content.foreign))].number
            partition = PartitionName.of_row(row)
            client = self._foreign[number][1]
            leader = self.setup.items.items[partition].chains[-1].chain.broker_id
            reference = ForeignSlice(self.chain, sequence, -1, -1, row, batches)
            self.world.after(
                2.0,
                self.setup.nodes[leader].deliver,
                "on_reference",
                (client, partition, reference, self.writer.committed_end),
            )

    def on_reference(
        self, client: Any, partition: PartitionName, reference: ForeignSlice, gateway_end: int
    ) -> None:
        """A gateway has a slice of a partition that this node leads."""
        log = self.logs.get(partition)
        (row,) = reference.batches
        if (
            log is None
            or log.is_leaving
            or not self.rules.may_refer(reference.sequence, gateway_end)
            or self._answer_duplicate(client, log, row)
        ):
            return
        try:
            noted = log.append(b"", row, AppendOrigin.CLIENT)
        except (OutOfOrderSequence, InvalidTxnState, InvalidProducerEpoch):
            return
        given = reference._replace(leader_epoch=log.leader_epoch, base_offset=noted.base_offset)
        log.acks.add(noted.end_offset, (client, noted.base_offset, entry_of(row)))
        self.decide(
            self.writer.note_reference(given, self.now_ms(), gateway_committed_end=gateway_end)
        )

    # -- leading --

    def lead(
        self, partition: PartitionName, stored: StoredChains, recovered: Recovered, sealed_at: int
    ) -> None:
        """Lead the partition; its item names this chain."""
        state = recovered.state
        self._preparing.discard(partition)
        if stored.chains[-1].chain != self.chain or self.writer.is_deposed:
            return
        self._versions[partition] = max(stored.version, self._versions.get(partition, 0))
        self._handovers.pop(partition, None)  # of an epoch before, whose write was made after all
        self.checker.on_lead(partition, stored.chains[-1].leader_epoch, state.end_offset)
        state.advance_high_watermark(state.end_offset)
        self.logs[partition] = LeaderLog(partition, stored, recovered)
        self.writer.enter(
            partition, stored.chains, end_offset=state.end_offset, previous_sequence=sealed_at
        )
        log = self.logs[partition]
        self.checker.on_stable(partition, self.setup.shell.stable_end(log), log.high_watermark)

    def hand_over(self, partition: PartitionName, successor: int) -> None:
        """Stop taking, and let the successor lead once everything is committed."""
        log = self.logs.get(partition)
        if log is None or log.is_leaving or partition in self._handovers:
            return
        if self.setup.shell.stops_before_handover:
            log.is_leaving = True
            self.writer.leave(partition)
        self._handovers[partition] = Handover(
            partition, successor, stored=log.stored, end_offset=log.end
        )
        self._hand_over_if_drained(partition)

    def _hand_over_if_drained(self, partition: PartitionName) -> None:
        handover = self._handovers.get(partition)
        log = self.logs.get(partition)
        if handover is None or log is None:
            return
        is_drained = log.high_watermark >= log.end and not self.writer.has_uncommitted(partition)
        if self.setup.shell.hands_over_committed and not is_drained:
            return
        if log.is_leaving:
            del self.logs[partition]
        self._on_handover(handover.begin(), partition, handover)

    def _on_handover(self, decision: Any, partition: PartitionName, handover: Handover) -> None:
        if self._handovers.get(partition) is not handover:
            return
        match decision:
            case takeover.WriteEpochs(items):
                version = items[partition].version + 1  # the one that ends the epoch
                self._versions[partition] = max(version, self._versions.get(partition, 0))
                self.items.write(self, items, self._on_handover_written, partition, handover)
            case takeover.ReadItems():
                self.items.read_chains(self, self._on_handover_items, partition, handover)
            case takeover.Finished():
                del self._handovers[partition]

    def _on_handover_written(
        self, outcome: WriteOutcome, partition: PartitionName, handover: Handover
    ) -> None:
        self._on_handover(handover.on_written(outcome), partition, handover)

    def _on_handover_items(self, items: Any, partition: PartitionName, handover: Handover) -> None:
        if items is None:
            self.after(20.0, self._on_handover, takeover.ReadItems(), partition, handover)
        else:
            self._on_handover(handover.on_items(items), partition, handover)

    # -- watching --

    def _watch_later(self) -> None:
        self.after(WATCH_MS * (0.7 + 0.6 * self.setup.random.random()), self._watch)

    def _watch(self) -> None:
        self._watch_later()
        if self.broker_id not in self.items.cut:
            self.heard_ms = self.world.now_ms
        self._tier()
        self._collect_own()
        self._checkpoint()
        self.items.read_chains(self, self._on_watched)

    def _on_watched(self, items: dict[PartitionName, StoredChains] | None) -> None:
        for partition, stored in (items or {}).items():
            if stored.version < self._versions.get(partition, 0):
                continue  # read before a write that is known
            self._versions[partition] = stored.version
            chain = stored.chains[-1].chain
            if stored.is_handed_over and stored.leader == self.broker_id:
                self.take_unsealed(chain)
                continue
            if chain == self.chain and not stored.is_handed_over:
                if partition in self.logs:
                    self._on_log_start(partition, stored)
                is_new = partition not in self.logs and partition not in self._handovers
                if is_new and partition not in self._preparing and not self._is_taking(partition):
                    self._preparing.add(partition)
                    ReplayTask(self, {partition: stored}, None, None, self._on_prepared).start()
                continue
            if partition in self.logs and not self.writer.has_uncommitted(partition):
                # Deposed, and nothing to put by which it would be told.
                del self.logs[partition]
                self.writer.leave(partition)
            leader = self.setup.leader_of(stored)
            if leader is None or self.world.now_ms - leader.heard_ms > LEASE_MS:
                if chain != self.chain:
                    self.take_over(chain)
                elif partition not in self._handovers:
                    self.take_unsealed(chain)  # The successor never entered.

    def _is_taking(self, partition: PartitionName) -> bool:
        return any(task.is_writing(partition) for task in self.takeovers.values())

    def _on_prepared(self, task: ReplayTask) -> None:
        for partition, stored in task.items.items():
            # More than its beginning was replayed: others have led since the item was read.
            recovered = task.recovered[partition]
            is_stale = recovered.state.end_offset != stored.chains[-1].first_offset
            if partition not in self.logs and not is_stale:
                self.lead(partition, stored, recovered, -1)
            self._preparing.discard(partition)

    def take_over(self, chain: ChainName) -> None:
        """Seal a chain and take its partitions, unless that is under way."""
        if chain != self.chain and (chain, False) not in self.takeovers:
            self.takeovers[chain, False] = task = TakeoverTask(self, chain)
            task.start()

    def take_unsealed(self, chain: ChainName) -> None:
        """Take what the chain's owner has handed over, or what this node's has, unless it does."""
        if (chain, True) not in self.takeovers:
            self.takeovers[chain, True] = task = TakeoverTask(self, chain, are_handed_over=True)
            task.start()

    # -- the tier, and collection --

    def trim(self, amount: float) -> None:
        """Delete records of every led partition from the log's start on (DeleteRecords)."""
        for partition, log in self.logs.items():
            span = log.high_watermark - log.log_start
            if not log.is_leaving and span:
                log_start = log.high_watermark - int(span * max(0.0, amount - 0.3))
                wanted = log.stored._replace(log_start_offset=log_start)
                self.items.write(self, {partition: wanted}, self._on_trimmed, partition, wanted)

    def _on_trimmed(
        self, outcome: WriteOutcome, partition: PartitionName, wanted: StoredChains
    ) -> None:
        # If it is not known, the next watch reads it.
        if outcome is WriteOutcome.WRITTEN and partition in self.logs:
            self._on_log_start(partition, wanted._replace(version=wanted.version + 1))

    def _on_log_start(self, partition: PartitionName, stored: StoredChains) -> None:
        log = self.logs[partition]
        if stored.chains == log.stored.chains and stored.version > log.stored.version:
            log.stored = stored
            log.log_start = max(log.log_start, stored.log_start_offset)

    def _tier(self) -> None:
        for partition, log in self.logs.items():
            tier = self.setup.tiers[partition]
            start, end = tier.end, log.stable_end
            if self.setup.random.random() >= self.setup.tier_chance:
                continue
            if log.start <= start < end:
                end = self.setup.random.randint(start + 1, end)
                apply_committed(tier.state, log.rows[start - log.start : end - log.start])
            elif start < log.start <= log.log_start and end == log.high_watermark:
                # What is between was deleted before it was tiered.
                tier.state = copied(log.committed)
                start = log.start
            else:
                continue
            self.checker.on_tiered(partition, start, log.entries(start, end))

    def tier_ends(self) -> dict[PartitionName, int]:
        """Return up to where partitions are tiered."""
        return {partition: tier.end for partition, tier in self.setup.tiers.items()}

    def _collect_own(self) -> None:
        shell = self.setup.shell
        found = self.owned.collectable(shell.unneeded(self, self.checkpoints))
        self.owned.on_deleted(found)
        keys = [wal_key(CLUSTER, self.chain, sequence) for sequence in found]
        for sequence in shell.unused_checkpoints(self, self.checkpoints, is_sealed=False):
            self.checkpoints.on_deleted(sequence)
            keys.append(checkpoint_key(CLUSTER, self.chain, sequence))
        if keys:
            self.objects.delete(self, keys, lambda: None)

    def _checkpoint(self) -> None:
        """Write a checkpoint of what is committed, if anything is new."""
        sequence = self.setup.shell.checkpointed_end(self.writer)
        if self._is_checkpointing or sequence <= self._checkpointed or not self.logs:
            return
        self._checkpointed, self._is_checkpointing = sequence, True
        partitions = {
            name: self.setup.shell.checkpointed(log, self.setup.tiers[name].end)
            for name, log in self.logs.items()
        }
        built = pack_checkpoint(
            ObjectName(CLUSTER, self.chain, sequence, sequence, 0, 0), partitions
        )
        marks = Checkpoint(self.chain, sequence, partitions).marks()
        if not self.setup.shell.waits_for_checkpoints:
            self.checkpoints.add(sequence, marks)
        self.objects.put(
            self,
            checkpoint_key(CLUSTER, self.chain, sequence),
            built.data,
            self._on_checkpoint,
            self.checkpoints,
            sequence,
            marks,
            is_conditional=True,
        )

    def _on_checkpoint(
        self,
        outcome: PutOutcome,
        checkpoints: StoredCheckpoints,
        sequence: int,
        marks: dict[PartitionName, CheckpointMark],
    ) -> None:
        if checkpoints is self.checkpoints:
            self._is_checkpointing = False
            if outcome is PutOutcome.STORED and self.setup.shell.waits_for_checkpoints:
                checkpoints.add(sequence, marks)

    def collect(self, chain: ChainName) -> None:
        """Find out whether the chain is sealed, and delete what nobody needs of it."""
        if chain != self.chain:
            CollectionTask(self, chain).start()
