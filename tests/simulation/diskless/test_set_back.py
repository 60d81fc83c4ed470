"""Whether heirs notice metadata that were set back, and never take healthy ones for such.

The set-back itself is not simulated. Every earlier state of an item is held beside what the bucket
has in the end: if records of a later epoch are there, the notes of heirs must lead to some.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import pytest
from tidelog_core.diskless.takeover.takeover import StoredChains
from tidelog_core.diskless.wal.committed_slices import committed_slices
from tidelog_core.diskless.wal.epoch_chains import PartitionName, current_chain
from tidelog_core.diskless.wal.footer import WalFooter
from tidelog_core.diskless.wal.keys import Heir, parse_wal_key
from tidelog_core.metadata.epoch_chains import ChainName

from tests.simulation.diskless.checker import parsed
from tests.simulation.diskless.node import Incarnation
from tests.simulation.diskless.plan import Plan, draw_moving_plan, draw_plan, draw_suspicious_plan
from tests.simulation.diskless.shell import Mutable
from tests.simulation.diskless.simulation import Simulation

Epochs = dict[PartitionName, int]


class Noting(Mutable):
    """Heirs note themselves; whoever reads items then knows of no later epoch than these."""

    def __init__(self) -> None:
        self.notes: dict[ChainName, list[Heir]] = {}
        self.checked = 0  # partitions of items that were read after a seal
        self._later: dict[tuple[ChainName, Heir], Epochs] = {}

    def on_noted(self, node: Incarnation, chain: ChainName, heir: Heir) -> None:
        self.notes.setdefault(chain, []).append(heir)
        # All objects there are, whichever the notes lead to.
        chains = node.checker.chains.values()
        footers = [one for chain in chains for one in chain.footers.values()]
        self._later[chain, heir] = epochs_of(footers)

    def on_items(
        self, chain: ChainName, heir: Heir, items: Mapping[PartitionName, StoredChains]
    ) -> None:
        later = self._later.get((chain, heir), {})
        for name, stored in items.items():
            last = current_chain(stored.chains)
            assert last is not None
            assert later.get(name, -1) <= last.leader_epoch, "a healthy item would be refused"
            self.checked += 1


def epochs_of(footers: Iterable[WalFooter], first_sequence: int = 0) -> Epochs:
    """Return the greatest leader epoch of which some object has records."""
    found: Epochs = {}
    for footer in footers:
        for one in committed_slices(footer) if footer.header.sequence >= first_sequence else ():
            found[one.partition] = max(one.leader_epoch, found.get(one.partition, -1))
    return found


def reached(
    notes: Mapping[ChainName, list[Heir]],
    there: Mapping[ChainName, list[WalFooter]],
    first: ChainName,
) -> Epochs:
    """Return the epochs in the chains that the notes lead to from the first one."""
    found: Epochs = {}
    seen, waiting = set[Heir](), [*notes.get(first, ())]
    while waiting:
        heir = waiting.pop()
        if heir in seen:
            continue
        seen.add(heir)
        for name, epoch in epochs_of(there.get(heir.chain, ()), heir.first_sequence).items():
            found[name] = max(epoch, found.get(name, -1))
        waiting += notes.get(heir.chain, ())
    return found


def missed(draw: Callable[[int], Plan], seeds: range) -> tuple[int, int, int]:
    """Run the schedules; return how many items were checked, and sets back found and missed."""
    checked = noticed = unnoticed = 0
    for seed in seeds:
        shell = Noting()
        simulation = Simulation(draw(seed), shell=shell)
        simulation.run()
        checked += shell.checked
        there: dict[ChainName, list[WalFooter]] = {}
        for key, data in simulation.objects.objects.items():
            name = parse_wal_key(key)
            assert name is not None
            if not name.is_checkpoint:
                there.setdefault(name.chain, []).append(parsed(data))
        left = epochs_of(footer for footers in there.values() for footer in footers)
        for partition, chains in simulation.checker.stored.items():
            for entry in chains:
                if left.get(partition, -1) > entry.leader_epoch:
                    later = reached(shell.notes, there, entry.chain).get(partition, -1)
                    noticed += later > entry.leader_epoch
                    unnoticed += later <= entry.leader_epoch
    return checked, noticed, unnoticed


@pytest.mark.parametrize(
    ("draw", "first", "checked_min"),
    [(draw_plan, 200, 10), (draw_moving_plan, 20, 0), (draw_suspicious_plan, 20, 10)],
)
def test_every_set_back_is_noticed_and_nothing_else(
    draw: Callable[[int], Plan], first: int, checked_min: int
) -> None:
    """Leaders of moving plans hand over, and seal nothing."""
    checked, noticed, unnoticed = missed(draw, range(first, first + 6))
    assert unnoticed == 0
    assert noticed > 2
    assert checked >= checked_min
