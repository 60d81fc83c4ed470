"""What a node does as an heir and as a collector: the product's decisions, carried out."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from tidelog_core.diskless.collection.collection import collectable_of_sealed, needs_of
from tidelog_core.diskless.takeover import chain_sealer, takeover
from tidelog_core.diskless.takeover.chain_sealer import ChainSealer
from tidelog_core.diskless.takeover.takeover import StoredChains, Takeover
from tidelog_core.diskless.wal.build import ObjectName, build_seal
from tidelog_core.diskless.wal.committed_slices import CommittedSlice
from tidelog_core.diskless.wal.epoch_chains import PartitionName
from tidelog_core.diskless.wal.footer import WalFooter
from tidelog_core.diskless.wal.header import HEADER_SIZE, parse_header
from tidelog_core.diskless.wal.keys import (
    Heir,
    chain_prefix,
    checkpoint_key,
    parse_wal_key,
    wal_key,
)
from tidelog_core.diskless.wal.rows import BatchRow, RowRange
from tidelog_core.log.producers.producer_state import ProducerState
from tidelog_core.metadata.epoch_chains import ChainName

from tests.simulation.diskless.checker import CLUSTER, parsed
from tests.simulation.diskless.leader_log import Recovered
from tests.support.chain_model.checkpoint import Checkpoint, parse_checkpoint
from tests.support.chain_model.heir_replay import (
    ReplayedPartition,
    ReplayGap,
    ReplayStart,
    footers_from,
    replay_partitions,
)
from tests.support.chain_model.stored_checkpoints import StoredCheckpoints

if TYPE_CHECKING:
    from tests.simulation.diskless.node import Incarnation

RETRY_MS = 20.0


class SealTask:
    """Carries out a sealer's decisions."""

    def __init__(
        self,
        node: Incarnation,
        chain: ChainName,
        on_end: Callable[[Any], None],
        *,
        may_seal: bool = True,
    ) -> None:
        self.node, self.chain, self._on_end = node, chain, on_end
        self.sealer = ChainSealer(chain, now_ms=node.now_ms(), rules=node.rules, may_seal=may_seal)

    def start(self) -> None:
        self._decide(self.sealer.start())

    def _decide(self, decisions: Iterable[Any]) -> None:
        node = self.node
        for decision in decisions:
            match decision:
                case chain_sealer.ListChain(start):
                    prefix = chain_prefix(CLUSTER, self.chain)
                    first = wal_key(CLUSTER, self.chain, start)
                    node.objects.list(node, prefix, first, self._on_listed)
                case chain_sealer.ReadHeaders(sequences):
                    for sequence in sequences:
                        key = wal_key(CLUSTER, self.chain, sequence)
                        node.objects.get(node, key, self._on_header, sequence)
                case chain_sealer.PutSeal(sequence, previous_crc):
                    name = ObjectName(CLUSTER, self.chain, sequence, sequence, previous_crc, 0)
                    node.objects.put(
                        node,
                        wal_key(CLUSTER, self.chain, sequence),
                        build_seal(name, node.chain).data,
                        self._on_seal_put,
                        sequence,
                        is_conditional=node.setup.shell.creates_conditionally,
                    )
                case _:
                    self._on_end(decision)
        delay_ms = self.sealer.delay_ms(node.now_ms())
        if delay_ms is not None:
            node.after(delay_ms + 0.01, self._tick)

    def _tick(self) -> None:
        self._decide(self.sealer.tick(self.node.now_ms()))

    def _on_listed(self, keys: list[str] | None) -> None:
        if keys is None:
            self._decide(self.sealer.on_failed(self.node.now_ms()))
        else:
            self._decide(self.sealer.on_listed(sequences_of(keys)))

    def _on_header(self, is_known: bool, data: bytes | None, sequence: int) -> None:
        if not is_known:
            self._decide(self.sealer.on_failed(self.node.now_ms()))
            return
        header = None if data is None else parse_header(data[:HEADER_SIZE], key="header")
        self._decide(self.sealer.on_header(sequence, header))

    def _on_seal_put(self, outcome: Any, sequence: int) -> None:
        self._decide(self.sealer.on_seal_put(sequence, outcome, self.node.now_ms()))


