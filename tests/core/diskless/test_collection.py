"""What may be deleted of a chain, and what an heir would make of it."""

from __future__ import annotations

import tracemalloc
from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tidelog_core.diskless.chain.rules import ChainRules
from tidelog_core.diskless.collection.collection import (
    DELETE_COUNT_MAX,
    OwnedObjects,
    UnneededEnds,
    collectable_of_sealed,
    needs_of,
)
from tidelog_core.diskless.takeover.chain_sealer import ChainSealer, Sealed
from tidelog_core.diskless.wal.epoch_chains import PartitionName
from tidelog_core.diskless.wal.footer import parse_object
from tidelog_core.diskless.wal.header import WalHeader

from tests.core.diskless.test_chain_sealer import Bucket, data
from tests.support.chain_model.stored_checkpoints import (
    CheckpointedEnds,
    CheckpointMark,
    StoredCheckpoints,
)
from tests.support.wal_objects import CHAIN, TOPIC_ID, data_object

P0, P1 = PartitionName(TOPIC_ID, 0), PartitionName(TOPIC_ID, 1)


def tiered(tier_ends: Mapping[PartitionName, int]) -> UnneededEnds:
    return UnneededEnds(tier_ends)


class EverythingButTheLast(ChainRules):
    """The design's word for word: an owner collects what it has seen committed."""

    def collection_end(self, last_committed: WalHeader) -> int:
        return last_committed.sequence


def owned(rules: ChainRules | None = None) -> OwnedObjects:
    """Six objects of which the last two were in flight together."""
    objects = OwnedObjects(rules)
    for sequence in range(6):
        objects.add(data(sequence, min(sequence, 4)), {P0: 10 * (sequence + 1)})
    return objects


def test_tiered_objects_go_up_to_what_the_last_header_says() -> None:
    objects = owned()
    assert objects.collectable(tiered({})) == []
    assert objects.collectable(tiered({P0: 29})) == [0, 1]
    assert objects.collectable(tiered({P0: 1_000})) == [0, 1, 2, 3]
    objects.on_deleted([0, 1])
    assert objects.collectable(tiered({P0: 1_000})) == [2, 3]
    objects.add(data(6, 6), {P1: 5})
    assert objects.collectable(tiered({P0: 1_000})) == [2, 3, 4, 5]
    assert len(objects) == 5


@pytest.mark.parametrize(("rules", "end"), [(ChainRules(), 6), (EverythingButTheLast(), 4)])
def test_an_heir_must_not_take_a_collected_place_for_a_gap(rules: ChainRules, end: int) -> None:
    """Object 5 is committed and not tiered. By the design's words it would be lost: see the second case."""
    gone = owned(rules).collectable(tiered({P0: 50}))
    bucket = Bucket().put(*(data(n, min(n, 4)) for n in range(6) if n not in gone))
    heir = ChainSealer(CHAIN, now_ms=0.0)
    assert bucket.drive(heir, heir.start()) == Sealed(end)


def test_an_object_is_needed_while_one_of_its_partitions_needs_it() -> None:
    objects = OwnedObjects()
    objects.add(data(0, 0), {P0: 10, P1: 3})
    objects.add(data(1, 1), {})
    assert objects.collectable(tiered({P0: 10})) == []
    assert objects.collectable(tiered({P0: 10, P1: 2})) == []
    assert objects.collectable(tiered({P0: 10, P1: 3})) == [0]


def test_one_request_has_a_thousand_keys() -> None:
    objects = OwnedObjects()
    for sequence in range(3 * DELETE_COUNT_MAX):
        objects.add(data(sequence, sequence), {P0: sequence})
    assert len(objects.collectable(tiered({P0: 10_000}))) == DELETE_COUNT_MAX


def test_of_a_sealed_chain_the_seal_stays() -> None:
    ends = {0: {P0: 10}, 1: {P0: 20}, 3: {}}
    listed = [0, 1, 3, 4, 5, 7]
    assert collectable_of_sealed(4, listed, ends, tiered({P0: 10})) == [0, 3, 5, 7]
    assert collectable_of_sealed(4, listed, {}, tiered({P0: 10})) == [5, 7]
    assert collectable_of_sealed(4, [4], {}, tiered({})) == []


def test_a_gateways_slices_are_needed_until_somebody_knows_better() -> None:
    needs = needs_of(parse_object(data_object().data, key="x"))
    assert needs == {
        PartitionName(TOPIC_ID, 0): 13,
        PartitionName(TOPIC_ID, 4): 101,
        PartitionName(TOPIC_ID, 2): 2**63 - 1,
        PartitionName(TOPIC_ID, 1): 24,
    }


def test_below_a_log_start_records_are_needed_until_a_checkpoint_has_it() -> None:
    checkpoints = StoredCheckpoints()
    unneeded = CheckpointedEnds({P0: 10}, checkpoints)
    assert (unneeded.of(P0), unneeded.of(P1)) == (10, -1)
    # The checkpoint is of before the log start moved, whatever it has the producers of.
    checkpoints.add(3, {P0: CheckpointMark(0, 70), P1: CheckpointMark(5, 9)})
    assert (unneeded.of(P0), unneeded.of(P1)) == (10, 5)
    checkpoints.add(8, {P0: CheckpointMark(60, 80)})
    assert unneeded.of(P0) == 60
    objects = OwnedObjects()
    for sequence in range(9):
        objects.add(data(sequence, sequence), {P0: 10 * (sequence + 1)})
    assert objects.collectable(unneeded) == [0, 1, 2, 3, 4, 5]


