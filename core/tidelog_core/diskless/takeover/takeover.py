"""A takeover of a chain's partitions: events in, decisions out.

    seal the chain → read the items → replay what the chain has → one conditional write → serve

The write names for each partition the heir's chain and the next epoch, from the end of the sealed
chain on. It is conditional on the versions that were read after the chain had been sealed. So of
two heirs one writes, and the other one reads that it has lost. An unknown outcome is read again.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import NamedTuple

from tidelog_core.diskless.chain.rules import ChainRules
from tidelog_core.diskless.takeover.chain_sealer import ChainSealer
from tidelog_core.diskless.wal.epoch_chains import PartitionName, begin_epoch, current_chain
from tidelog_core.metadata.epoch_chains import (
    ChainName,
    EpochChain,
    EpochChains,
    is_handed_over,
)


class WriteOutcome(Enum):
    """The answer to a conditional write of items."""

    WRITTEN = "written"
    CONFLICT = "conflict"  # an item has changed; nothing was written
    UNKNOWN = "unknown"  # it may be written, now or later


class StoredChains(NamedTuple):
    """The part of a partition's item that chains need."""

    version: int
    chains: EpochChains
    leader_epoch: int = -1  # as read: an election begins one that no chain has yet
    log_start_offset: int = 0
    leader: int = -1  # the broker that is to lead

    @property
    def is_handed_over(self) -> bool:
        """Whether the leader before has ended its epoch for the present one."""
        return is_handed_over(self.chains, leader=self.leader, leader_epoch=self.leader_epoch)


class ReadItems(NamedTuple):
    """Read the items of all partitions; then ``on_items``."""


class Replay(NamedTuple):
    """Replay these partitions from the chain's objects below ``end``; then ``on_replayed``.

    ``end`` is ``None`` for a chain that is not sealed. Up to where the tier goes must be read after
    the chain was listed: what the listing lacks was collected, and no gap may show it.
    """

    items: dict[PartitionName, StoredChains]
    end: int | None


class WriteEpochs(NamedTuple):
    """Write these items in one go, each at the version it names; then ``on_written``."""

    items: dict[PartitionName, StoredChains]


class Lead(NamedTuple):
    """Cut the local log to the end offset where it is longer, and lead from there on."""

    partition: PartitionName
    stored: StoredChains
    end_offset: int


class Finished(NamedTuple):
    """Nothing of the chain's partitions is left to take."""

    sealed_at: int | None


TakeoverDecision = ReadItems | Replay | WriteEpochs | Lead | Finished