class TakeoverTask:
    """Takes over a chain's partitions, or takes those of it whose end needs no seal."""

    def __init__(
        self, node: Incarnation, chain: ChainName, *, are_handed_over: bool = False
    ) -> None:
        self.node, self.chain = node, chain
        self.key = (chain, are_handed_over)
        self.heir = Heir(node.chain, node.writer.next_sequence)  # as it notes in the chain
        self._seal = None if are_handed_over else SealTask(node, chain, self._on_end)
        self._takeover = (
            Takeover.of_ended_epochs(chain, node.chain, rules=node.rules)
            if self._seal is None
            else Takeover.of_sealed_chain(self._seal.sealer, node.chain, rules=node.rules)
        )
        self._recovered: dict[PartitionName, Recovered] = {}
        self._writing: set[PartitionName] = set()

    def is_writing(self, partition: PartitionName) -> bool:
        """Whether the partition's item may name the heir because of this task."""
        return partition in self._writing

    def start(self) -> None:
        if self._seal is None:
            self.node.setup.shell.on_noted(self.node, self.chain, self.heir)
        if self._takeover.may_begin():
            self._decide(self._takeover.begin())
        if self._seal is not None:
            self._seal.start()

    def _on_end(self, decision: Any) -> None:
        if isinstance(decision, chain_sealer.Sealed) and not self._recovered:
            self.node.setup.shell.on_noted(self.node, self.chain, self.heir)
            self._decide(self._takeover.begin())
        elif isinstance(decision, chain_sealer.GivenUp):
            self._finish()

    def _finish(self) -> None:
        if self.node.takeovers.get(self.key) is self:
            del self.node.takeovers[self.key]

    def _decide(self, decisions: Iterable[Any]) -> None:
        if self.node.chain != self.heir.chain:
            self._finish()  # deposed meanwhile: the next watch begins again
            return
        for decision in decisions:
            match decision:
                case takeover.ReadItems():
                    self.node.items.read_chains(self.node, self._on_items)
                case takeover.Replay(items, end):
                    ReplayTask(self.node, items, self.chain, end, self._on_replayed).start()
                case takeover.WriteEpochs(items):
                    self._writing |= set(items)
                    self.node.items.write(self.node, items, self._on_written)
                case takeover.Lead(partition, stored, end_offset):
                    assert self._recovered[partition].state.end_offset == end_offset
                    if partition not in self.node.logs:
                        sealed_at = None if self._seal is None else self._seal.sealer.end
                        self.node.lead(
                            partition,
                            stored,
                            self._recovered[partition],
                            -1 if sealed_at is None else sealed_at,
                        )
                case takeover.Finished():
                    self._finish()

    def _on_items(self, items: Any) -> None:
        if items is None:
            self.node.after(RETRY_MS, self._decide, [takeover.ReadItems()])
        else:
            if self.chain == self.node.chain:  # What it leads is not to be taken.
                items = {
                    name: stored
                    for name, stored in items.items()
                    if name not in self.node.logs
                    if stored.is_handed_over or self.is_writing(name)
                }
            self.node.setup.shell.on_items(self.chain, self.heir, items)
            self._decide(self._takeover.on_items(items))

    def _on_replayed(self, task: ReplayTask) -> None:
        self._recovered |= task.recovered
        ends = {name: one.state.end_offset for name, one in task.recovered.items()}
        if self.node.setup.shell.refill_ms is None:
            self._decide(self._takeover.on_replayed(task.items, ends))
        else:
            parts = [PartTask(self, self._takeover.part(), name) for name in sorted(ends)]
            self._take_next(parts, task.items, ends)

    def _take_next(
        self,
        parts: list[PartTask],
        items: dict[PartitionName, StoredChains],
        ends: dict[PartitionName, int],
    ) -> None:
        """Lead the next partition once it is refilled, then those that are left."""
        if not parts or self.node.chain != self.heir.chain:
            self._finish()
            return
        part, *left = parts
        refill_ms = self.node.setup.shell.refill_ms
        assert refill_ms is not None
        self.node.after(
            refill_ms, part.begin, items, ends, lambda: self._take_next(left, items, ends)
        )

    def _on_written(self, outcome: Any) -> None:
        self._decide(self._takeover.on_written(outcome))


class PartTask(TakeoverTask):
    """Writes and leads one of the partitions of a takeover, while others are not refilled yet."""

    def __init__(self, whole: TakeoverTask, steps: Takeover, name: PartitionName) -> None:
        self.node, self.chain, self.key, self.heir = whole.node, whole.chain, whole.key, whole.heir
        self._seal, self._takeover = whole._seal, steps
        self._recovered, self._writing = whole._recovered, whole._writing
        self._name = name
        self._on_finished: Callable[[], None] = whole._finish

    def begin(
        self,
        items: dict[PartitionName, StoredChains],
        ends: dict[PartitionName, int],
        on_finished: Callable[[], None],
    ) -> None:
        """Write the partition's next epoch; its item is as it was before it was refilled."""
        self._on_finished = on_finished
        self.node.setup.shell.on_part([self._name])
        some = {self._name: items[self._name]}
        self._decide(self._takeover.on_replayed(some, ends))

    def _finish(self) -> None:
        self._on_finished()

    def _on_items(self, items: Any) -> None:
        some = None if items is None else {n: s for n, s in items.items() if n == self._name}
        super()._on_items(some)

    def _on_replayed(self, task: ReplayTask) -> None:
        self._recovered |= task.recovered
        ends = {name: one.state.end_offset for name, one in task.recovered.items()}
        self._decide(self._takeover.on_replayed(task.items, ends))


