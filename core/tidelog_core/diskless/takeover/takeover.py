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
        sealer: ChainSealer | None,
        heir: ChainName,
        *,
        unsealed: ChainName | None = None,
        rules: ChainRules | None = None,
    ) -> None:
        """Without a sealer it takes new partitions, whose items name no chain.

        Or those of the chain given whose end needs no seal: they were handed over, or it is the
        heir's own. Then nobody has led them elsewhere, and the caller knows that nothing of
        them is pending.
        """
        assert sealer is None or unsealed is None
        self._sealer = sealer
        self._unsealed = unsealed
        self._heir = heir
        self._rules = rules or ChainRules()
        # Found by replay, and fixed once the chain is sealed: of this epoch. A late write of others
        # may name a sealed chain again, for a later one.
        self._ends: dict[PartitionName, tuple[EpochChain | None, int]] = {}
        self._planned: dict[PartitionName, StoredChains] = {}

    @property
    def chain(self) -> ChainName | None:
        """The chain whose partitions are taken, ``None`` for new partitions."""
        return None if self._sealer is None else self._sealer.chain

    def part(self) -> Takeover:
        """Return the takeover of some of the partitions, which goes on with ``on_replayed``.

        So those that are replayed first are written and led first.
        """
        return Takeover(self._sealer, self._heir, unsealed=self._unsealed, rules=self._rules)

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
        left = {
            name: stored
            for name, stored in items.items()
            if name not in written and self._is_left(stored)
        }
        if not left:
            return [*decisions, Finished(self._end)]
        if all(self._is_replayed(name, stored) for name, stored in left.items()):
            return [*decisions, self._write(left)]
        return [*decisions, Replay(left, self._end)]

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
        return [*led, Finished(self._end)]

    @property
    def _end(self) -> int | None:
        return None if self._sealer is None else self._sealer.end

    def _is_left(self, stored: StoredChains) -> bool:
        last = current_chain(stored.chains)
        if self._unsealed is not None:
            is_ended = stored.is_handed_over or self._unsealed == self._heir
            return is_ended and last is not None and last.chain == self._unsealed
        if self._sealer is None or last is None:
            return self._sealer is None and last is None
        return last.chain == self._sealer.chain

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
