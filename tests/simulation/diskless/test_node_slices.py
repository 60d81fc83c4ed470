"""What a node finds in its chains is what the simulated heirs replay.

A node appends the records that its log lacks, so it looks for slices only
(``tidelog_node.diskless.recovery.chain_slices``). The simulation holds that beside the replay of core, in
schedules with takeovers, handovers, late seals and collected objects.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence

import pytest
from tidelog_core.diskless.chain.index import build_index, parse_index, rows_of
from tidelog_core.diskless.collection.collection import UnneededEnds
from tidelog_core.diskless.wal.epoch_chains import PartitionName
from tidelog_core.diskless.wal.footer import WalFooter
from tidelog_core.diskless.wal.keys import WalKey
from tidelog_core.errors import CorruptObject
from tidelog_node.diskless.recovery.chain_slices import (
    FoundSlices,
    WantedSlices,
    indexed_slice,
    keep_slices,
    log_of,
)

from tests.simulation.diskless.node import Incarnation
from tests.simulation.diskless.plan import Plan, draw_moving_plan, draw_plan, draw_suspicious_plan
from tests.simulation.diskless.shell import Mutable
from tests.simulation.diskless.simulation import run_plan
from tests.support.chain_model.heir_replay import ReplayedPartition, ReplayStart
from tests.support.chain_model.stored_checkpoints import StoredCheckpoints


class LooksAsANode(Mutable):
    """An heir without checkpoints, as nodes are; each of its replays is compared."""

    reads_checkpoints = False

    def __init__(self) -> None:
        self.compared = self.slice_count = self.gap_count = 0

    def unneeded(self, node: Incarnation, checkpoints: StoredCheckpoints) -> UnneededEnds:
        return UnneededEnds(node.tier_ends())

    def on_replayed(
        self,
        starts: Mapping[PartitionName, ReplayStart],
        tier_ends: Mapping[PartitionName, int],
        footers: Iterable[WalFooter],
        replayed: Mapping[PartitionName, ReplayedPartition] | None,
    ) -> None:
        wanted = {
            name: WantedSlices(start.chains, max(tier_ends[name], start.log_start_offset))
            for name, start in starts.items()
        }
        found: FoundSlices = {name: defaultdict(list) for name in wanted}
        names = {(name.topic_id.bytes, name.partition): name for name in wanted}
        ordered = sorted(footers, key=lambda one: (one.header.chain, one.header.sequence))
        for footer in ordered:
            if not footer.is_seal:
                keep_slices(footer, names, wanted, found)
        indexed = indexed_slices(ordered, names, wanted)
        if replayed is None:
            self.gap_count += 1
            with pytest.raises(CorruptObject):
                find_all(wanted, found)
            return
        for name, one in replayed.items():
            slices, end_offset = log_of(name, wanted[name], found[name], cluster_id="c")
            by_index = log_of(name, wanted[name], indexed[name], cluster_id="c")
            assert by_index == (slices, end_offset)
            assert end_offset == one.end_offset
            assert [tuple(each[:8]) for each in slices] == [
                (
                    each.chain,
                    each.sequence,
                    each.leader_epoch,
                    each.base_offset,
                    each.end_offset,
                    each.position,
                    each.size_bytes,
                    each.crc32c,
                )
                for each in one.slices
            ]
            self.compared += 1
            self.slice_count += len(slices)


def indexed_slices(
    footers: Sequence[WalFooter],
    names: Mapping[tuple[bytes, int], PartitionName],
    wanted: Mapping[PartitionName, WantedSlices],
) -> FoundSlices:
    """Return what a node finds by indexes of the first half of each chain that is there."""
    found: FoundSlices = {name: defaultdict(list) for name in wanted}
    for chain in {footer.header.chain for footer in footers}:
        there = [one for one in footers if one.header.chain == chain and not one.is_seal]
        for part in following(there[: (len(there) + 1) // 2]):
            rows = [(one.header.sequence, rows_of(one)) for one in part]
            built = build_index(chain, "c", rows, created_ms=0)
            key = WalKey("c", chain, built.header.sequence, is_checkpoint=True)
            index = parse_index(built.data, key, key="index")
            assert index is not None
            for sequence, row in index.slices():
                name = names.get((row.topic_id, row.partition))
                if name is not None and row.end_offset > wanted[name].start_offset:
                    found[name][chain].append(indexed_slice(chain, sequence, row))
        for footer in there[(len(there) + 1) // 2 :]:
            keep_slices(footer, names, wanted, found)
    return found


def following(footers: Sequence[WalFooter]) -> list[list[WalFooter]]:
    """Return the footers, those together whose objects follow each other."""
    parts: list[list[WalFooter]] = []
    for one in footers:
        if not parts or parts[-1][-1].header.sequence + 1 != one.header.sequence:
            parts.append([])
        parts[-1].append(one)
    return parts


def find_all(wanted: Mapping[PartitionName, WantedSlices], found: FoundSlices) -> None:
    for name, one in wanted.items():
        log_of(name, one, found[name], cluster_id="c")


# Among the suspicious ones are some with garbage above the seal of a chain that others have left.
@pytest.mark.parametrize(
    ("draw", "first"), [(draw_plan, 90), (draw_moving_plan, 0), (draw_suspicious_plan, 53)]
)
def test_a_node_finds_the_slices_that_heirs_replay(draw: Callable[[int], Plan], first: int) -> None:
    shell = LooksAsANode()
    for seed in range(first, first + 8):
        run_plan(draw(seed), shell=shell)
    assert shell.compared > 15
    assert shell.slice_count > 15