class ReplayTask:
    """Reads checkpoints and footers of all chains of some partitions, then what the tier lacks."""

    def __init__(
        self,
        node: Incarnation,
        items: dict[PartitionName, StoredChains],
        sealed: ChainName | None,
        end: int | None,
        on_done: Callable[[ReplayTask], None],
    ) -> None:
        self.node, self.items, self._on_done = node, items, on_done
        self._ends = {} if sealed is None or end is None else {sealed: end}
        self.recovered: dict[PartitionName, Recovered] = {}
        self._tiers: dict[PartitionName, ProducerState] = {}
        self._starts: dict[PartitionName, ReplayStart] = {}
        self._listed: dict[ChainName, list[int]] = {}
        self._footers: dict[tuple[ChainName, int], WalFooter] = {}
        self._checkpoints: dict[str, Checkpoint] = {}
        self._replayed: dict[PartitionName, ReplayedPartition] = {}
        self._tier_ends: dict[PartitionName, int] = {}
        self._pending = 0
        self._is_torn = False
        self._then: Callable[[], None] = self._read_footers

    # -- listings and checkpoints --

    def start(self) -> None:
        self._is_torn = False
        self._checkpoints.clear()
        if self.node.setup.shell.reads_tier_first:
            self._read_tier()
            self.node.after(self.node.setup.shell.reads_tier_first_ms, self._list)
        else:
            self._list()

    def _list(self) -> None:
        self._then = self._read_footers
        chains = {entry.chain for stored in self.items.values() for entry in stored.chains}
        self._pending = len(chains)
        for chain in sorted(chains):
            prefix = chain_prefix(CLUSTER, chain)
            self.node.objects.list(self.node, prefix, "", self._on_listed, chain)

    def _read_tier(self) -> None:
        self._tiers = {name: self.node.setup.tiers[name].copy_state() for name in self.items}

    def _on_listed(self, keys: list[str] | None, chain: ChainName) -> None:
        self._is_torn |= keys is None
        self._listed[chain] = sequences_of(keys or [])
        for key in checkpoints_of(keys or []) if self.node.setup.shell.reads_checkpoints else ():
            self._pending += 1
            self.node.objects.get(self.node, key, self._on_checkpoint, key)
        self._settle()

    def _on_checkpoint(self, is_known: bool, data: bytes | None, key: str) -> None:
        self._is_torn |= not is_known
        if data is not None:
            self._checkpoints[key] = parse_checkpoint(data, key=key)
        self._settle()

    # -- footers --

    def _read_footers(self) -> None:
        if not self.node.setup.shell.reads_tier_first:
            self._read_tier()
        self._starts = {
            partition: ReplayStart(stored.chains, self._tiers[partition], stored.log_start_offset)
            for partition, stored in self.items.items()
        }
        needed = footers_from(self._starts, self._checkpoints.values())
        wanted = [
            (chain, sequence)
            for chain, first in needed.items()
            for sequence in self._listed[chain]
            if first <= sequence < self._ends.get(chain, sequence + 1)
        ]
        self._then = self._replay
        self._get(wanted)

    def _get(self, wanted: Iterable[tuple[ChainName, int]]) -> None:
        missing = [one for one in wanted if one not in self._footers]
        self._pending = len(missing) + 1
        for chain, sequence in missing:
            key = wal_key(CLUSTER, chain, sequence)
            self.node.objects.get(self.node, key, self._on_object, chain, sequence)
        self._settle()

    def _on_object(
        self, is_known: bool, data: bytes | None, chain: ChainName, sequence: int
    ) -> None:
        # What is gone was collected since, so the tier has it.
        self._is_torn |= not is_known
        if data is not None:
            self._footers[chain, sequence] = parsed(data)
        self._settle()

    def _settle(self) -> None:
        self._pending -= 1
        if self._pending:
            return
        if self._is_torn:
            self._retry()
            return
        try:
            self._then()
        except ReplayGap:
            self._retry()  # the tier has what is missing by now

    def _retry(self) -> None:
        self.node.after(RETRY_MS, self.start)

    # -- replay --

    def _replay(self) -> None:
        self._tier_ends = {name: one.tier.end_offset for name, one in self._starts.items()}
        checkpoints = self._checkpoints.values()
        shell, starts = self.node.setup.shell, self._starts
        committed = [
            footer
            for (chain, sequence), footer in self._footers.items()
            if sequence < self._ends.get(chain, sequence + 1)
        ]
        try:
            self._replayed = replay_partitions(
                starts, self._footers.values(), ends=self._ends, checkpoints=checkpoints
            )
        except ReplayGap:
            shell.on_replayed(starts, self._tier_ends, committed, None)
            raise
        shell.on_replayed(starts, self._tier_ends, committed, self._replayed)
        for name, replayed in self._replayed.items():
            self.node.checker.on_replayed(name, self._tier_ends[name], replayed)
        self._then = self._fetch
        slices = [one for replayed in self._replayed.values() for one in replayed.slices]
        self._get(dict.fromkeys((one.chain, one.sequence) for one in slices))

    def _fetch(self) -> None:
        for name, replayed in self._replayed.items():
            rows = [row for one in replayed.slices for row in self._rows_of(one)]
            start = max(self._tier_ends[name], replayed.log_start_offset)
            self.recovered[name] = Recovered(
                self.node.setup.shell.replayed(replayed.state),
                start,
                [row for row in rows if row.base_offset >= start],
                replayed.slices,
                replayed.log_start_offset,
            )
        self._on_done(self)

    def _rows_of(self, one: CommittedSlice) -> list[BatchRow]:
        """Return the batches of a slice, read from the object that has it."""
        footer = self._footers.get((one.chain, one.sequence))
        if footer is None:
            raise ReplayGap(f"object {one.sequence} of {one.chain} was collected")
        at = 0
        for row in footer.slices:
            if row.position == one.position:
                assert (row.size_bytes, row.crc32c) == (one.size_bytes, one.crc32c)
                base = one.base_offset if row.is_foreign else 0
                batches = RowRange(footer.batches, at, row.batch_count)
                return [each._replace(base_offset=base + each.base_offset) for each in batches]
            at += row.batch_count
        raise AssertionError(f"object {one.sequence} of {one.chain} has no {one}")


