"""What a node does as an heir and as a collector: the product's decisions, carried out."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from tidelog_core.diskless import chain_sealer, takeover
from tidelog_core.diskless.chain_sealer import ChainSealer
from tidelog_core.diskless.collection import collectable_of_sealed, needs_of
from tidelog_core.diskless.epoch_chains import PartitionName
from tidelog_core.diskless.heir_replay import ReplayGap, ReplayStart, replay_partitions
from tidelog_core.diskless.keys import chain_prefix, parse_wal_key, wal_key
from tidelog_core.diskless.takeover import StoredChains, Takeover
from tidelog_core.diskless.wal_build import ObjectName, build_seal
from tidelog_core.diskless.wal_footer import WalFooter
from tidelog_core.diskless.wal_header import HEADER_SIZE, parse_header
from tidelog_core.log.producer_state import ProducerState
from tidelog_core.metadata.epoch_chains import ChainName

from tests.simulation.diskless.checker import CLUSTER, parsed

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
                        is_conditional=node.rules.is_create_conditional(),
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
    """Takes over a chain's partitions."""

    def __init__(self, node: Incarnation, chain: ChainName) -> None:
        self.node, self.chain = node, chain
        self.heir = node.chain
        self._seal = SealTask(node, chain, self._on_end)
        self._takeover = Takeover(self._seal.sealer, node.chain, rules=node.rules)
        self._states: dict[PartitionName, ProducerState] = {}
        self._writing: set[PartitionName] = set()

    def is_writing(self, partition: PartitionName) -> bool:
        """Whether the partition's item may name the heir because of this task."""
        return partition in self._writing

    def start(self) -> None:
        if self._takeover.may_begin():
            self._decide(self._takeover.begin())
        self._seal.start()

    def _on_end(self, decision: Any) -> None:
        if isinstance(decision, chain_sealer.Sealed) and not self._states:
            self._decide(self._takeover.begin())
        elif isinstance(decision, chain_sealer.GivenUp):
            self._finish()

    def _finish(self) -> None:
        if self.node.takeovers.get(self.chain) is self:
            del self.node.takeovers[self.chain]

    def _decide(self, decisions: Iterable[Any]) -> None:
        if self.node.chain != self.heir:
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
                    assert self._states[partition].end_offset == end_offset
                    if partition not in self.node.logs:
                        sealed_at = self._seal.sealer.end
                        self.node.lead(
                            partition,
                            stored,
                            self._states[partition],
                            -1 if sealed_at is None else sealed_at,
                        )
                case takeover.Finished():
                    self._finish()

    def _on_items(self, items: Any) -> None:
        if items is None:
            self.node.after(RETRY_MS, self._decide, [takeover.ReadItems()])
        else:
            self._decide(self._takeover.on_items(items))

    def _on_replayed(self, task: ReplayTask) -> None:
        self._states |= task.states
        ends = {partition: state.end_offset for partition, state in task.states.items()}
        self._decide(self._takeover.on_replayed(task.items, ends))

    def _on_written(self, outcome: Any) -> None:
        self._decide(self._takeover.on_written(outcome))


class ReplayTask:
    """Reads the footers of all chains of some partitions, from the end of the tier on."""

    def __init__(
        self,
        node: Incarnation,
        items: dict[PartitionName, StoredChains],
        sealed: ChainName | None,
        end: int | None,
        on_done: Callable[[ReplayTask], None],
    ) -> None:
        self.node, self.items, self._on_done = node, items, on_done
        self._sealed, self._end = sealed, end
        self.states: dict[PartitionName, ProducerState] = {}
        self._tiers: dict[PartitionName, ProducerState] = {}
        self._footers: dict[tuple[ChainName, int], WalFooter] = {}
        self._owed = 0
        self._is_torn = False

    def start(self) -> None:
        self._is_torn = False
        if self.node.setup.shell.reads_tier_first:
            self._read_tier()
        chains = {entry.chain for stored in self.items.values() for entry in stored.chains}
        self._owed = len(chains)
        for chain in sorted(chains):
            prefix = chain_prefix(CLUSTER, chain)
            self.node.objects.list(self.node, prefix, "", self._on_listed, chain)

    def _read_tier(self) -> None:
        self._tiers = {name: self.node.setup.tiers[name].copy_state() for name in self.items}

    def _on_listed(self, keys: list[str] | None, chain: ChainName) -> None:
        self._is_torn |= keys is None
        for sequence in sequences_of(keys or []):
            is_beyond = chain == self._sealed and self._end is not None and sequence >= self._end
            if not is_beyond and (chain, sequence) not in self._footers:
                self._owed += 1
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
        self._owed -= 1
        if self._owed:
            return
        try:
            if not self._is_torn:
                if not self.node.setup.shell.reads_tier_first:
                    self._read_tier()
                self._replay()
                self._on_done(self)
                return
        except ReplayGap:
            pass  # the tier has what is missing by now
        self.node.after(RETRY_MS, self.start)

    def _replay(self) -> None:
        starts = {
            partition: ReplayStart(stored.chains, self._tiers[partition])
            for partition, stored in self.items.items()
        }
        ends = {} if self._sealed is None or self._end is None else {self._sealed: self._end}
        tier_ends = {partition: start.tier.end_offset for partition, start in starts.items()}
        found = replay_partitions(starts, self._footers.values(), ends=ends)
        for partition, replayed in found.items():
            self.node.checker.on_replayed(partition, tier_ends[partition], replayed)
            self.states[partition] = self.node.setup.shell.replayed(replayed.state)


class CollectionTask:
    """Deletes what nobody needs of a sealed chain."""

    def __init__(self, node: Incarnation, chain: ChainName) -> None:
        self.node, self.chain = node, chain
        self._seal = SealTask(node, chain, self._on_end, may_seal=False)
        self._listed: list[int] = []
        self._needs: dict[int, dict[PartitionName, int]] = {}
        self._owed = 0
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
        self._owed = len(below)
        for sequence in below:
            key = wal_key(CLUSTER, self.chain, sequence)
            self.node.objects.get(self.node, key, self._on_object, sequence)
        if not below:
            self._delete()

    def _on_object(self, is_known: bool, data: bytes | None, sequence: int) -> None:
        if data is not None:
            footer = parsed(data)
            if not footer.is_seal:
                self._needs[sequence] = needs_of(footer)
        self._owed -= 1
        if not self._owed:
            self._delete()

    def _delete(self) -> None:
        found = collectable_of_sealed(
            self._end, self._listed, self._needs, self.node.unneeded(), self.node.rules
        )
        keys = [wal_key(CLUSTER, self.chain, sequence) for sequence in found]
        if keys:
            self.node.objects.delete(self.node, keys, lambda: None)


def sequences_of(keys: list[str]) -> list[int]:
    """Return the sequences of data objects and seals."""
    names = [parse_wal_key(key) for key in keys]
    return [name.sequence for name in names if name is not None and not name.is_checkpoint]
