"""Each object is read once for all partitions that need it, and every log gets its order."""

from __future__ import annotations

from collections import Counter
from random import Random
from uuid import UUID

import pytest
from tidelog_core.diskless.wal.epoch_chains import PartitionName
from tidelog_core.metadata.epoch_chains import ChainName
from tidelog_node.diskless.recovery import object_reads
from tidelog_node.diskless.recovery.chain_slices import StoredSlice
from tidelog_node.diskless.recovery.object_reads import ObjectRead, plan_reads, waves

from tests.node.diskless.chained_log import TOPIC_ID

FIRST, SECOND, GATEWAY = (ChainName(n, UUID(int=n)) for n in (1, 2, 3))
Places = list[tuple[ChainName, int]]


def name(number: int) -> PartitionName:
    return PartitionName(TOPIC_ID, number)


def slices(places: Places) -> list[StoredSlice]:
    """Return slices of one offset each, in these objects."""
    return [
        StoredSlice(chain, sequence, 1, offset, offset + 1, 112, 10, 0, sequence)
        for offset, (chain, sequence) in enumerate(places)
    ]


def planned(orders: list[Places]) -> list[ObjectRead]:
    """Return the plan; every partition gets all its slices in order."""
    missing = {name(number): slices(places) for number, places in enumerate(orders)}
    reads = list(plan_reads(missing))
    for one, wanted in missing.items():
        got = [each for read in reads for each in read.slices.get(one, ())]
        assert got == wanted
    for read in reads:
        assert {(s.chain, s.sequence) for some in read.slices.values() for s in some} == {
            tuple(read.place)
        }
    return reads


def test_partitions_that_share_objects_read_each_once() -> None:
    orders: list[Places] = [
        [(FIRST, 0), (FIRST, 2), (SECOND, 5)],
        [(FIRST, 1), (FIRST, 2), (FIRST, 3)],
        [(SECOND, 5)],
        [],
    ]
    reads = planned(orders)
    assert Counter(read.place for read in reads).total() == 5
    assert len({read.place for read in reads}) == 5


def test_slices_of_one_object_that_follow_each_other_come_together() -> None:
    (read,) = planned([[(GATEWAY, 7)] * 30])
    assert len(read.slices[name(0)]) == 30


def test_a_gateways_object_is_read_once_between_two_of_the_leader() -> None:
    order: Places = [(FIRST, 0), (GATEWAY, 7), (FIRST, 1)]
    reads = planned([order, order])
    assert [tuple(read.place) for read in reads] == order


def test_partitions_in_opposite_orders_do_not_wait_for_each_other_for_ever() -> None:
    reads = planned([[(FIRST, 0), (SECOND, 0)], [(SECOND, 0), (FIRST, 0)]])
    assert len(reads) == 3


def test_an_object_that_a_partition_needs_twice_is_read_twice() -> None:
    reads = planned([[(FIRST, 0), (GATEWAY, 0), (FIRST, 0)], [(FIRST, 0)]])
    assert len(reads) == 3


@pytest.mark.parametrize("seed", range(20))
def test_whatever_the_orders_every_partition_gets_its_own(seed: int) -> None:
    chance = Random(seed)
    everything: Places = [(chain, n) for chain in (FIRST, SECOND, GATEWAY) for n in range(6)]
    orders = []
    for _ in range(chance.randint(1, 7)):
        some = [place for place in everything if chance.random() < 0.6]
        if seed % 2:
            chance.shuffle(some)
        orders.append([place for place in some for _ in range(chance.randint(1, 3))])
    reads = planned(orders)
    if seed % 2 == 0:  # as they are if nobody has moved
        assert len({read.place for read in reads}) == len(reads)


def test_partitions_without_anything_to_read_are_led_first_and_long_tails_last() -> None:
    least = object_reads.WAVE_BYTES_MIN
    sizes = [0, least // 2, 100 * least, 0, least // 2, least, 9 * least]
    found = waves({name(number): size for number, size in enumerate(sizes)})
    assert found == [[name(0), name(3)], [name(1), name(4)], [name(5)], [name(6)], [name(2)]]


def test_many_partitions_of_one_size_are_few_groups() -> None:
    size = object_reads.WAVE_BYTES_MIN // 4
    found = waves({name(number): size for number in range(60)})
    assert [len(group) for group in found] == [4, 32, 24]
    assert waves({}) == []
    assert waves({name(0): 1 << 40}) == [[name(0)]]