class CollectionTask:
    """Deletes what nobody needs of a sealed chain."""

    def __init__(self, node: Incarnation, chain: ChainName) -> None:
        self.node, self.chain = node, chain
        self._seal = SealTask(node, chain, self._on_end, may_seal=False)
        self._listed: list[int] = []
        self._needs: dict[int, dict[PartitionName, int]] = {}
        self._checkpoints: dict[int, Checkpoint] = {}
        self._pending = 0
        self._end = 0

    def start(self) -> None:
        self._seal.start()

    def _on_end(self, decision: Any) -> None:
        if isinstance(decision, chain_sealer.Sealed):
            self._end = decision.end
            prefix = chain_prefix(CLUSTER, self.chain)
            self.node.objects.list(self.node, prefix, "", self._on_listed)

    def _on_listed(self, keys: list[str] | None) -> None:
        self._listed = sequences_of(keys or [])
        below = [sequence for sequence in self._listed if sequence < self._end]
        checkpoints = checkpoints_of(keys or [])
        self._pending = len(below) + len(checkpoints) + 1
        for sequence in below:
            key = wal_key(CLUSTER, self.chain, sequence)
            self.node.objects.get(self.node, key, self._on_object, sequence)
        for key in checkpoints:
            self.node.objects.get(self.node, key, self._on_checkpoint, key)
        self._settle()

    def _on_object(self, is_known: bool, data: bytes | None, sequence: int) -> None:
        if data is not None:
            footer = parsed(data)
            if not footer.is_seal:
                self._needs[sequence] = needs_of(footer)
        self._settle()

    def _on_checkpoint(self, is_known: bool, data: bytes | None, key: str) -> None:
        if data is not None:
            checkpoint = parse_checkpoint(data, key=key)
            self._checkpoints[checkpoint.sequence] = checkpoint
        self._settle()

    def _settle(self) -> None:
        self._pending -= 1
        if not self._pending:
            self._delete()

    def _delete(self) -> None:
        stored = StoredCheckpoints()
        for sequence in sorted(self._checkpoints):
            stored.add(sequence, self._checkpoints[sequence].marks())
        unneeded = self.node.setup.shell.unneeded(self.node, stored)
        found = collectable_of_sealed(
            self._end, self._listed, self._needs, unneeded, self.node.rules
        )
        keys = [wal_key(CLUSTER, self.chain, sequence) for sequence in found]
        unused = self.node.setup.shell.unused_checkpoints(self.node, stored, is_sealed=True)
        keys += [checkpoint_key(CLUSTER, self.chain, sequence) for sequence in unused]
        if keys:
            self.node.objects.delete(self.node, keys, lambda: None)


def sequences_of(keys: list[str]) -> list[int]:
    """Return the sequences of data objects and seals."""
    names = [parse_wal_key(key) for key in keys]
    return [name.sequence for name in names if name is not None and not name.is_checkpoint]


def checkpoints_of(keys: list[str]) -> list[str]:
    """Return the keys of checkpoints."""
    names = [(key, parse_wal_key(key)) for key in keys]
    return [key for key, name in names if name is not None and name.is_checkpoint]