class Takeover:
    """The heir's part after ``ChainSealer``. Used by one task."""

    def __init__(
        self,
        heir: ChainName,
        *,
        sealer: ChainSealer | None = None,
        unsealed_chain: ChainName | None = None,
        rules: ChainRules | None = None,
    ) -> None:
        """Use ``of_sealed_chain``, ``of_ended_epochs`` or ``of_new_partitions``."""
        assert sealer is None or unsealed_chain is None
        self._sealer = sealer
        self._unsealed_chain = unsealed_chain
        self._heir = heir
        self._rules = rules or ChainRules()
        # Found by replay, and fixed once the chain is sealed: of this epoch. A late write of others
        # may name a sealed chain again, for a later one.
        self._ends: dict[PartitionName, tuple[EpochChain | None, int]] = {}
        self._planned: dict[PartitionName, StoredChains] = {}

    @classmethod
    def of_sealed_chain(
        cls, sealer: ChainSealer, heir: ChainName, *, rules: ChainRules | None = None
    ) -> Takeover:
        """Take every partition whose item names the sealer's chain, once that chain is sealed."""
        return cls(heir, sealer=sealer, rules=rules)

    @classmethod
    def of_ended_epochs(
        cls, chain: ChainName, heir: ChainName, *, rules: ChainRules | None = None
    ) -> Takeover:
        """Take the partitions whose last epoch in ``chain`` has ended, so no seal is needed.

        Their leader has handed them over, or ``chain`` is the heir's own and they have left it. The
        caller makes sure that the chain has no pending records of them.
        """
        return cls(heir, unsealed_chain=chain, rules=rules)

    @classmethod
    def of_new_partitions(cls, heir: ChainName, *, rules: ChainRules | None = None) -> Takeover:
        """Take the partitions whose items name no chain."""
        return cls(heir, rules=rules)

    @property
    def sealed_chain(self) -> ChainName | None:
        """The chain that had to be sealed, ``None`` if the partitions needed no seal."""
        return None if self._sealer is None else self._sealer.chain

    def part(self) -> Takeover:
        """Return a takeover for a part of the partitions; its first event is ``on_replayed``.

        Each part is written and led as soon as its own partitions are replayed.
        """
        return Takeover(
            self._heir,
            sealer=self._sealer,
            unsealed_chain=self._unsealed_chain,
            rules=self._rules,
        )

    def may_begin(self) -> bool:
        """Return whether the chain's partitions may be taken now."""
        is_sealed = self._sealer is None or self._sealer.end is not None
        return self._rules.may_take_over(is_sealed=is_sealed)

    def begin(self) -> list[TakeoverDecision]:
        """The chain is sealed."""
        assert self.may_begin()
        return [ReadItems()]

    def on_items(self, items: Mapping[PartitionName, StoredChains]) -> list[TakeoverDecision]:
        """The items as they are stored, read after the last decision."""
        written: dict[PartitionName, StoredChains] = {}
        for name, planned in self._planned.items():
            stored = items.get(name)
            if stored is not None and current_chain(stored.chains) == current_chain(planned.chains):
                written[name] = stored
        self._planned.clear()
        decisions: list[TakeoverDecision] = [
            Lead(name, stored, self._end_of(name)) for name, stored in written.items()
        ]
        to_take = {
            name: stored
            for name, stored in items.items()
            if name not in written and self._may_take(stored)
        }
        if not to_take:
            return [*decisions, Finished(self._seal_sequence)]
        if all(self._is_replayed(name, stored) for name, stored in to_take.items()):
            return [*decisions, self._write(to_take)]
        return [*decisions, Replay(to_take, self._seal_sequence)]

    def on_replayed(
        self, items: Mapping[PartitionName, StoredChains], ends: Mapping[PartitionName, int]
    ) -> list[TakeoverDecision]:
        """The partitions end there."""
        for name, stored in items.items():
            self._ends[name] = (current_chain(stored.chains), ends[name])
        return [self._write(items)]

    def on_written(self, outcome: WriteOutcome) -> list[TakeoverDecision]:
        """The write was answered, or given up."""
        if outcome is not WriteOutcome.WRITTEN:
            return [ReadItems()]
        led: list[TakeoverDecision] = [
            Lead(name, stored._replace(version=stored.version + 1), self._end_of(name))
            for name, stored in self._planned.items()
        ]
        self._planned.clear()
        return [*led, Finished(self._seal_sequence)]

    @property
    def _seal_sequence(self) -> int | None:
        return None if self._sealer is None else self._sealer.end

    def _may_take(self, stored: StoredChains) -> bool:
        """Return whether the partition is one of those that this takeover is for."""
        epoch = current_chain(stored.chains)
        chain = None if epoch is None else epoch.chain
        if self._unsealed_chain is not None:
            is_ended = stored.is_handed_over or self._unsealed_chain == self._heir
            return is_ended and chain == self._unsealed_chain
        return chain == self.sealed_chain

    def _write(self, items: Mapping[PartitionName, StoredChains]) -> WriteEpochs:
        self._planned = {
            name: _with_next_epoch(stored, self._heir, self._end_of(name))
            for name, stored in items.items()
        }
        return WriteEpochs(dict(self._planned))

    def _end_of(self, name: PartitionName) -> int:
        return self._ends[name][1]

    def _is_replayed(self, name: PartitionName, stored: StoredChains) -> bool:
        return name in self._ends and self._ends[name][0] == current_chain(stored.chains)


def _with_next_epoch(stored: StoredChains, heir: ChainName, end_offset: int) -> StoredChains:
    chains = begin_epoch(stored.chains, heir, end_offset, after_epoch=stored.leader_epoch)
    return stored._replace(chains=chains, leader=heir.broker_id)