def test_a_checkpoint_has_producers_of_the_log_start_or_later() -> None:
    with pytest.raises(ValueError, match="before the log start"):
        StoredCheckpoints().add(1, {P0: CheckpointMark(60, 59)})


def test_of_a_deleted_topic_nothing_is_needed() -> None:
    assert UnneededEnds({P0: 3}, deleted_topics={TOPIC_ID}).of(P0) == 2**63 - 1


def test_a_checkpoint_stays_while_one_of_its_partitions_needs_it() -> None:
    checkpoints = StoredCheckpoints()
    checkpoints.add(2, {P0: CheckpointMark(0, 20), P1: CheckpointMark(0, 5)})
    checkpoints.add(4, {P0: CheckpointMark(0, 40), P1: CheckpointMark(0, 6)})
    checkpoints.add(6, {P0: CheckpointMark(0, 60)})  # P1 has left the chain
    assert checkpoints.collectable({}, is_sealed=False) == [2]
    assert checkpoints.collectable({P1: 5}, is_sealed=True) == [2]
    assert checkpoints.collectable({P1: 6}, is_sealed=False) == [2, 4]
    checkpoints.on_deleted(2)
    assert checkpoints.collectable({P1: 6, P0: 60}, is_sealed=False) == [4]
    assert checkpoints.collectable({P1: 6, P0: 60}, is_sealed=True) == [4, 6]


class ScannedObjects:
    """As it was written first: every object with the ends of all of its partitions."""

    def __init__(self) -> None:
        self.needs: dict[int, Mapping[PartitionName, int]] = {}

    def collectable(self, unneeded: UnneededEnds, end: int) -> list[int]:
        found = [
            sequence
            for sequence, ends in self.needs.items()
            if sequence < end and all(at <= unneeded.of(name) for name, at in ends.items())
        ]
        return found[:DELETE_COUNT_MAX]


GROWTH = st.dictionaries(st.integers(0, 3), st.integers(1, 300), max_size=4)


@settings(max_examples=50)
@given(st.lists(st.tuples(GROWTH, st.sets(st.integers(0, 3)), GROWTH, st.booleans()), max_size=40))
def test_few_bytes_decide_as_all_ends_do(
    steps: list[tuple[dict[int, int], set[int], dict[int, int], bool]],
) -> None:
    """Objects are added, a gateway's too, the tier grows, and what may go is deleted or not."""
    names = [PartitionName(TOPIC_ID, number) for number in range(4)]
    ends, tier_ends = dict.fromkeys(names, 0), dict.fromkeys(names, 0)
    objects, scanned = OwnedObjects(), ScannedObjects()
    for sequence, (added, foreign, tier, deletes) in enumerate(steps):
        for number, count in added.items():
            ends[names[number]] += count
        needs = {names[number]: ends[names[number]] for number in added}
        needs |= {names[number]: 2**63 - 1 for number in foreign if number not in added}
        objects.add(data(sequence, sequence), needs)
        scanned.needs[sequence] = needs
        for number, count in tier.items():
            tier_ends[names[number]] += count
        found = objects.collectable(tiered(tier_ends))
        assert found == scanned.collectable(tiered(tier_ends), sequence)
        if deletes:
            objects.on_deleted(found)
            for one in found:
                del scanned.needs[one]


def test_an_hour_of_objects_takes_a_few_bytes_for_each_partition_of_each() -> None:
    """36,000 objects of 1,000 partitions each are 36 million: with a dict each it was 4 GB."""
    names = [PartitionName(TOPIC_ID, number) for number in range(50)]
    headers = [data(sequence, sequence) for sequence in range(600)]
    for each in (1, 200):  # records that each object has of a partition
        objects = OwnedObjects()
        tracemalloc.start()
        for sequence, header in enumerate(headers):
            objects.add(header, dict.fromkeys(names, each * (sequence + 1)))
        size_bytes = tracemalloc.get_traced_memory()[0] / (len(headers) * len(names))
        tracemalloc.stop()
        assert size_bytes < 7
        ends = tiered(dict.fromkeys(names, each * 599))
        assert objects.collectable(ends) == list(range(599))


def test_a_gateways_object_goes_when_the_references_to_its_slices_are_tiered() -> None:
    objects = OwnedObjects()
    for sequence in range(6):
        own = {P0: 10 * (sequence + 1)} if sequence == 2 else {}
        objects.add(data(sequence, sequence), own, has_foreign=sequence < 4)
    assert objects.collectable(tiered({P1: 1_000})) == [4], (
        "nobody knows of references to the others"
    )
    objects.settle_foreign(1, {P1: 20})
    objects.settle_foreign(0, {P1: 30})
    assert objects.names() == {P0, P1}
    assert objects.collectable(tiered({P1: 19})) == [4]
    assert objects.collectable(tiered({P1: 20})) == [1, 4]
    objects.settle_foreign(2, {})  # Garbage, but the object has own slices too.
    assert objects.collectable(tiered({P1: 30})) == [0, 1, 4]
    assert objects.collectable(tiered({P0: 30, P1: 30})) == [0, 1, 2, 4]
    objects.settle_foreign(3, {P0: 5, P1: 40})
    objects.settle_foreign(3, {})  # Once is enough.
    assert objects.collectable(tiered({P0: 30, P1: 39})) == [0, 1, 2, 4]
    assert objects.collectable(tiered({P0: 30, P1: 40})) == [0, 1, 2, 3, 4]
    assert objects.names() == set()
