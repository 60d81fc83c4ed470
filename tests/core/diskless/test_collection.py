"""What may be deleted of a chain, and what an heir would make of it."""

from __future__ import annotations

import pytest
from tidelog_core.diskless.chain_rules import ChainRules
from tidelog_core.diskless.chain_sealer import ChainSealer, Sealed
from tidelog_core.diskless.collection import (
    DELETE_COUNT_MAX,
    OwnedObjects,
    collectable_of_sealed,
    needs_of,
)
from tidelog_core.diskless.epoch_chains import PartitionName
from tidelog_core.diskless.wal_footer import parse_object
from tidelog_core.diskless.wal_header import WalHeader

from tests.core.diskless.test_chain_sealer import Bucket, data
from tests.support.wal_objects import CHAIN, TOPIC_ID, data_object

P0, P1 = PartitionName(TOPIC_ID, 0), PartitionName(TOPIC_ID, 1)


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
    assert objects.collectable({}) == []
    assert objects.collectable({P0: 29}) == [0, 1]
    assert objects.collectable({P0: 1_000}) == [0, 1, 2, 3]
    objects.on_deleted([0, 1])
    assert objects.collectable({P0: 1_000}) == [2, 3]
    objects.add(data(6, 6), {P1: 5})
    assert objects.collectable({P0: 1_000}) == [2, 3, 4, 5]
    assert len(objects) == 5


@pytest.mark.parametrize(("rules", "end"), [(ChainRules(), 6), (EverythingButTheLast(), 4)])
def test_an_heir_must_not_take_a_collected_place_for_a_gap(rules: ChainRules, end: int) -> None:
    """Object 5 is committed and not tiered. By the design's words it would be lost: see the second case."""
    gone = owned(rules).collectable({P0: 50})
    bucket = Bucket().put(*(data(n, min(n, 4)) for n in range(6) if n not in gone))
    heir = ChainSealer(CHAIN, now_ms=0.0)
    assert bucket.drive(heir, heir.start()) == Sealed(end)


def test_an_object_is_needed_while_one_of_its_partitions_needs_it() -> None:
    objects = OwnedObjects()
    objects.add(data(0, 0), {P0: 10, P1: 3})
    objects.add(data(1, 1), {})
    assert objects.collectable({P0: 10}) == []
    assert objects.collectable({P0: 10, P1: 2}) == []
    assert objects.collectable({P0: 10, P1: 3}) == [0]


def test_one_request_has_a_thousand_keys() -> None:
    objects = OwnedObjects()
    for sequence in range(3 * DELETE_COUNT_MAX):
        objects.add(data(sequence, sequence), {P0: sequence})
    assert len(objects.collectable({P0: 10_000})) == DELETE_COUNT_MAX


def test_of_a_sealed_chain_the_seal_stays() -> None:
    ends = {0: {P0: 10}, 1: {P0: 20}, 3: {}}
    listed = [0, 1, 3, 4, 5, 7]
    assert collectable_of_sealed(4, listed, ends, {P0: 10}) == [0, 3, 5, 7]
    assert collectable_of_sealed(4, listed, {}, {P0: 10}) == [5, 7]
    assert collectable_of_sealed(4, [4], {}, {}) == []


def test_a_gateways_slices_are_needed_until_somebody_knows_better() -> None:
    needs = needs_of(parse_object(data_object().data, key="x"))
    assert needs == {
        PartitionName(TOPIC_ID, 0): 13,
        PartitionName(TOPIC_ID, 4): 101,
        PartitionName(TOPIC_ID, 2): 2**63 - 1,
        PartitionName(TOPIC_ID, 1): 24,
    }
